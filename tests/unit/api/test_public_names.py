"""Every public name has a docstring with what it takes and returns, an example, and a repr."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import enum
import inspect
import itertools
import json
import operator
import textwrap
from typing import Annotated, Any, Never

import pyarrow as pa
import pytest
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

import headrace as hr
from headrace.model.registry import BUILT_IN, Role, registry


def examples() -> list[str]:
    """The public functions, and the methods of the classes that pipelines are composed with."""
    functions = [name for name in hr.__all__ if inspect.isfunction(getattr(hr, name))]
    methods = [
        f"{kind.__name__}.{name}"
        for kind in (hr.Pipeline, hr.Stream, hr.GroupedStream)
        for name, member in vars(kind).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, classmethod))
    ]
    return [*functions, *methods, "register"]


@pytest.mark.parametrize("name", examples())
def test_every_public_function_has_an_example_and_says_what_it_takes_and_returns(name: str) -> None:
    function = operator.attrgetter(name)(hr)
    text = inspect.getdoc(function) or ""
    assert ">>> " in text
    takes = inspect.signature(function).parameters.keys() - {"self", "cls"}
    assert not takes or "Args:" in text
    assert name == "register" or "Returns:" in text


CONSTANTS = {
    "Duration": "Options",
    "END_OF_TIME": "Watermark",
    "IDLE": "Watermark",
    "Offset": "SourceOperator",
}
"""Names of values, which have no docstring of their own, and the class whose example uses them."""

MADE_BY_OTHERS = {
    "Column",  # by hr.col and its like
    "GlobalTable",  # state tables: by the engine, for the context of an operator
    "GroupedStream",  # by stream.group_by
    "KeyedTable",
    "LiveTable",  # by stream.show
    "PipelineRun",  # by pipeline.start
    "Stream",  # by pipeline.source and by methods of streams
    "TimeTable",
}
"""Classes that users do not construct: their docstring says who does, not what the constructor takes."""

CALLED_BY_THE_ENGINE = (hr.ArrowOperator, hr.SourceOperator)
"""Their methods are written by users; the example is on the class, and shows those that most need."""

ENGINE_ONLY = {"GlobalTable.changes"}
"""Methods of public classes that the engine alone calls, at a checkpoint."""

CLASSES = [name for name in hr.__all__ if inspect.isclass(getattr(hr, name))]
ERRORS = [name for name in CLASSES if issubclass(getattr(hr, name), BaseException)]


def public_methods() -> list[str]:
    """The methods of the public classes; those of connectors fulfil the contract of their base."""
    return [
        f"{name}.{method}"
        for name in CLASSES
        for method, member in vars(getattr(hr, name)).items()
        if not method.startswith("_")
        and f"{name}.{method}" not in ENGINE_ONLY
        and (inspect.isfunction(member) or isinstance(member, classmethod | staticmethod))
        and (
            getattr(hr, name) in CALLED_BY_THE_ENGINE
            or not issubclass(getattr(hr, name), CALLED_BY_THE_ENGINE)
        )
    ]


def fields_with_a_sentence(kind: type) -> set[str]:
    """The fields of a class that a string below them describes."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id
        for field, text in itertools.pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def test_every_public_name_is_a_function_a_class_or_a_value_whose_example_is_on_a_class() -> None:
    others = {
        name
        for name in hr.__all__
        if not inspect.isroutine(getattr(hr, name))
        and not inspect.isclass(getattr(hr, name))
        and not inspect.ismodule(getattr(hr, name))
    }
    # `fn` is an object with a docstring and an example of its own.
    assert others - {"__version__", "fn"} <= CONSTANTS.keys()
    assert ">>> " in (inspect.getdoc(hr.fn) or "")
    for name, kind in CONSTANTS.items():
        assert f"hr.{name}" in (inspect.getdoc(getattr(hr, kind)) or ""), name


@pytest.mark.parametrize("name", sorted(set(CLASSES) - set(ERRORS)))
def test_every_public_class_has_an_example_and_says_what_it_takes(name: str) -> None:
    kind = getattr(hr, name)
    text = vars(kind).get("__doc__") or ""
    assert ">>> " in text
    described = fields_with_a_sentence(kind)
    if dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            assert field.name in described or f"        {field.name}: " in text, field.name
    elif name not in MADE_BY_OTHERS and not inspect.isabstract(kind) and not issubclass(kind, enum.Enum):
        assert not inspect.signature(kind).parameters or name == "Collector" or "Args:" in text


@pytest.mark.parametrize("name", sorted(set(CLASSES) - {"Collector"}))  # a protocol has no objects
def test_every_public_class_has_a_repr(name: str) -> None:
    assert getattr(hr, name).__repr__ is not object.__repr__


@pytest.mark.parametrize("name", ERRORS)
def test_every_public_error_says_when_it_is_raised(name: str) -> None:
    text = vars(getattr(hr, name))["__doc__"]
    assert text.startswith("Raised ") or name == "HeadraceError"


@pytest.mark.parametrize("name", public_methods())
def test_every_public_method_says_what_it_takes_and_returns_and_is_in_an_example(name: str) -> None:
    kind, method = getattr(hr, name.partition(".")[0]), name.partition(".")[2]
    function = operator.attrgetter(name)(hr)
    text = inspect.getdoc(function) or ""
    signature = inspect.signature(function)
    assert not (signature.parameters.keys() - {"self"}) or "Args:" in text
    assert signature.return_annotation in {None, "None"} or "Returns:" in text
    if not issubclass(kind, CALLED_BY_THE_ENGINE):
        assert ">>> " in text or f".{method}(" in (inspect.getdoc(kind) or "")


class Unready(hr.ArrowOperator):
    """An operator whose `__init__` has not set what its repr might want."""

    @property
    def options(self) -> Never:
        raise ValueError("not yet")

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        collector.collect(batch)


def test_the_repr_of_an_operator_never_raises() -> None:
    assert repr(Unready()) == "Unready()"
    assert repr(hr.MemorySource.__new__(hr.MemorySource)) == "MemorySource()"


@pytest.mark.parametrize(
    ("role", "connector"), [(role, name) for role, names in BUILT_IN.items() for name in names]
)
def test_no_repr_shows_an_option_that_is_never_displayed(role: Role, connector: str) -> None:
    for name, field in registry.options(role, connector).model_fields.items():
        if "***" in json.dumps(dump_json(field, "hunter2")):
            assert not field.repr, name


def dump_json(field: FieldInfo, value: str) -> object:
    """A value of an option as JSON, as plans show it."""
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    adapter: TypeAdapter[Any] = TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
    for text in (value, f"name={value}", f"https://me:{value}@host/db"):
        with contextlib.suppress(ValidationError):
            return adapter.dump_python(adapter.validate_python(text), mode="json", fallback=str)
    return None


def test_a_configured_connector_does_not_show_its_password() -> None:
    sink = hr.ConfiguredSink("rabbitmq", {"host": "localhost", "password": "hunter2"})
    assert "hunter2" not in repr(sink)
    assert "***" in repr(sink)
    unknown = hr.ConfiguredSource("my_own", {"token": "hunter2"})
    assert repr(unknown) == "ConfiguredSource(connector='my_own', options={'token'})"


@pytest.mark.parametrize("name", [name for name in hr.__all__ if name != "__version__"])
def test_every_public_name_says_what_it_is(name: str) -> None:
    value = getattr(hr, name)
    assert getattr(value, "__doc__", None), name
    assert repr(value)
