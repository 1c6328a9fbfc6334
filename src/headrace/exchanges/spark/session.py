"""Finds or starts Spark, quietly."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.base.errors import ConfigurationError, ExternalError
from headrace.base.private import log_directory, process_directory, socket_directory
from headrace.exchanges.spark.workers import safe_paths

_LAUNCH: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.python.worker.reuse": "true",
}

_OLDEST_JAVA = 17
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Where options for Java may come from, besides the settings of Spark."""

_LOG4J = """\
status = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
"""


@dataclass(frozen=True)
class SparkRuntime:
    """The SparkContext to run on, and where its log goes (None if it was there before)."""

    spark: Any
    log_file: str | None

    @property
    def cores(self) -> int:
        """How many tasks Spark runs at once."""
        return int(self.spark.defaultParallelism)


@dataclass(frozen=True)
class SparkRequest:
    """The Spark that a run asks for; without a master, any that is there."""

    master: str | None
    memory: str
    conf: Mapping[str, str]
    log_dir: str | None = None
    verbose: bool = False

    @property
    def launched_with(self) -> tuple[str, str, Mapping[str, str]]:
        """What cannot be changed once Java runs."""
        return self.master or "local[*]", self.memory, self.conf


@dataclass(frozen=True)
class _Launched:
    """The Spark that this process started itself."""

    spark: Any
    request: SparkRequest
    log_file: str | None


_launched: _Launched | None = None
_failed = threading.Event()
"""Java was started, and ended before Spark did anything."""
_lock = threading.RLock()
"""Held while Spark is looked for, started or stopped: there is one for all pipelines of a process."""
_users = 0
"""How many runs are using Spark now."""


class _EarlyStart:
    """A thread that opens Spark while this process does something else."""

    def __init__(self, request: SparkRequest) -> None:
        self.request = request
        self._outcome: SparkRuntime | BaseException | None = None
        self._thread = threading.Thread(target=self._open, name="headrace-session", daemon=True)
        self._thread.start()

    def _open(self) -> None:
        try:
            self._outcome = _open(self.request)
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits for it
            self._outcome = error

    def wait(self) -> SparkRuntime:
        self._thread.join()
        if isinstance(self._outcome, SparkRuntime):
            return self._outcome
        raise self._outcome or ExternalError("Spark was not started")


_early: _EarlyStart | None = None


def open_early(request: SparkRequest) -> None:
    """Begin to open Spark; `open_spark` waits until it is there.

    Java needs seconds to start, and as much time passes until the pipeline is read and checked.
    """
    global _early  # noqa: PLW0603 - one JVM per process
    _early = _EarlyStart(request)


def open_spark(request: SparkRequest) -> SparkRuntime:
    """The Spark of this process if there is one, else a new one.

    Only a SparkContext is started: a SparkSession takes seconds more, and an epoch needs none.
    """
    global _early
    early, _early = _early, None
    if early is not None:
        early.wait()
    return _open(request)


@contextmanager
def using_spark(request: SparkRequest) -> Iterator[SparkRuntime]:
    """Open Spark, and keep it from being replaced by another run for as long as the block lasts."""
    global _users  # noqa: PLW0603 - one JVM per process
    open_spark(request)
    with _lock:
        runtime = _open(request)
        _users += 1
    try:
        yield runtime
    finally:
        with _lock:
            _users -= 1


def _open(request: SparkRequest) -> SparkRuntime:
    global _launched  # noqa: PLW0603 - one JVM per process
    from pyspark import SparkContext

    with _lock:
        active = SparkContext._active_spark_context  # noqa: SLF001 - there is no public way to ask
        launched = _launched
        if launched is not None and active is not None and launched.spark is active:
            if request.master is None or launched.request.launched_with == request.launched_with:
                return SparkRuntime(active, launched.log_file)
            if _users:
                raise ConfigurationError(
                    "other pipelines of this process run on a Spark with another master, memory or "
                    f"configuration: `{active.master}`",
                    hint="give all of them the same settings of Spark, or leave `master` out to share it",
                )
            stop_session()
            active = None
        if active is not None:
            running = active.master
            if request.master is not None and request.master != running:
                raise ConfigurationError(
                    f"Spark runs on `{running}` in this process, and the pipeline asks for "
                    f"`{request.master}`",
                    hint="leave `master` out to use the active session, or stop it first",
                )
            return SparkRuntime(active, None)
        master, memory, conf = request.launched_with
        _check_master(master)
        _check_java()
        log_file = None if request.verbose else _log_file(request.log_dir)
        spark = _start(master, memory, conf, log_file)
        _launched = _Launched(spark, request, log_file)
        return SparkRuntime(spark, log_file)


