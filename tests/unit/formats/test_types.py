from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import ConfigurationError
from headrace.formats.types import format_type, parse_type


@pytest.mark.parametrize(
    "kind",
    [
        pa.int64(),
        pa.float64(),
        pa.string(),
        pa.bool_(),
        pa.timestamp("ms"),
        pa.decimal128(10, 2),
        pa.list_(pa.struct({"a": pa.int64(), "odd name: <": pa.list_(pa.string())})),
        pa.struct({}),
    ],
)
def test_what_is_formatted_is_parsed_back(kind: Any) -> None:
    assert parse_type(format_type(kind)) == kind


@pytest.mark.parametrize(
    ("text", "hint"),
    [("int46", "int64"), ("", "such as"), ("list<", "such as"), ("list<int64> x", "such as"),
     ("struct<a int64>", "such as"), ("decimal(99, 2)", "such as"), ("strng", "string"), ("&", "such as")],
)  # fmt: skip
def test_what_is_not_a_type_is_answered_with_a_hint(text: Any, hint: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_type(text)
    assert hint in (caught.value.hint or "")
