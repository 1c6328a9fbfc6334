"""What `headrace submit` hands to spark-submit, and what it refuses before."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import main

SQL = "SELECT shop, count(*) AS n FROM orders GROUP BY shop, tumble(INTERVAL '1 minute');"
TABLE = (
    "CREATE TABLE orders (shop TEXT, ts TIMESTAMP NOT NULL, WATERMARK FOR ts AS ts) "
    "WITH (connector = 'single_file', path = '/orders.json');"
)
KUBERNETES = ["--master", "k8s://https://host:6443", "--deploy-mode", "cluster"]


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_HOME", "HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("orders.sql").write_text(f"{TABLE}\n{SQL}\n")
    Path("env.tar.gz").touch()


def submit(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["submit", *arguments])


def command(*arguments: str) -> list[str]:
    result = submit(*arguments, "--dry-run")
    assert result.exit_code == 0, result.output
    return shlex.split(result.stdout)


def settings(words: list[str]) -> dict[str, str]:
    pairs = (words[at + 1].partition("=") for at, word in enumerate(words) if word == "--conf")
    return {name: value for name, _, value in pairs}


def test_a_driver_on_yarn_has_the_packed_environment_and_is_started_again() -> None:
    words = command(
        *("orders.sql", "--master", "yarn", "--deploy-mode", "cluster", "--env", "env.tar.gz"),
        *("--state-dir", "hdfs://nn/orders", "--conf", "spark.yarn.queue=etl", "--name", "orders of today"),
    )
    assert words[0].endswith("bin/spark-submit")
    text = shlex.join(words)
    assert "--master yarn --deploy-mode cluster --name 'orders of today' --archives 'env.tar.gz#env'" in text
    conf = settings(words)
    assert conf["spark.pyspark.python"] == "./env/bin/python"
    assert conf["spark.yarn.appMasterEnv.PYSPARK_PYTHON"] == "./env/bin/python"
    assert conf["spark.yarn.am.attemptFailuresValidityInterval"] == "1h"
    assert conf["spark.yarn.queue"] == "etl"


def test_a_driver_on_yarn_without_state_is_not_started_again() -> None:
    conf = settings(command("orders.sql", "--master", "yarn", "--deploy-mode", "cluster"))
    assert conf["spark.yarn.maxAppAttempts"] == "1"


def test_a_driver_on_this_machine_is_this_python() -> None:
    words = command("orders.sql", "--master", "spark://host:7077", "--py-files", "env.tar.gz")
    assert settings(words)["spark.pyspark.driver.python"] == sys.executable
    assert "spark.pyspark.python" not in settings(words)
    assert "--py-files env.tar.gz" in shlex.join(words)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--deploy-mode", "cluster"], "`local[*]` has no cluster", "--deploy-mode client"),
        (
            ["--master", "spark://host:7077", "--deploy-mode", "cluster"],
            "a standalone master runs no Python drivers",
            "headrace run --master spark://host:7077",
        ),
        (["--master", "sc://host:15002"], "a Spark Connect server takes no applications", "headrace run"),
        (KUBERNETES[:2], "Kubernetes needs an image", "spark.kubernetes.container.image"),
        (
            [*KUBERNETES, "--conf", "spark.kubernetes.container.image=x"],
            "a place by which the program reaches the driver",
            "spark.kubernetes.file.upload.path",
        ),
        (
            ["--master", "yarn", "--deploy-mode", "cluster", "--state-dir", "state"],
            "the state directory `state` is relative",
            "s3://",
        ),
        (
            ["--conf", "spark.authenticate.secret=x"],
            "could read `spark.authenticate.secret`",
            "defaults.conf",
        ),
        (["--env", "none.tar.gz"], "--env: there is no file none.tar.gz", ""),
        (["--py-files", "none.py"], "--py-files: there is no file none.py", ""),
        (["--master", "yarn"], "neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set", "export HADOOP_CONF_DIR"),
        (["--master", "spark://127.0.0.1:9"], "no Spark master answers at `spark://127.0.0.1:9`", "check"),
    ],
)
def test_what_spark_would_refuse_late_is_refused_at_once(
    arguments: list[str], message: str, hint: str
) -> None:
    result = submit("orders.sql", *arguments)
    assert result.exit_code in {1, 2}
    assert message in result.stderr
    assert hint in result.stderr


def test_a_wrong_spark_home_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    result = submit("orders.sql")
    assert result.exit_code == 2
    assert "unset SPARK_HOME" in result.stderr


def test_a_mistake_in_the_program_is_told_before_anything_is_submitted() -> None:
    Path("orders.sql").write_text(f"{TABLE}\nSELECT shopp FROM orders;\n")
    result = submit("orders.sql", "--master", "yarn", "--deploy-mode", "cluster", "--dry-run")
    assert result.exit_code == 2
    assert "shopp" in result.stderr


def test_a_dataflow_is_refused() -> None:
    Path("dataflow.yml").write_text("nodes: []\n")
    result = submit("dataflow.yml")
    assert result.exit_code == 2
    assert "headrace run" in result.stderr


def test_a_script_for_an_image_needs_no_place_to_be_uploaded_to() -> None:
    image = ["--conf", "spark.kubernetes.container.image=x"]
    words = command("orders.sql", *KUBERNETES, *image, "--entry", "main.py")
    assert "spark.authenticate=true" in words
    assert words[-1] == "main.py"
    assert Path("main.py").exists()


def test_the_entry_script_runs_the_program_with_its_modules_and_settings(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pricing_of_submit.py").write_text("ROWS = [{'n': 1}, {'n': 2}]\n")
    (folder / "job_of_submit.py").write_text(
        "import headrace as hr\nfrom pricing_of_submit import ROWS\n"
        "first = hr.Pipeline('first')\nfirst.source('memory', rows=ROWS).sink('stdout')\n"
        "second = hr.Pipeline('second')\nsecond.source('memory', rows=ROWS[:1]).sink('stdout')\n"
    )
    file = f"{folder / 'job_of_submit.py'}:second"
    result = submit(file, "--dry-run", "--entry", "main.py", "--epoch-target", "1500ms", "--epoch-rows", "7")
    assert result.exit_code == 0, result.output
    assert "--name second" in result.stdout
    # What the driver does with it, without Spark: the command line is replaced by one that tells.
    (tmp_path / "tell.py").write_text(
        "import json, os, runpy, sys, headrace.__main__\n"
        "def tell():\n"
        "    import headrace as hr\n"
        "    file = sys.argv[2]\n"
        "    found = {name: value for name, value in os.environ.items() if name.startswith('HEADRACE__')}\n"
        "    print(json.dumps([sys.argv[:2], hr.load_pipeline(file).name, file.rpartition('/')[2], found]))\n"
        "headrace.__main__.main = tell\n"
        "runpy.run_path('main.py', run_name='__main__')\n"
    )
    told = subprocess.run(
        [sys.executable, "tell.py"], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert told.returncode == 0, told.stderr
    arguments, name, path, variables = json.loads(told.stdout)
    assert arguments == ["headrace", "run"]
    assert (name, path) == ("second", "job_of_submit.py:second")
    assert variables == {"HEADRACE__RUN__EPOCH_TARGET": "1.5s", "HEADRACE__RUN__EPOCH_ROWS": "7"}


def test_a_driver_without_headrace_is_told_how_to_ship_it(tmp_path: Path) -> None:
    submit("orders.sql", "--dry-run", "--entry", "main.py")
    told = subprocess.run(
        [sys.executable, "-S", "-E", "main.py"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert told.returncode == 1
    assert "headrace submit --env" in told.stderr
    assert "Traceback" not in told.stderr
