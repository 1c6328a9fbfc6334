"""Secrets of a run on Spark with real servers are nowhere but with the user and the servers.

The run gets a secret in each way that there is: written into the program, from the environment, in an
address, a header, and as a setting of Spark. It succeeds, is refused, finds nobody, and crashes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.canary.options import CANARY
from tests.canary.search import Watched, file_holds_canary, files_with_canary, holds_canary, run_watched
from tests.servers.http import Answer, HttpServer, run_http
from tests.servers.postgres import Database
from tests.servers.processes import free_port

pytestmark = pytest.mark.spark

VARIABLE = "HEADRACE_TEST_CANARY"
SPARK = "HEADRACE__SPARK__CONF"
ENVIRONMENT = {VARIABLE: CANARY, SPARK: f"spark.hadoop.fs.s3a.secret.key={CANARY}"}
USER = "ada"

PROGRAM = """
CREATE TABLE numbers WITH (connector = 'impulse', event_rate = 50, message_count = {count});
CREATE TABLE written (id BIGINT PRIMARY KEY, note TEXT) WITH (
  connector = 'postgres', type = 'sink', 'table' = 'written', url = '{url}'
);
CREATE TABLE posted (id BIGINT) WITH (
  connector = 'webhook', format = 'debezium_json', endpoint = '{endpoint}/path?key={canary}',
  headers = 'Authorization: Bearer {canary}, X-Api-Key: {{{{ {variable} }}}}'
);
CREATE FUNCTION checked(n BIGINT) RETURNS BIGINT LANGUAGE python AS $$
import os, signal
def checked(n: int) -> int:
    {body}
    return n
