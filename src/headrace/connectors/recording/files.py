"""The directory of a recording: Arrow IPC files per port, and a line of JSON per epoch that says what counts.

    recording.json         the pipeline, and the job that writes here
    epochs.jsonl           a line per epoch: its time, which ports ended, and where the rows of each port are
    PORT/NUMBER.arrows     Arrow IPC streams, one behind the other; a new file after 64 MB

An epoch is recorded when its line is complete. What a killed run has written behind the last line is cut off
by the next one, and so are epochs that a run does again, so every epoch is in the recording once. Lines and
rows have checksums. A new directory and its files are for their owner only, as a state directory is.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from headrace.base.errors import ConfigurationError, ExternalError
from headrace.connectors._shared.file_lock import lock_for_commit
from headrace.state.references import checksum

FILE_BYTES = 64 * 1024 * 1024
"""The size after which a port gets a new file."""
HEADER, EPOCHS = "recording.json", "epochs.jsonl"
_VERSION = 2


@dataclass(frozen=True)
class RecordedSegment:
    """The rows of a port in one epoch: bytes of one of its files."""

    file: str
    start: int
    bytes: int
    rows: int
    checksum: str

    @property
    def end(self) -> int:
        return self.start + self.bytes


@dataclass(frozen=True)
class RecordedEpoch:
    """One epoch of a recording."""

    epoch: int
    time: float
    ended: tuple[str, ...] = ()
    """The ports that have ended by now."""
    stopped: bool = False
    """Whether the run was told to stop, and this is what operators did then."""
    segments: Mapping[str, RecordedSegment] = field(default_factory=dict)

    def to_line(self) -> str:
        segments = {port: [s.file, s.start, s.bytes, s.rows, s.checksum] for port, s in self.segments.items()}
        data = {
            "epoch": self.epoch,
            "time": self.time,
            "ended": list(self.ended),
            "stopped": self.stopped,
            "segments": segments,
        }
        return json.dumps({**data, "checksum": checksum(json.dumps(data).encode())})

    @classmethod
    def from_line(cls, line: str) -> RecordedEpoch:
        """What `to_line` made; a ValueError if the line is another now."""
        try:
            data = json.loads(line)
            segments = {port: RecordedSegment(*values) for port, values in data["segments"].items()}
            epoch = cls(data["epoch"], data["time"], tuple(data["ended"]), data["stopped"], segments)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no epoch: {error}") from None
        if epoch.to_line() != line:
            raise ValueError("its checksum is another")
        return epoch


def to_streams(batches: Iterable[pa.RecordBatch]) -> bytes:
    """Batches as Arrow IPC streams: one for all batches in a row with the same schema."""
    sink = pa.BufferOutputStream()
    for schema, group in groupby(batches, key=lambda batch: batch.schema):
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in group:
                writer.write_batch(batch)
    return bytes(sink.getvalue())


def from_streams(data: bytes) -> Iterator[pa.RecordBatch]:
    """What `to_streams` made."""
    reader = pa.BufferReader(data)
    while reader.tell() < len(data):
        yield from pa.ipc.open_stream(reader)


class RecordingWriter:
    """Appends epochs to a recording, for one job; any epoch may be written again."""

    def __init__(self, directory: Path, *, header: Mapping[str, Any], job_id: str) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = directory / HEADER
        if file.exists():
            if _read_header(file).get("job") != job_id:
                raise ConfigurationError(
                    f"{directory} holds the recording of another run",
                    hint="record into another directory; a recording goes on only with the state directory "
                    "of the run that began it",
                )
        else:
            _write_whole(file, json.dumps({"version": _VERSION, "job": job_id, **header}, indent=2))
        self._last_epoch = 0
        self._segments: dict[str, RecordedSegment] = {}
        """The last segment of each port."""
        self._size = 0
        """The bytes of the lines that count."""
        self._take_up(None)

    def _take_up(self, before: int | None) -> None:
        """Find the end of the recording, or of its epochs before one that is done again."""
        self._last_epoch, self._segments, self._size = 0, {}, 0
        for recorded in _read_epochs(self._directory / EPOCHS):
            if before is not None and recorded.epoch >= before:
                break
            self._last_epoch = recorded.epoch
            self._segments |= recorded.segments
            self._size += len(recorded.to_line()) + 1

    def append(
        self,
        epoch: int,
        time: float,
        streams: Mapping[str, tuple[bytes, int]],
        *,
        ended: Sequence[str] = (),
        stopped: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Write an epoch: of each port the streams and the number of rows. It replaces any from it on.

        `check` is called when nobody else writes any more, and raises an error if this run was replaced.
        """
        index = self._directory / EPOCHS
        with _open_private(index) as file:
            lock_for_commit(file, index, where="recorder")
            check()
            if epoch <= self._last_epoch or os.fstat(file.fileno()).st_size != self._size:
                self._take_up(epoch)
            # The line first: what it says of bytes that are written again must not be believed meanwhile.
            file.truncate(self._size)
            segments = {port: self._write(port, data, rows) for port, (data, rows) in streams.items()}
            line = RecordedEpoch(epoch, time, tuple(ended), stopped, segments).to_line()
            file.seek(self._size)
            file.write(f"{line}\n".encode())
            _sync(file)
        self._last_epoch, self._size = epoch, self._size + len(line) + 1
        self._segments |= segments

    def _write(self, port: str, data: bytes, rows: int) -> RecordedSegment:
        last = self._segments.get(port)
        number, start = (1, 0) if last is None else (int(last.file.partition(".")[0]), last.end)
        if start >= FILE_BYTES:
            number, start = number + 1, 0
        folder = self._directory / folder_of(port)
        if not folder.is_dir():
            folder.mkdir(mode=0o700)
            _sync_directory(self._directory)
        name = f"{number:06}.arrows"
        with _open_private(folder / name) as file:
            if file.seek(0, os.SEEK_END) < start:
                raise ExternalError(f"{folder / name} is shorter than the recording says")
            file.truncate(start)  # what a killed run has left behind the last epoch
            file.seek(start)
            file.write(data)
            _sync(file)
        return RecordedSegment(name, start, len(data), rows, checksum(data))


