"""Sessions on a Spark Connect server: opened, given settings and files, and what their failures mean."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from headrace.base.errors import ConfigurationError, ExternalError, HeadraceError, RefusedError, WorkerError
from headrace.base.extras import load_extra
from headrace.exchanges.spark.failures import epoch_failure
from headrace.exchanges.spark.masters import check_master, shown_master

T = TypeVar("T")

ANSWER_SECONDS = 8.0
"""How long a server may take for its first answer."""
_CLOSE_SECONDS = 3.0
"""How long the end of a session is waited for; the server also ends it by itself."""
_OLDEST = (4, 0)
_ROUTES_BY_NUMBER = (4, 1)
"""Since then `repartitionById` sends a row to the partition with the number in a column."""
_MODULE = "pyspark.sql.connect.session"

_SETTINGS: Mapping[str, str] = {
    # An epoch is one job: adaptive execution would make a job of each of its stages.
    "spark.sql.adaptive.enabled": "false",
    # A worker that crashes leaves its stack, and in which operator it was.
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 1024 * 1024),
}
ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_PYTHON = {"spark.pyspark.python": "spark.sql.execution.pyspark.python"}
"""Settings of a SparkContext that a session has under another name."""
_ARCHIVES = "spark.archives"

_GONE = re.compile(
    r"INVALID_HANDLE\.(SESSION|OPERATION)_\w+|stopped SparkContext|SparkContext was shut down"
    # What the client says by itself once it has seen that the server is another one.
    r"|^\[NO_ACTIVE_SESSION\]|^Received incorrect server side session"
)
_UNREACHED = re.compile(r"StatusCode\.(UNAVAILABLE|DEADLINE_EXCEEDED)|RETRIES_EXCEEDED")
_DETAILS = re.compile(r'details = "([^"\n]*)')
_NOT_LET_IN = re.compile(r"StatusCode\.(UNAUTHENTICATED|PERMISSION_DENIED)")


class ConnectSession:
    """A session of our own on a server, with its own settings, files and workers."""

    def __init__(self, spark: Any, address: str) -> None:
        self.spark = spark
        self.address = address
        self.version: tuple[int, ...] = ()
        """The numbers of the server's version."""

    @functools.cached_property
    def cores(self) -> int:
        """How many tasks the server runs at once."""
        partitions = self.spark.range(10_000).selectExpr("spark_partition_id() AS partition")
        try:
            return int(partitions.selectExpr("max(partition) + 1").toArrow().column(0)[0].as_py())
        except Exception as error:
            raise failure(error, self.address) from error

    @functools.cached_property
    def grows(self) -> bool:
        """Whether executors are added when there are more tasks."""
        return str(self.spark.conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true"

    @property
    def routes_by_number(self) -> bool:
        """Whether client and server can send a row to the partition that a column names."""
        return self.version >= _ROUTES_BY_NUMBER and hasattr(self.spark.range(1), "repartitionById")

    def add_file(self, path: str, **kind: bool) -> None:
        """Give the workers of this session a file: `pyfile`, `archive` or `file`."""
        self.spark.addArtifacts(path, **kind)

    def set(self, name: str, value: str) -> None:
        """Change a setting of this session, or say that the server does not let its clients change it."""
        from pyspark.errors import AnalysisException, IllegalArgumentException

        try:
            if name == _ARCHIVES:
                for archive in value.split(","):
                    self.add_file(archive.strip(), archive=True)
            else:
                self.spark.conf.set(_PYTHON.get(name, name), value)
        except (AnalysisException, IllegalArgumentException) as error:
            raise ConfigurationError(
                f"the Spark Connect server at {self.address} does not let its clients set `{name}`: "
                f"{_first_line(error)}",
                hint=f"set it where the server is started (start-connect-server.sh --conf {name}=…), and "
                "leave it out here",
            ) from error
        except OSError as error:
            raise ConfigurationError(f"{name}: {error.strerror}: {error.filename}") from error

    def close(self) -> None:
        """End the session, and with it whatever the server still runs for it."""
        with contextlib.suppress(Exception):
            within(_CLOSE_SECONDS, self.spark.stop)


def active_session() -> Any:
    """The Connect session that this process has opened itself, as a notebook does; else None."""
    module = sys.modules.get(_MODULE)
    session = None if module is None else module.SparkSession._default_session  # noqa: SLF001 - of all threads
    return None if session is None or session.is_stopped else session


def open_session(master: str | None, conf: Mapping[str, str]) -> ConnectSession:
    """A new session on the server at `master`, or, without one, on the server of the active session.

    A session of our own has settings, files and workers of its own: those of a notebook stay as they are.
    Raises an error within ten seconds if nobody answers.
    """
    _load_client()
    from pyspark.sql.connect.session import SparkSession

    if master is not None:
        check_master(master, environ=os.environ)
        address, connection = shown_master(master), master
    else:
        client = active_session().client
        address, connection = f"sc://{client.host}", client._builder  # noqa: SLF001 - there is no public way
    try:
        spark = SparkSession(connection)
    except ValueError as error:
        raise ConfigurationError(
            f"`{address}` is not the address of a Spark Connect server: {_first_line(error)}",
            hint="write sc://host:15002, and behind it what the server asks for: sc://host:443/;token=…",
        ) from error
    session = ConnectSession(spark, address)
    try:
        _greet(session)
        for name, value in {**_SETTINGS, **conf}.items():
            session.set(name, value)
    except BaseException:
        session.close()
        raise
    return session


def _load_client() -> None:
    from pyspark import __version__

    if _numbers(__version__) < _OLDEST:
        raise ConfigurationError(
            f"Spark Connect needs PySpark 4.0 or newer here, and this is {__version__}",
            hint="pip install 'headrace[connect]' 'pyspark>=4.0'",
        )
    # Its warnings go to standard error, one for each process that is started meanwhile.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    for module, package in (
        ("grpc", "grpcio"),
        ("grpc_status", "grpcio-status"),
        ("google.rpc", "googleapis-common-protos"),
        ("zstandard", "zstandard"),
    ):
        load_extra(module, feature="Spark Connect", extra="connect", package=package)
    warnings.filterwarnings("ignore", module=r"pyspark\..*")
    logging.getLogger("grpc").addHandler(logging.NullHandler())


