import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.api.run_options import RunOptions
from headrace.base.errors import ConfigurationError
from headrace.jobs.settings import Settings, load_settings

Flags = dict[str, dict[str, object]]


def load(
    tmp_path: Path, toml: str | None = None, environ: dict[str, str] | None = None, flags: Flags | None = None
) -> Settings:
    if toml is not None:
        (tmp_path / "headrace.toml").write_text(toml)
    return load_settings(flags=flags or {}, environ=environ or {}, directory=tmp_path)


def failure(
    tmp_path: Path, toml: str | None = None, environ: dict[str, str] | None = None, flags: Flags | None = None
) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, toml, environ, flags)
    return caught.value


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings == Settings()
    assert settings.run.epoch_target == timedelta(milliseconds=500)
    assert settings.run.restarts == 3
    assert settings.state.keep_checkpoints == 10
    assert settings.spark.master == "local[*]"


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    toml = "[run]\nparallelism = 1\nepoch_rows = 10\nmax_epochs = 100\n"
    environ = {"HEADRACE__RUN__PARALLELISM": "2", "HEADRACE__RUN__EPOCH_ROWS": "20"}
    run = load(tmp_path, toml, environ, {"run": {"parallelism": 3, "max_epochs": None}}).run
    assert (run.parallelism, run.epoch_rows, run.max_epochs, run.restarts) == (3, 20, 100, 3)


def test_a_named_file_is_read_instead_of_the_one_in_the_directory(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text("[run]\nparallelism = 1\n")
    other = tmp_path / "other.toml"
    other.write_text("[run]\nepoch_target = '2s'\n")
    run = load_settings(config=other, environ={}, directory=tmp_path).run
    assert run.parallelism is None
    assert run.epoch_target == timedelta(seconds=2)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file") as caught:
        load_settings(config=tmp_path / "absent.toml", environ={})
    assert caught.value.where == str(tmp_path / "absent.toml")


def test_spark_conf_is_merged_key_by_key_and_becomes_text(tmp_path: Path) -> None:
    toml = '[spark.conf]\n"spark.a" = true\nspark.b.c = 1\n"spark.d" = "file"\n'
    environ = {"HEADRACE__SPARK__CONF": "spark.d=variable, spark.e=variable"}
    conf = load(tmp_path, toml, environ, {"spark": {"conf": {"spark.e": "flag"}}}).spark.conf
    assert conf == {"spark.a": "true", "spark.b.c": "1", "spark.d": "variable", "spark.e": "flag"}


def test_spark_conf_in_the_environment_may_be_json(tmp_path: Path) -> None:
    environ = {"HEADRACE__SPARK__CONF": '{"spark.a": "x,y=z"}'}
    assert load(tmp_path, environ=environ).spark.conf == {"spark.a": "x,y=z"}


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    assert load(tmp_path, environ={"HEADRACE__RUN__PARALLELISM": ""}).run.parallelism is None


def test_variables_of_others_are_left_alone(tmp_path: Path) -> None:
    assert load(tmp_path, environ={"HEADRACE_HOME": "x", "PATH": "y"}) == Settings()


def test_an_unknown_key_of_the_file_names_its_line_and_the_near_name(tmp_path: Path) -> None:
    error = failure(tmp_path, "[state]\ndir = 'x'\n\n[run]\nrestarts = 1\nparalelism = 2\n")
    assert error.message == "unknown key `paralelism` in [run]"
    assert error.where == f"{tmp_path / 'headrace.toml'}:6"
    assert error.hint == "did you mean `parallelism`?"


def test_a_key_in_the_wrong_section_is_told_where_it_belongs(tmp_path: Path) -> None:
    assert failure(tmp_path, "[state]\nmaster = 'x'\n").hint == "it belongs to [spark]"


def test_an_unknown_section_of_the_file_names_its_line(tmp_path: Path) -> None:
    error = failure(tmp_path, "[run]\n[sparc]\nmaster = 'x'\n")
    assert error.message == "unknown section `[sparc]`"
    assert error.where == f"{tmp_path / 'headrace.toml'}:2"
    assert error.hint == "did you mean `spark`?"


def test_an_unknown_variable_is_named(tmp_path: Path) -> None:
    error = failure(tmp_path, environ={"HEADRACE__RUN__EPOCH_ROW": "1"})
    assert error.where == "HEADRACE__RUN__EPOCH_ROW"
    assert error.hint is not None
    assert "`epoch_rows`" in error.hint


@pytest.mark.parametrize("name", ["HEADRACE__RUN", "HEADRACE__RUN__", "HEADRACE__"])
def test_a_variable_without_a_key_is_an_error(name: str, tmp_path: Path) -> None:
    assert failure(tmp_path, environ={name: "1"}).where == name


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("run", "parallelism", "many", "must be a whole number"),
        ("run", "parallelism", "auto:8-2", "the fewest and the most subtasks, as in `auto:2-64`"),
        ("run", "parallelism", 0, "must be greater than 0"),
        ("run", "epoch_target", "soon", "`soon` is not a duration"),
        ("run", "epoch_target", "0s", "greater than zero"),
        ("run", "restarts", -1, "must be 0 or more"),
        ("state", "compact_after", 1, "must be 2 or more"),
        ("spark", "memory", "plenty", "write a size such as `4g`"),
        ("spark", "conf", "spark.a", "name=value"),
    ],
)
def test_a_bad_value_is_shown_with_what_was_expected(
    section: str, key: str, value: object, expected: str, tmp_path: Path
) -> None:
    error = failure(tmp_path, flags={section: {key: value}})
    assert f"[{section}] {key}" in error.message
    assert expected in error.message
    assert f"got {value!r}" in error.message
    assert error.where == "--" + key.replace("_", "-")


