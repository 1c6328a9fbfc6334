"""State files: Parquet on the storage, and a local Arrow copy for fast point reads.

A run is written as Parquet (zstd) to the storage and as an uncompressed Arrow file to a cache directory on
this machine. Reads memory-map the Arrow file; a missing one is created from the Parquet file, whose size and
checksum are verified first. A copy ends with the checksum of its state file and with its own: both are
verified when a process first opens it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.base.columns import KEY_HASH, TIMESTAMP
from headrace.base.errors import CorruptStateError, IncompatibleStateError
from headrace.base.intervals import packed_schema, with_types
from headrace.state.cache import cache_directory, cached_name, make_cache
from headrace.state.metadata import FORMAT, StateFile, check_format
from headrace.state.runs import CHUNK, DELETE_KEY, INSERT, OPERATION, RunLayout, Segment
from headrace.storage.base import Storage

Migrate = Callable[[str, int, pa.Table], pa.Table]
"""(table, the version that saved the rows, the rows) → the rows as the declared version has them."""

_ORDER_KEY: Final = b"headrace.order"
_FORMAT_KEY: Final = b"headrace.format"
"""Files of format 1 do not have it."""
_INTERVALS_KEY: Final = b"headrace.intervals"
"""The schema of a file whose columns hold intervals; Parquet has bytes in their place."""
_MAX_OPEN: Final = 256
_MAX_VERIFIED: Final = 16384
_TRAILER_BYTES: Final = 64 + 8


def _cached_path(directory: str, file: StateFile, layout: RunLayout) -> str:
    order = "time" if layout.by_time else "key"
    return os.path.join(directory, cached_name(file.file, f"{file.checksum[:16]}-{order}"))


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


class _HashingFile:
    """A file that computes the checksum of its content while it is written."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by `close`, which Arrow calls
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        self._digest.update(view)
        self._file.write(view)
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def checksum(self) -> str:
        return self._digest.hexdigest()


@dataclass
class _Content:
    """What the metadata of a file say of its rows."""

    rows: int = 0
    tombstones: int = 0
    min_time: int | None = None
    max_time: int | None = None

    def add(self, segment: Segment) -> None:
        self.rows += len(segment)
        self.tombstones += int(np.count_nonzero(segment.operations != INSERT))
        if segment.times is None:
            return
        times = segment.times[segment.operations != DELETE_KEY]
        if len(times):
            first, last = int(times.min()), int(times.max())
            self.min_time = first if self.min_time is None else min(self.min_time, first)
            self.max_time = last if self.max_time is None else max(self.max_time, last)


def write_run(
    batches: Iterable[pa.RecordBatch],
    layout: RunLayout,
    *,
    storage: Storage,
    operator_id: str,
    subtask: int,
    epoch: int,
    order: int,
    level: int,
    low: int,
    high: int,
    compacted: bool,
    cache_dir: str | None,
) -> StateFile | None:
    """Write sorted batches as one new file, Parquet and cached copy; None if there were no rows."""
    path = run_path(
        epoch=epoch, operator_id=operator_id, table=layout.table, subtask=subtask, compacted=compacted
    )
    directory = make_cache(storage.url, cache_dir)
    attempt = os.path.join(directory, uuid.uuid4().hex)
    parquet_path, arrow_path = f"{attempt}.parquet.tmp", f"{attempt}.arrow.tmp"
    content = _Content()
    order_name = b"time" if layout.by_time else b"key"
    schema = layout.stored.with_metadata({_ORDER_KEY: order_name})
    own = (KEY_HASH, OPERATION)
    packed = packed_schema(schema)
    if packed != schema:
        packed = packed.with_metadata({**packed.metadata, _INTERVALS_KEY: schema.serialize().to_pybytes()})
    numbers = [field.name for field in packed if field.name not in own and _is_number(field.type)]
    sink = _HashingFile(parquet_path)
    try:
        with (
            pq.ParquetWriter(
                sink,
                packed,
                compression="zstd",
                compression_level=1,
                use_dictionary=[name for name in schema.names if name not in (*numbers, KEY_HASH)],
                # The high bytes of numbers are alike: split, they take half the space and half the time.
                column_encoding=dict.fromkeys(numbers, "BYTE_STREAM_SPLIT"),
            ) as parquet,
            pa.OSFile(arrow_path, "wb") as arrow_sink,
            pa.ipc.new_file(arrow_sink, layout.stored) as arrow,
        ):
            for batch in batches:
                parquet.write_batch(batch if packed == schema else with_types(batch, packed))
                arrow.write_batch(batch)
                content.add(Segment(batch, layout))
        sink.close()
        if not content.rows:
            return None
        file = StateFile(
            file=path,
            epoch=epoch,
            order=order,
            level=level,
            rows=content.rows,
            bytes=sink.size,
            checksum=sink.checksum(),
            min_key=low,
            max_key=high,
            min_time=content.min_time,
            max_time=content.max_time,
            version=layout.version,
            tombstones=content.tombstones,
        )
        _append_trailer(arrow_path, file)
        storage.write_file(path, parquet_path)
        _publish(arrow_path, _cached_path(directory, file, layout))
        return file
    finally:
        sink.close()
        _remove(parquet_path)
        _remove(arrow_path)


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_temporal(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
    )


