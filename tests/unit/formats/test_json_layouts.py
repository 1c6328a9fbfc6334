"""Lines that are alike are read by their layout: to the same rows and errors as by a parser."""

import io
import json
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace.base.errors import BadLineError, ExternalError
from headrace.connectors.filesystem import lines as stream_lines
from headrace.connectors.filesystem.lines import read_blocks
from headrace.formats.json.format import JsonFormat
from headrace.formats.json.layouts import LineLayouts

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.float64()),
        pa.field("sold", pa.bool_()),
        pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("ns")),
        pa.field("who", pa.struct([pa.field("age", pa.int8()), pa.field("city", pa.string())])),
        pa.field("missing", pa.struct([pa.field("x", pa.int64())])),
    ]
)
MANY = 1500


def line(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "price": number / 4,
        "sold": number % 3 == 0,
        "name": f"the {number}th, called {{é}}",
        "at": f"2026-01-01T00:{number % 60:02}:00",
        "who": {"age": number % 100, "city": "Ulm", "zip": number},
        **more,
    }


def dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def in_pieces(texts: Sequence[bytes]) -> list[dict[str, Any]]:
    """The rows as they are read from so few lines at a time that nobody looks for layouts."""
    pieces = [b"\n".join(texts[begin : begin + 100]) for begin in range(0, len(texts), 100)]
    tables = [JsonFormat(SCHEMA).decode(piece).rows for piece in pieces]
    return [row for table in tables for row in table.to_pylist()]


PLAIN = pa.schema([field.with_nullable(True) for field in SCHEMA])
"""The columns as rows have them."""
GOOD = [dump(line(number)) for number in range(MANY)]


def no_parser(_: list[bytes]) -> pa.Table:
    raise AssertionError("every line has a layout")


def test_lines_of_several_layouts_are_read_without_a_parser_in_their_order() -> None:
    texts = [*GOOD, *(dump({"id": number, "who": None}) for number in range(MANY))]
    texts += [dump({"name": "x", "id": number, "who": {}}) for number in range(MANY)]
    random.Random(1).shuffle(texts)
    result = LineLayouts(PLAIN).read(b"\n".join(texts), parse=no_parser)
    assert result is not None
    result.rows.validate(full=True)
    assert result.rows.to_pylist() == in_pieces(texts)


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b" \t ",
        b'{"id":7}\r',
        b'{ "id" : 7 , "who" : { "city" : "x" } }',
        dump({"id": 1, "name": 'a "quoted" text\n\\'}),
        rb'{"id":1,"name":"\u00e9\ud83d\ude00"}',
        dump({"id": 1, "tags": ["a", {"b": 1}], "name": "x"}),
        dump({"id": 1, "who": {"age": None, "city": None, "more": {"deep": [1]}}}),
        dump(line(1, name=None, price=None, at=None, who=None, extra=None)),
        dump(line(1, price=-2.5e-7)),
        dump(line(1, price="1.5")),
        dump(line(-5)),
        dump(line(1, id="12")),
        dump(line(1, at="2026-01-01T00:00:00+02:00")),
        dump(line(1, at=5)),
        b'{"id":1,"id":2}',
    ],
)
@pytest.mark.parametrize("place", [0, 700, MANY])
def test_a_line_that_is_written_in_another_way_is_read_among_them(odd: bytes, place: int) -> None:
    texts = [*GOOD[:place], odd, *GOOD[place:]]
    assert JsonFormat(SCHEMA).decode(b"\n".join(texts)).rows.to_pylist() == in_pieces(texts)


