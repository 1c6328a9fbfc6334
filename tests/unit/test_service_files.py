"""The unit of systemd and the Dockerfile in `packaging/service` start the server that there is."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.serve import serve

FOLDER = Path(__file__).parents[2] / "packaging" / "service"
UNIT = FOLDER / "headrace.service"


def settings_of_the_unit() -> dict[str, str]:
    lines = [line for line in UNIT.read_text().splitlines() if line and line[0] not in "#["]
    return dict(line.split("=", 1) for line in lines)


def instructions(name: str) -> list[str]:
    lines = (FOLDER / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    return [line.partition(" ")[2].strip() for line in lines if line.startswith(f"{name} ")]


def parsed(command: list[str]) -> dict[str, object]:
    """The options of `headrace serve` in a command; fails if there is no such option."""
    at = command.index("serve")
    assert Path(command[at - 1]).name == "headrace"
    return dict(serve.make_context("serve", command[at + 1 :]).params)


def test_the_unit_starts_the_server_where_only_this_machine_reaches_it() -> None:
    settings = settings_of_the_unit()
    options = parsed(shlex.split(settings["ExecStart"]))
    assert options["host"] == "127.0.0.1"
    assert Path(str(options["data_dir"])).is_relative_to(Path("/var/lib") / settings["StateDirectory"])
    assert options["token_file"] is not None


def test_the_unit_lets_pipelines_outlive_the_server() -> None:
    settings = settings_of_the_unit()
    assert (settings["KillMode"], settings["OOMPolicy"], settings["Restart"]) == (
        "process", "continue", "always",
    )  # fmt: skip
    assert "PrivateTmp" not in settings


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_knows_every_line_of_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/headrace/bin/headrace", sys.executable))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    about = [line for line in checked.stderr.splitlines() if UNIT.name in line]
    assert about == []


def test_the_image_starts_the_server_for_those_who_have_a_token() -> None:
    (entry,), (command,) = instructions("ENTRYPOINT"), instructions("CMD")
    options = parsed([*json.loads(entry), *json.loads(command)])
    assert options["host"] == "0.0.0.0"
    assert options["token_file"] is not None
    (volume,), (port,) = instructions("VOLUME"), instructions("EXPOSE")
    assert Path(str(options["data_dir"])).is_relative_to(volume)
    assert options["port"] == int(port)
    assert instructions("USER") == ["headrace"]