def read_verified(storage: Storage, file: StateFile) -> pa.Buffer:
    """Read a state file, and verify its size and checksum against the metadata."""
    try:
        data = storage.read(file.file)
    except (FileNotFoundError, IsADirectoryError):
        raise CorruptStateError(
            f"state file `{file.file}` is missing; {file.bytes} bytes with checksum"
            f" {file.checksum[:16]}… were expected",
            where=storage.url,
            hint="restore the file, or resume from an older checkpoint",
        ) from None
    checksum = hashlib.sha256(data).hexdigest()
    if len(data) != file.bytes or checksum != file.checksum:
        raise CorruptStateError(
            f"state file `{file.file}` is damaged: expected {file.bytes} bytes with checksum"
            f" {file.checksum[:16]}…, found {len(data)} bytes with checksum {checksum[:16]}…",
            where=storage.url,
            hint="restore the file, or resume from an older checkpoint",
        )
    content = pa.py_buffer(data)
    try:
        metadata = pq.read_schema(pa.BufferReader(content)).metadata or {}
    except pa.ArrowInvalid as error:
        raise _not_parquet(file, error, where=storage.url) from None
    check_format(int(metadata.get(_FORMAT_KEY, FORMAT)), file.file, where=storage.url)
    return content


def _not_parquet(file: StateFile, error: pa.ArrowInvalid, *, where: str) -> CorruptStateError:
    return CorruptStateError(f"state file `{file.file}` is not readable as Parquet: {error}", where=where)


def read_rows(storage: Storage, file: StateFile) -> pa.Table:
    """Read every row of a state file as stored, verified."""
    content = read_verified(storage, file)
    try:
        table = pq.read_table(pa.BufferReader(content))
    except pa.ArrowInvalid as error:
        raise _not_parquet(file, error, where=storage.url) from None
    own = (table.schema.metadata or {}).get(_INTERVALS_KEY)
    if own is None:
        return table
    schema = pa.ipc.read_schema(pa.py_buffer(own))
    return pa.Table.from_batches([with_types(batch, schema) for batch in table.to_batches()], schema)


