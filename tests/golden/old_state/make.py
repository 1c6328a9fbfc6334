"""Writes the state directories that `tests/golden/test_old_state.py` resumes, and the rows expected of them.

    python tests/golden/old_state/make.py [CASE …]

It was run once for each case, and is not run again for it: the archives are what earlier code wrote. For a
new format add folders of new cases and name them in the call; it refuses to replace an archive.

    commit 9a3b58f   all but the following: version 0.1.0, format 1, before the modules moved
    commit 07129dd   `checked_…`: format 1, with checksums of pipeline.json, referenced files, received logs
    commit f0f6e2d   `claimed_…`: format 2, with generations; two runs wrote each, but for the process

A case is a folder with `pipeline.sql`, `pipeline.yml` or `pipeline.py`. Its paths are relative, so that no
state holds the directory that it was written in. For each case this writes

- `stopped.tar.gz`: the state and the output of a run that was stopped after some epochs;
- `killed.tar.gz`: those of a run that ended after the commit point of an epoch, before its sinks committed;
- `expected.json`: the rows that each output has in the end, from a run that was not interrupted.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
# The code beside this file, whichever is installed; in processes that a dataflow starts as well.
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
os.environ["PYTHONPATH"] = str(ROOT / "src")

import headrace  # noqa: E402
from headrace.testing.in_process import CrashError, ManualClock, run_in_process  # noqa: E402
from tests.golden.old_state.cases import (  # noqa: E402
    CASES,
    PROCESSES,
    RESULTS,
    clock_for,
    lay_out,
    load,
    read_rows,
)

EPOCHS = 5
"""After how many epochs a run is stopped or killed."""
OPTIONS = headrace.RunOptions(keep_checkpoints=2, compact_after=3)
RUN: dict[str, Any] = {"parallelism": 2, "epoch_rows": 7, "options": OPTIONS}


def main(names: list[str]) -> None:
    assert Path(headrace.__file__).is_relative_to(ROOT / "src"), headrace.__file__
    archives = [archive for name in names or CASES for archive in (HERE / name).glob("*.tar.gz")]
    if archives:
        raise SystemExit(f"{archives[0]} is there already, and an archive stays as it was written")
    for name in names or CASES:
        expected = _whole(name)
        (HERE / name / RESULTS).write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
        for how in ("stopped", "killed"):
            _interrupted(name, how)


def _whole(name: str) -> dict[str, list[str]]:
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        lay_out(name, Path())
        result = run_in_process(load(), "state", parallelism=1, clock=clock_for(name))
        assert result.reason == "finished", result
        return read_rows(Path("out"))


def _interrupted(name: str, how: str) -> None:
    clock, more = clock_for(name), EPOCHS

    def crash(step: str, epoch: int) -> None:
        if how == "killed" and isinstance(clock, ManualClock):
            clock.advance(0.8)
        if how == "killed" and (step, epoch) == ("metadata_written", EPOCHS):
            raise CrashError

    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        lay_out(name, Path())
        before = {path for path in Path().rglob("*") if path.is_file()}
        Path("slow").touch()
        if name.startswith("claimed_") and name not in PROCESSES:
            first = run_in_process(
                load(), "state", **{**RUN, "max_epochs": 2, "parallelism": 3, "seed": 3, "clock": clock}
            )
            assert first.reason == "max_epochs", first
            more -= 2
        with contextlib.suppress(CrashError):
            result = run_in_process(
                load(), "state", max_epochs=more, seed=1, clock=clock, on_step=crash, **RUN
            )
            assert result.reason == "max_epochs", result
        Path("slow").unlink()
        written = sorted(path for path in Path().rglob("*") if path.is_file() and path not in before)
        (HERE / name / f"{how}.tar.gz").write_bytes(_archive(written, scratch))


def _archive(files: list[Path], scratch: str) -> bytes:
    """The files without the times and the names of who wrote them."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for file in files:
            content = file.read_bytes()
            assert scratch.encode() not in content, f"{file} names the directory it was written in"
            entry = tarfile.TarInfo(file.as_posix())
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


if __name__ == "__main__":
    main(sys.argv[1:])
