# ruff: noqa: ARG001 - how functions are declared is tested here, not what they compute
import datetime as dt
import subprocess
import sys
import textwrap
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Optional

import cloudpickle
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from datafusion import SessionConfig, SessionContext

from headrace.base.errors import ConfigurationError, ExpressionError
from headrace.functions.failures import take_failure
from headrace.functions.user import AggregateFunction, Function, ScalarFunction, load_udfs, udaf, udf
from headrace.model.fragments import Fragment, new_context


def run(sql: str, table: pa.Table, *functions: Function) -> pa.Table:
    return Fragment(sql, {"input": table.schema}, functions=functions).run(input=table)


def column(sql: str, table: pa.Table, *functions: Function) -> list[Any]:
    values: list[Any] = run(f"SELECT {sql} AS x FROM input", table, *functions)["x"].to_pylist()
    return values


def failure(sql: str, table: pa.Table, *functions: Function) -> ExpressionError:
    """The error that a call ends with."""
    ctx = new_context(functions)
    ctx.register_record_batches("input", [table.to_batches()])
    with pytest.raises(Exception, match="headrace failure") as caught:
        ctx.sql(f"SELECT {sql} AS x FROM input").collect()
    error = take_failure(caught.value)
    assert isinstance(error, ExpressionError)
    return error


@udf
def add(a: int, b: int) -> int:
    return a + b


@udf
def describe(a: int | None, b: Optional[str]) -> str | None:  # noqa: UP045 - the older spelling is read too
    return None if a is None and b is None else f"{a} {b}"


@udf
def spread(values: list[int]) -> int | None:
    return max(values) - min(values) if values else None


def test_a_scalar_function_is_called_for_each_row() -> None:
    table = pa.table({"a": [1, 2], "b": [10, 20]})
    assert column("add(a, b)", table, add) == [11, 22]
    assert column("ADD(a, 1) * 2", table, add) == [4, 6]
    assert column("add(1, 2)", table, add) == [3, 3]
    assert column("add(a, add(b, a))", table, add) == [12, 24]


def test_a_function_is_not_called_for_null_unless_it_takes_it() -> None:
    table = pa.table({"a": [1, None, 3, None], "b": ["x", "y", None, None]})
    assert column("describe(a, b)", table, describe) == ["1 x", "None y", "3 None", None]
    seen: list[int] = []

    @udf
    def seen_only(a: int, b: str | None) -> int:
        seen.append(a)
        return a * 10

    assert column("seen_only(a, b)", table, seen_only) == [10, None, 30, None]
    assert seen == [1, 3]
    assert column("seen_only(NULL, 'x')", table, seen_only) == [None] * 4
    assert column("add(a, a)", pa.table({"a": pa.array([], pa.int64())}), add) == []


@pytest.mark.parametrize(
    ("annotation", "kind", "value"),
    [
        (bool, pa.bool_(), True),
        (int, pa.int64(), -(2**63)),
        (float, pa.float64(), 1.5),
        (str, pa.string(), "größe"),
        (bytes, pa.binary(), b"\xff\x00"),
        (dt.datetime, pa.timestamp("ns"), dt.datetime(2024, 2, 29, 12, 30, 1, 5)),  # noqa: DTZ001
        (dt.date, pa.date32(), dt.date(1969, 12, 31)),
        (dt.time, pa.time64("ns"), dt.time(23, 59, 59, 1)),
        (dt.timedelta, pa.duration("ns"), dt.timedelta(days=-1, microseconds=5)),
        (Decimal, pa.decimal128(38, 10), Decimal("1.2500000000")),
        (list[int], pa.list_(pa.int64()), [1, 2]),
        (list[list[str]], pa.list_(pa.list_(pa.string())), [["a"], []]),
        (list[dt.datetime], pa.list_(pa.timestamp("ns")), [dt.datetime(2024, 1, 1)]),  # noqa: DTZ001
        (Annotated[Decimal, pa.decimal128(10, 2)], pa.decimal128(10, 2), Decimal("1.25")),
        (Annotated[int, "a note"], pa.int64(), 1),
    ],
)
def test_annotations_are_the_types_of_a_function(annotation: Any, kind: pa.DataType, value: Any) -> None:
    seen = []

    def same(value: Any, other: Any) -> Any:
        seen.append(value)
        return value

    same.__annotations__ = {"value": annotation, "other": int | None, "return": annotation | None}
    function = udf(same)
    assert isinstance(function, ScalarFunction)
    assert function.arguments == (kind, pa.int64())
    assert function.returns == kind
    table = pa.table({"v": pa.array([value, None], kind)})
    result = run("SELECT same(v, 1) AS x FROM input", table, function)
    assert result.schema.field("x").type == kind
    assert result["x"].to_pylist() == table["v"].to_pylist()
    assert seen == [value]
    assert type(seen[0]) is type(value)


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]
)
def test_an_int_takes_a_column_of_any_integers(kind: pa.DataType) -> None:
    assert column("add(a, a)", pa.table({"a": pa.array([100, None], kind)}), add) == [200, None]


