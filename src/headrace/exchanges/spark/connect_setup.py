"""Makes a session of Spark Connect ready for a pipeline: ships its code, and asks workers what they have."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from headrace.exchanges.spark import probe
from headrace.exchanges.spark.connect_session import ConnectSession, failure, is_lost
from headrace.exchanges.spark.preflight import Preflight, check_answers, probe_by_value, watched
from headrace.exchanges.spark.shipping import files_to_ship, not_shipped
from headrace.model.plan import Plan


def prepare(session: ConnectSession, plan: Plan, py_files: Sequence[str], *, preflight: Preflight) -> bool:
    """Ship the code of a plan, and check that the workers can run it; returns whether Headrace was shipped.

    It is not if the workers have the same one installed: modules are loaded faster from there. Returns early
    when the run is told to stop.
    """
    answers = _ask(session, preflight)
    with_headrace = any(answer["package"] != probe.package_digest() for answer in answers)
    ship(session, plan, py_files, with_headrace=with_headrace)
    if with_headrace:
        answers = _ask(session, preflight)
    check_answers(answers, preflight.question)
    return with_headrace


def ship(session: ConnectSession, plan: Plan, py_files: Sequence[str], *, with_headrace: bool) -> None:
    """Give the workers of the session what they need: see `files_to_ship`."""
    for path in files_to_ship(plan, py_files, with_headrace=with_headrace):
        try:
            session.add_file(path, pyfile=True)
        except Exception as error:
            raise (failure(error, session.address) if is_lost(error) else not_shipped(path, error)) from error


def _ask(session: ConnectSession, preflight: Preflight) -> list[dict[str, Any]]:
    """What the workers have; none if the run is stopped before they answer."""
    from pyspark.sql.connect.udf import UserDefinedFunction
    from pyspark.sql.types import StringType

    spark, tag = session.spark, f"headrace-preflight-{secrets.token_hex(4)}"

    def ask() -> list[dict[str, Any]]:
        spark.addTag(tag)  # of this thread
        # Not an Arrow function: workers may lack Arrow, too.
        question = UserDefinedFunction(probe.RowQuestion(preflight.question), StringType())
        tasks = max(2, session.cores)
        try:
            with probe_by_value():
                answers = spark.range(0, tasks, 1, tasks).select(question("id")).toArrow()
        except Exception as error:
            if is_lost(error):
                raise failure(error, session.address) from error
            raise
        return [json.loads(answer) for answer in answers.column(0).to_pylist()]

    return watched(
        ask,
        preflight.waits,
        cancel=lambda: spark.interruptTag(tag),
        missing=lambda: (
            f"{session.address} has not run a small job yet: it starts workers, or has no free core"
        ),
    )
