"""Who may use a server without users: the user who has started it, and nobody else on the machine."""

from __future__ import annotations

import http.client
import multiprocessing
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headrace.server.peers import LocalUser
from tests.serving import Server

NOBODY = 65534
needs_tables = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system has no /proc/net")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def listening(host: str) -> socket.socket:
    try:
        return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError:
        pytest.skip(f"this machine has no {host}")


@needs_tables
@pytest.mark.parametrize(
    ("host", "to"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("127.0.0.1", "::ffff:127.0.0.1")]
)
def test_a_connection_is_one_of_the_user_who_has_opened_it(host: str, to: str) -> None:
    with listening(host) as listener:
        user = LocalUser.of(listener)
        assert user == LocalUser(os.geteuid())
        kind = socket.AF_INET6 if ":" in to else socket.AF_INET
        with closing(socket.socket(kind)) as client:
            client.connect((to, listener.getsockname()[1]))
            connected, peer = listener.accept()
            with connected:
                ends = peer[:2], connected.getsockname()[:2]
                assert user.has_opened(*ends)
                assert not LocalUser(user.number + 1).has_opened(*ends)


@needs_tables
def test_a_connection_that_its_process_has_closed_is_nobodys() -> None:
    with listening("127.0.0.1") as listener:
        client = socket.create_connection(listener.getsockname())
        connected, peer = listener.accept()
        client.close()  # now the kernel has it as one of root's
        with connected:
            assert not LocalUser(os.geteuid()).has_opened(peer, connected.getsockname())
            assert not LocalUser(0).has_opened(peer, connected.getsockname())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("peers"))
    yield server
    server.close()


def ask_as(
    user: int, address: str, method: str, path: str, answers: multiprocessing.SimpleQueue[int]
) -> None:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request(method, path, b"{}", {"content-type": "application/json"})
    answers.put(connection.getresponse().status)


@needs_root
@needs_tables
def test_another_user_of_the_machine_is_refused_what_the_own_user_may(server: Server) -> None:
    assert server.get("/pipelines")["data"] == []
    forking = multiprocessing.get_context("fork")
    answers = forking.SimpleQueue()
    for method, path, expected in [
        ("GET", "/api/v1/pipelines", 403),
        ("POST", "/api/v1/pipelines", 403),
        ("POST", "/api/v1/udfs", 403),
        ("GET", "/metrics", 403),
        ("GET", "/healthz", 200),
    ]:
        process = forking.Process(target=ask_as, args=(NOBODY, server.address, method, path, answers))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert (path, answers.get()) == (path, expected)
