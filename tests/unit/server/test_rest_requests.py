"""The REST API without a pipeline that runs: connections, functions, and requests made from its document."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from headrace.server.connections import flatten
from headrace.server.database import ServerDatabase
from headrace.server.migrations import MIGRATIONS
from headrace.server.schemas import read_schema
from tests.serving import AnswerError, Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("requests"))
    yield server
    server.close()


def test_no_request_that_the_document_allows_makes_the_server_fail(server: Server) -> None:
    document = schemathesis.openapi.from_url(f"{server.address}/api/v1/api-docs/openapi.json")
    failed = []
    for operation in document.get_all_operations():
        described: Any = operation.ok()  # type: ignore[union-attr]
        if described.label.endswith(("/output", "/tap")):
            continue

        @settings(
            max_examples=6,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=described.as_strategy())
        def send(case: Any) -> None:
            answer = case.call(base_url=server.address)
            if answer.status_code >= 500 and answer.status_code != 502:
                failed.append((case.method, case.path, answer.status_code, answer.text[:300]))
            if answer.status_code >= 400:
                assert list(answer.json()) == ["error"]

        send()
    assert failed == []
    assert "Traceback" not in server.log


def test_connectors_have_json_schemas_of_their_options(server: Server) -> None:
    connectors = {connector["id"]: connector for connector in server.get("/connectors")["data"]}
    kafka = connectors["kafka"]
    assert (kafka["name"], kafka["source"], kafka["sink"]) == ("Kafka", True, True)
    schema = json.loads(kafka["table_config"])
    assert schema["required"] == ["bootstrap_servers"]
    assert schema["properties"]["topic"]["x-roles"] == ["source", "sink"]
    assert "bootstrap_servers" in json.loads(kafka["connection_config"])["properties"]
    assert schema["properties"]["auth.password"]["writeOnly"] is True
    assert connectors["impulse"]["connection_config"] is None


def test_it_says_that_it_is_healthy_and_ready(server: Server) -> None:
    assert server.ask("GET", "/../healthz") == server.ask("GET", "/../readyz") == "ok\n"
    assert "# TYPE headrace_job_state gauge" in server.ask("GET", "/../metrics")


PYTHON = """
import headrace as hr

