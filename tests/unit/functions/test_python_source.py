"""Functions whose source stands in another text."""

from __future__ import annotations

from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from headrace.base.errors import ConfigurationError, ExpressionError
from headrace.functions.asynchronous import AsyncFunction
from headrace.functions.definition import Function
from headrace.functions.python_source import SourceError, define
from headrace.functions.scalar import ScalarFunction

ONE = [("a", pa.int64())]


def made(source: str, *, name: str = "f", before: int = 0, **options: Any) -> Function:
    text = "-- SQL\n" * before + source
    return define(source, name=name, file="q.sql", text=text, line=before + 1, **options)


def scalar(source: str, **options: Any) -> ScalarFunction:
    function = made(source, **{"arguments": ONE, "returns": pa.int64(), **options})
    assert isinstance(function, ScalarFunction)
    return function


@pytest.mark.parametrize(
    "source",
    [
        "return a + 1",
        "  return a + 1  ",
        "\n\n    b = a\n    return b + 1\n",
        "def f(a):\n    return a + 1",
        "\n  BASE = 1\n\n  def helper(b):\n      return b + BASE\n\n  def f(a):\n      return helper(a)\n",
        "def F(a):\n  return a + 1",
        "f = lambda a: a\ndef f(a): return a + 1",
        "if a > 0:\n    return a + 1\nreturn 0",
        "def inner(b):\n    return b + 1\nreturn inner(a)",
        "import math\nreturn int(math.sqrt(a * a)) + 1",
    ],
)
def test_a_source_is_a_body_or_a_whole_definition(source: str) -> None:
    function = scalar(source)
    assert function.call([pa.array([1, None, 41])]).to_pylist() == [2, None, 42]
    again: ScalarFunction = cloudpickle.loads(cloudpickle.dumps(function))
    assert again.call([pa.array([1])]).to_pylist() == [2]


def test_null_is_an_argument_if_it_is_asked_for() -> None:
    function = scalar("return -1 if a is None else a", called_on_null=True)
    assert function.call([pa.array([1, None])]).to_pylist() == [1, -1]


def test_a_raise_shows_its_line_in_the_text_around_it() -> None:
    function = scalar("\n  half = a // 2\n  return 1 // half\n", before=9)
    with pytest.raises(ExpressionError) as caught:
        function.call([pa.array([5, 1])])
    assert caught.value.message.endswith("integer division or modulo by zero for the row a=1")
    assert 'File "q.sql", line 12, in f' in caught.value.traceback_text
    assert "  return 1 // half" in caught.value.traceback_text


def test_a_body_may_only_raise() -> None:
    function = scalar('\n  import math\n  raise ValueError(f"no {a}")\n')
    with pytest.raises(ExpressionError, match="udf `f` raised ValueError: no 5 for the row a=5"):
        function.call([pa.array([5])])
    with pytest.raises(SourceError, match="it defines no function `f`"):
        made("def g(a):\n    return a\nraise ValueError", arguments=ONE, returns=pa.int64())


def test_a_body_that_awaits_is_asynchronous() -> None:
    waits = made("import asyncio\nawait asyncio.sleep(0)\nreturn a", arguments=ONE, returns=pa.int64())
    assert isinstance(waits, AsyncFunction)
    ordered = made(
        "async def f(a: int) -> int:\n    return a", options={"ordered": True, "allowed_in_flight": 7}
    )
    assert isinstance(ordered, AsyncFunction)
    assert (ordered.options.ordered, ordered.options.max_in_flight) == (True, 7)


@pytest.mark.parametrize(
    ("source", "options", "said", "place"),
    [
        ("return a +", {}, "invalid syntax", (1, 11)),
        ("\n  b = 1\n  return (a\n", {}, "'(' was never closed", (3, 10)),
        ("b = a", {}, "it defines no function `f`", (None, 1)),
        ("def g(a):\n    return a", {}, "it defines no function `f`", (None, 1)),
        ("return a", {"arguments": None}, "the arguments have no names and types", (None, 1)),
        ("def f(a, b):\n    return a", {}, "is declared with 1 arguments, and its `def` takes 2", (1, 1)),
        ("x = 1 / 0\ndef f(a):\n    return a", {}, "it raised ZeroDivisionError: division by zero", (1, 1)),
        ("yield a", {}, "it yields rows", (None, 1)),
        ("return a", {"returns": None}, "it does not say what it returns", (None, 1)),
        ("return a", {"options": {"ordered": True}}, "ordered: only for asynchronous functions", (None, 1)),
        ("await a", {"is_aggregate": True}, "it is asynchronous", (None, 1)),
        ("class f:\n    x: int = 0", {}, "a class says its types itself", (None, 1)),
        (
            "def f(a: int) -> int:\n    return a",
            {"arguments": None, "is_aggregate": True},
            "an argument is not a list",
            (None, 1),
        ),
        ("def f(a):\n    return a", {"arguments": None}, "the argument `a` has no annotation", (None, 1)),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    source: str, options: dict[str, Any], said: str, place: tuple[int | None, int]
) -> None:
    with pytest.raises((SourceError, ConfigurationError)) as caught:
        made(source, **{"arguments": ONE, "returns": pa.int64(), **options})
    assert said in str(caught.value)
    if isinstance(caught.value, SourceError):
        assert (caught.value.line, caught.value.column) == place
