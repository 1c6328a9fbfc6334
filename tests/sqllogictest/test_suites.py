"""The suites here give their rows in Headrace, and in DuckDB, which they are the rows of."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from headrace.base.errors import UserError
from headrace.testing.changelog import ChangelogEngine
from headrace.testing.sqllogictest import Row, find_suites, format_value, parse_suite, run_suite

SUITES = find_suites(Path(__file__).parent)


class DuckEngine:
    """A suite runs in DuckDB."""

    name = "duckdb"

    def __init__(self) -> None:
        self._connection = duckdb.connect()

    def execute(self, sql: str) -> None:
        self.query(sql)

    def query(self, sql: str) -> list[Row]:
        try:
            return list(self._connection.execute(sql).fetchall())
        except duckdb.Error as error:
            raise UserError(f"there is no such thing: {error}") from None


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.stem)
def test_every_record_of_a_suite_is_as_expected(suite: Path) -> None:
    with ChangelogEngine() as engine:
        result = run_suite(suite, engine)
    assert result.passed, str(result)


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.stem)
def test_the_expected_rows_are_those_of_duckdb(suite: Path) -> None:
    result = run_suite(suite, DuckEngine())
    assert result.passed, str(result)


def test_there_are_some_hundreds_of_records() -> None:
    records = [
        record
        for suite in SUITES
        for record in parse_suite(suite.read_text(), engine="headrace", where=str(suite))
    ]
    assert len(records) >= 400


def run_text(text: str, folder: Path) -> str:
    file = folder / "suite.slt"
    file.write_text(text)
    with ChangelogEngine() as engine:
        return str(run_suite(file, engine)).replace(str(folder), "")


TABLE = """
statement ok
CREATE TABLE t (k TEXT, v BIGINT)

statement ok
INSERT INTO t VALUES ('a b', 1), ('', NULL), (NULL, 3)
"""


def test_rows_may_be_written_value_by_value_and_nosort_has_no_order(tmp_path: Path) -> None:
    query = "\nquery TI\nSELECT k, v FROM t\n----\nNULL\n3\na b\n1\n(empty)\nNULL\n"
    assert run_text(TABLE + query, tmp_path) == ""


def test_rows_that_differ_are_shown_with_their_line(tmp_path: Path) -> None:
    query = "\nquery I rowsort\nSELECT v FROM t WHERE v IS NOT NULL\n----\n1\n4\n"
    shown = run_text(TABLE + query, tmp_path)
    assert shown.splitlines()[0] == "/suite.slt:8: rows missing 1, unexpected 1"
    assert shown.splitlines()[-2:] == ["− 4", "+ 3"]


def test_values_may_be_hashed_and_queries_with_one_label_give_the_same(tmp_path: Path) -> None:
    # md5 of "1\n3\nNULL\n"
    text = "\nhash-threshold 2\n\nquery I valuesort all\nSELECT v FROM t\n----\n"
    right = "3 values hashing to e91f80bcb62fa65b3a0e41cde7608907"
    same = f"\n\nquery I valuesort all\nSELECT v + 0 FROM t\n----\n{right}\n"
    assert run_text(TABLE + text + right + same, tmp_path) == ""
    wrong = run_text(TABLE + text + right.replace("e91f", "ffff") + same, tmp_path)
    assert "hashing to e91f80" in wrong
    other = same.replace("v + 0", "v + 1")
    assert "other query with the label all" in run_text(TABLE + text + right + other, tmp_path)
    unsorted = text.replace("valuesort all", "nosort")
    assert "a hash needs `rowsort`" in run_text(TABLE + unsorted + right, tmp_path)


def test_records_are_skipped_for_an_engine_and_after_halt(tmp_path: Path) -> None:
    text = """
skipif headrace
statement ok
not a statement

onlyif postgresql
statement ok
not a statement

onlyif duckdb
halt

query I
SELECT v FROM t WHERE v = 1
----
1

halt

