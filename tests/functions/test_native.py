"""Functions in shared libraries: what they give, and what happens when they do not."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.base.errors import ConfigurationError, ExpressionError
from headrace.functions import native
from headrace.functions.native import Library, NativeFunction, NativeHost, shared_host
from headrace.functions.user import native_udf
from headrace.testing.in_process import run_in_process
from tests.functions.conftest import SOURCES, Compile

INT = pa.int64()


@pytest.fixture(scope="session")
def library(compile_c: Compile) -> Path:
    return compile_c(SOURCES / "behaviours.c")


def made(library: Path, symbol: str, returns: pa.DataType = INT, **options: Any) -> NativeFunction:
    return native_udf(symbol, library=library, arguments=[INT, INT], returns=returns, **options)


def numbers(*values: int | None) -> list[pa.Array]:
    return [pa.array(values, INT), pa.array(range(len(values)), INT)]


def test_a_function_is_called_with_whole_columns(library: Path) -> None:
    add = made(library, "add")
    assert add.call(numbers(10, 20, None, 40)).to_pylist() == [10, 21, None, 43]
    assert add.call(numbers(None, None)).to_pylist() == [None, None]
    assert add.call(numbers()).to_pylist() == []
    sliced = [column.slice(1, 2) for column in numbers(10, 20, 30)]
    assert add.call(sliced).to_pylist() == [21, 32]
    assert add(1, 2) == 3
    many = [pa.array(range(300_000)), pa.array(range(300_000))]
    assert add.call(many)[-1].as_py() == 2 * 299_999
    with pytest.raises(TypeError, match=r"add\(\) takes 2 values"):
        add(1)


def test_a_function_may_take_and_give_nulls(library: Path) -> None:
    texts = pa.array(["ab", None, "", "größe"])
    echo = native_udf("echo", library=library, arguments=[pa.string()], returns=pa.string(), nullable=True)
    assert echo.call([texts]).to_pylist() == ["abab", "none", None, "größegröße"]
    strict = native_udf("Echo", symbol="echo", library=library, arguments=[pa.string()], returns=pa.string())
    assert strict.name == "echo"
    assert strict.call([texts]).to_pylist() == ["abab", None, None, "größegröße"]


def test_the_type_of_the_result_may_be_left_to_the_declaration(library: Path) -> None:
    assert made(library, "trusts").call(numbers(5, 6)).to_pylist() == [5, 7]
    assert made(library, "prints").call(numbers(5)).to_pylist() == [5]


@pytest.mark.parametrize(
    ("symbol", "returns", "said"),
    [
        ("only_below_100", INT, "failed: it is too large, for the row arg1=100, arg2=2"),
        ("fails_silently", INT, "failed: it returned 42 and gave no message, for the row arg1=1, arg2=0"),
        ("gives_nothing", INT, "failed: it returned 0 and gave no result: `result->release` is not set"),
        ("gives_one", INT, "failed: it gave 1 values for 2 rows"),
        ("gives_doubles", INT, "failed: it gave double, and int64 is declared"),
        ("add", pa.string(), "failed: it gave int64, and string is declared"),
        ("trusts", pa.string(), "failed: it gave an array that cannot be read"),
        ("gives_bad_texts", pa.string(), "failed: it gave an array that cannot be read"),
        ("gives_odd_type", INT, "failed: it gave an array that cannot be read"),
        ("crashes_at_7", INT, "crashed: its process was ended by SIGSEGV, for the row arg1=7, arg2=3"),
        ("exits", INT, "ended its process with exit code 3, for the row arg1=1, arg2=0"),
    ],
)
def test_what_goes_wrong_is_an_error_that_shows_the_row(
    library: Path, symbol: str, returns: pa.DataType, said: str
) -> None:
    function = made(library, symbol, returns)
    with pytest.raises(ExpressionError) as caught:
        function.call(numbers(1, 50, 100, 7))
    assert caught.value.message.startswith(f"udf `{symbol}` {said}")
    assert made(library, "add").call(numbers(1)).to_pylist() == [1]  # others go on


def test_a_library_that_cannot_be_used_is_found_before_the_run(library: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"does not export `sub`"):
        made(library, "sub")
    with pytest.raises(ConfigurationError, match="there is no shared library at") as caught:
        made(library.with_name("libbehaviour.so"), "add")
    assert caught.value.hint == "did you mean `libbehaviours.so`?"
    text = tmp_path / "libtext.so"
    text.write_text("no library")
    with pytest.raises(ConfigurationError, match=r"libtext.so cannot be loaded"):
        made(text, "add")


def test_a_library_goes_to_where_there_is_no_file_of_it(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "libmoved.so"
    file.write_bytes(library.read_bytes())
    add: NativeFunction = pickle.loads(pickle.dumps(made(file, "add")))
    file.write_text("another library")
    native._local_copy.cache_clear()
    assert add.call(numbers(1)).to_pylist() == [1]
    assert list((tmp_path / "cache").rglob("libmoved.so"))
    monkeypatch.setattr(native, "LARGEST", 10)
    large = Library.load(library)
    assert large.content is None
    assert Path(large.file()) == library.resolve()
    gone = Library(str(tmp_path / "gone.so"), large.digest)
    with pytest.raises(ConfigurationError, match=r"gone.so is not there on this machine"):
        gone.file()


def test_the_process_of_the_libraries_is_replaced_and_ends(library: Path) -> None:
    host = NativeHost()
    known = Library.load(library)
    host.check(known, "add")
    assert host._process is not None
    first = host._process.pid
    os.kill(first, signal.SIGKILL)
    with pytest.raises(native.CrashedError, match="ended by SIGKILL"):
        host.check(known, "add")
    host.check(known, "add")
    assert host._process.pid != first
    process = host._process
    host.close()
    assert process.returncode == 0
    assert shared_host() is shared_host()


def test_sql_calls_it_and_an_error_ends_the_run_and_not_the_process(library: Path, tmp_path: Path) -> None:
    sql = f"""
    CREATE FUNCTION crashes_at_7(a BIGINT, b INT) RETURNS BIGINT LANGUAGE native AS '{library}';
    CREATE FUNCTION sum_of(BIGINT, BIGINT) RETURNS BIGINT LANGUAGE native AS '{library}', 'add';
    CREATE TABLE t WITH (connector = 'impulse', message_count = 5, event_rate = 1000);
    """.replace("b INT", "b BIGINT")
    good = "SELECT sum_of(counter, 10) AS x, crashes_at_7(counter, 1) AS y FROM t"

    def pipeline(query: str) -> hr.Pipeline:
        return hr.Pipeline.from_sql(sql + query, preview=lambda _: ("memory", {"name": "out"}))

    rows = run_in_process(pipeline(good), tmp_path / "a").rows["out"].to_pylist()
    assert [(row["x"], row["y"]) for row in rows] == [(n + 10, n + 1) for n in range(5)]
    with pytest.raises(
        ExpressionError, match=r"crashed: its process was ended by SIGSEGV, for the row a=7, b=0"
    ):
        run_in_process(pipeline("SELECT crashes_at_7(counter + 5, 0) AS x FROM t"), tmp_path / "b")
