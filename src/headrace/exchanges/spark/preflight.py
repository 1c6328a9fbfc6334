"""Asks the executors of a cluster, before the first epoch, whether they can run tasks of Headrace.

Without it a missing package fails the first epoch as often as it is tried, with another message.
"""

from __future__ import annotations

import platform
import re
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from pyspark import cloudpickle

from headrace.base.errors import ConfigurationError, ExternalError, HeadraceError
from headrace.base.waits import Waits
from headrace.exchanges.spark import probe
from headrace.exchanges.spark.masters import cores_of, is_local
from headrace.exchanges.spark.session import SparkRuntime
from headrace.storage.base import Storage

PACKAGES: Final = ("numpy", "pyarrow", "pydantic", "cloudpickle", "datafusion", "headrace")
"""What every task imports, in the order it is asked for; Headrace itself is shipped."""
_PATIENCE = 5.0
"""Seconds after which the user is told that the cluster has given no executor yet."""
_EXECUTORS = "an executor of Spark"
_MEND: Final = (
    "pack this environment with `headrace ship-env env.tar.gz` and add --conf spark.archives=env.tar.gz#env "
    "--conf spark.pyspark.python=./env/bin/python; or set PYSPARK_PYTHON to a Python {version} on the "
    "workers that has Headrace installed"
)
_OTHER_VERSION = re.compile(
    r"different version:? (?:\()?(\d[\d., ]*\d)\)? than (?:that in )?(?:the )?driver", re.IGNORECASE
)
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"')
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")


def check_executors(runtime: SparkRuntime, storage: Storage, waits: Waits) -> None:
    """Run one small job that asks the executors for their Python, packages and access to the state directory.

    Raises a ConfigurationError, which is not retried, that says what is missing and the line that mends it.
    Nothing is asked in local mode without executors, whose workers are this interpreter. Returns early when
    the run is told to stop.
    """
    context = runtime.spark
    if is_local(context.master) and not context.master.startswith("local-cluster"):
        return
    token = f"preflight-{secrets.token_hex(6)}"
    storage.write(token, b"")
    try:
        answers = _ask(runtime, probe.Question(PACKAGES, str(storage.url), token), waits)
    finally:
        storage.delete(token)
    for answer in answers:
        _check(answer, str(storage.url))


def _ask(runtime: SparkRuntime, question: probe.Question, waits: Waits) -> list[dict[str, Any]]:
    """The answers of the tasks; none if the run is told to stop before."""
    context, group = runtime.spark, f"headrace-preflight-{secrets.token_hex(4)}"
    # As many tasks as run at once: a task for every slot reaches every executor that is there.
    tasks = max(2, cores_of(context.master) or 0, int(context.defaultParallelism))
    outcome: list[list[dict[str, Any]] | BaseException] = []

    def run() -> None:
        try:
            context.setJobGroup(group, "headrace: what the executors have")
            outcome.append(_collect(context, question, tasks))
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            outcome.append(error)

    thread = threading.Thread(target=run, name="headrace-preflight", daemon=True)
    thread.start()
    began = time.monotonic()
    while thread.is_alive() and not waits.is_stopping:
        thread.join(0.1)
        if thread.is_alive() and time.monotonic() - began > _PATIENCE and not _has_executors(context):
            waits.failed(_EXECUTORS, _missing_executors(context))
    waits.answered(_EXECUTORS)
    if not outcome:  # told to stop
        with suppress(Exception):
            context.cancelJobGroup(group)
        return []
    answers = outcome[0]
    if isinstance(answers, BaseException):
        raise _failure(answers, runtime.log_file) from answers
    return answers


def _collect(context: Any, question: probe.Question, tasks: int) -> list[dict[str, Any]]:
    """Send the question by value: workers may lack its module."""
    answers: list[dict[str, Any]]
    cloudpickle.register_pickle_by_value(probe)  # type: ignore[no-untyped-call]
    try:
        answers = context.parallelize(range(tasks), tasks).mapPartitions(question).collect()
    finally:
        cloudpickle.unregister_pickle_by_value(probe)  # type: ignore[no-untyped-call]
    return answers


def _has_executors(context: Any) -> bool:
    """Whether any executor has come; the driver is counted too."""
    with suppress(Exception):  # Spark may end meanwhile, and the job says so
        return int(context._jsc.sc().getExecutorMemoryStatus().size()) > 1  # noqa: SLF001 - no public way
    return True


def _missing_executors(context: Any) -> str:
    conf = context.getConf()
    cores = conf.get("spark.executor.cores", "1 or more")
    memory = conf.get("spark.executor.memory", "1g")
    return (
        f"`{context.master}` has given none yet: check that it has workers with {cores} cores and {memory} "
        "of memory free (spark.executor.cores, spark.executor.memory), and that they reach this machine "
        "(spark.driver.host)"
    )


def _check(answer: Mapping[str, Any], url: str) -> None:
    """Raise what is wrong with one worker."""
    worker = f"{answer['python']} on {answer['host']}"
    missing = [name for name, version in answer["modules"].items() if version is None]
    if missing:
        broken: Mapping[str, str] = answer["broken"]
        reasons = "; ".join(f"{name}: {broken[name]}" for name in missing if name in broken)
        raise ConfigurationError(
            f"Spark's workers have no {', '.join(missing)}: their Python is {worker} ({answer['version']})"
            + (f" ({reasons})" if reasons else ""),
            hint=mend_hint(),
        )
    if answer["state"] is not None:
        raise ConfigurationError(
            f"Spark's workers cannot use the state directory {url}: {answer['state']}",
            where=answer["host"],
            hint="--state-dir must name a directory that the driver and every worker reach under the same "
            "path and may write to: an object store (s3://…), HDFS, or a mount that all of them have",
        )
    for name in ("datafusion", "pyarrow"):
        own = str(__import__(name).__version__)
        if answer["modules"][name].partition(".")[0] != own.partition(".")[0]:
            raise ConfigurationError(
                f"Spark's workers have {name} {answer['modules'][name]}, and the driver has {own}: their "
                f"Python is {worker}",
                hint=mend_hint(),
            )


def mend_hint() -> str:
    """How workers get the Python and the packages of the driver."""
    return _MEND.format(version=".".join(platform.python_version_tuple()[:2]))


def executor_problem(text: str) -> ConfigurationError | None:
    """What is missing on an executor, if that is what Spark's words about a failed job say."""
    version = platform.python_version()
    if match := _OTHER_VERSION.search(text):
        return ConfigurationError(
            f"Spark's workers have Python {match[1].replace(', ', '.')}, and the driver has {version}: both "
            "must be the same up to the second number",
            hint=mend_hint(),
        )
    if match := _NO_PROGRAM.search(text):
        return ConfigurationError(
            f"Spark's workers have no Python `{match[1]}`",
            hint=mend_hint(),
        )
    if match := _NO_MODULE.search(text):
        return ConfigurationError(f"Spark's workers have no module `{match[1]}`", hint=mend_hint())
    return None


def _failure(error: BaseException, log_file: str | None) -> HeadraceError:
    problem = executor_problem(str(error))
    if problem is not None:
        return problem
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error: " in line or "Exception: " in line]
    reason = (telling or lines or [type(error).__name__])[0][:500]
    return ExternalError(
        f"Spark could not ask its executors what they have: {reason}",
        hint=None if log_file is None else f"Spark's log is here: {log_file}",
    )