class RunFiles:
    """Opens the runs of one storage; recently used ones stay open for all tables of the process."""

    def __init__(
        self,
        storage: Storage,
        *,
        cache_dir: str | None = None,
        migrate: Migrate | None = None,
        use_cache: bool = True,
    ) -> None:
        self.storage = storage
        self.cache_dir = cache_dir
        self._migrate = migrate
        self._use_cache = use_cache

    def segments(self, file: StateFile, layout: RunLayout) -> Sequence[Segment]:
        """Return the rows of a file, in the table's declared version and order."""
        if not self._use_cache or file.version != layout.version:
            return self._from_parquet(file, layout)
        directory = cache_directory(self.storage.url, self.cache_dir)
        key = _cached_path(directory, file, layout)
        with _lock:
            if key in _opened:
                _opened.move_to_end(key)
                return _opened[key]
        segments = self._from_cache(key, file, layout)
        with _lock:
            _opened[key] = segments
            while len(_opened) > _MAX_OPEN:
                _opened.popitem(last=False)
        return segments

    def _from_cache(self, path: str, file: StateFile, layout: RunLayout) -> Sequence[Segment]:
        try:
            return _map(path, file, layout)
        except (FileNotFoundError, pa.ArrowInvalid, ValueError):
            pass  # not there, or cut short by a crash of the machine: made anew from the truth
        directory = make_cache(self.storage.url, self.cache_dir)
        temporary = os.path.join(directory, f"{uuid.uuid4().hex}.arrow.tmp")
        try:
            table = self._sorted_rows(file, layout)
            with pa.OSFile(temporary, "wb") as sink, pa.ipc.new_file(sink, layout.stored) as arrow:
                arrow.write_table(table, max_chunksize=CHUNK)
            _append_trailer(temporary, file)
            _publish(temporary, path)
        finally:
            _remove(temporary)
        try:
            return _map(path, file, layout)
        except FileNotFoundError:  # dropped by another subtask that has just merged the file away
            return [Segment(batch, layout) for batch in _large_batches(table)]

    def _sorted_rows(self, file: StateFile, layout: RunLayout) -> pa.Table:
        table = read_rows(self.storage, file)
        expected = b"time" if layout.by_time else b"key"
        order = (table.schema.metadata or {}).get(_ORDER_KEY)
        try:
            table = table.select(layout.stored.names).cast(layout.stored)
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise IncompatibleStateError(
                f"state file `{file.file}` does not have the columns of table `{layout.table}`: {error}",
                hint="give the table a new version and say how its rows migrate",
            ) from None
        return table if order == expected else _sort(table, layout)

    def _from_parquet(self, file: StateFile, layout: RunLayout) -> Sequence[Segment]:
        if file.version == layout.version:
            table = self._sorted_rows(file, layout)
        else:
            table = _sort(self._migrated(file, layout), layout)
        return [Segment(batch, layout) for batch in _large_batches(table)]

    def _migrated(self, file: StateFile, layout: RunLayout) -> pa.Table:
        if self._migrate is None or file.version > layout.version:
            raise self._no_way(file, layout)
        table = read_rows(self.storage, file)
        inserts = np.asarray(table.column(OPERATION)) == INSERT
        parts = []
        # Tombstones go by themselves: they have nulls wherever a row has values.
        for mask in (inserts, ~inserts):
            rows = table.filter(pa.array(mask))
            if rows.num_rows:
                parts.append(self._migrate_rows(file, layout, rows))
        return pa.concat_tables(parts)

    @staticmethod
    def _no_way(file: StateFile, layout: RunLayout) -> IncompatibleStateError:
        return IncompatibleStateError(
            f"table `{layout.table}` was saved as version {file.version} and is declared as"
            f" version {layout.version}",
            hint="define `migrate_table` on the operator"
            if file.version < layout.version
            else "run the pipeline with the newer code, or start with a new state directory",
        )

    def _migrate_rows(self, file: StateFile, layout: RunLayout, rows: pa.Table) -> pa.Table:
        helpers = rows.select([KEY_HASH, OPERATION])
        old = rows.drop_columns([KEY_HASH, OPERATION])
        assert self._migrate is not None
        try:
            new = self._migrate(layout.table, file.version, old)
        except NotImplementedError:
            raise self._no_way(file, layout) from None
        problem = None
        if new.num_rows != old.num_rows:
            problem = f"gave {new.num_rows} rows for {old.num_rows}"
        elif set(new.schema.names) != set(layout.columns.names):
            problem = f"gave the columns {', '.join(new.schema.names)}"
        if problem is None:
            plain = pa.schema(list(layout.stored)[: len(layout.columns)])
            new = new.select(plain.names).cast(plain)
            hashes = helpers.column(KEY_HASH).to_numpy()
            if layout.key and not np.array_equal(layout.hash_key(new), hashes):
                problem = "changed the key of rows, which decides the subtask they belong to"
        if problem is not None:
            raise IncompatibleStateError(
                f"the migration of table `{layout.table}` from version {file.version} {problem}",
                hint=f"return one row for each row, with the columns {', '.join(layout.columns.names)}",
            )
        for name in (KEY_HASH, OPERATION):
            new = new.append_column(layout.stored.field(name), helpers.column(name))
        return new


