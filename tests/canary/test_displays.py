"""No display of a pipeline and no error of its options shows a secret, however it was given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.base.errors import HeadraceError
from headrace.cli.main import main
from headrace.model.registry import registry
from tests.canary.options import ALL_CASES, CANARY, CASES, Case, hidden_options

IN_SQL = [case for case in ALL_CASES if all(isinstance(value, str) for value in case.options.values())]
VARIABLE = "HEADRACE_TEST_CANARY"
MISTAKES: tuple[Any, ...] = (
    f"{CANARY} ,= :// @",
    f"http://{CANARY}:{CANARY}@[::1",
    f'["{CANARY}"]',
    [CANARY, {CANARY: CANARY}],
    {"name": [CANARY]},
    {1: CANARY},
    CANARY.encode(),
)
"""Values that fit no option; some fit some."""


def test_every_option_that_is_never_displayed_has_a_case() -> None:
    given = {
        (case.role, case.connector, option)
        for case in ALL_CASES
        for name in case.secret_names
        for option in (name, name.partition(".")[0])
    }
    assert {hidden for hidden in hidden_options() if hidden not in given} == set()


def headrace(*arguments: object) -> str:
    """What a command of the command line prints on both streams."""
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.output


def displays(program: Path, tmp_path: Path) -> Iterator[str]:
    """Everything that shows the plan of a program."""
    yield headrace("check", program, "--verbose")
    for form in ("text", "json", "mermaid"):
        yield headrace("explain", program, "--format", form)
    yield headrace("explain", program, "--html", tmp_path / "page.html")
    yield (tmp_path / "page.html").read_text()
    pipeline = hr.load_pipeline(str(program))
    yield repr(pipeline)
    yield repr(pipeline.plan())


@pytest.mark.parametrize("way", ["written", "from the environment"])
@pytest.mark.parametrize("case", IN_SQL, ids=str)
def test_no_display_of_a_program_shows_a_secret(
    case: Case, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = case.written()
    if way != "written":
        monkeypatch.setenv(VARIABLE, CANARY)
        text = text.replace(CANARY, f"{{{{ {VARIABLE} }}}}")
    program = tmp_path / "program.sql"
    program.write_text(text)
    for shown in displays(program, tmp_path):
        assert CANARY not in shown


@pytest.mark.parametrize("case", [case for case in ALL_CASES if case.role != "lookup"], ids=str)
def test_no_object_of_python_shows_a_secret(case: Case) -> None:
    pipeline = hr.Pipeline("canary")
    options = dict(case.options)
    if "schema" in registry.options(case.role, case.connector).model_fields:
        options["schema"] = {"id": "BIGINT", "note": "TEXT"}
    shown: list[Any] = (
        [registry.build(case.role, case.connector, case.options)] if case.role == "sink" else []
    )
    if case.role == "source":
        configured = hr.ConfiguredSource(case.connector, options)
        stream = pipeline.source(case.connector, **options)
        shown += [configured, stream, stream.sink("blackhole")]
    else:
        configured = hr.ConfiguredSink(case.connector, options)  # type: ignore[assignment]
        rows = pipeline.source("memory", rows=[{"id": 1, "note": "x"}])
        shown += [configured, rows.sink(case.connector, **case.options)]
    shown += [pipeline, pipeline.plan(), *pipeline.plan().nodes]
    for value in shown:
        assert CANARY not in repr(value)
        assert CANARY not in getattr(value, "_repr_html_", str)()
    assert CANARY not in pipeline.explain("json")


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_a_mistake_in_a_secret_option_does_not_show_its_value(case: Case) -> None:
    for name in case.secret_names:
        for mistake in MISTAKES:
            assert CANARY not in refusal(case, {**case.options, name: mistake}), (name, mistake)


def refusal(case: Case, options: dict[str, Any]) -> str:
    """The error that building a connector ends with; empty if it ends with none."""
    try:
        build(case, options)
    except HeadraceError as error:
        return f"{error} {error!r}"
    return ""


def build(case: Case, options: dict[str, Any]) -> None:
    if case.role == "lookup":
        registry.build_lookup(case.connector, options)
    else:
        registry.build(case.role, case.connector, options)


@pytest.mark.parametrize("case", IN_SQL, ids=str)
def test_a_line_of_a_program_with_a_mistake_is_shown_without_its_secret(case: Case, tmp_path: Path) -> None:
    program = tmp_path / "program.sql"
    for name in case.secret_names:
        misspelled = f"{name}x" if name in {"key", "body", "options"} else f"{name[:-1]}{name[-1] * 2}"
        for text in (
            case.written().replace(f"'{name}' =", f"'{misspelled}' ="),
            case.written().replace(f"'{name}' =", f"'{name}' = = "),
            case.written().replace(f"'{name}' =", f"'{name}'"),
        ):
            program.write_text(text)
            result = CliRunner().invoke(main, ["check", str(program), "--verbose"])
            assert result.exit_code == 2 or name.startswith("storage."), result.output
            assert CANARY not in result.output, misspelled


def test_a_line_of_python_with_a_mistake_is_shown_without_its_secret(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    call = f'hr.Pipeline().source("rabbitmq", password="{CANARY}"'
    for mistake in (f"{call}, hosst='x')", f"{call}, host='x'", f"{call}, host=1 / 0)"):
        program.write_text(f"import headrace as hr\n{mistake}\n")
        for flags in ((), ("--verbose",)):
            result = CliRunner().invoke(main, ["check", str(program), *flags])
            assert result.exit_code == 2, result.output
            assert CANARY not in result.output


def test_every_case_is_of_a_connector_that_is_there() -> None:
    assert all(connector in registry.names(role) for role, connector in CASES)
