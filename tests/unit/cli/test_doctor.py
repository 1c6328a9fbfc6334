import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli.doctor import (
    check_extra,
    check_imports,
    check_java,
    check_package,
    check_python,
    check_spark_home,
    check_temporary_directory,
    examine,
)
from headrace.cli.main import main


def program(folder: Path, name: str, *, prints: str = "", code: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{prints}\nEND\nexit {code}\n")
    file.chmod(0o755)
    return file


def java(folder: Path, version: str) -> Path:
    return program(folder, "java", prints=f'openjdk version "{version}" 2025-04-15\nOpenJDK Runtime')


def environ(*folders: Path, **others: str) -> dict[str, str]:
    """A PATH of these folders and the shell's own `cat`, and nothing else."""
    return {"PATH": os.pathsep.join(map(str, folders)), **others}


@pytest.mark.parametrize("version", ["17.0.15", "17", "21.0.2"])
def test_java_17_and_21_on_path_are_fine(version: str, tmp_path: Path) -> None:
    java(tmp_path, version)
    check = check_java(environ(tmp_path))
    assert check.status == "ok"
    assert check.actual.startswith(version)


def test_a_java_that_was_not_tested_is_a_warning(tmp_path: Path) -> None:
    java(tmp_path, "25-ea")
    check = check_java(environ(tmp_path))
    assert check.status == "warning"
    assert "tested with 17" in check.actual


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22"])
def test_an_old_java_is_not_enough(version: str, tmp_path: Path) -> None:
    java(tmp_path, version)
    check = check_java(environ(tmp_path))
    assert check.status == "missing"
    assert "needs 17 or newer" in check.actual


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    java(tmp_path / "path", "17.0.1")
    java(tmp_path / "home" / "bin", "21.0.1")
    check = check_java(environ(tmp_path / "path", JAVA_HOME=str(tmp_path / "home")))
    assert check.actual.startswith("21.0.1")


def test_a_wrong_java_home_is_told_even_when_path_has_java(tmp_path: Path) -> None:
    java(tmp_path, "17.0.1")
    check = check_java(environ(tmp_path, JAVA_HOME=str(tmp_path / "absent")))
    assert check.status == "missing"
    assert check.fix == "unset JAVA_HOME"


def test_a_java_that_does_not_run_is_missing(tmp_path: Path) -> None:
    program(tmp_path, "java", prints="Unable to locate a Java Runtime.", code=1)
    check = check_java(environ(tmp_path))
    assert check.status == "missing"
    assert "Unable to locate a Java Runtime." in check.actual


@pytest.mark.parametrize(
    ("manager", "expected"),
    [
        ("apt-get", "apt-get install -y openjdk-17-jre-headless"),
        ("dnf", "dnf install -y java-17-openjdk-headless"),
        ("brew", "brew install openjdk@17"),
        ("apk", "apk add openjdk17-jre-headless"),
        (None, "install a Java runtime, 17 or newer"),
    ],
)
def test_without_java_the_line_that_installs_it_suits_the_machine(
    manager: str | None, expected: str, tmp_path: Path
) -> None:
    if manager:
        program(tmp_path, manager)
    check = check_java(environ(tmp_path))
    assert check.status == "missing"
    assert check.fix is not None
    assert expected in check.fix


def test_python_must_be_3_11() -> None:
    assert check_python((3, 11, 0)).status == "ok"
    assert check_python((3, 13, 5)).status == "ok"
    assert check_python((3, 14, 0)).status == "warning"
    assert check_python((3, 10, 9)).status == "missing"


def test_a_package_that_is_absent_or_does_not_fit_comes_with_the_line_that_installs_it() -> None:
    assert check_package("click", package="click", requirement="click", at_least=(8,)).status == "ok"
    too_new = check_package("click", package="click", requirement="click<8", at_least=(1,), below=(8,))
    assert too_new.status == "missing"
    assert "needs <8" in too_new.actual
    absent = check_package("X", package="headrace-absent", requirement="headrace-absent>=1", at_least=(1,))
    assert absent.fix == f"{sys.executable} -m pip install 'headrace-absent>=1'"


def test_a_missing_extra_is_optional() -> None:
    check = check_extra("cloud", package="headrace-absent", use="clouds")
    assert check.status == "optional"
    assert check.fix == f"{sys.executable} -m pip install 'headrace[cloud]'"


def test_a_spark_home_is_warned_of_and_one_without_spark_is_a_fault(tmp_path: Path) -> None:
    assert check_spark_home({}) == []
    [absent] = check_spark_home({"SPARK_HOME": "/opt/absent"})
    assert (absent.status, absent.fix) == ("missing", "unset SPARK_HOME")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").touch()
    assert check_spark_home({"SPARK_HOME": str(tmp_path)})[0].status == "warning"


def test_the_temporary_directory_must_be_there(tmp_path: Path) -> None:
    assert check_temporary_directory({"TMPDIR": str(tmp_path)}).status == "ok"
    assert check_temporary_directory({"TMPDIR": str(tmp_path / "absent")}).status == "missing"


def test_a_temporary_directory_that_another_user_could_have_filled_is_named(tmp_path: Path) -> None:
    (tmp_path / f"headrace-{os.geteuid()}").symlink_to(tmp_path)
    check = check_temporary_directory({"TMPDIR": str(tmp_path)})
    assert check.status == "missing"
    assert "is a symbolic link" in check.actual
    assert check.fix is not None
    assert check.fix.startswith("remove it")


def test_doctor_exits_with_1_when_java_is_absent(tmp_path: Path) -> None:
    result = CliRunner(env={"PATH": str(tmp_path), "JAVA_HOME": None}).invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert "✗ Java" in result.stdout
    assert "Headrace cannot run here yet: Java." in result.stdout


def test_doctor_exits_with_0_when_all_is_there(tmp_path: Path) -> None:
    java(tmp_path, "17.0.15")
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    result = CliRunner(env={"PATH": path, "JAVA_HOME": None}).invoke(main, ["doctor"])
    assert result.exit_code == 0
    assert "Headrace can run here." in result.stdout


def test_doctor_in_json_holds_the_same_checks(tmp_path: Path) -> None:
    result = CliRunner(env={"PATH": str(tmp_path), "JAVA_HOME": None}).invoke(main, ["doctor", "--json"])
    told = json.loads(result.stdout)
    assert result.exit_code == 1
    assert told["ok"] is False
    checks = {check["name"]: check for check in told["checks"]}
    assert checks["Java"]["status"] == "missing"
    assert checks.keys() >= {"Python", "PySpark", "PyArrow", "Memory", "Cores", "Temporary files"}


def test_doctor_does_not_import_what_it_looks_for() -> None:
    code = """
import os, sys
from headrace.cli.doctor import examine
examine(os.environ)
heavy = ("pyspark", "pyarrow", "pandas", "datafusion", "obstore")
sys.exit(" ".join(name for name in heavy if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_a_package_that_is_installed_and_cannot_be_imported_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_package.py").write_text("raise ImportError('built for another numpy')\n")
    (tmp_path / "ending_package.py").write_text("import os\nos._exit(7)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    [good] = check_imports(["click"])
    assert (good.name, good.status) == ("Imports", "ok")
    [broken] = check_imports(["click", "broken_package"])
    assert (broken.name, broken.status) == ("import broken_package", "missing")
    assert broken.actual == "ImportError: built for another numpy"
    [ending] = check_imports(["ending_package"])
    assert "exit code 7" in ending.actual


def test_every_problem_comes_with_a_fix(tmp_path: Path) -> None:
    bare = {"PATH": str(tmp_path), "TMPDIR": str(tmp_path / "absent"), "SPARK_HOME": "/opt/spark"}
    assert all(check.fix for check in examine(bare) if check.status != "ok")


def test_a_master_of_spark_connect_needs_no_java_here() -> None:
    environ = {"PATH": "", "HEADRACE__SPARK__MASTER": "sc://host:443/;token=very-private"}
    (java,) = (check for check in examine(environ) if check.name == "Java")
    assert (java.status, java.actual) == ("optional", "not needed for sc://host:443/;token=***")
    (java,) = (check for check in examine({"PATH": ""}) if check.name == "Java")
    assert java.status == "missing"
