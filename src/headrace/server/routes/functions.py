"""Functions for the SQL of all pipelines, in Python and in Rust."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from headrace.server.apart import run_apart
from headrace.server.database import Row
from headrace.server.errors import RequestError
from headrace.server.models import Listed, UdfPost, UdfValidatePost, UdfValidationView, UdfView
from headrace.server.routes.dependencies import UseAccount, UseService, check_code
from headrace.server.trials import read_function

router = APIRouter(prefix="/udfs", tags=["functions"])


def _view(row: Row) -> UdfView:
    return UdfView(
        **{name: row[name] for name in UdfView.model_fields if name != "dylib_url"}, dylib_url=None
    )


@router.get("")
def list_udfs(service: UseService) -> Listed[UdfView]:
    """Every function."""
    return Listed(data=[_view(row) for row in service.functions.all()])


@router.post("")
def create_udf(body: UdfPost, service: UseService, account: UseAccount) -> UdfView:
    """Save a function: the SQL of any pipeline can call it."""
    read = _read(body.definition, body.language, account)
    if read["errors"]:
        raise RequestError(400, "\n".join(read["errors"]))
    if len(read["names"]) > 1:
        raise RequestError(
            400, f"the source defines {len(read['names'])} functions, and one is saved at a time"
        )
    return _view(service.functions.add(read["names"][0], body.model_dump()))


@router.post("/validate")
def validate_udf(body: UdfValidatePost, account: UseAccount) -> UdfValidationView:
    """Check a function without saving it."""
    read = _read(body.definition, body.language, account)
    return UdfValidationView(udf_name=next(iter(read["names"]), None), errors=read["errors"])


def _read(definition: str, language: str, account: UseAccount) -> dict[str, Any]:
    check_code(account, {"udfs": [definition]})
    read: dict[str, Any] = run_apart(read_function, definition, language)
    return read


@router.delete("/{udf_id}")
def delete_udf(udf_id: str, service: UseService) -> None:
    """Delete a function; pipelines that run go on with it until they start again."""
    service.functions.delete(udf_id)
