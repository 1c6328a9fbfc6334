"""Connectors, connection profiles and connection tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter
from fastapi.sse import format_sse_event

from headrace.base.errors import HeadraceError
from headrace.server.apart import run_apart
from headrace.server.catalog import connectors
from headrace.server.connections import check_options, environ_of, flatten, models_of, split_secrets
from headrace.server.database import Row
from headrace.server.errors import RequestError, sentence, status_of
from headrace.server.events import EventAnswer
from headrace.server.models import (
    AutocompleteView,
    ConnectorView,
    Listed,
    Paged,
    ProfilePost,
    ProfileView,
    TablePost,
    TableView,
    TestMessageView,
)
from headrace.server.routes.dependencies import Limit, StartingAfter, UseService
from headrace.server.schemas import read_schema
from headrace.server.service import Service
from headrace.server.trials import check_table, columns_of_table, kafka_topics, try_profile, try_table

router = APIRouter(tags=["connections"])


@router.get("/connectors")
def list_connectors() -> Listed[ConnectorView]:
    """Every connector, with its options as JSON schemas."""
    return Listed(data=connectors())


# -------------------------------------------------------------------------------------------- profiles


def _profile_view(row: Row) -> ProfileView:
    return ProfileView(
        id=row["id"],
        name=row["name"],
        connector=row["connector"],
        config=row["config"],
        description=row["description"] or f"{row['connector']}: {row['name']}",
    )


@router.get("/connection_profiles")
def list_profiles(service: UseService) -> Listed[ProfileView]:
    """Every connection profile."""
    return Listed(data=[_profile_view(row) for row in service.connections.profiles()])


@router.post("/connection_profiles")
def create_profile(body: ProfilePost, service: UseService) -> ProfileView:
    """Save a connection profile; its secret options never come back."""
    profile = service.connections.add_profile(body.name, body.connector, body.config, body.description)
    return _profile_view(profile)


@router.post("/connection_profiles/test")
def test_profile(body: ProfilePost) -> TestMessageView:
    """Try a profile without saving it."""
    options = flatten(body.config)
    check_options(body.connector, options)
    try:
        text = run_apart(try_profile, body.connector, options)
    except HeadraceError as error:
        return TestMessageView(
            error=True, done=True, message=_without(options, body.connector, sentence(error))
        )
    return TestMessageView(error=False, done=True, message=text)


def _without(options: dict[str, Any], connector: str, text: str) -> str:
    """A text without the secrets of options that are not saved."""
    for value in split_secrets(connector, options).secrets.values():
        text = text.replace(value, "***") if value else text
    return text


@router.delete("/connection_profiles/{profile_id}")
def delete_profile(profile_id: str, service: UseService) -> None:
    """Delete a profile that no table uses."""
    service.connections.delete_profile(profile_id)


@router.get("/connection_profiles/{profile_id}/autocomplete")
def autocomplete(profile_id: str, service: UseService) -> AutocompleteView:
    """Values for the options of a table with this profile: the topics of a Kafka cluster."""
    profile = service.connections.profile(profile_id)
    if profile["connector"] not in ("kafka", "confluent"):
        return AutocompleteView(values={})
    options = service.connections.plain_options(profile_id)
    try:
        topics = run_apart(kafka_topics, profile["connector"], options)
    except HeadraceError as error:
        text = _without(options, profile["connector"], sentence(error))
        raise RequestError(status_of(error), text) from None
    return AutocompleteView(values={"topic": topics})


# ---------------------------------------------------------------------------------------------- tables


def _table_view(row: Row, consumers: int) -> TableView:
    return TableView(
        id=row["id"],
        name=row["name"],
        created_at=row["created_at"],
        connector=row["connector"],
        connection_profile=None if row["profile"] is None else _profile_view(row["profile"]),
        table_type=row["table_type"],
        config=row["config"],
        table_schema={**read_schema(None).view, **json.loads(row["schema"] or "{}")},
        consumers=consumers,
    )


@router.get("/connection_tables")
def list_tables(
    service: UseService, limit: Limit = 10, starting_after: StartingAfter = None
) -> Paged[TableView]:
    """Connection tables, the newest first."""
    rows = service.connections.tables()
    if starting_after is not None:
        number = service.connections.table(starting_after)["number"]
        rows = [row for row in rows if row["number"] < number]
    consumers = service.consumers()
    views = [_table_view(row, consumers.get(row["name"].lower(), 0)) for row in rows[:limit]]
    return Paged(data=views, has_more=len(rows) > limit)


@router.post("/connection_tables")
def create_table(body: TablePost, service: UseService) -> TableView:
    """Create a connection table: it can be used by its name in the SQL of any pipeline."""
    row = _new_table(service, body)
    if not json.loads(row["columns"]) and "source" in models_of(body.connector):
        row = _with_found_columns(service, row)
    else:
        _check(service, row)
    service.connections.add_table(row)
    return _table_view(service.connections.table(row["id"]), 0)


def _new_table(service: Service, body: TablePost) -> Row:
    schema = read_schema(body.table_schema)
    return service.connections.new_table(
        body.name,
        body.connector,
        profile_id=body.connection_profile_id,
        config=body.config or {},
        schema=schema.view,
        columns=schema.lines,
        format_options=schema.options,
    )


def _arguments(service: Service, row: Row) -> tuple[str, str, dict[str, Any]]:
    return service.connections.table_sql(row), row["name"].lower(), service.connections.saved_profiles()


def _environ(service: Service, row: Row) -> dict[str, str]:
    return {**service.connections.environ(), **environ_of([row])}


def _check(service: Service, row: Row) -> None:
    """Refuse a table whose options or columns are wrong, without asking its system."""
    run_apart(check_table, *_arguments(service, row), environ=_environ(service, row))


def _with_found_columns(service: Service, row: Row) -> Row:
    """A table that declares no columns, with those that its source tells."""
    result: dict[str, Any] = run_apart(
        columns_of_table, *_arguments(service, row), environ=_environ(service, row)
    )
    if not result["inferred"]:
        return row
    schema = {**json.loads(row["schema"]), "fields": result["fields"], "inferred": True}
    return {**row, "schema": json.dumps(schema)}


@router.delete("/connection_tables/{table_id}")
def delete_table(table_id: str, service: UseService) -> None:
    """Delete a connection table that no pipeline names."""
    name = service.connections.table(table_id)["name"].lower()
    service.connections.delete_table(table_id, service.consumers().get(name, 0))


@router.post(
    "/connection_tables/test",
    response_class=EventAnswer,
    responses={200: {"model": TestMessageView}},
)
def test_table(body: TablePost, service: UseService) -> EventAnswer:
    """Try a connection table without saving it: server-sent events of TestSourceMessage."""
    row = _new_table(service, body)
    return EventAnswer(_trial(service, row))


def _trial(service: Service, row: Row) -> Iterator[bytes]:
    def event(message: str, *, error: bool = False, done: bool = False) -> bytes:
        view = TestMessageView(error=error, done=done, message=message)
        return format_sse_event(data_str=view.model_dump_json())

    yield event("connecting")
    try:
        lines: list[str] = run_apart(try_table, *_arguments(service, row), environ=_environ(service, row))
    except HeadraceError as error:
        yield event(sentence(error), error=True, done=True)
        return
    for line in lines[:-1]:
        yield event(line)
    yield event(lines[-1] if lines else "it answers", done=True)


@router.post("/connection_tables/schemas/test")
def test_schema(body: dict[str, Any]) -> TestMessageView:
    """Check a schema: its format, its fields, and its definition."""
    schema = read_schema(body)
    count = len(schema.view["fields"])
    text = f"{count} column{'' if count == 1 else 's'}: {', '.join(schema.lines)}" if count else "no columns"
    return TestMessageView(error=False, done=True, message=text)