_opened: OrderedDict[str, Sequence[Segment]] = OrderedDict()
_verified: OrderedDict[str, tuple[int, int, int]] = OrderedDict()
"""Copies that this process has written or verified, and what identified the files then."""
_lock = threading.Lock()


def _map(path: str, file: StateFile, layout: RunLayout) -> Sequence[Segment]:
    identity = _identity(path)
    with pa.memory_map(path) as source:
        mapped = source.read_buffer()
    content, trailer = mapped[:-_TRAILER_BYTES], mapped[-_TRAILER_BYTES:]
    with _lock:
        is_verified = _verified.get(path) == identity
    if not is_verified:
        if trailer.to_pybytes() != _trailer(content, file):
            raise ValueError("the cached copy is damaged")
        _mark_verified(path, identity)
    reader = pa.ipc.open_file(content)
    batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    if sum(batch.num_rows for batch in batches) != file.rows or reader.schema != layout.stored:
        raise ValueError("the cached copy does not match the state file")
    return [Segment(batch, layout) for batch in batches]


def _trailer(content: pa.Buffer, file: StateFile) -> bytes:
    # A CRC finds damage, at four times the speed of a hash. Nobody else can write to the cache.
    return f"{file.checksum:>64}{zlib.crc32(content):08x}".encode()


def _append_trailer(path: str, file: StateFile) -> None:
    with pa.memory_map(path) as source:
        trailer = _trailer(source.read_buffer(), file)
    with open(path, "ab") as copy:
        copy.write(trailer)


def _publish(temporary: str, path: str) -> None:
    identity = _identity(temporary)
    os.replace(temporary, path)
    _mark_verified(path, identity)


def _identity(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    if status.st_uid != os.geteuid():
        raise ValueError("the cached copy belongs to another user")
    return status.st_ino, status.st_size, status.st_mtime_ns


def _mark_verified(path: str, identity: tuple[int, int, int]) -> None:
    with _lock:
        _verified[path] = identity
        while len(_verified) > _MAX_VERIFIED:
            _verified.popitem(last=False)


def _sort(table: pa.Table, layout: RunLayout) -> pa.Table:
    hashes = table.column(KEY_HASH).to_numpy()
    order = np.argsort(hashes, kind="stable")
    if layout.by_time:
        timed = table.column(OPERATION).to_numpy() != DELETE_KEY
        times = table.column(TIMESTAMP).cast(pa.int64()).fill_null(0).to_numpy()
        order = np.lexsort((times, timed))
    return table.combine_chunks().take(pa.array(order))


def _large_batches(table: pa.Table) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = table.combine_chunks().to_batches(max_chunksize=CHUNK)
    return batches


def run_path(*, epoch: int, operator_id: str, table: str, subtask: int, compacted: bool) -> str:
    """Return a new file name for a run, unique to this attempt."""
    suffix = "-compacted" if compacted else ""
    return (
        f"{operator_directory(epoch, operator_id)}/"
        f"table-{table}-{subtask:03}-{uuid.uuid4().hex}{suffix}.parquet"
    )


def checkpoint_directory(epoch: int) -> str:
    """Return the directory of an epoch."""
    return f"checkpoints/checkpoint-{epoch:07}"


def operator_directory(epoch: int, operator_id: str) -> str:
    """Return the directory of one operator in an epoch."""
    return f"{checkpoint_directory(epoch)}/operator-{operator_id}"
