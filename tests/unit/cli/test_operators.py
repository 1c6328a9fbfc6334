import json
from datetime import timedelta
from typing import Any, Literal

import pytest
from click.testing import CliRunner

from headrace.base.options import Duration
from headrace.cli.main import main
from headrace.cli.operators import type_name


def test_the_list_names_every_role() -> None:
    result = CliRunner().invoke(main, ["operators"])
    assert result.exit_code == 0
    assert "impulse" in result.stdout
    assert "watermark" in result.stdout
    assert "stdout" in result.stdout


def test_the_list_as_json_is_one_line_per_name() -> None:
    lines = CliRunner().invoke(main, ["operators", "--json"]).stdout.splitlines()
    assert {"role": "sink", "name": "stdout"} in [json.loads(line) for line in lines]


def test_one_name_shows_its_options_with_type_default_and_help() -> None:
    result = CliRunner().invoke(main, ["operators", "impulse"])
    assert result.exit_code == 0
    assert "source impulse" in result.stdout
    assert "event_rate" in result.stdout
    assert "number" in result.stdout


def test_a_name_with_several_roles_shows_all() -> None:
    lines = CliRunner().invoke(main, ["operators", "single_file", "--json"]).stdout.splitlines()
    assert [json.loads(line)["role"] for line in lines] == ["source", "sink", "lookup"]


def test_an_unknown_name_suggests_near_ones() -> None:
    result = CliRunner().invoke(main, ["operators", "impuls"])
    assert result.exit_code == 2
    assert "did you mean `impulse`?" in result.stderr


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "integer"),
        (int | None, "integer"),
        (str | int, "text or integer"),
        (Literal["a", "b"], "a or b"),
        (timedelta | None, "duration"),
        (Duration, "duration"),
        (list[str], "list of text"),
        (Any, "any"),
    ],
)
def test_types_are_told_in_the_words_of_a_user(annotation: Any, text: str) -> None:
    assert type_name(annotation) == text