def test_nanoseconds_are_cut_to_what_python_has() -> None:
    @udf
    def same(at: dt.datetime) -> dt.datetime:
        return at

    table = pa.table({"at": pa.array([1_000_000_123_456_789], pa.timestamp("ns"))})
    result = run("SELECT same(at) AS x FROM input", table, same)
    assert result["x"].cast(pa.int64()).to_pylist() == [1_000_000_123_456_000]


def test_an_instant_with_a_zone_becomes_utc() -> None:
    zone = dt.timezone(dt.timedelta(hours=2))

    @udf
    def parse(text: str) -> dt.datetime:
        return dt.datetime.fromisoformat(text).replace(tzinfo=zone)

    assert column("CAST(parse(t) AS TEXT)", pa.table({"t": ["2024-01-01T12:00:00"]}), parse) == [
        "2024-01-01T10:00:00"
    ]


def test_a_function_may_have_another_name_in_sql_and_names_are_in_lower_case() -> None:
    @udf(name="Plus_One")
    def something(a: int) -> int:
        return a + 1

    @udf
    def camelCase(a: int) -> int:  # noqa: N802 - users write such names
        return a

    assert something.name == "plus_one"
    assert camelCase.name == "camelcase"
    assert column("plus_one(camelCase(a))", pa.table({"a": [1]}), something, camelCase) == [2]


def test_a_decorated_function_is_still_a_function_in_python() -> None:
    assert add(1, b=2) == 3
    assert spread([1, 5]) == 4


def test_a_vectorized_function_takes_and_gives_arrays() -> None:
    @udf(arguments=[pa.int64(), pa.string()], returns=pa.float64(), vectorized=True)
    def scale(values, units):  # type: ignore[no-untyped-def]
        return pc.multiply(values, pc.if_else(pc.equal(units, "k"), 1000, 1))

    table = pa.table({"a": pa.array([1, None, 3], pa.int32()), "u": ["k", "k", ""]})
    assert scale.arguments == (pa.int64(), pa.string())
    assert column("scale(a, u)", table, scale) == [1000.0, None, 3.0]
    assert column("scale(2, 'k')", table, scale) == [2000.0] * 3


def test_a_vectorized_function_that_gives_something_else_is_an_error() -> None:
    @udf(arguments=[pa.int64()], returns=pa.int64(), vectorized=True)
    def first(values):  # type: ignore[no-untyped-def]
        return values.slice(0, 1)

    @udf(arguments=[pa.int64()], returns=pa.int64(), vectorized=True)
    def plain(values):  # type: ignore[no-untyped-def]
        return values.to_pylist()

    @udf(arguments=[pa.int64()], returns=pa.int64(), vectorized=True)
    def texts(values):  # type: ignore[no-untyped-def]
        return pa.array(["x"] * len(values))

    @udf(arguments=[pa.int64()], returns=pa.int64(), vectorized=True)
    def broken(values):  # type: ignore[no-untyped-def]
        raise ValueError("no")

    table = pa.table({"a": [1, 2, 3]})
    assert "returned 1 values for a batch of 3 rows" in failure("first(a)", table, first).message
    assert "returned list for a batch of 3 rows" in failure("plain(a)", table, plain).message
    assert "returned string, which is not int64" in failure("texts(a)", table, texts).message
    assert (
        failure("broken(a)", table, broken).message
        == "udf `broken` raised ValueError: no for a batch of 3 rows"
    )


def test_an_aggregate_is_called_once_for_each_group() -> None:
    table = pa.table({"k": ["a", "b", "a", "b", "c"], "v": pa.array([1, 5, 4, None, None], pa.int32())})
    result = run("SELECT k, spread(v) AS x, count(*) AS n FROM input GROUP BY k ORDER BY k", table, spread)
    assert result.to_pylist() == [
        {"k": "a", "x": 3, "n": 2},
        {"k": "b", "x": 0, "n": 2},
        {"k": "c", "x": None, "n": 1},
    ]
    assert spread.is_aggregate
    assert column("spread(v)", table, spread) == [4]
    assert column("spread(v) FILTER (WHERE k = 'b')", table, spread) == [0]
    assert column("spread(v)", table.slice(0, 0), spread) == [None]


