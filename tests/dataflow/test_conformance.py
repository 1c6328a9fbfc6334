"""Every dataflow below `conformance/` does what dora's contract says: here, and in dora if it is there."""

import os
from pathlib import Path

import pytest

from headrace.testing.dataflows import run_dataflow
from tests.dataflow.conformance.cases import Case, differences, find_cases, transcript
from tests.dataflow.run_in_dora import judge

CASES = find_cases()
DORA = os.environ.get("HEADRACE_DORA")
NO_DORA = "HEADRACE_DORA is not set: run `make bench-peers`, and set HEADRACE_DORA=build/peers/dora"
DORA_CASES = CASES if DORA else [pytest.param(None, marks=pytest.mark.skip(reason=NO_DORA))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_dataflow_does_what_its_case_says(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in case.env.items():
        monkeypatch.setenv(name, value)
    result = run_dataflow(case.file, state_dir=tmp_path, stop_after=case.stop_after)
    error = "" if result.error is None else str(result.error)
    assert not differences(case.units, transcript(result.logs)), f"{case.shows}\n{error}"
    assert (result.exit_code, case.error in error) == (case.exit_code, True), f"{case.shows}\n{error}"


@pytest.mark.parametrize("case", [case for case in CASES if case.exit_code != 2], ids=lambda case: case.name)
def test_a_resident_dataflow_does_the_same(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in case.env.items():
        monkeypatch.setenv(name, value)
    result = run_dataflow(case.file, state_dir=tmp_path, stop_after=case.stop_after, execution="resident")
    error = "" if result.error is None else str(result.error)
    assert not differences(case.units, transcript(result.logs)), f"{case.shows}\n{error}"
    assert (result.exit_code, case.error in error) == (case.exit_code, True), f"{case.shows}\n{error}"


@pytest.mark.slow
@pytest.mark.parametrize("case", DORA_CASES, ids=lambda case: case.name if case else "dora")
def test_what_a_case_says_about_dora_is_true(case: Case) -> None:
    assert DORA is not None
    problems, output = judge(case, Path(DORA))
    assert not problems, f"{case.shows}\n{output}"


def test_cases_say_what_they_show_and_what_dora_does() -> None:
    for case in CASES:
        assert case.shows, case.name
        assert case.dora == "same" or case.dora.startswith(("differs: ", "may differ: ")), case.name
    assert sum(case.exit_code == 2 for case in CASES) >= 30
    assert sum(case.exit_code != 2 for case in CASES) >= 110
