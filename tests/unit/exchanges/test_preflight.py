"""What is wrong with an executor is one error that says what to do."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import ConfigurationError
from headrace.exchanges.spark.preflight import PACKAGES, _check, executor_problem
from headrace.exchanges.spark.probe import Question
from headrace.storage.open import open_storage


def answer(tmp_path: Path, *modules: str) -> dict[str, Any]:
    question = Question(dict.fromkeys(modules or PACKAGES), str(tmp_path), "token")
    (result,) = pickle.loads(pickle.dumps(question))(iter(range(3)))
    return dict(result)


def test_a_worker_with_everything_is_let_in(tmp_path: Path) -> None:
    open_storage(str(tmp_path)).write("token", b"")
    _check(answer(tmp_path), str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


def test_a_worker_without_a_package_is_refused_with_the_line_that_ships_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no no_such_package: their Python is") as raised:
        _check(answer(tmp_path, "pyarrow", "no_such_package"), str(tmp_path))
    assert "headrace ship-env" in str(raised.value.hint)
    assert not raised.value.retry


def test_a_package_that_cannot_be_loaded_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_package.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError, match="No module named 'no_such_package'"):
        _check(answer(tmp_path, "broken_package"), str(tmp_path))


def test_a_worker_that_does_not_see_the_state_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot use the state directory") as raised:
        _check(answer(tmp_path), str(tmp_path))
    assert "same path" in str(raised.value.hint)


def test_a_worker_with_another_datafusion_is_refused(tmp_path: Path) -> None:
    open_storage(str(tmp_path)).write("token", b"")
    (other,) = Question({"datafusion": "1.0"}, str(tmp_path), "token")(iter(()))
    with pytest.raises(ConfigurationError, match=r"workers have datafusion \d.*, and the driver has"):
        _check(other, str(tmp_path))


def test_a_worker_that_comes_late_and_cannot_run_tasks_is_told_by_its_task(tmp_path: Path) -> None:
    question = Question(dict.fromkeys(PACKAGES), str(tmp_path), "token")
    with pytest.raises(RuntimeError) as raised:
        question.require()
    problem = executor_problem(f"PythonException: …\nRuntimeError: {raised.value}\n\n\tat org.apache")
    assert problem is not None
    assert "cannot use the state directory" in problem.message
    open_storage(str(tmp_path)).write("token", b"")
    question.require()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11",
            "workers have Python 3.9,",
        ),
        (
            "Python in worker has different version (3, 9) than that in driver 3.11",
            "workers have Python 3.9,",
        ),
        ('java.io.IOException: Cannot run program "python3.11": error=2', "no Python `python3.11`"),
        ('java.io.IOException: Cannot run program "": error=2', "no Python ``"),
        ("ModuleNotFoundError: No module named 'pyarrow'", "no module `pyarrow`"),
    ],
)
def test_what_spark_says_about_a_worker_is_told_with_what_to_do(text: str, message: str) -> None:
    problem = executor_problem(text)
    assert problem is not None
    assert message in problem.message
    assert "ship-env" in str(problem.hint)


def test_other_failures_of_a_job_are_not_blamed_on_the_worker() -> None:
    assert executor_problem("ValueError: 1") is None
