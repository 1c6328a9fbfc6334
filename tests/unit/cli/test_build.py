"""`headrace build`: runs the commands of a dataflow where they belong, and stops at the first that fails."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import main
from headrace.testing.dataflows import run_dataflow

OPERATOR = "class Operator:\n    def on_event(self, dora_event, send_output): ...\n"


def headrace(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def write(folder: Path, text: str) -> Path:
    (folder / "flow.yml").write_text(text)
    return folder / "flow.yml"


def test_commands_run_in_order_in_the_directory_of_the_document_with_the_env_of_the_node(
    tmp_path: Path,
) -> None:
    file = write(
        tmp_path,
        """
env: {CITY: Delft}
nodes:
  - id: first
    env: {RIVER: Schie}
    path: made.py
    build: |
      # what it needs
      echo "$CITY $RIVER" >> trace
      echo 'print(1)' \\
        > made.py
  - id: pair
    operators:
      - {id: a, python: op.py, build: 'echo a >> trace'}
      - {id: b, python: op.py}
  - id: last
    operator:
      python: op.py
      build: |
        printf '%s' "class Operator: on_event = None" > op.py

        echo "${RIVER:-no river}" >> trace
""",
    )
    result = headrace("build", file)
    assert (result.exit_code, result.stdout) == (0, "built first, pair/a, last\n")
    assert (tmp_path / "trace").read_text() == "Delft Schie\na\nno river\n"
    assert "pair/a: echo a >> trace\n" in result.stderr


def test_the_first_command_that_fails_is_named_and_ends_it(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "nodes:\n"
        "  - id: good\n    operator: {python: op.py, build: 'true'}\n"
        '  - id: bad\n    operator: {python: op.py, build: "touch made\\nexit 3\\ntouch never"}\n'
        "  - id: later\n    operator: {python: op.py, build: touch later}\n",
    )
    result = headrace("build", file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error[external]: `bad`: the command `exit 3` ended with exit code 3" in result.stderr
    assert f"at {file}:4:9" in result.stderr
    assert {one.name for one in tmp_path.iterdir()} == {"flow.yml", "made"}


def test_a_command_that_is_killed_says_so(tmp_path: Path) -> None:
    file = write(tmp_path, "nodes: [{id: a, path: x.py, build: 'kill -KILL $$'}]")
    result = headrace("build", file)
    assert result.exit_code == 1
    assert "was ended by SIGKILL" in result.stderr


def test_output_is_shown_as_it_comes(tmp_path: Path) -> None:
    file = write(
        tmp_path, "nodes: [{id: a, operator: {python: op.py, build: 'echo going; read line; echo gone'}}]"
    )
    (tmp_path / "op.py").write_text(OPERATOR)
    command = [sys.executable, "-m", "headrace", "build", str(file)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "going\n"
        process.stdin.write("on\n")
        process.stdin.close()
        assert process.stdout.read() == "gone\nbuilt a\n"
    assert process.returncode == 0


def test_python_is_the_one_that_runs_headrace(tmp_path: Path) -> None:
    build = 'python -c \'import sys; open("which", "w").write(sys.prefix)\''
    (tmp_path / "op.py").write_text(OPERATOR)
    file = write(
        tmp_path, f"nodes:\n  - id: a\n    operator:\n      python: op.py\n      build: |\n        {build}\n"
    )
    assert headrace("build", file).exit_code == 0
    assert (tmp_path / "which").read_text() == sys.prefix


def test_nothing_to_build_is_said(tmp_path: Path) -> None:
    (tmp_path / "op.py").write_text(OPERATOR)
    result = headrace("build", write(tmp_path, "nodes: [{id: a, operator: {python: op.py}}]"))
    assert (result.exit_code, result.stdout) == (0, "nothing to build: no node has `build` or `venv`\n")


def test_what_the_commands_have_not_made_is_said(tmp_path: Path) -> None:
    result = headrace("build", write(tmp_path, "nodes: [{id: a, path: gone.py, build: 'true'}]"))
    assert result.exit_code == 0
    assert "warning: " in result.stderr
    assert "gone.py" in result.stderr


@pytest.mark.parametrize("text", ["nodes: []", "nodes: [{id: a, path: x.py, bild: make}]"])
def test_a_document_that_cannot_be_read_builds_nothing(tmp_path: Path, text: str) -> None:
    result = headrace("build", write(tmp_path, text))
    assert result.exit_code == 2
    assert "error[dataflow]" in result.stderr


def test_a_process_whose_build_calls_python_has_an_environment_of_its_own_and_runs_in_it(
    tmp_path: Path,
) -> None:
    """A package of another version than Headrace's is installed there, and Headrace's stays what it is."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "pyproject.toml").write_text(
        "[project]\nname = 'click'\nversion = '0.0.1'\n"
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    )
    (package / "backend.py").write_text(_BACKEND)
    (tmp_path / "node.py").write_text(
        "import json\nimport click, pyarrow\nfrom dora import Node\nNode()\n"
        "print(json.dumps({'click': click.__version__, 'arrow': pyarrow.__name__}))\n"
    )
    install = "pip install --quiet --no-index --no-build-isolation ./package"
    file = write(tmp_path, f"nodes: [{{id: a, path: node.py, build: '{install}'}}]")
    result = headrace("build", file)
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / ".headrace" / "envs" / "a" / "bin" / "python").exists()
    outcome = run_dataflow(file)
    assert outcome.error is None
    assert (outcome.exit_code, outcome.logs) == (0, {"a": ['{"click": "0.0.1", "arrow": "pyarrow"}']})
    assert importlib.metadata.version("click") != "0.0.1"


def test_nodes_that_name_the_same_environment_share_it_and_do_not_run_before_it_is_built(
    tmp_path: Path,
) -> None:
    (tmp_path / "node.py").write_text("import sys\nfrom dora import Node\nNode()\nprint(sys.prefix)\n")
    file = write(
        tmp_path,
        "nodes:\n"
        "  - {id: a, path: node.py, venv: vision, build: 'python -V > a.txt'}\n"
        "  - {id: b, path: node.py, venv: vision}\n",
    )
    refused = headrace("check", file)
    assert refused.exit_code == 2
    assert "there is no virtual environment `vision` yet" in refused.stderr
    assert "headrace build" in refused.stderr
    built = headrace("build", file)
    assert (built.exit_code, built.stdout) == (0, "built a, b\n"), built.stderr
    shared = str(tmp_path / ".headrace" / "envs" / "vision")
    outcome = run_dataflow(file)
    assert (outcome.error, outcome.logs) == (None, {"a": [shared], "b": [shared]})


def test_an_operator_cannot_replace_a_package_that_headrace_needs(tmp_path: Path) -> None:
    (tmp_path / "op.py").write_text(OPERATOR)
    file = write(
        tmp_path, "nodes: [{id: a, operator: {python: op.py, build: 'cp \"$PIP_CONSTRAINT\" pins'}}]"
    )
    assert headrace("build", file).exit_code == 0
    pins = (tmp_path / "pins").read_text().splitlines()
    assert f"numpy=={importlib.metadata.version('numpy')}" in pins
    assert f"click=={importlib.metadata.version('click')}" in pins


_BACKEND = """
import zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "click-0.0.1-py3-none-any.whl"
    with zipfile.ZipFile(f"{directory}/{name}", "w") as wheel:
        wheel.writestr("click/__init__.py", "__version__ = '0.0.1'\\n")
        info = "click-0.0.1.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: click\\nVersion: 0.0.1\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""
