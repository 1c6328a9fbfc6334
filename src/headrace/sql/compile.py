"""Compiles SQL text to a plan: parse, bind, lower; every mistake is reported in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.base.errors import ExpressionError, SqlError
from headrace.base.problems import Problems
from headrace.base.secrets import Secrets
from headrace.base.spans import Source
from headrace.model.builder import PlanBuilder
from headrace.model.fragments import Function
from headrace.sql.bind.logical import DeadLetters, LateScan, Relation, inputs_of
from headrace.sql.bind.program import BoundSink, ProgramBinder
from headrace.sql.bind.relations import BoundQuery
from headrace.sql.connection_profiles import saved_profiles
from headrace.sql.lower.context import LoweringContext
from headrace.sql.lower.lowering import start_lowering
from headrace.sql.lower.tables import add_preview, add_sink
from headrace.sql.parse.statements import parse_statements
from headrace.sql.problems import sql_error


@dataclass(frozen=True)
class Preview:
    """A bare SELECT: what its rows look like, so that a sink can show them."""

    columns: pa.Schema
    updating: bool
    key: tuple[str, ...]


MakeSink = Callable[[Preview], tuple[str, dict[str, Any]]]
"""The sink that shows the rows of a bare SELECT: its name and options."""


ReplaceSink = Callable[[str, Preview], tuple[str, dict[str, Any]]]
"""The sink to use in the place of a table's own: its name and options."""


def print_rows(preview: Preview) -> tuple[str, dict[str, Any]]:
    """Rows go to stdout as JSON lines; changes as Debezium writes them."""
    options: dict[str, Any] = {
        "schema": preview.columns,
        "format": "debezium_json" if preview.updating else "json",
    }
    if preview.key:
        options["primary_key"] = list(preview.key)
    return "stdout", options


def compile_sql(
    sources: Sequence[Source],
    *,
    name: str,
    udfs: Iterable[Function] = (),
    preview: MakeSink = print_rows,
    sinks: ReplaceSink | None = None,
) -> PlanBuilder:
    """The plan of one or several texts, taken as one; raises a SqlError that holds every mistake.

    `preview` chooses the sink for the rows of a bare SELECT, `sinks` one in the place of every table that
    is written, for tests.
    """
    saved = [str(value) for profile in saved_profiles().values() for value in profile.options.values()]
    secrets = Secrets.named_in([*(source.text for source in sources), *saved])
    problems = Problems(secrets)
    statements = [item for source in sources for item in parse_statements(source, problems)]
    program = ProgramBinder(problems, tuple(udfs))
    program.bind(statements)
    problems.raise_all()
    if not statements:
        raise SqlError("there is no SQL here", where=sources[0].name if sources else None)
    if not program.has_output:
        hint = "end with SELECT … or INSERT INTO … SELECT …"
        raise SqlError("nothing is selected or inserted", where=sources[-1].name, hint=hint)
    builder = PlanBuilder(name, secrets=secrets)
    lowering = start_lowering(
        [*(r for sink in program.sinks for r in sink.relations), *(b.relation for b in program.previews)],
        builder=builder,
        planner=program.planner,
        problems=problems,
        ttl=program.ttl,
        names=program.view_names,
    )
    # What reads late rows or bad records comes after the windows and sources that give them.
    for reads_side_output in (False, True):
        for sink in program.sinks:
            if reads_side_output == any(map(_reads_side_output, sink.relations)):
                program.attempt(_write, lowering, sink, sinks)
        for bound in program.previews:
            if reads_side_output == _reads_side_output(bound.relation):
                program.attempt(_show, lowering, bound, preview)
    problems.raise_all()
    return builder


def _reads_side_output(relation: Relation) -> bool:
    """Whether late rows or bad records are among what a relation is made of."""
    return isinstance(relation, LateScan | DeadLetters) or any(map(_reads_side_output, inputs_of(relation)))


def _write(lowering: LoweringContext, sink: BoundSink, replace_sink: ReplaceSink | None) -> None:
    table, relations, columns, span = sink
    instead = None
    if replace_sink is not None:
        updating = any(relation.updating for relation in relations)
        key = table.definition.primary_key or (relations[0].key if len(relations) == 1 else ())
        instead = replace_sink(table.name, Preview(columns, updating, key))
    try:
        add_sink(lowering, table, relations, columns, instead=instead)
    except ExpressionError as error:  # of a constant, which DataFusion computes while it plans
        hint = f"what is inserted into `{table.name}` must fit its columns"
        raise sql_error(error.message, span, hint) from error


def _show(lowering: LoweringContext, bound: BoundQuery, make_sink: MakeSink) -> None:
    relation = bound.relation
    names = dict(zip(relation.columns.names, bound.names, strict=True))
    key = tuple(names[column] for column in relation.key)
    sink, options = make_sink(Preview(relation.columns, relation.updating, key))
    try:
        add_preview(lowering, relation, sink, options)
    except ExpressionError as error:
        raise sql_error(error.message, None) from error
