"""What every task on Spark begins with, whatever carries its envelopes."""

from __future__ import annotations

import functools
import pickle

from headrace.base.start_guard import forbid_start
from headrace.engine.stages import StagePlan
from headrace.exchanges.spark.probe import Question
from headrace.exchanges.spark.workers import append_to_sys_path, keep_memory, leave_position


def pack_stages(stages: StagePlan, question: Question | None) -> bytes:
    """The stages for workers, with what each asks itself before its first task."""
    return pickle.dumps((question, pickle.dumps(stages)))


@functools.lru_cache(maxsize=8)
def load_stages(blob: bytes) -> StagePlan:
    """The stages, unpickled once per Python worker; several pipelines may share the workers."""
    append_to_sys_path()
    keep_memory()
    leave_position()
    forbid_start("a module starts a pipeline when a task imports it")
    question, plan = pickle.loads(blob)  # noqa: S301 - made by this job's own driver
    if question is not None:
        question.require()
    stages: StagePlan = pickle.loads(plan)  # noqa: S301 - as above
    return stages
