import pickle
from datetime import timedelta
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import Field, model_validator

from headrace.base.errors import ConfigurationError
from headrace.base.options import Duration, Names, Options, Size, parse_options


class Colour(Enum):
    CHROME = "chrome"
    BRASS = "brass"


class Tap(Options):
    flow: float = 1.0
    cold: bool = False
    litres: int | None = Field(None, alias="tank.litres")
    pause: Duration | None = None
    memory: Size = 0
    rooms: Names = Field(default_factory=list)
    shape: Literal["round", "square", "Oval"] | None = None
    colour: Colour | None = None

    @model_validator(mode="after")
    def _fits(self) -> "Tap":
        if self.cold and self.flow > 100:
            raise ValueError("cold water is slow")
        return self


@pytest.mark.parametrize(
    ("values", "field", "expected"),
    [
        *[({"cold": text}, "cold", True) for text in (True, "true", "TRUE", "yes")],
        *[({"cold": text}, "cold", False) for text in (False, "false", "no")],
        *[({"flow": value}, "flow", 2.5) for value in (2.5, "2.5")],
        *[({"tank.litres": value}, "litres", 7) for value in (7, "7")],
        *[({"pause": value}, "pause", timedelta(seconds=90)) for value in ("90s", 90, timedelta(0, 90))],
        *[({"memory": value}, "memory", 64_000_000) for value in (64_000_000, "64000000", "64MB", "64 mb")],
        ({"memory": "1.5KiB"}, "memory", 1536),
        *[({"rooms": value}, "rooms", ["a", "b"]) for value in (["a", "b"], "a,b", "[a, b]")],
        ({"rooms": ""}, "rooms", []),
    ],
)
def test_values_are_read_from_what_sql_yaml_and_python_write(values: Any, field: str, expected: Any) -> None:
    assert getattr(parse_options(Tap, values, what="tap"), field) == expected


def test_every_problem_is_named_with_its_option() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_options(Tap, {"flow": "much", "tank.litre": 5, "memory": "lots"}, what="tap")
    names = [name for name, _ in caught.value.problems]
    assert names == ["flow", "memory", "tank.litre"]
    assert all(message in caught.value.message for _, message in caught.value.problems)
    assert "did you mean `tank.litres`?" in caught.value.message
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"shape": "roud"}, "'round', 'square' or 'Oval', got 'roud': did you mean `round`?"),
        ({"shape": "OVAL"}, "'round', 'square' or 'Oval', got 'OVAL': did you mean `Oval`?"),
        ({"shape": "triangle"}, "'round', 'square' or 'Oval', got 'triangle'"),
        ({"shape": 3}, "'round', 'square' or 'Oval', got 3"),
        ({"colour": "bras"}, "'chrome' or 'brass', got 'bras': did you mean `brass`?"),
    ],
)
def test_a_value_near_one_of_an_enumeration_is_suggested(values: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_options(Tap, values, what="tap")
    assert caught.value.message == f"tap: option `{next(iter(values))}` must be {problem}"


def test_a_problem_of_several_options_has_no_name() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_options(Tap, {"flow": 101, "cold": "yes"}, what="tap")
    assert caught.value.problems == [(None, "cold water is slow")]
    assert caught.value.message == "tap: cold water is slow"
