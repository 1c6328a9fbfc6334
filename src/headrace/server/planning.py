"""Planning in a separate process, because it may load code of users."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from headrace.base.errors import HeadraceError, PlacedError
from headrace.base.private import process_directory
from headrace.base.secrets import Secrets
from headrace.base.spans import Source
from headrace.server.graph import graph_of
from headrace.server.program import QUERY, TABLES, StoredProgram, describe_error


def plan_program(program: StoredProgram, parallelism: int) -> dict[str, Any]:
    """The graph of a program, or what is wrong with it: `graph` and `errors`, one of which is empty."""
    with tempfile.TemporaryDirectory(prefix="headrace-plan-", dir=process_directory()) as folder:
        try:
            plan = program.load(Path(folder)).plan()
            return {"graph": graph_of(plan, parallelism=parallelism), "errors": []}
        except HeadraceError as error:
            return {"graph": None, "errors": program_errors(error, program, folder)}


def program_errors(error: HeadraceError, program: StoredProgram, folder: str) -> list[dict[str, Any]]:
    """Every mistake in an error, with its location in the query if it has one."""
    secrets = program.secrets
    if isinstance(error, PlacedError):
        return [_placed(each, program, secrets) for each in (error, *error.more)]
    described = describe_error(error, secrets)
    text = described["message"]
    if error.where:
        text += f"\n  at {secrets.hide(error.where)}"
    if error.hint:
        text += f"\n  hint: {secrets.hide(error.hint)}"
    return [{"message": text.replace(f"{folder}/", ""), "span": None}]


def _placed(error: PlacedError, program: StoredProgram, secrets: Secrets) -> dict[str, Any]:
    message = secrets.hide(error.message if error.hint is None else f"{error.message}\n  hint: {error.hint}")
    where = error.where or ""
    if error.offset < 0 or where.startswith(f"{TABLES}:"):
        return {"message": message if not where else f"{message}\n  at {where}", "span": None}
    source = Source(QUERY, program.query)
    start, end = source.position(error.offset), source.position(max(error.end, error.offset))
    return {
        "message": message,
        "span": {
            "start": {"line": start[0], "column": start[1]},
            "end": {"line": end[0], "column": end[1]},
        },
    }