statement ok
not a statement
"""
    assert run_text(TABLE + text, tmp_path) == ""


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("statement error no column .other.\nSELECT other FROM t", "is not a statement of a suite"),
        ("statement ok\nDELETE FROM x", "there is no table `x`"),
        ("statement ok\nINSERT INTO t VALUES (1, 2, 3)", "3 values are inserted into 2 columns"),
        ("statement ok\nINSERT INTO t (k, w) VALUES (1, 2)", "there is no column `w`"),
        ("statement ok\nINSERT INTO t VALUES ('a', 'b')", "'b' is not of type BIGINT"),
        ("statement ok\nUPDATE t SET w = 1", "there is no column `w`"),
        ("statement error\nDELETE FROM t", "it is accepted, and an error is expected"),
        ("query T\nSELECT k, v FROM t\n----\na", "it has 2 columns, and `T` says 1"),
        ("query I\nSELECT k FROM t WHERE v = 1\n----\n1", "is not an integer"),
        ("query error\nSELECT k FROM t", "it is accepted"),
        ("statement count 1\nDELETE FROM t", "it changes 3 rows, and 1 are expected"),
    ],
)
def test_what_goes_wrong_is_said(record: str, message: str, tmp_path: Path) -> None:
    assert message in run_text(f"{TABLE}\n{record}\n", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("statment ok\nSELECT 1", r"`statment` is not a directive"),
        ("statement\nSELECT 1", r"write `statement ok` or `statement error`"),
        ("query X\nSELECT 1\n----\n1", r"a letter for each column"),
        ("query I sorted\nSELECT 1\n----\n1", r"`sorted` is not a sort mode"),
        ("query I rowsort x y\nSELECT 1\n----\n1", r"`y` follows the label"),
        ("query I\nSELECT 1", r"a query has its rows after"),
        ("statement ok\n", r"`statement` has no SQL"),
        ("statement ok\nSELECT 1\n----\n1", r"a statement has no rows"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as refused:
        run_text(f"# comment\n{text}", tmp_path)
    assert str(refused.value.where).endswith("suite.slt:2")


def test_a_primary_key_and_not_null_are_kept(tmp_path: Path) -> None:
    text = """
statement ok
CREATE TABLE t (k BIGINT PRIMARY KEY, v TEXT NOT NULL)

statement ok
INSERT INTO t VALUES (1, 'a'), (2, 'b')

statement error primary key
INSERT INTO t VALUES (2, 'c')

statement error primary key
UPDATE t SET k = 5

statement error NOT NULL
UPDATE t SET v = NULL WHERE k = 1

statement ok
UPDATE t SET k = k + 1

query IT
SELECT k, v FROM t
----
2 a
3 b
"""
    assert run_text(text, tmp_path) == ""


def test_values_are_written_as_suites_write_them() -> None:
    assert [format_value(value, "T") for value in (None, "", True, 2.0, b"\x01", [1, None])] == [
        "NULL", "(empty)", "true", "2", "\\x01", "{1,NULL}",
    ]  # fmt: skip
    assert (format_value(True, "I"), format_value(1, "R"), format_value("2.5", "R")) == (
        "1",
        "1.000",
        "2.500",
    )


FOREIGN = """
control sortmode rowsort

subtest a suite as other engines write it

statement ok
CREATE TABLE orders (id INT PRIMARY KEY, v INT)

statement ok
CREATE MATERIALIZED VIEW totals AS SELECT sum(v) AS total FROM orders

include more/*.slt.part

statement count 2
INSERT INTO orders VALUES (1, 10), (2, 20)

statement ok
FLUSH

query I
SELECT total FROM totals
----
30

statement ok
DROP MATERIALIZED VIEW totals

statement ok
DROP TABLE IF EXISTS nothing
"""


def test_suites_of_other_engines_are_taken_with_what_they_include(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "empty.slt.part").write_text("query I\nSELECT total FROM totals\n----\nNULL\n")
    assert run_text(FOREIGN, tmp_path) == ""
    (tmp_path / "more" / "empty.slt.part").write_text("query I\nSELECT total FROM totals\n----\n5\n")
    assert "rows missing 1, unexpected 1" in run_text(FOREIGN, tmp_path)


@pytest.mark.parametrize(
    ("directive", "message"),
    [
        ("sleep 1s", "`sleep` is not supported"),
        ("connection con1", "`connection` is not supported"),
        ("loop i 0 10", "`loop` is not supported"),
        ("control substitution on", "`control substitution on` is not supported"),
        ("include nothing.slt", "there is no file `nothing.slt` to include"),
    ],
)
def test_what_other_runners_can_do_and_this_one_cannot_is_refused(
    directive: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as refused:
        run_text(f"# comment\n{directive}\n", tmp_path)
    assert refused.value.message == message
    assert refused.value.hint
    assert str(refused.value.where).endswith("suite.slt:2")


def test_a_suite_that_includes_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="includes itself"):
        run_text("include suite.slt\n", tmp_path)
