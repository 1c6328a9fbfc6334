"""Who may ask the server what: every endpoint, every role, cookies, other sites, guesses."""

import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from tests.servers.http import make_certificate
from tests.serving import AnswerError, Server

TOKENS = {role: f"token-of-the-{role}-0123456789" for role in ("viewer", "operator", "author")}
CANARY = "canary-7f3a9b1c5d"
OPEN = {("get", "/ping"), ("get", "/session"), ("post", "/session"), ("delete", "/session")}
READING = {
    "/pipelines/validate_query",
    "/pipelines/{pipeline_id}/jobs/{job_id}/state/query",
    "/udfs/validate",
    "/connection_tables/schemas/test",
}
SQL = "CREATE TABLE numbers (counter BIGINT) WITH (connector = 'impulse'); SELECT counter FROM numbers"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("users")
    users = directory / "users.toml"
    users.write_text(
        "".join(f'[users.{role}]\nrole = "{role}"\ntoken = "{token}"\n' for role, token in TOKENS.items())
    )
    users.chmod(0o600)
    server = Server(directory, "--users", str(users))
    server.token = TOKENS["author"]
    yield server
    server.close()


def status(server: Server, method: str, path: str, body: object = None, **headers: str) -> int:
    try:
        server.ask(method, path, body, **headers)
    except AnswerError as error:
        return error.status
    return 200


@pytest.fixture
def as_role(server: Server) -> Iterator[Server]:
    """The server, whose token a test may change."""
    yield server
    server.token = TOKENS["author"]


def operations(server: Server) -> list[tuple[str, str]]:
    document = server.get("/api-docs/openapi.json")
    return [
        (method, path.removeprefix("/api/v1"))
        for path, methods in document["paths"].items()
        for method in methods
    ]


def test_every_endpoint_refuses_whoever_is_not_known(as_role: Server) -> None:
    walked = operations(as_role)
    assert len(walked) > 40
    as_role.token = None
    for method, path in walked:
        if (method, path) not in OPEN:
            assert (method, path, status(as_role, method.upper(), path)) == (method, path, 401)
    assert status(as_role, "GET", "/api-docs/openapi.json") == 401
    assert status(as_role, "GET", "/../metrics") == 401


def test_a_viewer_changes_nothing_at_any_endpoint(as_role: Server) -> None:
    walked = operations(as_role)
    as_role.token = TOKENS["viewer"]
    for method, path in walked:
        if method != "get" and (method, path) not in OPEN and path not in READING:
            assert (method, path, status(as_role, method.upper(), path)) == (method, path, 403)
    assert status(as_role, "GET", "/audit") == 403
    assert status(as_role, "GET", "/pipelines") == 200


@pytest.mark.parametrize(
    "body",
    [
        {"query": "import os", "kind": "python"},
        {"query": "nodes: []", "kind": "dataflow"},
        {"query": SQL, "udfs": [{"definition": "fn f(a: i64) -> i64 { a }"}]},
        {"query": f"CREATE /* */ FUNCTION f() RETURNS INT LANGUAGE python AS $$ return 1 $$; {SQL}"},
        {"query": SQL, "env_vars": {"PYTHONPATH": "/tmp"}},
        {"query": SQL, "scheduler_config": {"conf": {"spark.driver.extraJavaOptions": "-javaagent:x.jar"}}},
    ],
)
def test_only_an_author_lets_code_run(as_role: Server, body: dict[str, object]) -> None:
    as_role.token = TOKENS["operator"]
    with pytest.raises(AnswerError, match="needs the role `author`") as error:
        as_role.post("/pipelines", {"name": "code", **body})
    assert error.value.status == 403
    udf = {"definition": "@udf\ndef f(a: int) -> int: return a", "language": "python"}
    assert status(as_role, "POST", "/udfs", udf) == 403
    assert status(as_role, "POST", "/udfs/validate", udf) == 403
    assert as_role.post("/pipelines/validate_query", {"query": SQL})["errors"] == []


def test_a_page_of_another_site_changes_nothing(server: Server) -> None:
    assert (
        status(server, "POST", "/pipelines/validate_query", {"query": SQL}, origin="https://evil.test") == 403
    )
    assert status(server, "GET", "/pipelines", host="evil.test") == 403


