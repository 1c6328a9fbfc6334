"""Finds or starts Spark, quietly."""

from __future__ import annotations

import atexit
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.base.errors import ConfigurationError, ExternalError
from headrace.base.private import log_directory, process_directory, socket_directory
from headrace.exchanges.spark.exits import VARIABLE as EXITS_VARIABLE
from headrace.exchanges.spark.exits import exits_directory
from headrace.exchanges.spark.java import check_java
from headrace.exchanges.spark.masters import check_master, is_local
from headrace.exchanges.spark.workers import safe_paths

_LAUNCH: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.python.worker.reuse": "true",
    # A worker that crashes leaves its stack, and in which operator it was.
    "spark.python.worker.faulthandler.enabled": "true",
}
_WITHOUT_PAGES: Mapping[str, str] = {
    # Kept for Spark's web pages, and without them all the same: thousands of tasks of epochs that are over.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "60",
    "spark.ui.retainedTasks": "1000",
}

_LOCAL = "spark"
"""Where in the directory of this process Spark keeps its blocks and files, in local mode."""
_UNREGISTERED = "spark-application-"
"""Begins the id that an application gives itself when no master has given it one."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Where options for Java may come from, besides the settings of Spark."""

_SECRET = re.compile("secret|password|token|credential|access[._]?key", re.IGNORECASE)
"""The names of settings that hold secrets, as Spark's own `spark.redaction.regex` has them, and more."""

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
    """The SparkContext to run on, its Java, and where its log goes (None if it was there before)."""

    spark: Any
    log_file: str | None
    java: subprocess.Popen[bytes] | None = None
    is_own: bool = False

    def exit_code(self, *, within: float = 0.0) -> int | None:
        """With which code its Java has ended, or ends within some seconds; None while it runs."""
        return _exit_code(self.java, within=within)

    @property
    def can_restart(self) -> bool:
        """Whether nothing but this context is lost with its Java: we started it, and it has no session."""
        from pyspark.sql import SparkSession

        session = SparkSession._instantiatedSession  # noqa: SLF001 - there is no public way to ask
        return self.is_own and (session is None or session.sparkContext is not self.spark)

    def forget_sockets(self) -> None:
        """Let Java forget the files that it would delete at its end: a socket for each job, long deleted.

        They are in the directory of this process, which deletes that itself.
        """
        if self.is_own and is_local(self.spark.master):
            # Another Java may call it otherwise; then some bytes stay for each job.
            with suppress(Exception):
                hook = self.spark._jvm.java.lang.Class.forName("java.io.DeleteOnExitHook")  # noqa: SLF001
                files = hook.getDeclaredField("files")
                files.setAccessible(True)
                files.get(None).clear()

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
        _forget_ended()
        java = _java()
        active = SparkContext._active_spark_context  # noqa: SLF001 - there is no public way to ask
        launched = _launched
        if launched is not None and active is not None and launched.spark is active:
            if request.master is None or launched.request.launched_with == request.launched_with:
                _share_log(launched.log_file, request.log_dir)
                return SparkRuntime(active, launched.log_file, java, is_own=True)
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
            return SparkRuntime(active, None, java)
        master, memory, conf = request.launched_with
        check_master(master, environ=os.environ)
        check_java()
        log_file = None if request.verbose else _log_file(request.log_dir)
        spark = _start(master, memory, conf, log_file)
        _launched = _Launched(spark, request, log_file)
        return SparkRuntime(spark, log_file, _java(), is_own=True)


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
    java = _java()
    return _failed.is_set() if java is None else _exit_code(java, within=within) is not None


def _java() -> subprocess.Popen[bytes] | None:
    from pyspark import SparkContext

    java: subprocess.Popen[bytes] | None
    java = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - there is no public way to ask
    return java


def _exit_code(java: subprocess.Popen[bytes] | None, *, within: float) -> int | None:
    if java is None:
        return None
    try:
        return java.wait(within)
    except subprocess.TimeoutExpired:
        return None


