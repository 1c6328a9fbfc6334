import json
from typing import Any

import pyarrow as pa
import pytest
from datafusion import SessionContext

from headrace.base.errors import ExpressionError
from headrace.functions import documents
from headrace.functions.failures import take_failure
from headrace.functions.signatures import FUNCTION_NAMES, all_signatures, resolve, usage
from headrace.model.fragments import Fragment, new_context

DOCUMENT = (
    '{"s": "text", "i": 7, "f": 1.10, "b": false, "n": null, "a": [1, "two", {"x": [3]}], "o": {"k": 1}}'
)


def call(name: str, *arguments: Any, types: list[pa.DataType] | None = None) -> Any:
    """The result of a call over one row of columns with these values."""
    columns = [pa.array([value], None if types is None else types[at]) for at, value in enumerate(arguments)]
    table = pa.table({f"c{at}": column for at, column in enumerate(columns)})
    registered = resolve(name, [column.type for column in columns])
    assert registered is not None, usage(name)
    query = Fragment(
        f"SELECT {registered}({', '.join(table.column_names)}) AS x FROM input", {"input": table.schema}
    )
    return query.run(input=table)["x"][0].as_py()


@pytest.mark.parametrize(
    ("name", "steps", "expected"),
    [
        ("json_get", ("s",), '"text"'),
        ("json_get", ("f",), "1.10"),
        ("json_get", ("n",), "null"),
        ("json_get", ("o",), '{"k":1}'),
        ("json_get", ("a", 2, "x", 0), "3"),
        ("json_get", ("a", 3), None),
        ("json_get", ("a", -1), '{"x":[3]}'),
        ("json_get", ("a", -4), None),
        ("json_get", ("a", "0"), None),
        ("json_get", (0,), None),
        ("json_get", ("missing",), None),
        ("json_get_json", ("a",), '[1,"two",{"x":[3]}]'),
        ("json_get_str", ("s",), "text"),
        ("json_get_str", ("a", 1), "two"),
        ("json_get_str", ("i",), None),
        ("json_get_int", ("i",), 7),
        ("json_get_int", ("f",), None),
        ("json_get_int", ("b",), None),
        ("json_get_float", ("f",), 1.1),
        ("json_get_float", ("i",), 7.0),
        ("json_get_float", ("b",), None),
        ("json_get_float", ("s",), None),
        ("json_get_bool", ("b",), False),
        ("json_get_bool", ("i",), None),
        ("json_get_array", ("a",), ["1", '"two"', '{"x":[3]}']),
        ("json_get_array", ("o",), None),
        ("json_as_text", ("s",), "text"),
        ("json_as_text", ("f",), "1.10"),
        ("json_as_text", ("b",), "false"),
        ("json_as_text", ("n",), None),
        ("json_as_text", ("a", 2), '{"x":[3]}'),
        ("json_length", (), 7),
        ("json_length", ("a",), 3),
        ("json_length", ("s",), None),
        ("json_contains", ("n",), True),
        ("json_contains", ("a", 2, "x"), True),
        ("json_contains", ("a", 3), False),
        ("json_contains", ("i", "deeper"), False),
        ("json_object_keys", (), ["s", "i", "f", "b", "n", "a", "o"]),
        ("json_object_keys", ("o",), ["k"]),
        ("json_object_keys", ("a",), None),
    ],
)
def test_an_element_is_found_by_keys_and_indexes(name: str, steps: tuple[Any, ...], expected: Any) -> None:
    assert call(name, DOCUMENT, *steps) == expected


@pytest.mark.parametrize(
    "text", [None, "", "{", "{'a': 1}", "NaN", '{"a": Infinity}', '{"a": "\\ud800"}', "[1] 2"]
)
def test_a_text_that_is_not_json_has_no_elements(text: str | None) -> None:
    types = [pa.string(), pa.string()]
    for name in sorted(FUNCTION_NAMES - {"json_contains", "multi_hash", "extract_json"}):
        step = "$.a" if "extract" in name or "first" in name else "a"
        assert call(name, text, step, types=types) is None
    assert call("json_contains", text, "a", types=types) is False
    assert call("extract_json", text, "$.a", types=types) is None


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_texts_of_every_kind_are_taken_and_plain_texts_are_given(kind: pa.DataType) -> None:
    table = pa.table({"j": pa.array(['{"a": "x"}', None], kind)})
    registered = resolve("json_get_str", [kind, pa.string_view()])
    query = Fragment(f"SELECT {registered}(j, 'a') AS x FROM input", {"input": table.schema})
    assert query.output == pa.schema([("x", pa.string())])
    assert query.run(input=table)["x"].to_pylist() == ["x", None]