def stop_session() -> None:
    """Stop the Spark that this process started, if it did."""
    global _launched
    launched, _launched = _launched, None
    if launched is not None:
        with _undisturbed(), _silence(launched.log_file):
            try:
                launched.spark.stop()
            except Exception:
                if not is_lost():
                    raise


def is_lost(*, within: float = 0.0) -> bool:
    """Whether the Java that this process started has ended, or does so within some seconds."""
    from pyspark import SparkContext

    java = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - there is no public way to ask
    if java is None:
        return _failed.is_set()
    try:
        java.wait(within)
    except subprocess.TimeoutExpired:
        return False
    return True


atexit.register(stop_session)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A Ctrl-C while everything is being put away changes nothing any more."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start(master: str, memory: str, conf: Mapping[str, str], log_file: str | None) -> Any:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException

    warnings.filterwarnings("ignore", module=r"pyspark\..*")
    if master.startswith("local"):
        # Workers must be this interpreter: PySpark otherwise takes whatever `python3` the path has.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = {"spark.master": master, "spark.app.name": "headrace", **_LAUNCH}
    settings |= {"spark.driver.memory": memory}
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        settings |= {_JAVA_OPTIONS: _java_options(conf), **_unix_sockets(), **_local_directory()}
        settings |= {"spark.python.daemon.module": "headrace.exchanges.spark.daemon"}
    settings |= conf
    if log_file is not None:
        config = Path(log_file).with_suffix(".log4j2.properties")
        config.write_text(_LOG4J.format(path=log_file))
        own = f"-Dlog4j2.configurationFile={config.as_uri()}"
        settings[_JAVA_OPTIONS] = " ".join([own, *filter(None, [settings.get(_JAVA_OPTIONS)])])
    spark_conf = SparkConf().setAll(list(settings.items()))
    try:
        _launch(spark_conf, log_file)
        return SparkContext.getOrCreate(spark_conf)
    except PySparkException as error:
        raise ExternalError(
            f"Spark did not start on `{master}`: {_first_line(error)}", hint=_see(log_file)
        ) from error
    except Exception as error:
        text = _first_line(error)
        raise ExternalError(f"Spark did not start on `{master}`: {text}", hint=_see(log_file)) from error


def _java_options(conf: Mapping[str, str]) -> str:
    """Let Java compile quickly rather than well: rows are computed by the workers, Java moves them.

    Its thorough compiler takes a core for the first minutes, and the workers have two at worst. Java does not
    start with two garbage collectors: whoever has chosen one keeps it. What Java makes lives as long as an
    epoch, and it would let half a gigabyte of it pile up before it looks for garbage.
    """
    java_options = conf.get("spark.driver.defaultJavaOptions", "")
    java_options += " ".join(os.environ.get(name, "") for name in _JAVA_VARIABLES)
    collector = [] if re.search(r"-XX:.Use\w+GC", java_options) else ["-XX:+UseParallelGC"]
    chosen = "spark.driver.memory" in conf or re.search(r"-Xmn|NewSize|NewRatio", java_options)
    young = [] if chosen else ["-XX:MaxNewSize=128m"]
    # Java unpacks libraries there, which it loads.
    directory = str(process_directory())
    is_plain = "java.io.tmpdir" not in java_options and re.fullmatch(r"[\w./@+-]+", directory)
    temporary = [f"-Djava.io.tmpdir={directory}"] if is_plain else []
    return " ".join(["-XX:TieredStopAtLevel=1", *collector, *young, *temporary])


def _unix_sockets() -> dict[str, str]:
    """Let workers be reached over sockets in a directory of our own, where that is possible.

    Over TCP each task waits some 40 ms for a packet that is held back.
    """
    directory = socket_directory() if hasattr(socket, "AF_UNIX") else None
    if directory is None:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(directory),
    }


def _local_directory() -> dict[str, str]:
    """Let Spark keep its blocks and files where only this user can look; a killed run's are cleared."""
    directory = process_directory() / "spark"
    directory.mkdir(mode=0o700, exist_ok=True)
    return {"spark.local.dir": str(directory)}


