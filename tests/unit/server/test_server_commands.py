"""`headrace up`, `ps`, `logs`, `restart`, `stop`, `rescale` ask a server, and say what is wrong with it."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import main
from tests.serving import AnswerError, Server

TOKEN = "the-token-of-these-tests-0123456789"
SQL = "CREATE TABLE numbers (counter BIGINT) WITH (connector = 'impulse');\nSELECT counter FROM numbers;\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("commands")
    token = directory / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    server = Server(directory, "--token-file", str(token))
    server.token = TOKEN
    yield server
    server.close()


def headrace(*args: object, server: str | None = None, token: str | None = TOKEN) -> Result:
    environ = {"HEADRACE_SERVER": server, "HEADRACE_TOKEN": token}
    return CliRunner().invoke(main, [str(arg) for arg in args], env=environ)


def test_an_empty_server_has_nothing_to_list(server: Server) -> None:
    listed = headrace("ps", server=server.address)
    assert (listed.exit_code, listed.output) == (0, "the server has no pipelines\n")
    assert headrace("ps", "--json", "--server", server.address).output == ""
    assert headrace("stop", "--all", server=server.address).output == ""


def test_whoever_has_no_token_or_a_wrong_one_is_told_where_to_put_it(server: Server, tmp_path: Path) -> None:
    for token in (None, "another-token-0123456789"):
        refused = headrace("ps", server=server.address, token=token)
        assert refused.exit_code == 2
        assert "HEADRACE_TOKEN" in refused.stderr
        assert "another-token" not in refused.stderr
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert headrace("ps", "--token-file", file, server=server.address, token=None).exit_code == 0
    missing = headrace("ps", "--token-file", tmp_path / "no", server=server.address)
    assert missing.exit_code == 2
    assert "cannot be read" in missing.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("logs", "counts"), "has no pipeline `counts`"),
        (("restart", "counts"), "has no pipeline `counts`"),
        (("stop", "counts"), "has no pipeline `counts`"),
        (("rescale", "counts", "2"), "has no pipeline `counts`"),
        (("stop",), "missing argument NAME"),
        (("up",), "missing argument"),
        (("logs",), "name one pipeline"),
        (("logs", "counts", "--follow"), "without a server"),
        (("logs", "counts", "--run", "1", "--errors"), "one too many"),
    ],
)
def test_what_is_not_there_cannot_be_asked_for(
    server: Server, command: tuple[str, ...], message: str
) -> None:
    refused = headrace(*command, server=server.address)
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert "Traceback" not in refused.output


def test_a_dry_run_checks_a_new_program_and_creates_nothing(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "counts.sql"
    file.write_text(SQL)
    tried = headrace("up", file, "--dry-run", server=server.address)
    assert tried.exit_code == 0, tried.output
    assert "counts would be created, with " in tried.output
    file.write_text(SQL.replace("SELECT counter", "SELECT countr"))
    wrong = headrace("up", file, "--dry-run", server=server.address)
    assert wrong.exit_code == 2
    assert "error (line 2, column 8): there is no column `countr`" in wrong.stderr
    assert server.get("/pipelines")["data"] == []


def test_what_the_server_cannot_take_is_refused_before_it_is_sent(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "counts.sql"
    file.write_text(SQL)
    other = tmp_path / "other" / "helper.py"
    other.parent.mkdir()
    other.write_text("")
    dataflow = tmp_path / "inner" / "dataflow.yml"
    dataflow.parent.mkdir()
    dataflow.write_text("nodes: []")
    for arguments, message in (
        (("up", file, "--udf", "package.module"), "takes functions as files"),
        (("up", file, "--file", other), "this is SQL"),
        (("up", dataflow, "--file", other), "is not in the folder of the pipeline"),
        (("up", tmp_path / "no.sql"), "there is no file"),
    ):
        refused = headrace(*arguments, server=server.address)
        assert (refused.exit_code, message in refused.stderr) == (2, True), refused.output


def test_the_logs_of_a_server_are_asked_for_with_the_server() -> None:
    refused = headrace("logs", "counts", "--errors")
    assert refused.exit_code == 2
    assert "which --server names" in refused.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:5115", "ftp://127.0.0.1", "http://"])
def test_what_is_no_address_is_refused(address: str) -> None:
    refused = headrace("ps", "--server", address)
    assert refused.exit_code == 2
    assert "is not the address of a server" in refused.stderr


class _Elsewhere(BaseHTTPRequestHandler):
    """Some server, which sends everybody elsewhere, or answers with a page."""

    def do_GET(self) -> None:
        is_moved = self.path.startswith("/moved")
        self.send_response(302 if is_moved else 200)
        if is_moved:
            self.send_header("location", "/api/v1/pipelines")
        self.end_headers()
        self.wfile.write(b"{}" if self.path.startswith("/json") else b"<html></html>")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _answer_with_noise(listener: socket.socket) -> None:
    asker, _ = listener.accept()
    with asker:
        asker.recv(10_000)
        asker.sendall(b"SSH-2.0-something\r\n")


def test_where_no_server_of_headrace_answers_the_error_says_so() -> None:
    other = HTTPServer(("127.0.0.1", 0), _Elsewhere)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{other.server_port}"
    try:
        for each in (address, f"{address}/json", f"{address}/moved"):
            stranger = headrace("ps", "--server", each)
            assert stranger.exit_code == 1
            assert "is no Headrace server" in stranger.stderr
    finally:
        other.shutdown()
        other.server_close()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_answer_with_noise, args=(listener,), daemon=True).start()
        noise = headrace("ps", "--server", f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert (noise.exit_code, "is no Headrace server" in noise.stderr) == (1, True), noise.output
    nobody = headrace("ps", "--server", address)
    assert nobody.exit_code == 1
    assert "no server answers at" in nobody.stderr
    assert "headrace serve" in nobody.stderr


def test_a_change_is_refused_for_a_pipeline_that_is_not_there(server: Server) -> None:
    for method, path in (("PUT", ""), ("POST", "/plan")):
        with pytest.raises(AnswerError, match="there is no pipeline") as error:
            server.ask(method, f"/pipelines/pl_0000000000{path}", {"query": SQL})
        assert error.value.status == 404
