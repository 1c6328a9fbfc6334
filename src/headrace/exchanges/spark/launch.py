"""The settings that a Spark of our own is started with."""

from __future__ import annotations

import glob
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headrace.base.errors import ConfigurationError
from headrace.base.private import process_directory, socket_directory
from headrace.exchanges.spark.exits import VARIABLE as EXITS_VARIABLE
from headrace.exchanges.spark.exits import exits_directory
from headrace.exchanges.spark.masters import address_of, is_kubernetes, is_local

LOCAL_DIRECTORY = "spark"
"""Where in the directory of this process Spark keeps its blocks and files, in local mode."""
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
DAEMON = "headrace.exchanges.spark.daemon"
UI = "spark.ui.enabled"
DAEMON_SETTING = "spark.python.daemon.module"
LOG4J = """\
status = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
logger.client.name = org.apache.spark.deploy.client
logger.client.level = info
logger.standalone.name = org.apache.spark.scheduler.cluster.StandaloneSchedulerBackend
logger.standalone.level = info
"""
"""Where Spark's log goes, and what it says: warnings, and how the application and its executors register."""
_ADDRESS = "SPARK_LOCAL_IP"
"""The variable by which Spark is told where it listens: no setting says it for its web pages."""
_LOOPBACK = "127.0.0.1"
_FILES = ("spark.archives", "spark.files", "spark.jars")
_COMMON: Mapping[str, str] = {
    UI: "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.python.worker.reuse": "true",
    # A worker that crashes leaves its stack, and in which operator it was.
    "spark.python.worker.faulthandler.enabled": "true",
    # Up to so many subtasks a task before a shuffle writes a file for each. Spark does so up to 200, though
    # many files take longer than sorting: docs/concepts/scaling.md has figures.
    "spark.shuffle.sort.bypassMergeThreshold": "16",
}
_WITHOUT_PAGES: Mapping[str, str] = {
    # Kept for Spark's web pages, and without them all the same: thousands of tasks of epochs that are over.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "60",
    "spark.ui.retainedTasks": "1000",
}
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Where options for Java may come from, besides the settings of Spark."""
_LAUNCHER_OPTIONS = "SPARK_LAUNCHER_OPTS"
_QUICKLY = "-XX:TieredStopAtLevel=1"
_SECRET = re.compile("secret|password|token|credential|access[._]?key", re.IGNORECASE)
"""The names of settings that hold secrets, as Spark's own `spark.redaction.regex` has them, and more."""


def common_settings(conf: Mapping[str, str]) -> dict[str, str]:
    """The Spark settings that Headrace needs, started by itself or by `spark-submit`."""
    return {**_COMMON, DAEMON_SETTING: DAEMON, **({} if has_pages(conf) else _WITHOUT_PAGES)}


def launch_settings(master: str, memory: str, conf: Mapping[str, str]) -> dict[str, str]:
    """The settings of a Spark that is started for this master; `conf` is the user's, and comes first."""
    settings = {"spark.master": master, "spark.app.name": "headrace", "spark.driver.memory": memory}
    settings |= common_settings(conf)
    if is_local(master):
        settings |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
        settings |= {JAVA_OPTIONS: _java_options(conf), **_unix_sockets(), **_local_directory()}
        settings |= {f"spark.executorEnv.{EXITS_VARIABLE}": str(exits_directory())}
    return {**settings, **authentication(master), **conf}


def check_files(conf: Mapping[str, str]) -> None:
    """Raise an error if a setting names a file of this machine that is missing; Spark says its name alone."""
    for setting in _FILES:
        for name in filter(None, map(str.strip, conf.get(setting, "").split(","))):
            path = name.partition("#")[0]
            if ":" not in path and not glob.glob(path):  # noqa: PTH207 - Spark takes patterns too
                raise ConfigurationError(
                    f"{setting} names {path}, and there is no such file",
                    hint=f"seen from {Path.cwd()}; `headrace ship-env env.tar.gz` packs this environment",
                )


