"""Asks the executors of a cluster, before the first epoch, whether they can run tasks of Headrace.

Without it a missing package fails the first epoch as often as it is tried, with another message.
"""

from __future__ import annotations

import functools
import importlib
import json
import platform
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from headrace.base.errors import ConfigurationError, ExternalError, HeadraceError
from headrace.base.waits import Waits
from headrace.exchanges.spark import probe
from headrace.exchanges.spark.masters import cores_of, is_local
from headrace.exchanges.spark.session import SparkRuntime
from headrace.storage.base import Storage

PACKAGES: Final = ("numpy", "pyarrow", "pydantic", "cloudpickle", "datafusion", "headrace")
"""What every task imports, in the order it is asked for; Headrace itself is shipped."""
SAME: Final = ("datafusion", "pyarrow")
"""Of which driver and workers must have the same major version."""
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
_UNFIT = re.compile(re.escape(probe.UNFIT) + r"(\{.*)")
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]*)"')
_NO_PACKAGE = re.compile(r"\[PACKAGE_NOT_INSTALLED\] (\w+)")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")


class Preflight:
    """Asks executors once for their Python, their packages and access to the state directory.

    `claim` names the file in the state directory by which the run owns it. Nothing is asked in local mode
    without executors, whose workers are this interpreter.
    """

    def __init__(self, storage: Storage, claim: str, waits: Waits) -> None:
        versions = {name: _own_version(name) if name in SAME else None for name in PACKAGES}
        self.question = probe.Question(versions, str(storage.url), claim)
        self.waits = waits
        self._asked: frozenset[str] = frozenset()

    def question_for(self, runtime: SparkRuntime) -> probe.Question | None:
        """The check of each worker before its first task; None in local mode.

        Executors may come at any time, and one that writes state to a disk of its own loses it.
        """
        return self.question if _has_own_workers(runtime.spark.master) else None

    def check(self, runtime: SparkRuntime) -> None:
        """Run one small job that checks the executors, if there are unchecked ones.

        Raises a ConfigurationError, which is not retried, that says what is missing and the line that mends
        it. Returns early when the run is told to stop.
        """
        if not _has_own_workers(runtime.spark.master):
            return
        executors = _executors(runtime.spark)
        if self._asked and executors <= self._asked:
            return
        check_answers(_ask(runtime, self.question, self.waits), self.question)
        self._asked = executors


def check_answers(answers: Iterable[Mapping[str, Any]], question: probe.Question) -> None:
    """Raise what is wrong with the first worker that cannot run tasks."""
    for answer in answers:
        _check(answer, question.url)


def _has_own_workers(master: str) -> bool:
    return not is_local(master) or master.startswith("local-cluster")


def _own_version(name: str) -> str:
    return str(importlib.import_module(name).__version__)


def _ask(runtime: SparkRuntime, question: probe.Question, waits: Waits) -> list[dict[str, Any]]:
    """The results of the tasks; none if the run is stopped before."""
    context, group = runtime.spark, f"headrace-preflight-{secrets.token_hex(4)}"
    # As many tasks as run at once: a task for every slot reaches every executor that is there.
    tasks = max(2, cores_of(context.master) or 0, int(context.defaultParallelism))

    def ask() -> list[dict[str, Any]]:
        context.setJobGroup(group, "headrace: what the executors have")
        with probe_by_value():
            answers: list[dict[str, Any]]
            answers = context.parallelize(range(tasks), tasks).mapPartitions(question).collect()
        return answers

    def missing() -> str | None:
        return _missing_executors(context) if len(_executors(context)) == 1 else None

    cancel = functools.partial(context.cancelJobGroup, group)
    return watched(ask, waits, cancel=cancel, missing=missing, log_file=runtime.log_file)


def watched(
    ask: Callable[[], list[dict[str, Any]]],
    waits: Waits,
    *,
    cancel: Callable[[], object],
    missing: Callable[[], str | None],
    log_file: str | None = None,
) -> list[dict[str, Any]]:
    """The answers of a small job; none if the run is stopped before.

    `missing` says why the job may not have begun, if it may not.
    """
    outcome: list[list[dict[str, Any]] | BaseException] = []

    def run() -> None:
        try:
            outcome.append(ask())
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            outcome.append(error)

    thread = threading.Thread(target=run, name="headrace-preflight", daemon=True)
    thread.start()
    began = time.monotonic()
    while thread.is_alive() and not waits.is_stopping:
        thread.join(0.1)
        if thread.is_alive() and time.monotonic() - began > _PATIENCE and (reason := missing()) is not None:
            waits.failed(_EXECUTORS, reason)
    if not outcome:  # told to stop
        with suppress(Exception):
            cancel()
        return []
    waits.answered(_EXECUTORS)
    answers = outcome[0]
    if isinstance(answers, HeadraceError):
        raise answers
    if isinstance(answers, BaseException):
        raise _failure(answers, log_file) from answers
    return answers


@contextmanager
def probe_by_value() -> Iterator[None]:
    """Within the block a question is sent with its code: workers may lack its module."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(probe)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(probe)  # type: ignore[no-untyped-call]


def _executors(context: Any) -> frozenset[str]:
    """The addresses of the driver and of the registered executors."""
    with suppress(Exception):  # Spark may end meanwhile, and the job says so
        addresses = context._jsc.sc().getExecutorMemoryStatus().keySet().mkString(" ")  # noqa: SLF001 - no public way
        return frozenset(str(addresses).split())
    return frozenset()


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
    for name in answer["differing"]:
        raise ConfigurationError(
            f"Spark's workers have {name} {answer['modules'][name]}, and the driver has "
            f"{_own_version(name)}: their Python is {worker}",
            hint=mend_hint(),
        )


def mend_hint() -> str:
    """How workers get the Python and the packages of the driver."""
    return _MEND.format(version=".".join(platform.python_version_tuple()[:2]))


def executor_problem(text: str) -> ConfigurationError | None:
    """What is missing on an executor, if Spark's error of a failed job shows it."""
    if match := _UNFIT.search(text):
        try:
            answer, _ = json.JSONDecoder().raw_decode(match[1])
            _check(answer, answer["url"])
        except ConfigurationError as error:
            return error
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
    if match := _NO_MODULE.search(text) or _NO_PACKAGE.search(text):
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
