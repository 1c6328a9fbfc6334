"""What operators keep in a worker: for as long as their job runs, whatever other jobs share the worker."""

from __future__ import annotations

from headrace.engine.chain import NoTables
from headrace.model.operator import OperatorContext, TaskInfo


def context(job_id: str, *, operator_id: str = "operator", version: str = "") -> OperatorContext:
    info = TaskInfo(job_id, operator_id, "Operator", 0, 1, (0, 2**64 - 1), 1)
    return OperatorContext(task_info=info, tables=NoTables(operator_id), version=version)


def test_jobs_that_take_turns_in_a_worker_keep_what_they_have_made() -> None:
    first = [context("turns-a").resource("model", object), context("turns-b").resource("model", object)]
    second = [context("turns-a").resource("model", object), context("turns-b").resource("model", object)]
    assert first == second
    assert first[0] is not first[1]


def test_operators_and_versions_of_a_job_have_resources_of_their_own() -> None:
    contexts = [
        context("own"),
        context("own", operator_id="other"),
        context("own", version="changed"),
    ]
    assert len({id(ctx.resource("model", object)) for ctx in contexts}) == 3


def test_a_worker_lets_go_of_jobs_that_have_not_asked_for_long() -> None:
    before = context("ended").resource("model", object)
    for number in range(20):
        context(f"later-{number}").resource("model", object)
    assert context("ended").resource("model", object) is not before