def test_an_aggregate_of_several_arguments_keeps_rows_together() -> None:
    @udaf
    def pairs(a: list[int], b: list[str | None]) -> list[str]:
        return [f"{x}{y}" for x, y in zip(a, b, strict=True)]

    table = pa.table({"a": [1, None, 3], "b": ["x", "y", None]})
    assert column("pairs(a, b)", table, pairs) == [["1x", "3None"]]
    assert "cannot be called with ORDER BY" in failure("pairs(a, b ORDER BY a DESC)", table, pairs).message


def test_an_aggregate_merges_what_was_collected_in_parts() -> None:
    @udaf(name="mean_of")
    def mean(values: list[float], weights: list[int]) -> float:
        return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)

    ctx = SessionContext(SessionConfig().with_target_partitions(4))
    mean.install(ctx)
    batches = [
        pa.record_batch({"k": ["a", "b", "a"], "v": [1.0 * n, 2.0, None], "w": [n, 1, 1]})
        for n in range(1, 5)
    ]
    ctx.register_record_batches("input", [[batch] for batch in batches])
    plan = ctx.sql("SELECT k, mean_of(v, w) AS x FROM input GROUP BY k ORDER BY k")
    assert "Partial" in plan.execution_plan().display_indent()
    assert pa.Table.from_batches(plan.collect()).to_pylist() == [{"k": "a", "x": 3.0}, {"k": "b", "x": 2.0}]


def test_lists_that_are_not_the_only_kind_of_argument_are_values_of_a_row() -> None:
    @udf
    def pick(values: list[int], at: int) -> int | None:
        return values[at] if at < len(values) else None

    @udf
    def total(values: Annotated[list[int], pa.list_(pa.int64())]) -> int:
        return sum(values)

    table = pa.table({"v": [[1, 2], [], None], "at": [1, 0, 0]})
    assert column("pick(v, at)", table, pick) == [2, None, None]
    assert isinstance(total, ScalarFunction)
    assert column("total(v)", table, total) == [3, 0, None]


def test_a_raise_shows_the_function_the_row_and_the_users_line() -> None:
    @udf
    def share(part: int, whole: int | None, label: str) -> float:
        return part / whole  # type: ignore[operator]

    table = pa.table({"p": [1, 2], "w": [1, 0], "l": ["x", "it's " + "long " * 100]})
    error = failure("share(p, w, l)", table, share)
    assert error.message.startswith(
        "udf `share` raised ZeroDivisionError: division by zero for the row part=2, whole=0, label=\"it's"
    )
    assert len(error.message) < 500
    assert "return part / whole" in error.traceback_text
    assert "headrace/functions/user.py" not in error.traceback_text
    assert isinstance(error.__cause__, ZeroDivisionError)
    restored = cloudpickle.loads(cloudpickle.dumps(error))
    assert str(restored) == str(error)


def test_a_raise_in_an_aggregate_shows_the_group() -> None:
    @udaf
    def only(values: list[int]) -> int:
        (value,) = values
        return value

    error = failure("only(a)", pa.table({"a": [1, 2]}), only)
    assert "udf `only` raised ValueError" in error.message
    assert "for the group values=[1, 2]" in error.message
    assert "(value,) = values" in error.traceback_text


def test_a_result_of_another_type_is_an_error_that_shows_it() -> None:
    @udf
    def wrong(a: int) -> int:
        return a if a < 2 else "many"  # type: ignore[return-value]

    @udf
    def large(a: int) -> int:
        return a * 2**63

    table = pa.table({"a": [None, 1, 2, 3]})
    error = failure("wrong(a)", table, wrong)
    assert "udf `wrong` returned 'many' (str), which is not int64, for the row a=2" in error.message
    error = failure("large(a)", table, large)
    assert (
        "udf `large` returned 9223372036854775808 (int), which is not int64, for the row a=1" in error.message
    )


def test_functions_are_frozen_hashable_and_equal_to_their_copies() -> None:
    copy = cloudpickle.loads(cloudpickle.dumps(add))
    assert copy == add
    assert hash(copy) == hash(add)
    assert copy is not add
    assert copy(1, 2) == 3

    def other(a: int, b: int) -> int:
        return a - b

    redefined = udf(name="add")(other)
    assert redefined != add
    with pytest.raises(AttributeError):
        add.name = "x"  # type: ignore[misc]
    table = pa.table({"a": [3], "b": [1]})
    assert [column("add(a, b)", table, one) for one in (add, redefined, copy)] == [[4], [2], [4]]