pipeline = hr.Pipeline("counts")
pipeline.source("impulse", event_rate=10).map(lambda row: {"n": row["counter"]}).sink("blackhole")
"""
DATAFLOW = Path(__file__).parents[3] / "examples" / "dataflow-sql"


def test_a_pipeline_may_be_written_in_python(server: Server) -> None:
    validated = server.post("/pipelines/validate_query", {"query": PYTHON, "kind": "python"})
    assert validated["errors"] == []
    assert validated["graph"]["nodes"][0]["id"] == "impulse_1"
    broken = server.post("/pipelines/validate_query", {"query": "import nothing_of_it", "kind": "python"})
    assert "nothing_of_it" in broken["errors"][0]["message"]


def test_a_pipeline_may_be_a_dataflow_with_files(server: Server) -> None:
    body = {"query": (DATAFLOW / "dataflow.yml").read_text(), "kind": "dataflow"}
    (error,) = server.post("/pipelines/validate_query", body)["errors"]
    assert "rise.py" in error["message"]
    files = {"rise.py": (DATAFLOW / "rise.py").read_text()}
    validated = server.post("/pipelines/validate_query", {**body, "files": files})
    assert validated["errors"] == []
    assert "per_gate.tumble" in [node["id"] for node in validated["graph"]["nodes"]]
    with pytest.raises(AnswerError, match="cannot be the name of a file"):
        server.post("/pipelines/validate_query", {**body, "files": {"../rise.py": ""}})


def test_functions_are_checked_saved_called_and_deleted(server: Server) -> None:
    source = "from arroyo_udf import udf\n\n@udf\ndef twice(x: int) -> int:\n    return x * 2\n"
    validated = server.post("/udfs/validate", {"definition": source, "language": "python"})
    assert validated == {"udf_name": "twice", "errors": []}
    broken = server.post("/udfs/validate", {"definition": "def twice(:", "language": "python"})
    assert broken["udf_name"] is None
    assert "invalid syntax" in broken["errors"][0]
    saved = server.post("/udfs", {"prefix": "math", "definition": source, "language": "python"})
    assert (saved["name"], saved["prefix"]) == ("twice", "math")
    query = "CREATE TABLE n (counter BIGINT) WITH (connector = 'impulse'); SELECT twice(counter) AS t FROM n"
    assert server.post("/pipelines/validate_query", {"query": query})["errors"] == []
    server.delete(f"/udfs/{saved['id']}")
    (error,) = server.post("/pipelines/validate_query", {"query": query})["errors"]
    assert "twice" in error["message"]


def test_code_that_is_checked_runs_outside_of_the_server(server: Server) -> None:
    source = "import os\nos._exit(7)"
    with pytest.raises(AnswerError, match="died"):
        server.post("/udfs/validate", {"definition": source, "language": "python"})
    assert server.get("/ping") == {"pong": True}


def test_a_connection_table_is_tried_and_told_what_is_wrong(server: Server, tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text('{"a": 1, "b": "x"}\n')
    body = {"name": "rows", "connector": "single_file", "config": {"path": str(rows), "type": "source"}}
    events = list(server.events("/connection_tables/test", body))
    assert [event["error"] for event in events] == [False] * len(events)
    assert events[-1]["done"] is True
    assert [event["message"] for event in events[-2:]] == [
        "1 rows of a sample fit the columns",
        '{"a":1,"b":"x"}',
    ]
    with pytest.raises(AnswerError, match="has no option `pathh`; did you mean `path`"):
        server.post("/connection_tables", {**body, "config": {"pathh": "x"}})
    missing = {**body, "config": {"path": str(tmp_path / "no"), "type": "source"}, "schema": {
        "fields": [{"name": "a", "type": "int64", "required": True}], "format": "json"}}  # fmt: skip
    (*_, last) = server.events("/connection_tables/test", missing)
    assert last["error"] is True
    made = server.post("/connection_tables", body)
    assert [(f["name"], f["type"]) for f in made["schema"]["fields"]] == [("a", "int64"), ("b", "string")]
    with pytest.raises(AnswerError, match="already"):
        server.post("/connection_tables", body)
    server.delete(f"/connection_tables/{made['id']}")


def test_a_profile_says_what_was_said_about_it_or_what_it_is(server: Server) -> None:
    body = {"name": "told", "connector": "kafka", "config": {"bootstrapServers": "127.0.0.1:1"}}
    told = server.post("/connection_profiles", {**body, "description": "orders of the north"})
    plain = server.post("/connection_profiles", {**body, "name": "plain"})
    assert (told["description"], plain["description"]) == ("orders of the north", "kafka: plain")
    assert server.get("/connection_profiles")["data"][0]["description"] == "orders of the north"
    for each in (told, plain):
        server.delete(f"/connection_profiles/{each['id']}")


def test_a_database_of_the_first_version_is_brought_to_this_one(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "old.db")) as old:
        old.executescript(MIGRATIONS[0])
        old.execute(
            "INSERT INTO connection_profiles (id, name, connector, config, secrets, created_at) "
            "VALUES ('cp_1', 'broker', 'kafka', '{}', '{}', 1)"
        )
        old.execute("PRAGMA user_version = 1")
        old.commit()
    database = ServerDatabase(tmp_path / "old.db")
    row = database.one("SELECT name, description FROM connection_profiles")
    assert row == {"name": "broker", "description": None}
    database.close()
    again = ServerDatabase(tmp_path / "old.db")
    assert again.one("PRAGMA user_version") == {"user_version": len(MIGRATIONS)}
    again.close()


def test_options_of_arroyos_clients_are_those_of_sql() -> None:
    config = {"topic": "t", "type": {"source": {"offset": "latest", "readMode": "read_committed"}}}
    assert flatten(config) == {
        "topic": "t",
        "type": "source",
        "source.offset": "latest",
        "source.read_mode": "read_committed",
    }
    profile = {
        "bootstrapServers": "b:9092",
        "authentication": {},
        "schemaRegistryEnum": {"endpoint": "http://r"},
    }
    assert flatten(profile) == {"bootstrap_servers": "b:9092", "schema_registry.endpoint": "http://r"}


def test_a_schema_of_fields_or_of_a_definition_becomes_columns() -> None:
    fields = [
        {"name": "id", "type": "int64", "required": True},
        {"name": "who", "type": "struct", "fields": [{"name": "name", "type": "string"}]},
        {"name": "tags", "type": "list", "element": {"name": "item", "type": "string"}},
        {"name": "body", "type": "json"},
    ]
    schema = read_schema({"format": {"json": {"timestampFormat": "unix_millis"}}, "fields": fields})
    assert schema.lines == ["id BIGINT NOT NULL", "who STRUCT<name TEXT>", "tags TEXT[]", "body JSON"]
    assert schema.options == {"format": "json", "json.timestamp_format": "unix_millis"}
    assert schema.view["fields"][2]["items"] == {
        "name": "item", "type": "string", "required": False, "sql_name": "TEXT"
    }  # fmt: skip
    avro = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}'
    assert read_schema({"definition": {"avro_schema": avro}}).lines == ["a BIGINT"]
    proto = 'syntax = "proto3"; message R { int64 a = 1; }'
    assert read_schema({"definition": {"protobuf_schema": proto}}).options["format"] == "protobuf"
    json_schema = '{"type": "object", "properties": {"a": {"type": "integer"}}}'
    assert read_schema({"definition": {"json_schema": json_schema}}).lines == ["a BIGINT"]


SCHEMAS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"format": {"json": {}}}, {"format": {"type": "json"}}),
    (
        {"format": {"type": "json", "debezium": False, "schema_id": None, "timestamp_format": "rfc3339"}},
        {"format": {"type": "json"}},
    ),
    ({"format": {"type": "json", "debezium": True}}, {"format": {"type": "debezium_json"}}),
    (
        {"format": {"type": "json", "timestamp_format": "unix_millis"}},
        {"format": {"type": "json", "timestamp_format": "unix_millis"}},
    ),
    ({"bad_data": {"behavior": "drop"}}, {"bad_data": {"behavior": "drop"}}),
    ({"bad_data": {"drop": {}}}, {"bad_data": {"behavior": "drop"}}),
    (
        {"framing": {"method": "newline", "max_line_length": 9}},
        {"framing": {"method": "newline", "max_line_length": 9}},
    ),
    (
        {"framing": {"method": {"newline": {"max_line_length": None}}}},
        {"framing": {"method": "newline", "max_line_length": None}},
    ),
    (
        {"definition": {"type": "json_schema", "schema": '{"properties": {"a": {"type": "integer"}}}'}},
        {
            "definition": {"type": "json_schema", "schema": '{"properties": {"a": {"type": "integer"}}}'},
            "fields": [
                {"name": "a", "type": "int64", "required": False, "sql_name": "BIGINT", "metadata_key": None}
            ],
        },
    ),
    (
        {"fields": [{"name": "at", "type": "int64", "metadata_key": "it's"}], "primary_keys": ["at"]},
        {
            "fields": [
                {
                    "name": "at",
                    "type": "int64",
                    "required": False,
                    "sql_name": "BIGINT",
                    "metadata_key": "it's",
                }
            ],
            "primary_keys": ["at"],
        },
    ),
]


@pytest.mark.parametrize(("sent", "shown"), SCHEMAS)
def test_a_schema_is_shown_as_clients_know_it_however_it_was_sent(
    sent: dict[str, Any], shown: dict[str, Any]
) -> None:
    empty: dict[str, Any] = {
        "format": None, "bad_data": None, "framing": None, "fields": [], "definition": None,
        "inferred": None, "primary_keys": [],
    }  # fmt: skip
    view = read_schema(sent).view
    assert view == {**empty, **shown}
    assert read_schema(view).view == view


def test_the_key_of_metadata_cannot_end_its_string() -> None:
    field = {"name": "a", "type": "int64", "metadata_key": "x'); CREATE FUNCTION f"}
    assert read_schema({"fields": [field]}).lines == ["a BIGINT METADATA FROM 'x''); CREATE FUNCTION f'"]


def test_the_role_of_a_table_may_follow_from_its_options(server: Server) -> None:
    config = {"topic": "t", "type": {"offset": "latest", "read_mode": "read_uncommitted"}}
    schema = {"format": "json", "fields": [{"name": "a", "type": "string"}]}
    body = {"name": "implied", "connector": "kafka", "schema": schema}
    body["config"] = {"bootstrapServers": "127.0.0.1:1", **config}
    table = server.post("/connection_tables", body)
    assert (table["table_type"], table["config"]["source.offset"]) == ("source", "latest")
    server.delete(f"/connection_tables/{table['id']}")
    sink = {"bootstrapServers": "127.0.0.1:1", "topic": "t", "type": {"commit_mode": "exactly_once"}}
    table = server.post("/connection_tables", {**body, "config": sink})
    assert (table["table_type"], table["config"]["sink.commit_mode"]) == ("sink", "exactly_once")
    server.delete(f"/connection_tables/{table['id']}")


def test_a_table_counts_pipelines_that_read_it_and_no_word_that_is_like_its_name(server: Server) -> None:
    table = server.post("/connection_tables", {"name": "told", "connector": "impulse", "config": {}})
    own = "CREATE TABLE told (counter BIGINT) WITH (connector = 'impulse'); SELECT counter FROM told"
    text = own.replace("told", "n").replace("SELECT", "SELECT 'told',") + " -- told"
    made = [server.create(f"no_reader_{number}", query) for number, query in enumerate((own, text))]
    assert [each["consumers"] for each in server.get("/connection_tables")["data"]] == [0]
    for pipeline in made:
        server.patch(f"/pipelines/{pipeline}", {"stop": "force"})
    server.delete(f"/connection_tables/{table['id']}")


GOOD = "CREATE TABLE n (counter BIGINT) WITH (connector = 'impulse'); SELECT counter FROM n"
NEW = {"name": "x", "query": GOOD}
FIELD = {"name": "a", "type": "int64"}
TRIED = "/connection_tables/schemas/test"
MISTAKES: list[tuple[str, Any, str]] = [
    ("/pipelines", {**NEW, "parallelism": "2"}, "must be a whole number"),
    ("/pipelines", {**NEW, "parallelism": True}, "must be a whole number"),
    ("/pipelines", {**NEW, "parallelism": 10**30}, "must be 1024 or less"),
    ("/pipelines", {**NEW, "paralelism": 2}, "did you mean `parallelism`"),
    ("/pipelines", {"name": "x", "querry": GOOD}, "`query` is missing"),
    ("/pipelines", {"name": " ", "query": GOOD}, "a name has at least one character"),
    ("/pipelines", {"name": "a/b", "query": GOOD}, "no slashes"),
    ("/pipelines", {"name": "x", "query": "SELECT '\0'"}, "a text has no NUL"),
    ("/pipelines", {**NEW, "state_url": "ftp://x"}, "cannot be a `state_url`"),
    ("/pipelines", {**NEW, "state_url": "s3://"}, "names no place"),
    ("/pipelines", {**NEW, "scheduler_config": {"master": "spork://h:7077"}},
     "is not a Spark master"),
    ("/pipelines", {**NEW, "scheduler_config": {"conf": {"": "1"}}},
     "is no setting of Spark"),
    ("/pipelines", [], "the body is a JSON object"),
    ("/pipelines", None, "the request has no body"),
    ("/connection_profiles", {"name": "p", "connector": "kafka", "config": {"bootstrap_servers": 3}},
     "`bootstrap_servers` must be a string"),
    ("/connection_tables", {"name": "select", "connector": "impulse"}, "is a word of SQL"),
    (TRIED, {"fields": [{**FIELD, "type": "timestamp", "unit": []}]},
     "is no unit of time"),
    (TRIED, {"fields": [FIELD, FIELD]}, "2 columns `a`"),
    (TRIED, {"fields": [{**FIELD, "required": "yes"}]}, "true or false"),
    (TRIED, {"fields": [{**FIELD, "nullable": True}]}, "has no `nullable`"),
    (TRIED, {"fields": [{**FIELD, "name": "a\n"}]}, "no control characters"),
    (TRIED, {"fields": [{"name": "s", "type": "struct"}]}, "list of `fields`"),
    (TRIED, {"fields": [FIELD], "primary_keys": 5}, "list of names"),
    (TRIED, {"format": "jsno"}, "did you mean `json`"),
    (TRIED, {"format": {"type": "json", "nope": 1}}, "has no option `nope`"),
    (TRIED, {"bad_data": {"behavior": "explode"}}, "fail, drop"),
    (TRIED, {"framing": {"method": {"newline": "x"}}}, "`framing`"),
    (TRIED, {"definition": {"json_schema": "{"}}, "cannot be read"),
    (TRIED, {"definition": {
        "type": "protobuf_schema", "schema": "x", "dependencies": {"a.proto": ""}}}, "`dependencies`"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "text"), MISTAKES)
def test_a_wrong_request_is_told_what_is_wrong(server: Server, path: str, body: Any, text: str) -> None:
    with pytest.raises(AnswerError) as refused:
        server.ask("POST", path, body)
    assert refused.value.status == 400
    assert list(refused.value.body) == ["error"]
    assert text in refused.value.body["error"]


def test_a_wrong_parameter_is_told_what_it_must_be(server: Server) -> None:
    with pytest.raises(AnswerError, match="the parameter `limit` must be 1 or more"):
        server.get("/pipelines?limit=0")


def send(server: Server, method: str, path: str, data: bytes | None = None) -> tuple[int, Any, str | None]:
    """The status, the answer and the methods that the answer allows."""
    headers = {"content-type": "application/json"}
    request = Request(f"{server.address}{path}", data, headers, method=method)
    try:
        with urlopen(request) as answer:
            return answer.status, answer.read().decode(), answer.headers["allow"]
    except HTTPError as error:
        with error:
            text = error.read().decode()
            return error.code, json.loads(text) if text else text, error.headers["allow"]


@pytest.mark.parametrize("data", [b'{"name": ', b"\xff\xfe", b'{"a":' + b"[" * 100_000])
def test_a_body_that_is_no_json_is_told_so(server: Server, data: bytes) -> None:
    status, answer, _ = send(server, "POST", "/api/v1/pipelines", data)
    assert status == 400
    assert answer["error"].startswith(("the body is no JSON: ", "the body cannot be read: "))


def test_a_method_that_a_path_does_not_have_is_told_with_those_that_it_has(server: Server) -> None:
    assert send(server, "PUT", "/api/v1/jobs") == (
        405, {"error": "PUT is not possible at /api/v1/jobs; GET can be asked for"}, "GET"
    )  # fmt: skip
    assert send(server, "DELETE", "/api/v1/pipelines")[::2] == (405, "GET, POST")
    assert send(server, "POST", "/api/v1/nothing", b"{}")[0] == 404
    assert send(server, "GET", "/%00")[0] == 404
    for path in ("/healthz", "/readyz", "/metrics", "/"):
        assert send(server, "HEAD", path)[:2] == (200, "")


def test_a_pipeline_may_have_a_name_of_several_words(server: Server) -> None:
    pipeline = server.create("orders of the north", GOOD)
    assert server.get(f"/pipelines/{pipeline}")["name"] == "orders of the north"
    server.patch(f"/pipelines/{pipeline}", {"stop": "force"})


def test_a_value_that_was_hidden_and_comes_back_stays_what_it_was(server: Server) -> None:
    pipeline = server.create("hidden", GOOD, env_vars={"A": "secret"})
    server.patch(f"/pipelines/{pipeline}", {"stop": "force"})
    shown = server.get(f"/pipelines/{pipeline}")["env_vars"]
    server.patch(f"/pipelines/{pipeline}", {"env_vars": {**shown, "B": "new"}})
    with closing(sqlite3.connect(server.data / "headrace.db")) as database:
        (stored,) = database.execute("SELECT env_vars FROM pipelines WHERE id = ?", (pipeline,)).fetchone()
    assert json.loads(stored) == {"A": "secret", "B": "new"}


def test_a_restart_may_leave_its_answers_open(server: Server) -> None:
    pipeline = server.create("restarted", GOOD)
    server.post(f"/pipelines/{pipeline}/restart", {"force": None, "ignore_state": None})
    with pytest.raises(AnswerError, match="there is no log of run 77"):
        server.get(f"{server.path(pipeline)}/logs?run=77")
    server.patch(f"/pipelines/{pipeline}", {"stop": "force"})
