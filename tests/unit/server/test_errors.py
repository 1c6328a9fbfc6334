"""Errors of the REST API say what is wrong with a request in its own terms."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from headrace.server.errors import invalid_request
from headrace.server.models import PipelinePatch, PipelinePost, SessionPost

PROBLEMS: dict[str, tuple[type[BaseModel], dict[str, Any], str]] = {
    "a misspelt value of an enumeration": (
        PipelinePatch,
        {"stop": "checkpont"},
        (
            "`stop` must be 'none', 'checkpoint', 'graceful', 'immediate' or 'force', got 'checkpont': "
            "did you mean `checkpoint`?"
        ),
    ),
    "a misspelt key": (
        PipelinePatch,
        {"paralelism": 3},
        "unknown key `paralelism`: did you mean `parallelism`?",
    ),
    "a key like no other": (PipelinePatch, {"colour": 3}, "unknown key `colour`"),
    "a missing key": (PipelinePost, {"query": "SELECT 1"}, "`name` is required"),
    "a number out of range": (PipelinePatch, {"parallelism": 0}, "`parallelism` must be 1 or more"),
    "a text as a number": (PipelinePatch, {"parallelism": "x"}, "`parallelism` must be a whole number"),
    "a token that is too long": (
        SessionPost,
        {"token": "s" * 1001},
        "`token` must be a string of at most 1000 characters",
    ),
    "several": (
        PipelinePatch,
        {"stop": "x", "parallelism": 0},
        (
            "`stop` must be 'none', 'checkpoint', 'graceful', 'immediate' or 'force', got 'x'; "
            "`parallelism` must be 1 or more"
        ),
    ),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_wrong_request_is_explained_without_words_of_pydantic(problem: str) -> None:
    model, body, expected = PROBLEMS[problem]
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    errors = [{**item, "loc": ("body", *item["loc"])} for item in caught.value.errors()]
    assert invalid_request(errors, model) == expected


def test_what_is_not_json_is_said_to_be_that() -> None:
    error = {
        "type": "json_invalid",
        "loc": ("body", 1),
        "msg": "JSON decode error",
        "ctx": {"error": "Expecting value"},
    }
    assert invalid_request([error], None) == "the body is not valid JSON: Expecting value"