@pytest.mark.parametrize(
    "bad",
    [
        dump(line(1, id=None)),
        dump({"name": "x"}),
        dump(line(1, id=2**63)),
        dump(line(1, id=1.5)),
        dump(line(1, price="x")),
        dump(line(1, sold=1)),
        dump(line(1, name=5)),
        dump(line(1, at="yesterday")),
        dump(line(1, who=5)),
        dump(line(1, who={"age": 300, "city": "Ulm", "zip": 1})),
        dump(line(1, who={"age": 3, "city": {}, "zip": 1})),
        GOOD[1].replace(b'"zip":1', b'"zip":01'),
        GOOD[1].replace(b'"zip":1', b'"zip":nul'),
        GOOD[1].replace(b'"zip":1', b'"zip":'),
        GOOD[1].replace(b'"price":0.25', b'"price":1e999'),
        GOOD[1].replace(b",", b";", 1),
        GOOD[1].replace(b"the", b"t\x01e"),
        GOOD[1].replace(b"the", b"t\xffe"),
        GOOD[1][:-1],
        GOOD[1] + b",",
        GOOD[1] + GOOD[2],
        b"5",
        b"[]",
    ],
)
def test_a_bad_line_among_them_is_told_with_its_number(bad: bytes) -> None:
    data = b"\n".join([*GOOD[:900], b"", bad, *GOOD[900:]]) + b"\n"
    with pytest.raises(BadLineError) as alone:
        JsonFormat(SCHEMA).decode(bad, first_line=911)
    with pytest.raises(BadLineError) as among:
        JsonFormat(SCHEMA).decode(data, first_line=10)
    assert among.value.line == 911
    assert str(among.value) == str(alone.value)
    decoded = JsonFormat(SCHEMA, drop_bad=True).decode(data, first_line=10)
    assert [str(error) for error in decoded.bad] == [str(alone.value)]
    assert decoded.rows.to_pylist() == in_pieces(GOOD)


def test_times_with_a_zone_are_instants() -> None:
    texts = [dump(line(number, at="2026-01-01T02:00:00+02:00")) for number in range(MANY)]
    result = LineLayouts(PLAIN).read(b"\n".join(texts), parse=no_parser)
    assert result is not None
    assert set(map(str, result.rows.column("at").to_pylist())) == {"2026-01-01 00:00:00"}


def test_few_lines_without_a_layout_are_parsed_and_many_are_left_to_the_parser() -> None:
    escaped = dump({"id": 1, "name": "a\nb"})
    layouts, parsed = LineLayouts(PLAIN), []

    def parse(texts: list[bytes]) -> pa.Table:
        parsed.extend(texts)
        return JsonFormat(SCHEMA).decode(b"\n".join(texts)).rows

    result = layouts.read(b"\n".join([escaped, *GOOD]), parse=parse)
    assert result is not None
    assert parsed == [escaped]
    assert result.rows.slice(0, 2).column("name").to_pylist() == ["a\nb", line(0)["name"]]
    assert layouts.read(b"\n".join([escaped] * MANY + GOOD), parse=no_parser) is None
    assert layouts.read(b"\n".join(GOOD), parse=no_parser) is None, "it is not tried again"


def test_lines_whose_members_all_have_other_names_are_left_to_the_parser() -> None:
    data = b"\n".join(dump({"id": 1, f"field {number}": "x" * 50}) for number in range(MANY))
    assert LineLayouts(PLAIN).read(data, parse=no_parser) is None
    assert JsonFormat(SCHEMA).decode(data).rows.num_rows == MANY


@pytest.mark.parametrize("tail", [b"", b"\n"])
@pytest.mark.parametrize("known", [True, False])
def test_blocks_are_whole_lines_with_their_numbers(
    monkeypatch: pytest.MonkeyPatch, tail: bytes, known: bool
) -> None:
    monkeypatch.setattr(stream_lines, "BLOCK", 8)
    data = b"a\n\nbb\n" + b"c" * 50 + b"\nd\n" + b"e" * 8 + tail
    end = len(data) if known else None
    blocks = [
        (number, block)
        for number, block in read_blocks(io.BytesIO(data), 0, end, line=5, where="here", limit=1000)
        if isinstance(block, bytes)
    ]
    assert b"".join(block for _, block in blocks) == data
    for index, (number, block) in enumerate(blocks):
        assert number == 5 + b"".join(block for _, block in blocks[:index]).count(b"\n")
        assert block.endswith(b"\n") or index == len(blocks) - 1
    assert not list(read_blocks(io.BytesIO(b""), 0, 0 if known else None, line=1, where="here", limit=1000))


def test_a_file_that_has_become_shorter_is_told() -> None:
    with pytest.raises(ExternalError, match="shorter"):
        list(read_blocks(io.BytesIO(b"a\nb"), 0, 10, line=1, where="here", limit=1000))


def test_a_member_that_nobody_wants_may_be_null_in_all_lines() -> None:
    schema = pa.schema([("id", pa.int64())])
    data = b"\n".join(dump({"id": 1_000_000 + number, "extra": None}) for number in range(4000))
    result = LineLayouts(schema).read(data, parse=no_parser)
    assert result is not None
    assert result.rows.column("id").to_pylist() == list(range(1_000_000, 1_004_000))
