"""A SPARK_HOME that PySpark cannot start is one error that says so, before Java starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.base.errors import ConfigurationError
from headrace.cli.main import main
from headrace.exchanges.spark.home import check_home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory that looks like Spark 4.0."""
    for name in ("bin/spark-submit", "jars/spark-core_2.13-4.0.5.jar"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    return tmp_path


def test_a_spark_of_the_version_of_pyspark_is_taken(home: Path) -> None:
    check_home({"SPARK_HOME": str(home)}, "4.0.1")
    check_home({}, "4.3.0")


def test_a_spark_of_another_version_is_refused_with_both_versions(home: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        check_home({"SPARK_HOME": str(home)}, "4.3.0")
    assert f"SPARK_HOME is {home}, which is Spark 4.0, and PySpark is 4.3.0" in raised.value.message
    assert "pip install 'pyspark==4.0.*'" in str(raised.value.hint)


def test_a_spark_whose_version_cannot_be_told_is_taken(home: Path) -> None:
    (home / "jars" / "spark-core_2.13-4.0.5.jar").unlink()
    check_home({"SPARK_HOME": str(home)}, "4.3.0")


def test_a_directory_without_spark_is_an_error_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    sql = "CREATE TABLE i WITH (connector = 'impulse', message_count = 1); SELECT counter FROM i"
    result = CliRunner().invoke(main, ["run", "-e", sql, "--state-dir", str(tmp_path / "state")])
    assert result.exit_code == 2
    assert (
        f"error[configuration]: SPARK_HOME is {tmp_path}, and there is no bin/spark-submit" in result.stderr
    )
    assert "unset SPARK_HOME" in result.stderr
