"""Reads the signature of a Python source without running it.

Of the source only what annotations need is evaluated: imports of a few standard modules, classes that are a
STRUCT, names of types, and the `def` itself without its body, defaults and unknown decorators.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import copy
from collections.abc import Iterator
from typing import Any

_MODULES = {
    "__future__",
    "collections",
    "collections.abc",
    "dataclasses",
    "datetime",
    "decimal",
    "headrace",
    "pyarrow",
    "types",
    "typing",
}
_ARROW_TYPES = {
    *("null", "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16"),
    *("float32", "float64", "string", "utf8", "large_string", "binary", "large_binary", "date32", "date64"),
    *("time32", "time64", "timestamp", "duration", "month_day_nano_interval", "decimal128", "decimal256"),
    *("list_", "large_list", "struct", "field", "map_", "dictionary"),
}
_DECORATORS = {"udf", "udaf", "udtf", "async_udf", "dataclass"}
_CALLED_IN_CLASSES = {"field"}
_NOT_TYPES = (NameError, AttributeError, TypeError, KeyError, ValueError)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class UnknownTypesError(Exception):
    """The types of a source can only be known by running it."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


def evaluate_stub(tree: ast.Module, name: str, file: str, space: dict[str, Any], *, typed: bool) -> None:
    """Put a function of the signature of `name` into `space`, which does nothing when it is called.

    `typed` says that its types are declared elsewhere, so that annotations do not matter. Raises an
    UnknownTypesError.
    """
    last = [statement for statement in tree.body if _binds(statement, name)][-1]
    if not isinstance(last, _Definition):
        raise UnknownTypesError(f"`{name}` is the value of an expression", last.lineno)
    for statement in tree.body:
        if statement is not last:
            # What cannot be evaluated stays undefined, and so do the types that need it.
            with contextlib.suppress(ImportError, UnknownTypesError):
                for part in _needed(statement):
                    _execute(part, file, space)
    _execute(_stub(last, typed=typed), file, space)


def _binds(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id.lower() == name for target in statement.targets)
    return isinstance(statement, _Definition) and statement.name.lower() == name


def _execute(statement: ast.stmt, file: str, space: dict[str, Any]) -> None:
    module = ast.fix_missing_locations(ast.Module([statement], []))
    try:
        # Annotations are evaluated when all names are there, as a class may name itself.
        flags = __future__.annotations.compiler_flag
        code = compile(module, file, "exec", flags, dont_inherit=True)
        exec(code, space)  # noqa: S102 - only imports, types and signatures
    except _NOT_TYPES as error:
        raise UnknownTypesError(str(error), statement.lineno) from None