class RecordingReader:
    """A recording, to be read."""

    def __init__(self, directory: Path) -> None:
        if not (directory / HEADER).is_file():
            raise ConfigurationError(
                f"{directory} is not a recording", hint="`headrace record FILE --out DIR` makes one"
            )
        self.directory = directory
        self.header = _read_header(directory / HEADER)
        self.epochs = _read_epochs(directory / EPOCHS)

    @property
    def ports(self) -> tuple[str, ...]:
        """The ports that were recorded, those without rows too."""
        return tuple(self.header["ports"])

    def read(self, port: str, epoch: RecordedEpoch) -> list[pa.RecordBatch]:
        """The batches of a port in an epoch, in their order."""
        segment = epoch.segments.get(port)
        if segment is None:
            return []
        file = self.directory / folder_of(port) / segment.file
        try:
            with file.open("rb") as opened:
                opened.seek(segment.start)
                data = opened.read(segment.bytes)
        except FileNotFoundError:
            raise ConfigurationError(f"{file} is missing", hint=_whole_epochs(epoch)) from None
        if len(data) < segment.bytes:
            raise ConfigurationError(
                f"{file} is damaged: it ends at byte {segment.start + len(data)}", hint=_whole_epochs(epoch)
            )
        if checksum(data) != segment.checksum:
            raise ConfigurationError(
                f"{file} is damaged: the rows of epoch {epoch.epoch}, {segment.bytes} bytes from byte "
                f"{segment.start} on, have another checksum",
                hint=_whole_epochs(epoch),
            )
        return list(from_streams(data))


def folder_of(port: str) -> str:
    """The folder of a port."""
    return re.sub(r"[^\w.-]", lambda match: f"%{ord(match[0]):02x}", port)


def _whole_epochs(epoch: RecordedEpoch) -> str:
    at = dt.datetime.fromtimestamp(epoch.time, dt.UTC)
    return f"restore it, or replay what is before it: --to {at:%Y-%m-%dT%H:%M:%S}"


def _read_header(file: Path) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(file.read_text())
    except ValueError as error:
        raise ConfigurationError(f"{file} is damaged: {error}") from None
    if header.get("version") != _VERSION:
        raise ConfigurationError(
            f"{file.parent} is a recording of version {header.get('version')}, not {_VERSION}",
            hint="record again with this version of Headrace",
        )
    return header


def _read_epochs(file: Path) -> list[RecordedEpoch]:
    """The epochs of the lines that are complete."""
    if not file.exists():
        return []
    whole, _, _ = file.read_bytes().rpartition(b"\n")
    epochs = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            epochs.append(RecordedEpoch.from_line(line.decode()))
        except ValueError as error:
            raise ConfigurationError(f"{file} is damaged in line {number}: {error}") from None
    return epochs


def _write_whole(file: Path, text: str) -> None:
    staged = file.with_name(f".{file.name}")
    with _open_private(staged) as opened:
        opened.truncate(0)
        opened.write(text.encode())
        _sync(opened)
    staged.replace(file)
    _sync_directory(file.parent)


@contextmanager
def _open_private(file: Path) -> Iterator[BinaryIO]:
    """Open a file to read and write it; a new one is for its owner only, and its name is durable."""
    is_new = not file.exists()
    with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as opened:
        if is_new:
            _sync_directory(file.parent)
        yield opened


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
