"""Functions whose source stands in another text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from headrace.base.errors import ConfigurationError, ExpressionError
from headrace.functions.asynchronous import AsyncFunction
from headrace.functions.definition import Function
from headrace.functions.python_source import define, parsed_only
from headrace.functions.scalar import ScalarFunction
from headrace.functions.source_error import SourceError

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


def parsed(source: str, *, name: str = "f", **options: Any) -> Function:
    with parsed_only():
        return made(source, name=name, **options)


SIGNATURES = {
    "plain types": "def f(a: int, b: 'str | None' = print('run')) -> float: return 1.0",
    "imported types": """
        import datetime as dt
        from decimal import Decimal
        def f(a: dt.date) -> Decimal: ...
    """,
    "an Arrow type": """
        import pyarrow as pa
        from typing import Annotated
        Money = Annotated[int, pa.int32()]
        def f(a: Money) -> Annotated[str, pa.large_string()]: ...
    """,
    "arrays": "import pyarrow as pa\ndef f(a: pa.Int64Array) -> pa.StringArray: ...",
    "a struct": """
        from __future__ import annotations
        from typing import NamedTuple
        def f(a: Point) -> list[Point]: ...
        class Point(NamedTuple):
            x: int
            y: float = sum([1.0])
    """,
    "a dataclass": """
        from dataclasses import dataclass
        @dataclass
        class Point:
            x: int
        def f(a: Point) -> Point: ...
    """,
    "an aggregate": "def f(a: list[int]) -> int: return sum(a)",
    "a generator": """
        from collections.abc import Iterator
        def f(a: str) -> Iterator[tuple[str, int]]:
            yield a, 1
    """,
    "a coroutine": "async def f(a: int) -> int: return a",
    "a decorator": "import headrace as hr\n@hr.udf(timeout='2s')\nasync def f(a: int) -> int: return a",
    "an accumulator": """
        class f:
            total: int = 0
            seen: list[int] = []
            def update(self, v: int): self.total += v
            def merge(self, other: 'f'): ...
            def finish(self) -> int: return self.total
    """,
}


@pytest.mark.parametrize("source", SIGNATURES.values(), ids=SIGNATURES)
def test_a_source_that_is_only_parsed_has_the_signature_it_has_when_it_is_run(source: str) -> None:
    ran = made(source)
    read = parsed(source)
    assert type(read) is type(ran)
    assert (read.arguments, read.returns, read.parameters) == (ran.arguments, ran.returns, ran.parameters)


def test_nothing_of_a_source_is_run_when_it_is_parsed(tmp_path: Path) -> None:
    trace = tmp_path / "run"
    run = f"__import__('pathlib').Path({str(trace)!r}).touch()"
    source = (
        f"import pathlib\n{run}\nX = {run}\n@(lambda g: {run} and g)\ndef helper(a={run}): return {run}\n"
        f"class Other:\n    {run}\n    y: int = {run}\n"
        f"def f(a: int = {run}) -> int:\n    return {run}\n"
    )
    assert parsed(source).arguments == (pa.int64(),)
    assert parsed(f"{run}\nreturn a", arguments=ONE, returns=pa.int64()).returns == pa.int64()
    assert not trace.exists()


@pytest.mark.parametrize(
    "source",
    [
        "import enum\nclass E(enum.Enum):\n    A = 1\ndef f(a: E) -> int: ...",
        "T = int if True else str\ndef f(a: T) -> int: ...",
        "def f(a: type(1)) -> int: ...",
        "def f(a: '__import__(\"os\").getpid()') -> int: ...",
        "import functools\n@functools.cache\ndef f(a: int) -> int: ...",
        "def f(a: int) -> int: ...\nf = print(f)",
    ],
)
def test_types_that_only_running_tells_are_said_to_be_unknown(source: str) -> None:
    with pytest.raises(SourceError, match="its types are only known when it runs") as caught:
        parsed(source)
    assert "--run-functions" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("source", "line"), [("def f(a: int) -> int:\n  x = = 1", 2), ("x = 1\nreturn x\ndef f(a): ...", 2)]
)
def test_a_syntax_error_is_found_by_parsing(source: str, line: int) -> None:
    with pytest.raises(SourceError) as caught:
        parsed(source)
    assert caught.value.line == line