def test_functions_of_a_script_run_where_the_script_is_not(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, cloudpickle
            from headrace.functions.user import udf

            FACTOR = 3

            def helper(a):
                return a * FACTOR

            @udf
            def triple(a: int) -> int:
                return helper(a) if a < 10 else triple(a - 1)

            @udf
            def most(values: list[int]) -> int:
                return helper(max(values))

            sys.stdout.buffer.write(cloudpickle.dumps((triple, most)))
            """
        )
    )
    pickled = subprocess.run([sys.executable, str(script)], capture_output=True, check=True).stdout
    triple, most = cloudpickle.loads(pickled)
    table = pa.table({"a": [1, 20]})
    assert column("triple(a)", table, triple) == [3, 27]
    assert column("most(a)", table, most) == [60]


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "json.py"
    file.write_text(textwrap.dedent(text))
    return file


def test_functions_are_loaded_from_a_file_written_for_arroyo(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        from typing import Optional
        from arroyo_udf import udf

        SUFFIX = "!"

        def helper(text):
            return text + SUFFIX

        @udf
        def shout(text: str, times: Optional[int]) -> str:
            return helper(text.upper()) * (times or 1)

        alias = shout

        @udf
        def longest(texts: list[str]) -> str:
            return max(texts, key=len)
        """,
    )
    functions = load_udfs(str(file))
    assert [one.name for one in functions] == ["shout", "longest"]
    assert "arroyo_udf" not in sys.modules
    assert sys.modules["json"].__file__ != str(file)
    table = pa.table({"t": ["a", "bcd"]})
    assert column("shout(t, 2)", table, *functions) == ["A!A!", "BCD!BCD!"]
    assert column("longest(t)", table, *functions) == ["bcd"]
    code = (
        "import sys, cloudpickle\n"
        "shout, longest = cloudpickle.loads(sys.stdin.buffer.read())\n"
        "sys.stdout.write(shout('a', None) + longest(['b', 'cc']))"
    )
    pickled = cloudpickle.dumps(functions)
    file.unlink()
    done = subprocess.run([sys.executable, "-c", code], input=pickled, capture_output=True, check=True)
    assert done.stdout == b"A!cc"


def test_a_file_may_import_the_modules_next_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "next_to_it.py").write_text("def helper(a):\n    return a + 1\n")
    file = written(
        tmp_path,
        """
        from headrace.functions.user import udf
        from next_to_it import helper

        @udf
        def following(a: int) -> int:
            return helper(a)
        """,
    )
    assert column("following(a)", pa.table({"a": [1]}), *load_udfs(file)) == [2]


