"""Looks for the canary wherever a run of Headrace leaves something: output, files, process arguments."""

from __future__ import annotations

import base64
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.canary.options import CANARY

_FORMS = [
    CANARY.encode(),
    CANARY.encode("utf-16-le"),
    *(base64.b64encode(b"." * shift + CANARY.encode())[4:-4] for shift in range(3)),
]


def holds_canary(content: bytes) -> bool:
    """Whether the canary is in some bytes: as it is, as wide characters, or in base64."""
    return any(form in content for form in _FORMS)


def file_holds_canary(file: Path) -> bool:
    """Whether the canary is in a file; tables are unpacked."""
    content = file.read_bytes()
    if content.startswith(b"PAR1"):
        with contextlib.suppress(pa.ArrowInvalid):
            content += str(pq.read_table(file).to_pylist()).encode()
    return holds_canary(content)


def files_with_canary(folder: Path, *, but: Sequence[Path] = ()) -> list[Path]:
    """The files below a folder that hold the canary."""
    files = [file for file in folder.rglob("*") if file.is_file() and file not in but]
    return [file for file in files if CANARY in str(file) or file_holds_canary(file)]


def is_open_to_others(file: Path, *, below: Path) -> bool:
    """Whether another user could read a file, by its mode and that of the folders it is in."""
    places = [file, *(parent for parent in file.parents if parent != below and below in parent.parents)]
    return all(place.stat().st_mode & 0o005 for place in places)


def _children(pid: int) -> Iterator[int]:
    """A process and all that it has started."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _children(int(child))


def _read(path: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(path).read_bytes()
    return b""


@dataclass
class Watched:
    """A run of the command line, and what could be seen of it while it ran."""

    returncode: int
    output: str
    arguments: dict[int, bytes] = field(default_factory=dict)
    """The arguments of each of its processes."""
    environments: dict[int, bytes] = field(default_factory=dict)
    open_files: set[Path] = field(default_factory=set)
    """Files with the canary that others could have read meanwhile."""

    def variables_with_canary(self) -> set[str]:
        """The names of the variables that any of its processes had with the canary in them."""
        pairs = [pair for environment in self.environments.values() for pair in environment.split(b"\0")]
        return {pair.partition(b"=")[0].decode() for pair in pairs if holds_canary(pair)}


def run_watched(
    arguments: Sequence[object],
    folder: Path,
    *,
    environment: Mapping[str, str],
    meanwhile: Callable[[Mapping[int, bytes]], bool] = lambda _: True,
) -> Watched:
    """Run `headrace` in a folder, with its caches and temporary files below it.

    `meanwhile` is called with the arguments of all processes until it is True.
    """
    places = {name: folder / name for name in ("cache", "tmp", "home")}
    for place in places.values():
        place.mkdir(exist_ok=True)
    own = {
        "XDG_CACHE_HOME": str(places["cache"]),
        "TMPDIR": str(places["tmp"]),
        "HOME": str(places["home"]),
        # As Java does anyway: named, it keeps an archive of classes from being made in each of these places.
        "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Xshare:auto".strip(),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    output = folder / "output.txt"
    with output.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", *map(str, arguments)],
            cwd=folder,
            env={**os.environ, **own, **environment},
            stdout=out,
            stderr=out,
        )
    watched = Watched(0, "")
    done = False
    try:
        while process.poll() is None:
            for pid in set(_children(process.pid)):
                watched.arguments[pid] = _read(f"/proc/{pid}/cmdline") or watched.arguments.get(pid, b"")
                watched.environments[pid] = _read(f"/proc/{pid}/environ") or watched.environments.get(
                    pid, b""
                )
            with contextlib.suppress(OSError):  # files come and go
                for place in places.values():
                    found = files_with_canary(place)
                    watched.open_files |= {file for file in found if is_open_to_others(file, below=place)}
            done = done or meanwhile(watched.arguments)
            threading.Event().wait(0.1)
    finally:
        process.kill()  # only if something has failed here
        process.wait()
    assert done, "what was to happen meanwhile did not happen"
    watched.returncode = process.returncode
    watched.output = output.read_text(errors="replace")
    output.unlink()
    time.sleep(0.5)  # for what Java does after its parent
    return watched