def raw(
    server: Server, method: str, path: str, body: object = None, *, source: str = "127.0.0.1", **headers: str
) -> tuple[int, dict[str, str]]:
    parts = urlsplit(server.address)
    connection = HTTPConnection(parts.hostname or "", parts.port, source_address=(source, 0))
    connection.request(method, f"/api/v1{path}", json.dumps(body) if body is not None else None, headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    cookies = [value.split(";")[0] for name, value in answer.getheaders() if name.lower() == "set-cookie"]
    shown = {name.lower(): value for name, value in answer.getheaders()}
    return answer.status, {**shown, "cookies": "; ".join(cookies)}


def test_a_browser_signs_in_with_a_cookie_and_repeats_the_csrf_token(server: Server) -> None:
    content = {"content-type": "application/json"}
    code, headers = raw(server, "POST", "/session", {"token": TOKENS["author"]}, **content)
    assert code == 200
    assert "SameSite=strict" in headers["set-cookie"]
    cookies = headers["cookies"]
    csrf = cookies.partition("headrace_csrf=")[2]
    assert raw(server, "GET", "/pipelines", cookie=cookies)[0] == 200
    query = {"query": SQL}
    assert raw(server, "POST", "/pipelines/validate_query", query, cookie=cookies, **content)[0] == 403
    csrf_header = {"x-headrace-csrf": csrf}
    assert (
        raw(server, "POST", "/pipelines/validate_query", query, cookie=cookies, **content, **csrf_header)[0]
        == 200
    )
    assert raw(server, "DELETE", "/session", cookie=cookies, **csrf_header)[0] == 200
    assert raw(server, "GET", "/pipelines", cookie=cookies)[0] == 401


def test_answers_carry_the_headers_that_protect_a_browser(server: Server) -> None:
    _, headers = raw(server, "GET", "/ping")
    assert "default-src 'self'" in headers["content-security-policy"]
    assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers
    assert "https://" not in server.ask("GET", "/swagger-ui")


def test_what_was_changed_and_refused_is_written_down(server: Server) -> None:
    status(server, "DELETE", "/pipelines/pl_0000000000")
    first = server.get("/audit?limit=1")["data"][0]
    assert (first["user"], first["method"], first["path"], first["status"]) == (
        "author", "DELETE", "/api/v1/pipelines/pl_0000000000", 404,
    )  # fmt: skip


def test_a_secret_of_a_connection_comes_back_nowhere(server: Server) -> None:
    config = {
        "bootstrapServers": "127.0.0.1:1",
        "authentication": {
            "username": "ada",
            "password": CANARY,
            "mechanism": "PLAIN",
            "protocol": "SASL_PLAINTEXT",
        },
    }
    profile = {"name": "broker", "connector": "kafka", "config": config}
    saved = server.post("/connection_profiles", profile)
    assert saved["config"]["auth.password"] == "***"
    told = server.post("/connection_profiles/test", {**profile, "name": "other"})
    assert (told["error"], told["done"]) == (True, True)
    answers = [json.dumps(saved), json.dumps(told)]
    path = f"/connection_profiles/{saved['id']}/autocomplete"
    with pytest.raises(AnswerError) as error:
        server.get(path)
    assert error.value.status == 502
    answers.append(str(error.value))
    schema = {"format": "json", "fields": [{"name": "a", "type": "int64"}]}
    table = {"name": "clicks", "connector": "kafka", "config": {"topic": "clicks", "type": {"source": {}}}}
    made = server.post(
        "/connection_tables", {**table, "connection_profile_id": saved["id"], "schema": schema}
    )
    assert made["table_type"] == "source"
    validated = server.post("/pipelines/validate_query", {"query": "SELECT a, b FROM clicks"})
    assert "there is no column `b`" in validated["errors"][0]["message"]
    answers += [json.dumps(made), json.dumps(validated)]
    validated = server.post("/pipelines/validate_query", {"query": "SELECT a FROM clicks"})
    assert validated["errors"] == []
    answers += [json.dumps(validated), json.dumps(server.get("/connection_tables")), server.log]
    answers += [json.dumps(server.get("/connection_profiles")), json.dumps(server.get("/audit"))]
    assert [answer for answer in answers if CANARY in answer] == []
    files = [
        file for file in server.data.rglob("*") if file.is_file() and not file.name.startswith("headrace.db")
    ]
    assert [file for file in files if CANARY.encode() in file.read_bytes()] == []
    assert (server.data / "headrace.db").stat().st_mode & 0o077 == 0
    with pytest.raises(AnswerError, match="use this profile"):
        server.delete(f"/connection_profiles/{saved['id']}")
    server.delete(f"/connection_tables/{made['id']}")
    server.delete(f"/connection_profiles/{saved['id']}")


def test_whoever_guesses_tokens_has_to_wait_and_nobody_else(server: Server) -> None:
    wrong = {"authorization": "Bearer a-token-that-is-not-one"}
    answers = [raw(server, "GET", "/pipelines", source="127.0.0.2", **wrong)[0] for _ in range(12)]
    assert answers == [401] * 10 + [429] * 2
    assert status(server, "GET", "/pipelines") == 200


def test_over_tls_it_answers_those_who_trust_its_certificate(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    token = tmp_path / "token"
    token.write_text(TOKENS["author"])
    token.chmod(0o600)
    files = ("--token-file", str(token), "--tls-cert", str(cert), "--tls-key", str(key))
    server = Server(tmp_path, *files)
    try:
        assert server.address.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(cert))
        with urlopen(f"{server.address}/readyz", context=trusting) as answer:
            assert (answer.status, answer.headers["strict-transport-security"]) == (200, "max-age=31536000")
        request = Request(f"{server.address}/api/v1/pipelines")
        with pytest.raises(HTTPError, match="401"):
            urlopen(request, context=trusting)
        request.add_header("authorization", f"Bearer {TOKENS['author']}")
        with urlopen(request, context=trusting) as answer:
            assert json.loads(answer.read()) == {"data": [], "hasMore": False}
    finally:
        server.process.terminate()
        server.process.wait(60)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--host", "0.0.0.0"), "for everybody"),
        (("--tls-cert", "cert.pem"), "belong together"),
        (("--token-file", "short"), "too short to be a secret"),
    ],
)
def test_a_server_that_would_let_anybody_in_does_not_start(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    token = tmp_path / "short"
    token.write_text("secret")
    token.chmod(0o600)
    started = subprocess.run(
        [sys.executable, "-m", "headrace", "serve", "--port", "0", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode == 2
    assert message in started.stderr
