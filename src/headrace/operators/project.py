"""Projects and filters rows, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from headrace.base.errors import PlanError
from headrace.model.fragments import Fragment
from headrace.model.operator import ArrowOperator, Collector, OperatorContext


class Project(ArrowOperator):
    """Runs a fragment over every batch, as its table `input`; rows keep their order.

    The fragment must process each row on its own: batch boundaries are arbitrary.
    """

    def __init__(self, fragment: Fragment) -> None:
        if set(fragment.inputs) != {"input"}:
            names = ", ".join(fragment.inputs) or "none"
            raise PlanError(f"a projection has one input called `input`; this one has {names}")
        self.fragment = fragment

    @property
    def name(self) -> str:
        return "project"

    @property
    def output(self) -> pa.Schema:
        """The schema of what it emits."""
        return self.fragment.output

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        for result in self.fragment.run(input=batch).to_batches():
            collector.collect(result)

    def details(self) -> Mapping[str, str]:
        return {"sql": self.fragment.sql}
