"""Every SQL file below this folder gives the rows beside it: whole, stopped, killed and rescaled."""

from pathlib import Path

import pytest

from headrace.testing.sql_cases import Case, find_cases, run_case

ENVIRONMENT = {"HEADRACE_TEST_INPUT": "lang_orders"}
"""What the SQL of some cases takes from the environment."""

CASES = find_cases(Path(__file__).parent)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sql_gives_the_rows_beside_it_however_the_run_is_cut(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    result = run_case(case)
    assert result.passed, str(result)


def test_there_are_cases_of_every_part_of_the_language() -> None:
    accepted = [case for case in CASES if case.error is None]
    refused = [case for case in CASES if case.error is not None]
    assert len(accepted) >= 120
    assert len(refused) >= 60
