"""Tests of connections and functions, in a separate process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from headrace.base.columns import TIMESTAMP
from headrace.base.errors import HeadraceError
from headrace.base.private import process_directory
from headrace.base.spans import Source
from headrace.connectors.sample import read_sample
from headrace.formats.json.format import encode_json_lines
from headrace.model.registry import Role, registry
from headrace.server.program import TABLES, StoredFunction, StoredProgram, describe_error
from headrace.server.schemas import field_views
from headrace.sql.connection_profiles import SavedProfile, using_profiles
from headrace.sql.table_connectors import build_connectors
from headrace.sql.types import column_lines

_SAMPLE_ROWS, _SAMPLE_SECONDS = 5, 5.0
_LONGEST_ROW = 500
"""Characters of a row that is shown."""
_KAFKA_SECONDS = 10.0


def try_table(sql: str, name: str, profiles: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lines about a table's connector: that it answers, and how many rows fit; raises what is wrong."""
    program = StoredProgram("test", "sql", "", tables=sql, profiles=profiles)
    lines = []
    with using_profiles({key: SavedProfile(**value) for key, value in profiles.items()}):
        for tried in build_connectors([Source(TABLES, sql)], name):
            if tried.connector is None:
                assert tried.problem is not None
                lines.append(f"it cannot be read: {tried.problem.message}")
                continue
            tried.connector.validate()
            answer = tried.connector.reach()
            lines.append(f"as a {tried.role} it answers{f': {answer}' if answer else ''}")
            if tried.role == "source":
                batches, bad = read_sample(
                    tried.connector.for_sampling(), _SAMPLE_ROWS, _SAMPLE_SECONDS, quiet=0.5
                )
                rows = sum(batch.num_rows for batch in batches)
                lines.append(
                    f"{rows} rows of a sample fit the columns" if rows else "no rows came within 5 s"
                )
                lines += [*_shown(batches), *bad]
    return [program.secrets.hide(line) for line in lines]


def _shown(batches: Sequence[pa.RecordBatch]) -> list[str]:
    """The first rows of a sample as JSON."""
    shown: list[str] = []
    for batch in batches:
        columns = [column for column in batch.schema.names if column != TIMESTAMP]
        rows = batch.select(columns).slice(0, _SAMPLE_ROWS - len(shown))
        shown += encode_json_lines(pa.Table.from_batches([rows])).decode().splitlines()
    return [line if len(line) <= _LONGEST_ROW else f"{line[:_LONGEST_ROW]}…" for line in shown]


def check_table(sql: str, name: str, profiles: Mapping[str, Mapping[str, Any]]) -> None:
    """Build the connectors of a table, without asking its system; raises what is wrong."""
    with using_profiles({key: SavedProfile(**value) for key, value in profiles.items()}):
        for tried in build_connectors([Source(TABLES, sql)], name):
            if tried.connector is not None:
                tried.connector.validate()


def columns_of_table(sql: str, name: str, profiles: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The columns of a table, inferred from its source if it declares none."""
    with using_profiles({key: SavedProfile(**value) for key, value in profiles.items()}):
        for tried in build_connectors([Source(TABLES, sql)], name):
            if tried.inferred_columns:
                return {
                    "inferred": True,
                    "fields": field_views(tried.inferred_columns),
                    "lines": column_lines(tried.inferred_columns),
                }
    return {"inferred": False, "fields": [], "lines": []}


def try_profile(connector: str, options: Mapping[str, Any]) -> str:
    """A sentence about a profile; raises what is wrong with it."""
    if connector in ("kafka", "confluent"):
        return f"the cluster answers: {len(kafka_topics(connector, options))} topics"
    roles: tuple[Role, ...] = ("source", "sink", "lookup")
    models = [registry.options(role, connector) for role in roles if connector in registry.names(role)]
    if any(set(options) <= _names(model) for model in models):
        return "its options are known; a table with it tries the connection"
    return "its options belong to different kinds of tables"


def _names(model: Any) -> set[str]:
    return {name for key, field in model.model_fields.items() for name in (key, field.alias) if name}


def kafka_topics(connector: str, options: Mapping[str, Any]) -> list[str]:
    """The topics of a Kafka cluster, but those of Kafka itself."""
    from headrace.connectors.kafka.client import topic_names

    source: Any = registry.build("source", connector, {**options, "topic": "-", "format": "raw_bytes"})
    return topic_names(source.options, timeout=_KAFKA_SECONDS)


def read_function(definition: str, language: Literal["python", "rust"]) -> dict[str, Any]:
    """The names of the functions that a source defines, or what is wrong with it."""
    program = StoredProgram("udf", "sql", "", udfs=(StoredFunction(definition, language),))
    with tempfile.TemporaryDirectory(prefix="headrace-udf-", dir=process_directory()) as folder:
        try:
            names = [function.name for function in program.functions(Path(folder))]
        except HeadraceError as error:
            hint = f"\n  hint: {error.hint}" if error.hint else ""
            where = f"\n  at {error.where}" if error.where else ""
            text = describe_error(error)["message"] + where + hint
            return {"names": [], "errors": [text.replace(f"{folder}/", "")]}
    return {"names": names, "errors": []}