def has_pages(conf: Mapping[str, str]) -> bool:
    """Whether Spark is to serve its web pages."""
    return conf.get(UI, "false").strip().lower() == "true"


def bind_pages(master: str, conf: Mapping[str, str]) -> None:
    """Let the web pages of a Spark that is started now listen where its driver does, not everywhere.

    That is the loopback address in local mode. On a cluster it is the address that executors reach the driver
    at: as configured, or the one from which this machine reaches the master.
    """
    if not has_pages(conf) or os.environ.get(_ADDRESS):
        return
    configured = conf.get("spark.driver.bindAddress") or conf.get("spark.driver.host")
    own = _LOOPBACK if is_local(master) else _own_address(master)
    address = _as_address(configured) or own
    if address is not None:
        os.environ[_ADDRESS] = address


def _as_address(host: str | None) -> str | None:
    try:
        return None if host is None else str(ipaddress.ip_address(socket.gethostbyname(host)))
    except (OSError, ValueError):
        return None


def _own_address(master: str) -> str | None:
    """The address of this machine on the network of the master."""
    target = address_of(master)
    if target is None:
        return _as_address(socket.gethostname())
    try:
        # A datagram socket is connected without a packet being sent.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def is_secret(name: str) -> bool:
    """Whether a setting of Spark holds a secret, by its name."""
    return _SECRET.search(name) is not None


def _java_options(conf: Mapping[str, str]) -> str:
    """Let Java compile quickly rather than well: rows are computed by the workers, Java moves them.

    Its thorough compiler takes a core for the first minutes, and the workers have two at worst. Java does not
    start with two garbage collectors: whoever has chosen one keeps it. What Java makes lives as long as an
    epoch, and it would let half a gigabyte of it pile up before it looks for garbage.
    """
    java_options = given_java_options(conf)
    collector = [] if re.search(r"-XX:.Use\w+GC", java_options) else ["-XX:+UseParallelGC"]
    chosen = "spark.driver.memory" in conf or re.search(r"-Xmn|NewSize|NewRatio", java_options)
    young = [] if chosen else ["-XX:MaxNewSize=128m"]
    # Java unpacks libraries there, which it loads.
    directory = str(process_directory())
    is_plain = "java.io.tmpdir" not in java_options and re.fullmatch(r"[\w./@+-]+", directory)
    temporary = [f"-Djava.io.tmpdir={directory}"] if is_plain else []
    return " ".join([_QUICKLY, *collector, *young, *temporary])


def given_java_options(settings: Mapping[str, str]) -> str:
    """The options of Java that settings of Spark and the environment have."""
    named = [settings.get(name, "") for name in ("spark.driver.defaultJavaOptions", JAVA_OPTIONS)]
    return " ".join([*named, *(os.environ.get(name, "") for name in _JAVA_VARIABLES)])


@contextmanager
def quick_launcher() -> Iterator[None]:
    """Let the Java that only puts the command line of the other one together compile quickly, too."""
    if os.environ.get(_LAUNCHER_OPTIONS):
        yield
        return
    os.environ[_LAUNCHER_OPTIONS] = _QUICKLY
    try:
        yield
    finally:
        os.environ.pop(_LAUNCHER_OPTIONS, None)


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
    """Put Spark's local files into a private directory; those of killed runs are removed."""
    directory = process_directory() / LOCAL_DIRECTORY
    directory.mkdir(mode=0o700, exist_ok=True)
    return {"spark.local.dir": str(directory)}


def authentication(master: str) -> dict[str, str]:
    """Let nobody connect to Spark's ports who has no part in the run: who is let in can run code.

    Spark makes a secret for `local[*]` and for each application on Kubernetes, but not for `local-cluster`.
    On YARN and on a standalone cluster the services must have the same setting: that is up to the user.
    """
    if is_local(master):
        return {"spark.authenticate": "true", "spark.authenticate.secret": secrets.token_hex(32)}
    return {"spark.authenticate": "true"} if is_kubernetes(master) else {}