def _launch(conf: Any, log_file: str | None) -> None:
    """Start Java in a process group of its own; what it and its Python workers say goes to the log.

    A signal to our group, such as `timeout` sends it, asks this process to stop. Java would obey it at once.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:  # noqa: SLF001 - it asks the same before it starts one
        try:
            with safe_paths(), ExitStack() as opened:
                options: dict[str, Any] = {"process_group": 0}
                if log_file is not None:
                    log = opened.enter_context(Path(log_file).open("ab"))
                    options |= {"stdout": log, "stderr": log}
                gateway = launch_gateway(conf, options)  # type: ignore[no-untyped-call]
        except Exception:
            _failed.set()
            raise
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001 - as its constructor does


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


def _see(log_file: str | None) -> str | None:
    keep_log(log_file)
    return None if log_file is None else f"see {log_file}; `headrace doctor` checks the installation"


def _log_file(log_dir: str | None) -> str:
    directory = Path(log_dir) if log_dir else log_directory()
    if not log_dir:
        atexit.register(_remove_unless_needed, directory)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = directory / f"spark-{os.getpid()}.log"
        path.touch()
    except OSError as error:
        raise ConfigurationError(
            f"the log directory {directory} cannot be written: {error.strerror}",
            hint="choose another with --log-dir or [log] dir",
        ) from error
    return str(path.resolve())


_MASTER = re.compile(
    r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|yarn|(spark|k8s|mesos)://.+"
)


def _check_master(master: str) -> None:
    if _MASTER.fullmatch(master) is None:
        raise ConfigurationError(
            f"`{master}` is not a Spark master",
            hint="use local[*], local[4], spark://host:7077, yarn or k8s://…",
        )


_needed: set[Path] = set()


def keep_log(log_file: str | None) -> None:
    """An error has named this log: it must still be there when the process has ended."""
    if log_file is not None:
        _needed.add(Path(log_file).parent)


def _remove_unless_needed(directory: Path) -> None:
    if directory.resolve() not in _needed:
        shutil.rmtree(directory, ignore_errors=True)


def _check_java() -> None:
    """Spark without a fitting Java fails with a message about a gateway: say it before."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        _check_version(Path(home))
        return
    if home:
        raise ConfigurationError(
            f"JAVA_HOME is {home}, and there is no bin/java in it",
            hint="point JAVA_HOME at a Java 17 or newer, or unset it; `headrace doctor` says more",
        )
    if shutil.which("java") is None:
        raise ConfigurationError(
            "Java was not found: Spark needs Java 17 or newer",
            hint="install it (Debian/Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install "
            "openjdk@17), or set JAVA_HOME; `headrace doctor` says more",
        )

    _check_version(Path(str(shutil.which("java"))).resolve().parent.parent)


def _check_version(home: Path) -> None:
    """Read the version from the file that a Java installation has about itself, if it has it."""
    try:
        release = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return
    version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    if version and int(version[1]) < _OLDEST_JAVA:
        raise ConfigurationError(
            f"the Java in {home} is version {version[1]}: Spark needs {_OLDEST_JAVA} or newer",
            hint="install a newer one and point JAVA_HOME at it; `headrace doctor` says more",
        )


@contextmanager
def _silence(log_file: str | None) -> Iterator[None]:
    """Send what this process and its children write on their terminal into the log file.

    The JVM inherits the file descriptors it is started with, and its Python workers inherit the JVM's.
    """
    if log_file is None:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        saved = [(fd, os.dup(fd)) for fd in (1, 2)]
    except OSError:
        yield
        return
    try:
        target = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    except FileNotFoundError:  # the run's directory is gone, and nobody will read what is said now
        target = os.open(os.devnull, os.O_WRONLY)
    try:
        for fd, _ in saved:
            os.dup2(target, fd)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, copy in saved:
            os.dup2(copy, fd)
            os.close(copy)
        os.close(target)


def cores_of(master: str) -> int | None:
    """How many tasks a master URL says it runs at once, if it does."""
    if master == "local":
        return 1
    if match := re.fullmatch(r"local\[(\d+|\*)(?:,\s*\d+)?\]", master):
        return (os.cpu_count() or 1) if match[1] == "*" else int(match[1])
    if match := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master):
        return int(match[1]) * int(match[2])
    return None
