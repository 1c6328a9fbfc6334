"""`schema`: columns with their SQL types, read by the parser that reads CREATE TABLE."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.base.problems import Problems
from headrace.base.spans import Source, Span
from headrace.dataflow.document.findings import Findings
from headrace.dataflow.document.yaml_text import Scalar
from headrace.sql.parse.statements import parse_statements
from headrace.sql.parse.table_definition import CreateTable

_BEFORE = "CREATE TABLE t ("


def read_columns(
    schema: Scalar | Mapping[str, Scalar], span: Span, findings: Findings
) -> dict[str, str] | None:
    """Columns with their SQL types as written; None, with an error in the findings, if one is wrong."""
    if isinstance(schema, Scalar):
        return _of_text(schema, findings)
    columns: dict[str, str] = {}
    for name, sql_type in schema.items():
        quoted = '"' + name.replace('"', '""') + '" '
        if _parse(quoted + sql_type.text, sql_type, findings, skip=len(quoted)) is None:
            return None
        columns[name] = sql_type.text
    if not columns:
        findings.refuse("`schema` has no columns", span, "write `{id: BIGINT, name: TEXT}`")
    return columns or None


def _of_text(text: Scalar, findings: Findings) -> dict[str, str] | None:
    table = _parse(text.text, text, findings)
    if table is None:
        return None
    if not table.columns or table.watermark is not None or table.options or _keyed(table):
        findings.refuse(
            "`schema` takes columns with their types only", text.span, "write `id BIGINT, name TEXT`"
        )
        return None
    starts = [column.span for column in table.columns]
    ends = [span.start for span in starts[1:]] + [len(_BEFORE) + len(text.text)]
    sql = _BEFORE + text.text
    return {
        column.name: sql[span.end : end].strip().removesuffix(",").strip()
        for column, span, end in zip(table.columns, starts, ends, strict=True)
    }


def _keyed(table: CreateTable) -> bool:
    """Whether there is a PRIMARY KEY (…) besides the columns."""
    return len(table.primary_key) > sum(column.primary_key for column in table.columns)


def _parse(sql: str, text: Scalar, findings: Findings, *, skip: int = 0) -> CreateTable | None:
    """The table of these columns; `text` stands in `sql` behind its first `skip` characters."""
    problems = Problems()
    before = len(_BEFORE) + skip
    statements = parse_statements(Source("schema", f"{_BEFORE}{sql})"), problems)
    for error in problems.errors:
        at = error.offset - before
        word = re.match(r"\w+", text.text[max(0, at) :])
        span = text.span_of(at, at + (word.end() if word else 1)) if error.offset >= 0 else text.span
        findings.refuse(error.message, span, error.hint)
    if problems.errors:
        return None
    if len(statements) != 1 or not isinstance(statements[0][1], CreateTable):
        findings.refuse(
            "`schema` takes columns with their types only", text.span, "write `id BIGINT, name TEXT`"
        )
        return None
    return statements[0][1]
