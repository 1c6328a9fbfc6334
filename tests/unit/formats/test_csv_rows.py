"""CSV in files whose values have line breaks: where rows end, however the file is cut."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Pipeline
from headrace.connectors.filesystem import content as filesystem_content
from headrace.connectors.filesystem import lines
from headrace.connectors.single_file import source as single_file
from headrace.formats.csv import rows as csv_rows
from headrace.formats.csv.rows import CsvRowEnds
from headrace.testing.in_process import run_in_process

ends = CsvRowEnds(",", '"')


def rows_of(data: bytes) -> list[bytes]:
    places = ends(data, last=True).tolist()
    return [data[begin:end] for begin, end in zip([0, *places], places, strict=False)]


@pytest.mark.parametrize(
    "rows",
    [
        [b"a,b\n", b"c,d"],
        [b'"a\nb",c\n', b'd,"e\r\n\n"\r\n', b'"","""\n"""\n'],
        [b'\xef\xbb\xbf"a\nb" ,c\n', b'5" disk,x\n', b"1,2\n"],
        [b'"never closed,1\n', b"2,x\n", b"3,y\n"],
        [b'"never closed,1\n', b'2,"x"\n', b'"3",y'],
        [b'"closed"too early\n', b'"a\nb",1\n', b'"open\n'],
        [b"\n", b'"\n"\n', b"\n"],
        [b'"\n"\r\n', b'x"'],
    ],
)
def test_a_row_ends_with_its_line_or_with_that_of_its_last_quoted_value(rows: list[bytes]) -> None:
    assert rows_of(b"".join(rows)) == rows


PARTS = st.lists(st.sampled_from(['"', '""', ",", "\n", "\r\n", "x", " ", "é"]), max_size=40).map("".join)


@settings(deadline=None, max_examples=400)
@given(PARTS, st.integers(1, 9), st.integers(3, 30))
def test_rows_end_where_they_do_however_the_bytes_are_cut(text: str, block: int, longest: int) -> None:
    data = text.encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(csv_rows, "LONGEST", longest)
        patched.setattr(lines, "BLOCK", block)
        whole = rows_of(data)
        blocks = [
            (line, part)
            for line, part in lines.read_blocks(
                io.BytesIO(data), 0, len(data), line=1, where="x", limit=1000, row_ends=ends
            )
            if isinstance(part, bytes)
        ]
        assert b"".join(part for _, part in blocks) == data
        assert [row for _, part in blocks for row in rows_of(part)] == whole
        assert [line for line, _ in blocks] == [
            1 + data[: sum(len(part) for _, part in blocks[:place])].count(b"\n")
            for place in range(len(blocks))
        ]
        position = 0
        for row in whole:
            stream = io.BytesIO(data)
            stream.seek(position)
            found = lines.scan_rows(stream, position, len(data), rows=1, row_ends=ends)
            assert found.end == position + len(row)
            assert found.at_end == (found.end == len(data))
            position = found.end
            # A part of the file, read alone, has the same rows.
            assert rows_of(data[:position]) + rows_of(data[position:]) == whole
        targets = [len(data) // 3, 2 * len(data) // 3]
        shares = list(
            lines.share_rows(io.BytesIO(data), 0, len(data), line=1, targets=targets, row_ends=ends)
        )
        cut = [row for share in shares for row in rows_of(data[share.begin : share.end])]
        assert cut == whole
        assert [share.line for share in shares] == [1 + data[: share.begin].count(b"\n") for share in shares]


VALUES = st.text(st.sampled_from('ab",\n '), max_size=6)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=6))
def test_what_the_library_writes_has_as_many_rows(values: list[tuple[str, str]]) -> None:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(values)
    assert len(rows_of(out.getvalue().encode())) == len(values)


@pytest.mark.parametrize("connector", ["single_file", "filesystem"])
def test_a_file_of_values_with_line_breaks_is_shared_and_resumed(
    connector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_file, "_WORTH_SPLITTING", 500)
    monkeypatch.setattr(filesystem_content, "WORTH_SPLITTING", 500)
    monkeypatch.setattr(lines, "BLOCK", 512)
    monkeypatch.setattr(csv_rows, "LONGEST", 300)
    values = [(n, "line\n" * (n % 7) + '"') for n in range(300)]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([("the\nnumber", "text"), *values])
    rows = out.getvalue().splitlines(keepends=True)
    # A quote that is never closed costs its own line, and no other.
    (tmp_path / "in.csv").write_text("".join(rows) + '999,"open\n1000,last\n')
    sql = f"""
        CREATE TABLE texts ("the\nnumber" BIGINT, text TEXT) WITH (
          connector = '{connector}', path = '{tmp_path}/in.csv', type = 'source', format = 'csv',
          bad_data = 'dead_letter', dead_letter_table = 'bad');
        SELECT "the\nnumber" AS n, text FROM texts;
        SELECT position, content FROM bad;
    """
    pipeline = Pipeline.from_sql(sql, name="csv", preview=lambda _: ("memory", {}))
    result = run_in_process(pipeline, tmp_path / "state", parallelism=3, epoch_rows=97)
    found: list[dict[str, Any]] = [row for table in result.rows.values() for row in table.to_pylist()]
    good = sorted((row["n"], row["text"]) for row in found if row.get("n") is not None)
    assert good == [*values, (1000, "last")]
    assert [(row["position"], row["content"]) for row in found if row.get("position")] == [
        (f"line {len(rows) + 1}", '999,"open')
    ]