def _forget_ended() -> None:
    """Make room for a new Spark if the Java of the last one has ended: PySpark would ask it for ever."""
    global _launched  # noqa: PLW0603 - one JVM per process
    from pyspark import SparkContext

    if _exit_code(_java(), within=0) is None:
        return
    if _launched is not None:
        shutil.rmtree(process_directory() / _LOCAL, ignore_errors=True)
    _launched = None
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway  # noqa: SLF001 - as above
    if context is not None:
        context._jsc = None  # noqa: SLF001 - there is nobody to ask for a stop
        context.stop()
    with suppress(Exception):
        if gateway is not None:
            gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - its constructor launches another then


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
    import py4j.java_gateway
    from pyspark import SparkConf, SparkContext

    warnings.filterwarnings("ignore", module=r"pyspark\..*")
    # It would tell the root logger, which then prints whatever anybody logs, when Java ends.
    vars(py4j.java_gateway)["logging"] = logging.getLogger("py4j.java_gateway")
    if is_local(master):
        # Workers must be this interpreter: PySpark otherwise takes whatever `python3` the path has.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if "spark.pyspark.python" in conf:
        # Only `spark-submit` reads the setting; a SparkContext takes the variable.
        os.environ["PYSPARK_PYTHON"] = conf["spark.pyspark.python"]
    settings = {"spark.master": master, "spark.app.name": "headrace", **_LAUNCH}
    settings |= {"spark.driver.memory": memory}
    if is_local(master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        settings |= {_JAVA_OPTIONS: _java_options(conf), **_unix_sockets(), **_local_directory()}
        settings |= {"spark.python.daemon.module": "headrace.exchanges.spark.daemon", **_authentication()}
        settings |= {f"spark.executorEnv.{EXITS_VARIABLE}": str(exits_directory())}
    if conf.get("spark.ui.enabled", "false").lower() == "false":
        settings |= _WITHOUT_PAGES
    settings |= conf
    if log_file is not None:
        config = Path(log_file).with_suffix(".log4j2.properties")
        config.write_text(_LOG4J.format(path=log_file))
        own = f"-Dlog4j2.configurationFile={config.as_uri()}"
        settings[_JAVA_OPTIONS] = " ".join([own, *filter(None, [settings.get(_JAVA_OPTIONS)])])
    spark_conf = SparkConf().setAll(list(settings.items()))
    # Arguments of a process can be read by everybody: secrets come with the SparkContext.
    shown = [(name, value) for name, value in settings.items() if not is_secret(name)]
    try:
        _launch(SparkConf().setAll(shown), log_file)
        context = SparkContext.getOrCreate(spark_conf)
        if context.applicationId.startswith(_UNREGISTERED):
            with suppress(Exception):  # it is being stopped
                context.stop()
            raise ConnectionError("who accepts connections there does not answer as a master")  # noqa: TRY301
    except Exception as error:
        raise ExternalError(
            f"Spark did not start on `{master}`: {_reason(error)}", hint=_see(log_file)
        ) from error
    # When Java ends, it would print a traceback.
    server: Any = context._accumulatorServer  # noqa: SLF001 - there is no public way
    server.handle_error = lambda *_: None
    return context


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
    directory = process_directory() / _LOCAL
    directory.mkdir(mode=0o700, exist_ok=True)
    return {"spark.local.dir": str(directory)}


def _authentication() -> dict[str, str]:
    """Let no other user connect to Spark's ports on this machine: who is let in can run code.

    Without a secret Spark makes one for `local[*]`, but not for `local-cluster`.
    """
    return {"spark.authenticate": "true", "spark.authenticate.secret": secrets.token_hex(32)}


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


def is_secret(name: str) -> bool:
    """Whether a setting of Spark holds a secret, by its name."""
    return _SECRET.search(name) is not None


def _reason(error: BaseException) -> str:
    """What went wrong, in a line: of the stack of Java the first message and the one at its root."""
    text = str(error)
    first = re.search(r"^: [\w.$]+: (.+)", text, re.MULTILINE)
    causes = re.findall(r"^Caused by: [\w.$]+: (.+)", text, re.MULTILINE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    messages = [first[1] if first else (lines or [type(error).__name__])[0], *causes[-1:]]
    return ": ".join(dict.fromkeys(message.strip().rstrip(":") for message in messages))[:500]


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


def _share_log(log_file: str | None, log_dir: str | None) -> None:
    """Let Spark's log be found where a run asks for it, though another of this process has started Spark."""
    if log_file is None or log_dir is None:
        return
    path = Path(_log_file(log_dir))
    try:
        if path.stat().st_size or path.samefile(log_file):
            return
        path.unlink()
        path.hardlink_to(log_file)
    except OSError:  # on another file system
        path.write_text(f"Spark was started by another pipeline of this process: its log is {log_file}\n")


_needed: set[Path] = set()


def keep_log(log_file: str | None) -> None:
    """An error has named this log: it must still be there when the process has ended."""
    if log_file is not None:
        _needed.add(Path(log_file).parent)


def _remove_unless_needed(directory: Path) -> None:
    if directory.resolve() not in _needed:
        shutil.rmtree(directory, ignore_errors=True)


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
