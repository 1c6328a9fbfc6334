"""`headrace new`: what it makes runs, and nothing is overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import main
from headrace.cli.new import TEMPLATES
from headrace.testing.dataflows import run_dataflow


def headrace(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files_in(folder: Path) -> dict[str, str]:
    return {str(f.relative_to(folder)): f.read_text() for f in sorted(folder.rglob("*")) if f.is_file()}


def test_a_new_dataflow_is_right_and_runs(here: Path) -> None:
    result = headrace("new", "dataflow", "flow")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "cd flow\n  headrace run dataflow.yml\n" in result.stdout
    assert headrace("check", "flow/dataflow.yml").stdout == "ok: 2 operators, 2 inputs, 1 timer\n"
    ran = run_dataflow(here / "flow" / "dataflow.yml")
    assert (ran.exit_code, ran.reason, len(ran.logs["logger"])) == (0, "finished", 10)
    assert "# flow\n" in (here / "flow" / "README.md").read_text()


def test_the_tests_of_a_new_dataflow_and_of_a_new_operator_pass(here: Path) -> None:
    headrace("new", "dataflow", "flow")
    result = headrace("new", "operator", "flow/adder")
    assert result.stdout.startswith(
        "created flow/adder.py flow/test_adder.py\nnext:\n  pytest flow/test_adder.py\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "flow"]
    ran = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout


def test_a_new_pipeline_gives_the_rows_it_must(here: Path) -> None:
    result = headrace("new", "pipeline", "gates-per-minute")
    assert (result.exit_code, result.stderr) == (0, "")
    assert set(files_in(here)) == {
        f"gates-per-minute/{name}"
        for name in ("README.md", "gates-per-minute.expected.jsonl", "gates-per-minute.sql")
    }
    tested = headrace("test", "gates-per-minute")
    assert (tested.exit_code, "1 passed" in tested.stdout) == (0, True), tested.output
    assert headrace("check", "gates-per-minute/gates-per-minute.sql").exit_code == 0


@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        ("dataflow", "mine/notes.txt"),
        ("pipeline", "mine"),
        ("operator", "mine.py"),
        ("operator", "test_mine.py"),
    ],
)
def test_nothing_is_overwritten(here: Path, kind: str, taken: str) -> None:
    (here / taken).parent.mkdir(exist_ok=True)
    (here / taken).write_text("precious")
    before = files_in(here)
    result = headrace("new", kind, "mine")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is already there" in result.stderr
    assert files_in(here) == before


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        ("dataflow", "my flow.yml", "such as `my_flow`"),
        ("dataflow", "..", "such as `my_dataflow`"),
        ("dataflow", ".", "such as `my_dataflow`"),
        ("dataflow", "", "such as `my_dataflow`"),
        ("pipeline", "gates.sql", "such as `gates`"),
        ("pipeline", "-x-", "such as `x`"),
        ("operator", "my-op", "such as `my_op`"),
        ("operator", "9", "such as `operator_9`"),
        ("operator", "class", "such as `operator_class`"),
        ("operator", "ärger", "such as `rger`"),
    ],
)
def test_a_bad_name_is_refused_with_a_good_one(here: Path, kind: str, name: str, hint: str) -> None:
    result = headrace("new", kind, "--", name)
    assert result.exit_code == 2
    assert "cannot be the name of" in result.stderr
    assert hint in result.stderr
    assert files_in(here) == {}


def test_a_place_in_another_directory_can_be_named(here: Path) -> None:
    (here / "work").mkdir()
    assert headrace("new", "dataflow", "work/flow").exit_code == 0
    assert (here / "work" / "flow" / "dataflow.yml").is_file()
    result = headrace("new", "dataflow", "play/flow")
    assert result.exit_code == 2
    assert "there is no directory play" in result.stderr


def test_an_unknown_kind_is_refused_with_the_kinds() -> None:
    result = headrace("new", "node", "camera")
    assert result.exit_code == 2
    assert "'dataflow', 'pipeline', 'operator'" in result.stderr


def test_a_wheel_has_the_templates(tmp_path: Path) -> None:
    from zipfile import ZipFile

    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environment = {**os.environ, "HEADRACE_WITHOUT_CONSOLE": "1"}  # the templates do not need it
    subprocess.run(command, cwd=root, check=True, capture_output=True, env=environment)
    names = set(ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    templates = [file for file in TEMPLATES.rglob("*") if file.is_file()]
    assert len(templates) == 10
    assert {f"headrace/cli/templates/{file.relative_to(TEMPLATES)}" for file in templates} <= names
