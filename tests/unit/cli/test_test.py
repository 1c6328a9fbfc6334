"""`headrace test` as a person sees it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import main

TABLE = "CREATE TABLE i (counter BIGINT) WITH (connector = 'impulse', message_count = '{count}');\n"


def headrace(*args: object) -> Result:
    return CliRunner().invoke(main, ["test", *map(str, args)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.sql").write_text(TABLE.format(count=2) + "SELECT counter FROM i")
    (tmp_path / "good.expected.jsonl").write_text('{"counter": 1}\n{"counter": 0}\n')
    return tmp_path


def test_a_good_case_is_one_line(folder: Path) -> None:
    result = headrace(folder)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("✓ good ")
    assert lines[1].startswith("1 passed in ")


def test_a_failing_case_shows_its_rows_and_exits_with_1(folder: Path) -> None:
    (folder / "wrong.sql").write_text(TABLE.format(count=2) + "SELECT counter + 1 AS n FROM i")
    (folder / "wrong.expected.jsonl").write_text('{"n": 1}\n{"n": 3}\n')
    result = headrace(folder)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("✓ good ")
    assert lines[1].startswith("✗ wrong ")
    assert lines[2] == "    whole: rows missing 1, unexpected 1"
    assert sorted(lines[3:5]) == ['      + {"n":2}', '      − {"n": 3}']
    assert lines[-1].startswith("1 passed, 1 failed in ")


def test_update_writes_what_is_missing(folder: Path) -> None:
    (folder / "good.expected.jsonl").unlink()
    result = headrace(folder, "--update")
    assert result.exit_code == 0, result.output
    assert "wrote good.expected.jsonl" in result.stdout
    assert headrace(folder / "good.sql").exit_code == 0


def test_functions_come_from_files(folder: Path) -> None:
    (folder / "f.py").write_text(
        "from headrace import udf\n\n@udf\ndef twice(x: int) -> int:\n    return 2 * x\n"
    )
    (folder / "good.sql").write_text(TABLE.format(count=2) + "SELECT twice(counter) / 2 AS counter FROM i")
    assert headrace(folder, "--udf", folder / "f.py").exit_code == 0
    assert headrace(folder).exit_code == 1


def test_wrong_usage_exits_with_2(folder: Path) -> None:
    assert headrace().exit_code == 2
    assert headrace(folder / "absent").exit_code == 2
    assert headrace(folder, "--udf", "absent.py").exit_code == 2
