"""Checks the Python file of an operator without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from headrace.base.errors import DataflowError, suggest
from headrace.base.problems import placed
from headrace.base.spans import Source, Span
from headrace.dataflow.document.model import Unit

_HANDLER = "write `def on_event(self, dora_event, send_output):`"
_STATUS = "DoraStatus"
_PLAIN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Expr, ast.Pass)
"""What a class has that shows all its methods."""


def read_operator(unit: Unit) -> str:
    """The source of a Python operator; raises a DataflowError if it cannot be read or has no operator."""
    file = unit.file
    assert file is not None
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise placed(DataflowError, f"{file} cannot be read: {error}", unit.span) from None
    source = Source(str(file), text)
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        start = _offset(text, error.lineno or 1, (error.offset or 1) - 1)
        refusal = placed(DataflowError, f"`{unit.address}`: {error.msg}", Span(source, start, start + 1))
        raise refusal from None
    bound = [(name, node) for node in tree.body for name in _names(node)]
    names = {name for name, _ in bound}
    if "Operator" not in names and "*" not in names:
        hint = (
            suggest("Operator", names)
            or "write `class Operator:` with `on_event(self, dora_event, send_output)`"
        )
        raise placed(DataflowError, f"{file} has no class `Operator`", unit.span, hint)
    if "*" not in names:
        _check_status_imported(tree, source, unit)
    classes = [node for name, node in bound if name == "Operator"]
    if len(classes) == 1 and isinstance(classes[0], ast.ClassDef):
        _check_class(classes[0], source, unit)
    return text


def _check_status_imported(tree: ast.Module, source: Source, unit: Unit) -> None:
    """Raise a DataflowError if `DoraStatus` is used and nothing in the file defines it."""
    bound = {name for node in tree.body for name in _names(node)}
    bound |= {part.arg for part in ast.walk(tree) if isinstance(part, ast.arg)}
    for part in ast.walk(tree):
        if isinstance(part, ast.Name) and part.id == _STATUS and _STATUS not in bound:
            start = source.text.find(_STATUS, _offset(source.text, part.lineno, 0))
            raise placed(
                DataflowError,
                f"`{unit.address}`: `{_STATUS}` is not imported",
                Span(source, start, start + len(_STATUS)),
                f"write `from dora import {_STATUS}` at the top of the file",
            )


def _check_class(node: ast.ClassDef, source: Source, unit: Unit) -> None:
    """Raise a DataflowError for what would fail with the first event, as far as it is certain."""
    if (
        node.bases
        or node.keywords
        or node.decorator_list
        or not all(isinstance(o, _PLAIN) for o in node.body)
    ):
        return
    methods = {
        method.name: method
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    if any(method.decorator_list for method in methods.values()) or "__getattr__" in methods:
        return

    def wrong(
        what: str, where: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, hint: str
    ) -> DataflowError:
        start = _offset(source.text, where.lineno, where.col_offset)
        start = max(start, source.text.find(where.name, start))
        span = Span(source, start, start + len(where.name))
        return placed(DataflowError, f"`{unit.address}`: {what}", span, hint)

    handler, init = methods.get("on_event"), methods.get("__init__")
    if handler is None:
        raise wrong("`Operator` has no method `on_event`", node, _HANDLER)
    if isinstance(handler, ast.AsyncFunctionDef):
        raise wrong("`on_event` must not be async", handler, _HANDLER)
    if not _takes(handler.args, 3):
        raise wrong("`on_event` must take an event and `send_output`", handler, _HANDLER)
    if init is not None and not _takes(init.args, 1):
        raise wrong("`Operator` is made without arguments", init, "give them defaults, or use `env`")


def _takes(arguments: ast.arguments, count: int) -> bool:
    """Whether a function can be called with so many arguments."""
    positional = [*arguments.posonlyargs, *arguments.args]
    least = len(positional) - len(arguments.defaults)
    has_required_keywords = any(default is None for default in arguments.kw_defaults)
    return (
        not has_required_keywords
        and least <= count
        and (count <= len(positional) or arguments.vararg is not None)
    )


def _offset(text: str, line: int, column: int) -> int:
    """Where a line and a column are in a text, by the lines that Python's parser counts."""
    before = text.split("\n")[: line - 1]
    return min(len(text), sum(len(line) + 1 for line in before) + max(0, column))


def _names(node: ast.stmt) -> Iterator[str]:
    """The names that a statement at the top of a file may bind."""
    for part in ast.walk(node):
        if isinstance(part, ast.ClassDef | ast.FunctionDef):
            yield part.name
        elif isinstance(part, ast.alias):
            yield part.asname or part.name
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id
