"""`headrace test` runs suites in the format of sqllogictest."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from headrace.cli.main import main

SUITE = """statement ok
CREATE TABLE t (v BIGINT)

query I
SELECT v FROM t
----
{rows}
"""


def test_a_suite_passes_or_shows_what_differs_and_exits_with_1(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.slt", tmp_path / "bad.slt"
    good.write_text(SUITE.format(rows=""))
    passed = CliRunner().invoke(main, ["test", str(good)])
    assert (passed.exit_code, "✓ good.slt 2/2 records" in passed.output) == (0, True)
    bad.write_text(SUITE.format(rows="1"))
    failed = CliRunner().invoke(main, ["test", str(tmp_path)])
    assert failed.exit_code == 1
    assert "✗ bad.slt 1/2 records" in failed.output
    assert f"{bad}:4: rows missing 1, unexpected 0" in failed.output
    assert "1 passed, 1 failed" in failed.output


def test_flags_of_sql_files_are_refused_for_suites(tmp_path: Path) -> None:
    suite = tmp_path / "good.slt"
    suite.write_text(SUITE.format(rows=""))
    refused = CliRunner().invoke(main, ["test", "--update", str(suite)])
    assert refused.exit_code == 2
    assert "--update is for .sql files" in refused.output