@pytest.mark.parametrize(
    ("text", "said", "where"),
    [
        ("x = 1\n", "defines no functions", None),
        ("def f(:\n", "invalid syntax", "line 1"),
        ("x = 1\nx / 0\n", "raised ZeroDivisionError: division by zero", "line 2: x / 0"),
        (
            "from headrace.functions.user import udf\n@udf\ndef f(a) -> int: return 1\n",
            "`a` has no annotation",
            "line 2",
        ),
    ],
)
def test_a_file_that_cannot_be_loaded_says_why(
    text: str, said: str, where: str | None, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_udfs(written(tmp_path, text))
    assert said in caught.value.message
    if where is not None:
        assert where in str(caught.value.where)


def test_a_file_that_is_not_there_is_an_error_with_a_near_name(tmp_path: Path) -> None:
    written(tmp_path, "")
    with pytest.raises(ConfigurationError, match="there is no file") as caught:
        load_udfs(tmp_path / "jsn.py")
    assert caught.value.hint == "did you mean `json.py`?"


def generator(a: int):  # type: ignore[no-untyped-def]
    yield a


def no_annotation(a) -> int:  # type: ignore[no-untyped-def]
    return 1


def no_result(a: int):  # type: ignore[no-untyped-def]
    return a


def unknown_type(a: dict[str, int]) -> int:
    return 1


def several_types(a: int | str) -> int:
    return 1


def nothing_type(a: int) -> None:
    return None


def bare_list(a: list) -> int:  # type: ignore[type-arg]
    return 1


def unreadable(a: "Missing") -> int:  # type: ignore[name-defined]  # noqa: F821
    return 1


def variadic(*values: int) -> int:
    return 1


def keyword_only(a: int, *, b: int) -> int:
    return 1


def no_arguments() -> int:
    return 1


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (generator, "it yields"),
        (no_annotation, "the argument `a` has no annotation"),
        (no_result, "the result has no annotation"),
        (unknown_type, "the argument `a` is `dict[str, int]`, which SQL has no type for"),
        (several_types, "the argument `a` is `int | str`"),
        (nothing_type, "the result is `NoneType`"),
        (bare_list, "the argument `a` is `list`"),
        (unreadable, "an annotation cannot be read: name 'Missing' is not defined"),
        (variadic, "`*values: int` is not an argument that SQL can give"),
        (keyword_only, "`b: int` is not an argument that SQL can give"),
        (no_arguments, "it has no arguments"),
        (lambda a: a, "a lambda has no name"),
    ],
)
def test_a_definition_that_cannot_work_says_what_to_do(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        udf(function)
    assert said in caught.value.message
    assert caught.value.hint
    assert f"{__file__}, line" in str(caught.value.where)


def test_settings_that_do_not_go_together_are_errors() -> None:
    def one(a: int) -> int:
        return a

    with pytest.raises(ConfigurationError, match="needs the Arrow types of its 1 arguments"):
        udf(vectorized=True)(one)
    with pytest.raises(ConfigurationError, match="needs the Arrow types"):
        udf(vectorized=True, arguments=[pa.int64(), pa.int64()], returns=pa.int64())(one)
    with pytest.raises(ConfigurationError, match="are for functions over Arrow arrays"):
        udf(arguments=[pa.int64()], returns=pa.int64())(one)
    with pytest.raises(ConfigurationError, match="an argument is not a list"):
        udaf(one)
    with pytest.raises(ConfigurationError, match="cannot be called by this name"):
        udf(name="two words")(one)
    with pytest.raises(ConfigurationError, match="it is a class"):
        udf(int)
    with pytest.raises(ConfigurationError, match="a udf is a function"):
        udf(1)  # type: ignore[call-overload]


def test_a_name_that_sql_already_has_is_refused() -> None:
    def upper(text: str) -> str:
        return text

    def total(values: list[int]) -> int:
        return sum(values)

    with pytest.raises(ConfigurationError, match="there is already a function called `upper`"):
        new_context([udf(upper)])
    with pytest.raises(ConfigurationError, match="there is already a function called `sum`"):
        new_context([udaf(name="sum")(total)])
    with pytest.raises(ConfigurationError, match="there is already a function called `add`"):
        new_context([add, add])


def test_the_kinds_are_told_apart() -> None:
    assert isinstance(add, ScalarFunction)
    assert not add.is_aggregate
    assert isinstance(spread, AggregateFunction)
    assert spread.arguments == (pa.int64(),)
    assert spread.returns == pa.int64()


def test_functions_come_from_a_module_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "shop_functions"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "prices.py").write_text(
        textwrap.dedent("""
        from headrace import udf

        RATE = 3

        def helper(value):
            return value * RATE

        @udf
        def price(value: int) -> int:
            return helper(value)
        """)
    )
    (package / "broken.py").write_text("import nowhere_at_all")
    (package / "empty.py").write_text("")
    (price,) = load_udfs("shop_functions.prices")
    assert column("price(a)", pa.table({"a": [2]}), cloudpickle.loads(cloudpickle.dumps(price))) == [6]
    with pytest.raises(ConfigurationError, match=r"the module shop_functions.broken cannot be imported"):
        load_udfs("shop_functions.broken")
    with pytest.raises(ConfigurationError, match=r"shop_functions.empty defines no functions"):
        load_udfs("shop_functions.empty")
    with pytest.raises(ConfigurationError, match=r"there is no file shop_functions.price with functions"):
        load_udfs("shop_functions.price")
    with pytest.raises(ConfigurationError, match=r"the module nobody.there cannot be imported"):
        load_udfs("nobody.there")
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(tmp_path)])


def test_arrays_in_annotations_make_a_function_over_whole_columns() -> None:
    @udf
    def shifted(values: pa.Int64Array, by: Annotated[pa.Array, pa.int32()]) -> pa.DoubleArray:
        return pc.add(values, by)

    assert isinstance(shifted, ScalarFunction)
    assert shifted.vectorized
    assert shifted.arguments == (pa.int64(), pa.int32())
    assert column("shifted(a, CAST(1 AS INT))", pa.table({"a": [1, None]}), shifted) == [2.0, None]

    def mixed(values: pa.Int64Array, by: int) -> pa.Int64Array:
        return values

    def half(values: pa.Int64Array) -> int:
        return 1

    for one in (mixed, half):
        with pytest.raises(ConfigurationError, match="arrays are mixed with single values"):
            udf(one)
