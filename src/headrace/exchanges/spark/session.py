"""Finds or starts Spark, quietly."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.base.errors import ConfigurationError, ExternalError, HeadraceError
from headrace.base.private import log_directory, process_directory
from headrace.exchanges.spark.class_archive import archive_options, discard_archive, make_archive_later
from headrace.exchanges.spark.home import check_home
from headrace.exchanges.spark.java import check_java
from headrace.exchanges.spark.launch import (
    JAVA_OPTIONS,
    LOCAL_DIRECTORY,
    LOG4J,
    bind_pages,
    check_files,
    common_settings,
    given_java_options,
    is_secret,
    launch_settings,
    quick_launcher,
)
from headrace.exchanges.spark.masters import check_master, is_local
from headrace.exchanges.spark.registration import registration
from headrace.exchanges.spark.workers import safe_paths

_UNREGISTERED = "spark-application-"
"""Begins the id that an application gives itself when no master has given it one."""
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""The variable by which `spark-submit` tells a Python driver where its Java listens."""


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

    @functools.cached_property
    def ui_url(self) -> str | None:
        """Where Spark's web pages are, if it serves them."""
        url: str | None = self.spark.uiWebUrl
        return url

    @property
    def cores(self) -> int:
        """How many tasks Spark runs at once."""
        return int(self.spark.defaultParallelism)

    @functools.cached_property
    def grows(self) -> bool:
        """Whether executors are added when there are more tasks."""
        return str(self.spark.getConf().get("spark.dynamicAllocation.enabled", "false")).lower() == "true"


@dataclass(frozen=True)
class SparkRequest:
    """The Spark session that a run needs; without a master, any active one."""

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
_begins = threading.Event()
"""Java is being started, or is there."""
_BEGIN_SECONDS = 3.0
"""How long is waited until it is; importing PySpark takes most of it."""
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
        finally:
            _begins.set()

    def wait(self) -> SparkRuntime:
        self._thread.join()
        if isinstance(self._outcome, SparkRuntime):
            return self._outcome
        raise self._outcome or ExternalError("Spark was not started")


_early: _EarlyStart | None = None


def open_early(request: SparkRequest) -> None:
    """Begin to open Spark in the background; `open_spark` waits for it.

    Java needs seconds to start, and as much time passes until the pipeline is read and checked. Two threads
    that import hold each other up: this returns when Java is being started.
    """
    global _early  # noqa: PLW0603 - one JVM per process
    _begins.clear()
    _early = _EarlyStart(request)
    _begins.wait(_BEGIN_SECONDS)


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
    from pyspark import SparkContext, __version__

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
        if is_submitted():
            _begins.set()
            spark = _join_submitted(request)
            _launched = _Launched(spark, request, None)
            return SparkRuntime(spark, None, None, is_own=True)
        master, memory, conf = request.launched_with
        check_master(master, environ=os.environ)
        check_java()
        check_home(os.environ, __version__)
        check_files(conf)
        log_file = None if request.verbose else _log_file(request.log_dir)
        spark = _start(master, memory, conf, log_file)
        _launched = _Launched(spark, request, log_file)
        return SparkRuntime(spark, log_file, _java(), is_own=True)


def is_submitted() -> bool:
    """Whether `spark-submit` has started this process: it brings its own JVM and settings."""
    return _SUBMITTED in os.environ