$$;
INSERT INTO written SELECT counter::BIGINT, 'note' FROM numbers;
INSERT INTO posted SELECT count(*) FROM numbers WHERE checked(counter::BIGINT) >= 0 GROUP BY counter % 3;
"""


@pytest.fixture
def database(postgres: Database) -> Iterator[Database]:
    """A database with a user whose password is the canary."""
    postgres.run(
        f"CREATE ROLE {USER} LOGIN SUPERUSER PASSWORD '{CANARY}'",
        "CREATE TABLE written (id BIGINT PRIMARY KEY, note TEXT)",
    )
    yield postgres
    postgres.run(f"DROP OWNED BY {USER} CASCADE", f"DROP ROLE {USER}")


@pytest.fixture
def web() -> Iterator[HttpServer]:
    with run_http(lambda _: Answer()) as server:
        yield server


def write_program(
    folder: Path, *, port: int, database: str, endpoint: str, count: int, body: str = "pass"
) -> Path:
    """A program with the canary in it, in a file that only its user can read."""
    program = folder / "program.sql"
    url = f"postgresql://{USER}:{CANARY}@127.0.0.1:{port}/{database}"
    options = {"url": url, "endpoint": endpoint, "canary": CANARY, "variable": VARIABLE, "body": body}
    program.write_text(PROGRAM.format(count=count, **options))
    return program


def check_nothing_leaked(run: Watched, folder: Path, program: Path) -> None:
    """Look for the canary in everything that is left, and that was there meanwhile."""
    assert CANARY not in run.output
    leaked = {pid: arguments for pid, arguments in run.arguments.items() if holds_canary(arguments)}
    assert leaked == {}
    assert run.variables_with_canary() <= ENVIRONMENT.keys()
    assert run.open_files == set()
    assert files_with_canary(folder, but=[program]) == []


def test_a_run_that_succeeds_leaves_no_secret_behind(
    database: Database, web: HttpServer, tmp_path: Path
) -> None:
    program = write_program(
        tmp_path, port=database.server.port, database=database.name, endpoint=web.url, count=150
    )
    port, scraped = free_port(), [""]

    def scrape(_: object) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            scraped[0] = page.read().decode() or scraped[0]
        return "headrace_epochs_total" in scraped[0]

    run = run_watched(
        [
            *("run", program, "-s", "state", "--log-dir", "logs", "-p", 2, "--conf", "spark.logConf=true"),
            *("--log-format", "json", "--log-level", "debug", "--metrics-port", port),
        ],
        tmp_path,
        environment=ENVIRONMENT,
        meanwhile=scrape,
    )
    assert run.returncode == 0, run.output
    assert CANARY not in scraped[0]
    lines = [json.loads(line) for line in run.output.splitlines()]
    assert {"engine", "run"} <= {line["area"] for line in lines}
    assert database.rows("SELECT count(*) FROM written") == [(150,)]
    # The secrets did arrive where they belong.
    assert all(request.headers["X-Api-Key"] == CANARY for request in web.requests)
    assert web.requests
    assert any(b"java" in arguments for arguments in run.arguments.values())
    assert sum(b"daemon" in arguments for arguments in run.arguments.values()) > 0
    check_nothing_leaked(run, tmp_path, program)


@pytest.mark.parametrize("flags", [["--verbose"], []], ids=["verbose", "quiet"])
@pytest.mark.parametrize("fault", ["password", "port", "header"])
def test_a_run_that_is_refused_shows_no_secret(
    fault: str, flags: list[str], database: Database, tmp_path: Path
) -> None:
    if fault == "password":
        database.run(f"ALTER ROLE {USER} PASSWORD 'another'")
    port = free_port() if fault == "port" else database.server.port
    with run_http(lambda request: refuse(request.headers, fault)) as web:
        program = write_program(tmp_path, port=port, database=database.name, endpoint=web.url, count=20)
        run = run_watched(
            ["run", program, "-s", "state", "--log-dir", "logs", "-p", 2, *flags],
            tmp_path,
            environment=ENVIRONMENT,
        )
    assert run.returncode not in {0, None}
    assert "error[" in run.output
    check_nothing_leaked(run, tmp_path, program)


def refuse(headers: Mapping[str, str], fault: str) -> Answer:
    """A server that repeats what it was sent, as some do."""
    return Answer(401, f"not let in with {dict(headers)}".encode()) if fault == "header" else Answer()


@pytest.mark.parametrize("victim", ["worker", "java"])
def test_a_process_that_crashes_leaves_no_secret_behind(
    victim: str, database: Database, web: HttpServer, tmp_path: Path
) -> None:
    body = "os.kill(os.getpid(), signal.SIGSEGV)" if victim == "worker" else "pass"
    program = write_program(
        tmp_path,
        port=database.server.port,
        database=database.name,
        endpoint=web.url,
        count=100_000 if victim == "java" else 20,
        body=body,
    )

    def crash_java(arguments: Mapping[int, bytes]) -> bool:
        if victim != "java":
            return True
        # Rows, not the question before the first epoch whether the endpoint answers: Java may not run then.
        if not any(request.body for request in web.requests):
            return False
        # Neither the shells that start Spark's Java nor the short-lived Java that makes its command line.
        java = [
            pid
            for pid, text in arguments.items()
            if text.partition(b"\0")[0].endswith(b"java")
            and b"SparkSubmit" in text
            and b"launcher.Main" not in text
        ]
        if not java:
            return False
        os.kill(java[0], signal.SIGSEGV)
        return True

    run = run_watched(
        ["run", program, "-s", "state", "--log-dir", "logs", "-p", 2],
        tmp_path,
        environment={**ENVIRONMENT, "HEADRACE__RUN__RESTARTS": "0"},
        meanwhile=crash_java,
    )
    assert run.returncode != 0, run.output
    check_nothing_leaked(run, tmp_path, program)


def test_the_search_finds_a_secret_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text(f"..{CANARY}..")
    assert files_with_canary(tmp_path) == [tmp_path / "plain"]
    (tmp_path / "plain").write_bytes(f"..{CANARY}..".encode("utf-16-le"))
    assert file_holds_canary(tmp_path / "plain")
    program = tmp_path / "sitecustomize.py"
    program.write_text(
        "import subprocess, sys, os, pathlib\n"
        "if len(sys.argv) and 'canary-child' not in ' '.join(sys.orig_argv):\n"
        f"    pathlib.Path(os.environ['TMPDIR'], 'open').write_text('{CANARY}')\n"
        "    subprocess.run([sys.executable, '-c', 'import time; time.sleep(1)',"
        f" 'canary-child', '{CANARY}'], env={{**os.environ, 'FURTHER': '{CANARY}'}})\n"
    )
    before = list(sys.path)
    sys.path.insert(0, str(tmp_path))
    try:
        run = run_watched(["--version"], tmp_path, environment={})
    finally:
        sys.path[:] = before
    assert any(holds_canary(arguments) for arguments in run.arguments.values())
    assert run.variables_with_canary() == {"FURTHER"}
    assert run.open_files == {tmp_path / "tmp" / "open"}
