"""The SQL cases on Spark, many as one pipeline: stopped at parallelism 2, resumed at 3."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import pytest

import headrace as hr
from headrace.model.plan import Edge, Plan, PlanNode
from headrace.sql.compile import Preview
from headrace.testing.row_comparison import differences, read_rows, standing_rows
from headrace.testing.sql_cases import ONLY, Case, compile_case, find_cases, own_functions
from tests.sql.test_cases import ENVIRONMENT

FOLDER = Path(__file__).parents[1] / "sql"
CASES = [case for case in find_cases(FOLDER) if case.error is None]
TOGETHER = 16
"""How many cases make one pipeline: Spark is asked less often, and its tasks stay small."""
GROUPS = [CASES[first : first + TOGETHER] for first in range(0, len(CASES), TOGETHER)]
ON_EVERY_VERSION = 8
"""Every so many groups one is run with the other versions of Spark too."""


class Together(hr.Pipeline):
    """Pipelines beside each other in one plan: Spark is started and planned once for all of them."""

    def __init__(self, plans: dict[str, Plan]) -> None:
        super().__init__("together")
        self.plans = plans

    def plan(self) -> Plan:
        nodes: list[PlanNode] = []
        edges: list[Edge] = []
        for name, plan in self.plans.items():
            nodes += [replace(node, id=f"{name}.{node.id}") for node in plan.nodes]
            edges += [
                replace(
                    edge,
                    source=f"{name}.{edge.source}",
                    target=f"{name}.{edge.target}",
                    index=len(edges) + position,
                )
                for position, edge in enumerate(plan.edges)
            ]
        return Plan(self.name, tuple(nodes), tuple(edges))


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(
            cases,
            id=f"{cases[0].name} to {cases[-1].name}",
            marks=[] if number % ON_EVERY_VERSION else pytest.mark.versions,
        )
        for number, cases in enumerate(GROUPS)
    ],
)
def test_spark_gives_the_rows_of_every_case(
    cases: list[Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    plans: dict[str, Plan] = {}
    outputs: dict[str, dict[str, Preview]] = {}
    for number, case in enumerate(cases):
        name = f"case{number}"
        with chdir(case.sql.parent):
            pipeline, outputs[name] = compile_case(case, functions=own_functions(case), prefix=f"{name}/")
            plans[name] = pipeline.plan()
    together = Together(plans)

    # In process each case also runs whole, in epochs of other sizes, and killed at each step: tests/sql.
    sources = sum(node.role == "source" for plan in plans.values() for node in plan.nodes)
    stopped = together.run(tmp_path / "cut", parallelism=2, epoch_rows=2 * sources, max_epochs=2)
    assert (stopped.reason, stopped.epochs) == ("max_epochs", 2)
    resumed = together.run(tmp_path / "cut", parallelism=3)
    assert resumed.reason == "finished"
    assert wrong(cases, [stopped, resumed], outputs) == []


def wrong(
    cases: Sequence[Case], lives: Sequence[hr.RunResult], outputs: dict[str, dict[str, Preview]]
) -> list[str]:
    """What differs from the expected rows, case by case."""
    found = []
    for (name, previews), case in zip(outputs.items(), cases, strict=True):
        for output, preview in previews.items():
            expected = read_rows(file_of(case, output, alone=len(previews) == 1))
            given = standing_rows(lives, f"{name}/{output}", preview)
            missing, unexpected = differences(expected, given, case.tolerance)
            if missing or unexpected:
                found.append(f"{case.name} {output}: −{missing[:3]} +{unexpected[:3]}")
    return found


def file_of(case: Case, output: str, *, alone: bool) -> Path:
    return case.expected[ONLY if alone and ONLY in case.expected else output]
