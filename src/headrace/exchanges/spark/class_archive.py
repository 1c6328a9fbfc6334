"""An archive of the classes of Spark, from which Java starts sooner.

Java otherwise reads thousands of classes out of Spark's jars, and verifies them, whenever it starts. It can
write them, verified and laid out, into a file that later processes map: class data sharing. The file fits one
Java and one set of jars, so it is made once per installation, by a process in the background, when the first
process that has started Spark in local mode has ended. Java itself checks that an archive fits, and starts
without it if it does not.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from headrace.base.errors import ConfigurationError
from headrace.base.private import private_directory
from headrace.exchanges.spark.java import java_home

_CHOSEN: Final = re.compile(r"-Xshare|SharedArchive|ArchiveClassesAtExit")
"""Options of somebody who has chosen an archive of their own, or none."""
_CLASS_PATH: Final = "spark.driver.extraClassPath"
_CLASS_PATHS: Final = (
    "SPARK_CONF_DIR",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
)
"""Variables of which Spark makes its class path: an archive is of one class path."""
_COMPLETE: Final = (0xF00BABA8).to_bytes(4, sys.byteorder)
"""Begins an archive; Java writes it last."""
_FAILED: Final = ".failed"
_RETRY_SECONDS: Final = 7 * 24 * 3600
_UNUSED_SECONDS: Final = 60 * 24 * 3600
_PARENT_SECONDS: Final = 600
_MAKER_SECONDS: Final = 600


def archive_options(conf: Mapping[str, str], java_options: str) -> list[str]:
    """The options by which a Spark in local mode uses the archive, if there is one.

    `java_options` are those that are given in other ways: whoever chooses an archive there, or none with
    `-Xshare:off`, is left alone.
    """
    archive = _archive_for(conf, java_options)
    if archive is None or not _is_complete(archive):
        return []
    with contextlib.suppress(OSError):
        os.utime(archive)
    return [f"-XX:SharedArchiveFile={archive}"]


def make_archive_later(conf: Mapping[str, str], java_options: str) -> None:
    """Let the archive be made when this process has ended, if there is none; Spark has started with these."""
    global _is_registered  # noqa: PLW0603 - of this process
    archive = _archive_for(conf, java_options)
    if archive is not None and not _is_registered and not _is_complete(archive) and not _has_failed(archive):
        _is_registered = True
        atexit.register(_start_maker, os.getpid())


def _archive_for(conf: Mapping[str, str], java_options: str) -> Path | None:
    """The archive that fits; None if none is wanted, or there is no place for it."""
    if _CHOSEN.search(java_options) or _CLASS_PATH in conf:
        return None
    try:
        archive = _archive()
    except (OSError, ConfigurationError):
        return None
    # Spark takes the path for a part of an option.
    return archive if re.fullmatch(r"[\w./@+-]+", str(archive)) else None


def _archive() -> Path:
    """Where the archive of this Java and these jars is, or will be."""
    from pyspark.find_spark_home import _find_spark_home

    home, jars = java_home(), Path(_find_spark_home(), "jars")
    key = hashlib.sha256("\0".join([str(home), str(jars), *_class_paths()]).encode())
    for file in (home / "release", home / "lib" / "modules", *sorted(jars.iterdir())):
        with contextlib.suppress(FileNotFoundError):
            status = file.stat()
            key.update(f"{file.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return Path(private_directory("java"), f"spark-{key.hexdigest()[:16]}.jsa")


def _class_paths() -> Iterator[str]:
    for name in _CLASS_PATHS:
        yield f"{name}={os.environ.get(name, '')}"


def discard_archive() -> None:
    """Remove the archive, because Java has not started: it ends at once if a part of the file is missing."""
    with contextlib.suppress(OSError, ConfigurationError):
        _archive().unlink()


def _is_complete(archive: Path) -> bool:
    try:
        with archive.open("rb") as file:
            return file.read(len(_COMPLETE)) == _COMPLETE
    except OSError:
        return False


def _has_failed(archive: Path) -> bool:
    """Whether Java could not make it some days ago."""
    with contextlib.suppress(FileNotFoundError):
        return time.time() - archive.with_suffix(_FAILED).stat().st_mtime < _RETRY_SECONDS
    return False


_is_registered = False


def _start_maker(owner: int) -> None:
    """Start the process that makes the archive once this one, the owner, has ended."""
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(owner)],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )


class _OutOfTimeError(BaseException):
    """The machine has other work. It is no failure of Spark's, and nothing on its way may take it for one."""


def make(archive: Path) -> None:
    """Start Spark, do what an epoch does, and let Java write the classes that it has loaded."""
    with _only_maker(archive.parent) as is_mine:
        if not is_mine or _is_complete(archive):
            return
        _remove_old(archive.parent)
        unfinished = archive.with_suffix(".tmp")
        try:
            _run_spark(unfinished)
            if not _is_complete(unfinished):
                raise OSError("Java has written no archive")  # noqa: TRY301 - as other failures
            with unfinished.open("rb") as written:
                os.fsync(written.fileno())
            unfinished.replace(archive)
        except _OutOfTimeError:
            return  # the next process tries it again
        except Exception as error:  # noqa: BLE001 - whatever it was, Spark starts without an archive
            archive.with_suffix(_FAILED).write_text(f"{error}\n", encoding="utf-8")
        finally:
            unfinished.unlink(missing_ok=True)


@contextmanager
def _only_maker(folder: Path) -> Iterator[bool]:
    """Keep other makers out; the block is told whether one is at work."""
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def _remove_old(folder: Path) -> None:
    """Remove archives of installations that have not been used for a long time."""
    for file in folder.glob("spark-*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - file.stat().st_mtime > _UNUSED_SECONDS:
                file.unlink()


def _run_spark(archive: Path) -> None:
    """Run jobs as those of epochs in a Spark that writes its classes at the end."""
    from headrace.exchanges.spark.session import SparkRequest, open_spark, stop_session

    option = {"spark.driver.defaultJavaOptions": f"-XX:ArchiveClassesAtExit={archive}"}
    runtime = open_spark(SparkRequest("local[2]", "1g", option))
    java, context = runtime.java, runtime.spark
    if java is None or java.stdin is None:
        raise OSError("Java was started by somebody else")
    for _ in range(3):
        context.setJobGroup("headrace", "classes")
        plan = context.broadcast(bytes(1000))
        rows = context.parallelize(range(2), 2).mapPartitionsWithIndex(_addressed)
        rows = rows.partitionBy(2, _own_number).mapPartitionsWithIndex(_passed_on)
        rows.collect()
        plan.destroy()
    stop_session()
    java.stdin.close()
    java.wait()


def _addressed(partition: int, _numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    yield from ((to, bytes(partition)) for to in range(2))


def _own_number(to: int) -> int:
    return to


def _passed_on(_partition: int, arrived: Iterable[Any]) -> Iterator[Any]:
    yield from arrived


def _wait_for_end(process: int) -> None:
    """Wait until the process that has started this one has ended."""
    until = time.monotonic() + _PARENT_SECONDS
    while os.getppid() == process and time.monotonic() < until:
        time.sleep(0.2)


def _give_up(_signal: int, _frame: FrameType | None) -> None:
    raise _OutOfTimeError


if __name__ == "__main__":
    _wait_for_end(int(sys.argv[1]))
    os.nice(19)
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(_MAKER_SECONDS)
    make(_archive())