def test_numbers_stay_as_they_were_written() -> None:
    text = '{"a": [12345678901234567890, 0.10, 1e5, -3, 1.00000000000000000001]}'
    assert call("json_get", text, "a") == "[12345678901234567890,0.10,1e5,-3,1.00000000000000000001]"
    assert call("json_get_int", text, "a", 0) is None
    assert call("json_get_float", text, "a", 0) == 12345678901234567890.0
    assert call("json_get_float", "[" + "9" * 400 + "]", 0) is None
    assert call("json_get_int", f"[{2**63 - 1}]", 0) == 2**63 - 1


def test_keys_and_texts_keep_their_characters() -> None:
    text = '{"gr\\u00f6\\u00dfe \\"x\\"": "\\ud83d\\ude00\\n"}'
    assert call("json_as_text", text, 'größe "x"') == "😀\n"
    assert call("json_get_json", text) == '{"größe \\"x\\"":"😀\\n"}'
    assert call("json_object_keys", text) == ['größe "x"']


def test_a_document_nested_too_deeply_has_no_elements() -> None:
    deep = "[" * 900 + "]" * 900
    assert call("json_get", deep) is None
    assert call("extract_json", deep, "$") is None
    assert call("json_length", deep) == 1


def test_steps_may_come_from_columns_and_differ_from_row_to_row() -> None:
    table = pa.table(
        {
            "j": ['{"a": [1, 2]}', '{"b": [3, 4]}', '{"a": [5, 6]}', '{"a": [5, 6]}', None],
            "k": ["a", "b", "b", None, "a"],
            "i": pa.array([0, 1, 0, 0, 0], pa.int16()),
        }
    )
    query = Fragment("SELECT json_get_int__ti(j, k, i) AS x FROM input", {"input": table.schema})
    assert query.run(input=table)["x"].to_pylist() == [1, 4, None, None, None]


def test_no_rows_give_no_rows() -> None:
    schema = pa.schema([("j", pa.string()), ("k", pa.string())])
    calls = [
        f"{resolve(name, [pa.string(), pa.string()])}(j, k) AS {name}" for name in sorted(FUNCTION_NAMES)
    ]
    result = Fragment(f"SELECT {', '.join(calls)} FROM input", {"input": schema}).run(
        input=schema.empty_table()
    )
    assert result.num_rows == 0
    assert result.column_names == sorted(FUNCTION_NAMES)


def test_each_distinct_text_of_a_batch_is_parsed_once_for_all_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    parse = documents.parse

    def watched(text: str) -> Any:
        seen.append(text)
        return parse(text)

    monkeypatch.setattr(documents, "parse", watched)
    table = pa.table({"j": ['{"a": 1, "b": "x"}', '{"a": 2}'] * 500})
    query = Fragment(
        "SELECT json_get_int__t(j, 'a') AS a, json_get_str__t(j, 'b') AS b, extract_json(j, '$.a') AS c "
        "FROM input",
        {"input": table.schema},
    )
    result = query.run(input=table)
    assert sorted(seen) == ['{"a": 1, "b": "x"}', '{"a": 2}']
    assert result.slice(998).to_pylist() == [{"a": 1, "b": "x", "c": ["1"]}, {"a": 2, "b": None, "c": ["2"]}]


def test_slices_of_one_column_are_not_taken_for_each_other() -> None:
    texts = pa.array([json.dumps({"a": at}) for at in range(10)])
    query = Fragment(
        "SELECT json_get_int__t(j, 'a') AS a FROM input", {"input": pa.schema([("j", pa.string())])}
    )
    for start in (0, 3, 6):
        batch = pa.record_batch({"j": texts.slice(start, 3)})
        assert query.run(input=batch)["a"].to_pylist() == [start, start + 1, start + 2]


