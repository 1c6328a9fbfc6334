"""What postgres connectors wait for and tell at once, with a small server that plays one in trouble."""

from __future__ import annotations

import contextlib
import socketserver
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.base.errors import ExternalError
from headrace.connectors.postgres import client as postgres
from headrace.connectors.postgres.client import Database
from tests.support import served

psycopg = pytest.importorskip("psycopg")

WELCOME, WANTS_TLS = 0, 80877103


def message(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("!i", len(content) + 4) + content


class Trouble(socketserver.ThreadingTCPServer):
    """A server that refuses the first connections, and takes any statement on the others."""

    daemon_threads = False

    def __init__(self, text: str = "", refused: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.text, self.refused, self.seen = text, refused, 0

    def refuses(self) -> bool:
        self.seen += 1
        return self.seen <= self.refused


class Connection(socketserver.StreamRequestHandler):
    server: Trouble

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError, struct.error):
            while struct.unpack("!i", self._startup()[:4])[0] == WANTS_TLS:
                self.wfile.write(b"N")
            if self.server.refuses():
                fields = [b"SFATAL", b"VFATAL", b"C57P03", b"M" + self.server.text.encode(), b""]
                self.wfile.write(message(b"E", b"\0".join(fields) + b"\0"))
                return
            ready = message(b"Z", b"I")
            settings = message(b"S", b"client_encoding\0UTF8\0") + message(b"S", b"server_version\x0016.0\0")
            self.wfile.write(message(b"R", struct.pack("!i", WELCOME)) + settings + ready)
            while self.rfile.read(1) == b"Q":
                self._startup()
                self.wfile.write(message(b"C", b"SET\0") + ready)

    def _startup(self) -> bytes:
        (size,) = struct.unpack("!i", self.rfile.read(4))
        return self.rfile.read(size - 4)


@contextlib.contextmanager
def serving(text: str = "", refused: int = 0) -> Iterator[tuple[Trouble, Database]]:
    with served(Trouble(text, refused)) as server:
        port = server.server_address[1]
        try:
            yield server, Database(f"postgresql://ada:x@127.0.0.1:{port}/sales?gssencmode=disable", {})
        finally:
            postgres._close_idle()


@pytest.mark.parametrize(
    "text",
    [
        "the database system is starting up",
        "the database system is not yet accepting connections",
        "the database system is not accepting connections",
        "sorry, too many clients already",
        'too many connections for role "ada"',
        'too many connections for database "sales"',
        "remaining connection slots are reserved for roles with the SUPERUSER attribute",
        'number of requested standby connections exceeds "max_wal_senders" (currently 10)',
        "no more connections allowed (max_client_conn)",
        "server login has been failing, cached error: connect failed (server_login_retry)",
        "das Datenbanksystem startet",
    ],
)
def test_a_server_that_does_not_take_connections_yet_is_waited_for(text: str) -> None:
    with serving(text, refused=1) as (server, database):
        assert database.run(lambda _: "done") == "done"
        assert server.seen == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('password authentication failed for user "ada"', "refuses the user: password"),
        ('no pg_hba.conf entry for host "::1", user "ada", no encryption', "refuses the user: no pg_hba"),
        ('role "ada" is not permitted to log in', "refuses the user: role"),
        ('permission denied for database "sales"', "refuses the user: permission"),
        ("must be superuser or replication role to start walsender", "does not let this user replicate"),
        ('database "sales" does not exist', "refuses: database"),
        ('database "sales" is not currently accepting connections', "refuses: database"),
        ("no such database: sales", "refuses: no such database"),
        ("connection requires a valid client certificate", "refuses: connection"),
        ('unrecognized configuration parameter "x"', "refuses: unrecognized"),
    ],
)
def test_a_mistake_of_the_user_is_told_at_once(text: str, told: str) -> None:
    with serving(text, refused=2) as (server, database):
        with pytest.raises(ExternalError, match=told):
            database.run(lambda _: "done")
        assert server.seen == 1


def after(error: Exception) -> Any:
    """Work that meets an error the first time."""
    errors = [error]

    def work(_: Any) -> str:
        if errors:
            raise errors.pop()
        return "done"

    return work


@pytest.mark.parametrize("state", ["57P05", "25006", "55P03", "53400", "40001", "08006"])
def test_what_passes_on_a_server_is_tried_again_on_a_new_connection(state: str) -> None:
    with serving() as (server, database):
        assert database.run(after(psycopg.errors.lookup(state)("it passes"))) == "done"
        assert server.seen == 2


@pytest.mark.parametrize(
    "text",
    [
        "consuming input failed: SSL connection has been closed unexpectedly",
        "consuming input failed: SSL error: unexpected eof while reading",
        "consuming input failed: SSL SYSCALL error: EOF detected",
        'connection to server at "role-db", port 5432 failed: SSL SYSCALL error: Connection reset by peer',
        # With `sslmode` = prefer the client tries once more without TLS, whatever the reason.
        'port 1 failed: FATAL:  too many connections for role "a"\nport 1 failed: FATAL:  no pg_hba.conf',
    ],
)
def test_a_lost_connection_is_no_refusal_with_tls_either(text: str) -> None:
    with serving() as (_, database):
        assert database.run(after(psycopg.OperationalError(text))) == "done"
        assert "does not answer: " in database.failure(psycopg.OperationalError(text)).message


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ("SSL error: certificate verify failed", "is not trusted", "`sslrootcert=`"),
        ("server does not support SSL, but SSL was required", "offers no TLS", "let the server offer TLS"),
    ],
)
def test_tls_that_cannot_be_had_is_told_at_once(text: str, told: str, hint: str) -> None:
    with serving() as (_, database), pytest.raises(ExternalError, match=f"{told}: {text}") as caught:
        database.run(after(psycopg.OperationalError(f"connection failed: {text}")))
    assert hint in str(caught.value.hint)