def _join_submitted(request: SparkRequest) -> Any:
    """A SparkContext in the Java of `spark-submit`, with its master and settings."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 - as its constructor does
    own = SparkConf(_jvm=SparkContext._jvm)  # noqa: SLF001 - as its constructor does
    master = own.get("spark.master")
    if request.master is not None and request.master != master:
        raise ConfigurationError(
            f"spark-submit runs this on `{master}`, and the pipeline asks for `{request.master}`",
            hint="leave `master` out; spark-submit has --master",
        )
    for name, value in {**common_settings(request.conf), "spark.app.name": "headrace"}.items():
        own.setIfMissing(name, value)
    for name, value in request.conf.items():
        own.set(name, value)
    try:
        return SparkContext.getOrCreate(own)
    except Exception as error:
        raise ExternalError(f"Spark did not start on `{master}`: {_reason(error)}") from error


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


def _end_java() -> None:
    """End the Java of this process, and with it whatever waits for it."""
    java = _java()
    if java is not None:
        java.kill()


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
        shutil.rmtree(process_directory() / LOCAL_DIRECTORY, ignore_errors=True)
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
    from pyspark import SparkConf, SparkContext, __version__

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
    settings = launch_settings(master, memory, conf)
    bind_pages(master, conf)
    if log_file is not None:
        config = Path(log_file).with_suffix(".log4j2.properties")
        config.write_text(LOG4J.format(path=log_file))
        _add_java_options(settings, f"-Dlog4j2.configurationFile={config.as_uri()}")
    java_options = given_java_options(settings)
    if is_local(master):
        _add_java_options(settings, *archive_options(conf, java_options))
    spark_conf = SparkConf().setAll(list(settings.items()))
    # Arguments of a process can be read by everybody: secrets come with the SparkContext.
    shown = [(name, value) for name, value in settings.items() if not is_secret(name)]
    try:
        _launch(SparkConf().setAll(shown), log_file)
        with registration(master, __version__, None if log_file is None else Path(log_file), _end_java):
            context = SparkContext.getOrCreate(spark_conf)
        if context.applicationId.startswith(_UNREGISTERED):
            with suppress(Exception):  # it is being stopped
                context.stop()
            raise ConnectionError("who accepts connections there does not answer as a master")  # noqa: TRY301
    except HeadraceError:
        raise
    except Exception as error:
        raise ExternalError(
            f"Spark did not start on `{master}`: {_reason(error)}", hint=_see(log_file)
        ) from error
    if is_local(master):
        make_archive_later(conf, java_options)
    # When Java ends, it would print a traceback.
    server: Any = context._accumulatorServer  # noqa: SLF001 - there is no public way
    server.handle_error = lambda *_: None
    return context


def _add_java_options(settings: dict[str, str], *options: str) -> None:
    """Put options of Java before those that there are."""
    if options:
        settings[JAVA_OPTIONS] = " ".join([*options, *filter(None, [settings.get(JAVA_OPTIONS)])])


def _launch(conf: Any, log_file: str | None) -> None:
    """Start Java in its own process group; its output and that of Python workers goes to the log.

    A signal to our group, such as `timeout` sends it, asks this process to stop. Java would obey it at once.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:  # noqa: SLF001 - it asks the same before it starts one
        try:
            with safe_paths(), quick_launcher(), ExitStack() as opened:
                options: dict[str, Any] = {"process_group": 0}
                if log_file is not None:
                    log = opened.enter_context(Path(log_file).open("ab"))
                    options |= {"stdout": log, "stderr": log}
                _begins.set()
                gateway = launch_gateway(conf, options)  # type: ignore[no-untyped-call]
        except Exception as error:
            _failed.set()
            discard_archive()
            if words := _words_of_java(log_file):
                raise ConnectionError(f"Java ended: {words}") from error
            raise
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001 - as its constructor does


def _words_of_java(log_file: str | None) -> str:
    """What Java said when it could not start: the beginning of its log, without warnings and stacks."""
    if log_file is None:
        return ""
    with Path(log_file).open(encoding="utf-8", errors="replace") as log:
        lines = (line.strip() for line in log)
        said = [line for line in lines if line and not re.match(r"(at |WARN|NOTE|Picked up )", line)]
    return " ".join(said[:3])


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
    """Make Spark's log available in a run's log directory, though Spark was started without it.

    It was started by another run, or before the directory was known to be of use.
    """
    if log_file is None or log_dir is None:
        return
    path = Path(_log_file(log_dir))
    try:
        if path.stat().st_size or path.samefile(log_file):
            return
        path.unlink()
        path.hardlink_to(log_file)
    except OSError:  # on another file system
        path.write_text(f"Spark's log is {log_file}, and is copied here when its process ends\n")
        atexit.register(_copy_log, Path(log_file), path)


def _copy_log(log_file: Path, path: Path) -> None:
    with suppress(OSError):  # one of the directories is gone
        shutil.copyfile(log_file, path)


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
