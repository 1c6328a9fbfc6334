import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli.main import main


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of installed packages: one of the user's, PySpark, and one that is editable."""
    site = tmp_path / "site"
    for name in ("mine", "pyspark", "nearby"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text(f"name = {name!r}\n")
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text(f"{name}/__init__.py,,\n{info.name}/METADATA,,\n../../bin/{name},,\n")
    (site / "nearby-1.0.dist-info" / "direct_url.json").write_text('{"dir_info": {"editable": true}}')
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(site))
    return site


@pytest.mark.usefixtures("installed")
def test_the_packed_environment_runs_wherever_it_is_unpacked(tmp_path: Path) -> None:
    file = tmp_path / "env.tar.gz"
    result = CliRunner().invoke(main, ["ship-env", str(file), "--python", sys.executable])
    assert result.exit_code == 0, result.output
    assert f"--conf spark.archives={file}#env --conf spark.pyspark.python=./env/bin/python" in result.output
    assert "not packed, as it is an editable install: nearby" in result.stderr
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path / "a place" / "env", filter="data")
    program = "import importlib.util as u, mine; print(mine.name, u.find_spec('nearby'), mine.__file__)"
    python = tmp_path / "a place" / "env" / "bin" / "python"
    said = subprocess.run(
        [python, "-c", program], capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]}
    )
    assert said.stdout.startswith(f"mine None {tmp_path}/a place/env/packages/mine/")


@pytest.mark.usefixtures("installed")
def test_pyspark_is_not_packed_and_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "env.tar.gz"
    assert CliRunner().invoke(main, ["ship-env", str(file)]).exit_code == 0
    with tarfile.open(file) as archive:
        assert sorted(archive.getnames()) == [
            "bin/python",
            "bin/python3",
            "packages/mine-1.0.dist-info/METADATA",
            "packages/mine/__init__.py",
        ]
    refused = CliRunner().invoke(main, ["ship-env", str(tmp_path / "env.zip")])
    assert refused.exit_code == 2
    assert ".tar.gz" in refused.stderr
    nowhere = CliRunner().invoke(main, ["ship-env", str(tmp_path / "no" / "env.tar.gz")])
    assert nowhere.exit_code == 2
    assert "cannot be written: No such file" in nowhere.stderr