def _needed(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield what annotations may need of a statement before the definition."""
    if isinstance(statement, ast.Import):
        names = [alias for alias in statement.names if alias.name in _MODULES]
        if names:
            yield ast.copy_location(ast.Import(names), statement)
    elif isinstance(statement, ast.ImportFrom):
        if statement.level == 0 and statement.module in _MODULES - {"__future__"}:
            yield statement
    elif isinstance(statement, ast.ClassDef):
        yield _stub_class(statement)
    elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        value = _type_expression(statement.value)
        if value is not None:
            yield ast.copy_location(ast.Assign(statement.targets, value), statement)


def _stub(definition: _Definition, *, typed: bool) -> ast.stmt:
    if isinstance(definition, ast.ClassDef):
        return _stub_class(definition)
    return _stub_function(definition, typed=typed)


def _stub_function(
    definition: ast.FunctionDef | ast.AsyncFunctionDef, *, typed: bool, is_method: bool = False
) -> ast.stmt:
    stub = copy.deepcopy(definition)
    arguments = stub.args
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        argument.annotation = _annotation(argument.annotation, typed=typed)
    for rest in (arguments.vararg, arguments.kwarg):
        if rest is not None:
            rest.annotation = None
    nothing = ast.Constant(None)
    arguments.defaults = [nothing for _ in arguments.defaults]
    arguments.kw_defaults = [None if default is None else nothing for default in arguments.kw_defaults]
    stub.returns = _annotation(stub.returns, typed=typed)
    recognized = [decorator for decorator in stub.decorator_list if _is_decorator(decorator)]
    if len(recognized) < len(stub.decorator_list) and not typed and not is_method:
        raise UnknownTypesError(f"`{stub.name}` is decorated", stub.decorator_list[0].lineno)
    stub.decorator_list = [] if is_method else recognized
    stub.body = [ast.Return(None)]
    if _yields(definition):
        stub.body.append(ast.Expr(ast.Yield(None)))
    return stub


def _stub_class(definition: ast.ClassDef) -> ast.stmt:
    """Return a class with its fields and the signatures of its methods."""
    line = definition.lineno
    if not all(_type_expression(base) for base in definition.bases):
        raise UnknownTypesError(f"the base of class `{definition.name}` is an expression", line)
    if not all(isinstance(keyword.value, ast.Constant) for keyword in definition.keywords):
        raise UnknownTypesError(f"class `{definition.name}` has a metaclass", line)
    if not all(map(_is_decorator, definition.decorator_list)):
        raise UnknownTypesError(f"class `{definition.name}` is decorated", line)
    stub = copy.deepcopy(definition)
    stub.body = [ast.Pass()]
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign):
            field = copy.deepcopy(statement)
            field.annotation = _annotation(field.annotation, typed=False) or ast.Constant(None)
            if field.value is not None:
                value = _type_expression(field.value, calls=_CALLED_IN_CLASSES, texts=True)
                field.value = value or ast.Constant(None)
            stub.body.append(field)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            stub.body.append(_stub_function(statement, typed=False, is_method=True))
    return stub


def _annotation(annotation: ast.expr | None, *, typed: bool) -> ast.expr | None:
    if annotation is None or typed:
        return None
    checked = _type_expression(annotation)
    if checked is None:
        raise UnknownTypesError(f"`{ast.unparse(annotation)}` is no plain type", annotation.lineno)
    return checked


def _type_expression(
    node: ast.expr, *, calls: set[str] = _ARROW_TYPES, texts: bool = False
) -> ast.expr | None:
    """Return the expression if it can only name a type; strings in it are types too, unless `texts`."""
    try:
        checked: ast.expr = _TypeExpression(calls, texts=texts).visit(copy.deepcopy(node))
    except (_NoTypeError, SyntaxError):
        return None
    return checked


class _NoTypeError(Exception):
    """An expression that may be more than the name of a type."""


class _TypeExpression(ast.NodeTransformer):
    """Replaces strings by the types that they name; raises a _NoTypeError for what could run code."""

    _PLAIN = (ast.Subscript, ast.Tuple, ast.List, ast.BitOr, ast.Load)

    def __init__(self, calls: set[str], *, texts: bool) -> None:
        self._calls, self._texts = calls, texts

    def generic_visit(self, node: ast.AST) -> ast.AST:
        is_union = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
        if not is_union and not isinstance(node, self._PLAIN):
            raise _NoTypeError
        return super().generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if self._texts or not isinstance(node.value, str):
            return node
        inner: ast.expr = self.visit(ast.parse(node.value.strip(), mode="eval").body)
        for part in ast.walk(inner):
            if isinstance(part, ast.expr):
                ast.copy_location(part, node)
        return inner

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id.startswith("__"):
            raise _NoTypeError
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr.startswith("_") or not isinstance(node.value, ast.Name | ast.Attribute):
            raise _NoTypeError
        self.visit(node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not _is_call(node, self._calls):
            raise _NoTypeError
        return node


def _is_call(node: ast.Call, names: set[str]) -> bool:
    """Whether one of these functions is called with values that run nothing."""
    function = node.func
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if called not in names or _type_expression(function) is None:
        return False
    values = [*node.args, *(keyword.value for keyword in node.keywords)]
    return all(_type_expression(value, calls=_ARROW_TYPES, texts=True) is not None for value in values)


def _is_decorator(node: ast.expr) -> bool:
    """Whether it is a decorator of Headrace or of a dataclass."""
    if isinstance(node, ast.Call):
        return _is_call(node, _DECORATORS)
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in _DECORATORS and _type_expression(node) is not None


def _yields(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    left: list[ast.AST] = list(definition.body)
    while left:
        node = left.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            left += ast.iter_child_nodes(node)
    return False