def test_all_problems_are_told_at_once_each_with_its_place(tmp_path: Path) -> None:
    message = failure(
        tmp_path,
        "run = 3\n[state]\nkeep_checkpoints = 0\n[logs]\n",
        {"HEADRACE__SPARK__MASTR": "x"},
        {"run": {"parallelism": -1}},
    ).message
    path = tmp_path / "headrace.toml"
    assert message.startswith("5 settings are not valid:")
    assert f"- {path}:1: `run` is a section" in message
    assert f"- {path}:3: [state] keep_checkpoints" in message
    assert f"- {path}:4: unknown section `[logs]`" in message
    assert "- HEADRACE__SPARK__MASTR: unknown key `mastr` in [spark]; did you mean `master`?" in message
    assert "- --parallelism: [run] parallelism" in message


def test_bad_toml_shows_its_line(tmp_path: Path) -> None:
    error = failure(tmp_path, "[run]\nparallelism = = 2\n")
    assert error.where == f"{tmp_path / 'headrace.toml'}:2"
    assert "    parallelism = = 2\n                  ^" in error.message


def test_toml_that_ends_too_soon_shows_its_last_line(tmp_path: Path) -> None:
    error = failure(tmp_path, "[run]\nepoch_target = '1s")
    assert error.where == f"{tmp_path / 'headrace.toml'}:2"


def test_a_key_outside_its_section_is_sent_there(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text("parallelism = 2\n")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(environ={}, directory=tmp_path)
    assert "`parallelism` is a key of [run]" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"engine": "lokal"}, "did you mean `local`?"),
        ({"restarts": -1}, "restarts must be 0 or more, got -1"),
        ({"compact_after": 1}, "compact_after must be 2 or more, got 1"),
        ({"metrics_port": 70000}, "port must be"),
        ({"memory": "lots"}, "memory"),
    ],
)
def test_a_wrong_value_of_run_options_is_refused_where_they_are_made(
    values: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(expected)) as caught:
        RunOptions(**values)
    assert Path(__file__).name in str(caught.value)