@pytest.mark.parametrize(
    ("name", "path", "expected"),
    [
        ("extract_json", "$.a[*]", ["1", '"two"', '{"x":[3]}']),
        ("extract_json", "$.missing", []),
        ("extract_json", "$.f", ["1.10"]),
        ("extract_json_string", "$.s", "text"),
        ("extract_json_string", "$.a[1]", "two"),
        ("extract_json_string", "$.i", None),
        ("extract_json_string", "$.a[*]", None),
        ("extract_json_string", "$.missing", None),
        ("get_first_json_object", "$.a[1:]", '"two"'),
        ("get_first_json_object", "$.o", '{"k":1}'),
        ("get_first_json_object", "$.n", "null"),
        ("get_first_json_object", "$.missing", None),
    ],
)
def test_a_json_path_gives_its_matches(name: str, path: str, expected: Any) -> None:
    assert call(name, DOCUMENT, path) == expected


def test_a_path_that_is_null_gives_null() -> None:
    assert call("extract_json", DOCUMENT, None, types=[pa.string(), pa.string()]) is None


def test_a_wrong_path_is_an_error_that_can_be_taken_from_datafusion() -> None:
    ctx = new_context()
    with pytest.raises(Exception, match="headrace failure") as caught:
        ctx.sql("SELECT extract_json('{}', '$.') AS x").collect()
    failure = take_failure(caught.value)
    assert isinstance(failure, ExpressionError)
    assert "`$.` is not a JSONPath" in failure.message
    assert take_failure(caught.value) is None
    assert take_failure(ValueError("something else")) is None


def test_multi_hash_depends_on_every_value_and_where_it_ends() -> None:
    hashes = [
        call("multi_hash", "ab", "c"),
        call("multi_hash", "a", "bc"),
        call("multi_hash", "abc"),
        call("multi_hash", "c", "ab"),
        call("multi_hash", "abc", ""),
        call("multi_hash", "abc", None),
        call("multi_hash", "abc", "-"),
        call("multi_hash", "", "abc"),
        call("multi_hash", None),
        call("multi_hash", ""),
    ]
    assert len(set(hashes)) == len(hashes)
    assert all(len(one) == 32 and int(one, 16) >= 0 for one in hashes)


def test_multi_hash_is_the_same_everywhere_and_takes_values_of_any_type() -> None:
    assert call("multi_hash", "a", 1) == call("multi_hash", "a", "1") == "5ff18109aef1718dab587f3db2a49ae0"
    assert len(call("multi_hash", 1.5, True, [1, 2], *range(29))) == 32


@pytest.mark.parametrize(
    ("name", "types", "expected"),
    [
        ("json_get", [pa.string()], "json_get__"),
        ("json_get", [pa.string_view(), pa.string(), pa.int32(), pa.uint8()], "json_get__tii"),
        ("json_get", [pa.string(), pa.null()], "json_get__t"),
        ("json_get", [pa.string(), pa.dictionary(pa.int32(), pa.string())], "json_get__t"),
        ("json_get", [], None),
        ("json_get", [pa.int64(), pa.string()], None),
        ("json_get", [pa.string(), pa.float64()], None),
        ("json_get", [pa.string()] * 7, None),
        ("extract_json", [pa.string(), pa.large_string()], "extract_json"),
        ("extract_json", [pa.string()], None),
        ("extract_json", [pa.string(), pa.int64()], None),
        ("multi_hash", [pa.int64(), pa.timestamp("ns")], "multi_hash__2"),
        ("multi_hash", [], None),
        ("multi_hash", [pa.string()] * 33, None),
        ("multi_hash", [pa.binary()], None),
        ("lower", [pa.string()], "lower"),
    ],
)
def test_a_call_is_resolved_by_the_types_of_its_arguments(
    name: str, types: list[pa.DataType], expected: str | None
) -> None:
    assert resolve(name, types) == expected


def test_every_signature_is_registered_and_hides_no_function_of_datafusion() -> None:
    names = {one.name for one in all_signatures()}
    assert names <= set(new_context().udfs())
    assert not (names | FUNCTION_NAMES) & set(SessionContext().udfs())
    for name in FUNCTION_NAMES:
        assert usage(name).startswith(f"{name}(")