def _greet(session: ConnectSession) -> None:
    """Wait for the server's version, and limit how long its client retries by itself."""
    import grpc
    from pyspark.sql.connect.client.retries import DefaultPolicy

    client = session.spark.client
    # The epoch is tried again, in a new session if need be, when the client gives up after some five seconds.
    client.set_retry_policies([DefaultPolicy(max_retries=5, initial_backoff=50, max_backoff=2_000)])

    def greet() -> str:
        grpc.channel_ready_future(client._channel).result(timeout=ANSWER_SECONDS)  # noqa: SLF001 - no public way
        return str(session.spark.version)

    try:
        session.version = _numbers(within(ANSWER_SECONDS, greet))
    except (TimeoutError, grpc.FutureTimeoutError) as error:
        raise ExternalError(
            f"who accepts connections at `{session.address}` does not answer as a Spark Connect server",
            hint="check the port (15002 by default; 7077 is a standalone master's), and whether the server "
            "asks for TLS: sc://host:443/;use_ssl=true",
        ) from error
    except Exception as error:
        raise failure(error, session.address) from error


def within(seconds: float, action: Callable[[], T]) -> T:
    """The result of an action; a TimeoutError if it takes longer, and it is left alone."""
    results: list[T] = []
    errors: list[BaseException] = []

    def act() -> None:
        try:
            results.append(action())
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits
            errors.append(error)

    thread = threading.Thread(target=act, name="headrace-connect", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError
    if errors:
        raise errors[0]
    return results[0]


def failure(error: Exception, address: str) -> HeadraceError:
    """What a failed call to the server means."""
    if isinstance(error, HeadraceError):
        return error
    text = str(error)
    if match := _NOT_LET_IN.search(f"{text} {getattr(error, '_grpc_status_code', '')}"):
        return RefusedError(
            f"the Spark Connect server at `{address}` does not let this client in: {_details(text)}",
            hint=f"it says {match[1]}: check the token (sc://host:443/;token=…) and the rights of its user",
        )
    if is_lost(error):
        what = (
            "has closed the session of this run"
            if _GONE.search(text)
            else f"cannot be reached any more: {_details(text)}"
        )
        return WorkerError(
            f"the Spark Connect server at `{address}` {what}",
            hint="check that it runs and that this machine reaches it; nothing that was committed is lost: "
            "the same command with the same --state-dir goes on from the last checkpoint",
        )
    from pyspark.errors import PySparkException

    return epoch_failure(
        error,
        is_spark=isinstance(error, PySparkException),
        see_log=f"the log of the Spark Connect server at {address} may say more",
        local_workers=False,
    )


def is_lost(error: Exception) -> bool:
    """Whether a call failed because the session or its server is lost."""
    text = f"{error} {getattr(error, '_grpc_status_code', '')}"
    return _GONE.search(text) is not None or _UNREACHED.search(text) is not None


def _details(text: str) -> str:
    """The message of a gRPC failure, without gRPC's framing."""
    match = _DETAILS.search(text)
    return match[1] if match else _first_line(text)


def _first_line(error: object) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
