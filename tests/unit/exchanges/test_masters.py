"""Mistakes with a master: each is one error that names it and says what to check, before Java starts."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest
from click.testing import CliRunner

from headrace.base.errors import ConfigurationError, ExternalError, HeadraceError, RefusedError
from headrace.cli.main import main
from headrace.exchanges.spark import masters
from headrace.exchanges.spark.masters import check_master, cores_of, shown_master
from headrace.exchanges.spark.session import _reason
from tests.servers.http import certificate

__all__ = ["certificate"]


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A server that accepts connections and waits for whole messages, as Spark's do."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that does one thing with each connection, and closes it."""

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            answer(self.request)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield int(server.server_address[1])
        server.shutdown()


def answer_as_spark(connection: socket.socket) -> None:
    """A frame that says that there is no such file, as masters send it."""
    length, kind, size = struct.unpack(">qbi", connection.recv(13))
    name = connection.recv(size)
    assert (length, kind) == (13 + len(name), 6)
    body = struct.pack(">i", size) + name + struct.pack(">i", 3) + b"no!"
    connection.sendall(struct.pack(">qb", 9 + len(body), 7) + body)


@pytest.fixture
def master_port() -> Iterator[int]:
    with answering(answer_as_spark) as port:
        yield port


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masters, "ANSWER_SECONDS", 0.5)


@pytest.fixture
def web_port() -> Iterator[int]:
    """A server that answers as the web page of a master does."""

    class Page(BaseHTTPRequestHandler):
        def handle(self) -> None:
            if self.connection.recv(4):
                self.connection.sendall(b"HTTP/1.1 400 Illegal character CNTL=0x0\r\n\r\n")

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield int(server.server_address[1])
        server.shutdown()


def refused(master: str, **environ: str) -> HeadraceError:
    with pytest.raises(HeadraceError) as raised:
        check_master(master, environ=environ)
    return raised.value


@pytest.mark.parametrize(
    ("master", "hint"),
    [
        ("Local[2]", "use local, local[4]"),
        ("local[0]", "a number of threads from 1 on"),
        ("local[two]", "local[*] for all cores"),
        ("local-cluster[2]", "local-cluster[2,1,1024]"),
        ("spark:/host:7077", "did you mean `spark://host:7077`?"),
        ("host:7077", "did you mean `spark://host:7077`?"),
        ("sprak", "use local[*]"),
        ("http://host:8080", "this is a web page"),
        ("yarn-client", "use yarn"),
        ("mesos://host:5050", "no longer runs on Mesos"),
        ("k8s:host:6443", "k8s://https://host:6443"),
        ("sc:host:15002", "did you mean `sc://host:15002`?"),
    ],
)
def test_what_is_no_master_is_refused_with_what_may_have_been_meant(master: str, hint: str) -> None:
    error = refused(master)
    assert isinstance(error, ConfigurationError)
    assert error.message == f"`{master}` is not a Spark master"
    assert hint in str(error.hint)


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*]", "local[2,3]", "local-cluster[2,1,1024]"])
def test_a_local_master_is_not_called(master: str) -> None:
    check_master(master, environ={})


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3,2]", 3),
        ("local-cluster[2, 3, 1024]", 6),
        ("spark://h:1", None),
    ],
)
def test_a_master_may_say_how_many_cores_it_has(master: str, cores: int | None) -> None:
    assert cores_of(master) == cores


@pytest.mark.parametrize("master", ["spark://", "spark://host", "spark://host:port", "spark://a:7077,b"])
def test_a_standalone_master_needs_its_port(master: str) -> None:
    error = refused(master)
    assert isinstance(error, ConfigurationError)
    assert master in error.message
    assert "spark://host:7077" in str(error.hint)


@pytest.mark.parametrize(
    "form", ["spark://127.0.0.1:{}", "k8s://https://127.0.0.1:{}", "k8s://127.0.0.1:{}", "sc://127.0.0.1:{}"]
)
def test_a_master_that_does_not_answer_is_named(form: str, closed_port: int) -> None:
    master = form.format(closed_port)
    error = refused(master)
    assert isinstance(error, ExternalError)
    assert f"`{master}`: connection refused" in error.message
    assert "check that" in str(error.hint)


def test_a_host_that_does_not_exist_is_named() -> None:
    assert "there is no host `nowhere.invalid`" in refused("spark://nowhere.invalid:7077").message


def test_a_standby_master_that_answers_is_enough(closed_port: int, master_port: int) -> None:
    check_master(f"spark://127.0.0.1:{closed_port},127.0.0.1:{master_port}", environ={})


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("form", ["spark://127.0.0.1:{}", "k8s://https://127.0.0.1:{}"])
def test_who_accepts_connections_and_says_nothing_is_no_master(form: str, silent_port: int) -> None:
    master = form.format(silent_port)
    error = refused(master)
    assert isinstance(error, ExternalError)
    assert f"answers at `{master}`: who accepts connections there says nothing" in error.message


def test_who_closes_connections_is_no_master() -> None:
    with answering(socket.socket.close) as port:
        error = refused(f"spark://127.0.0.1:{port}")
    assert "who accepts connections there closes them" in error.message


def test_a_master_behind_tls_is_left_to_spark(certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    def speak_tls(connection: socket.socket) -> None:
        with suppress(OSError):
            context.wrap_socket(connection, server_side=True).close()

    with answering(speak_tls) as port:
        check_master(f"spark://127.0.0.1:{port}", environ={})
        check_master(f"k8s://https://127.0.0.1:{port}", environ={})


def test_an_api_server_that_complains_about_the_greeting_is_left_to_spark() -> None:
    with answering(lambda connection: connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")) as port:
        check_master(f"k8s://https://127.0.0.1:{port}", environ={})


def test_the_web_page_of_a_master_is_told_from_the_master(web_port: int, master_port: int) -> None:
    error = refused(f"spark://127.0.0.1:{web_port}")
    assert isinstance(error, RefusedError)
    assert "a web server does" in error.message
    assert "7077" not in error.message
    check_master(f"k8s://http://127.0.0.1:{web_port}", environ={})
    check_master(f"spark://127.0.0.1:{master_port}", environ={})


@pytest.mark.parametrize("master", ["k8s://", "k8s://https://", "k8s://host:port"])
def test_kubernetes_needs_the_address_of_its_api_server(master: str) -> None:
    assert "kubectl cluster-info" in str(refused(master).hint)


def test_yarn_needs_the_configuration_of_hadoop(tmp_path: Path) -> None:
    assert "neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set" in refused("yarn").message
    missing = str(tmp_path / "missing")
    assert missing in refused("yarn", HADOOP_CONF_DIR=missing).message
    check_master("yarn", environ={"HADOOP_CONF_DIR": str(tmp_path)})  # the defaults of Hadoop are not known


SITE = "<configuration><property><name>{}</name><value>{}</value></property>{}</configuration>"


def test_the_resource_manager_of_yarn_is_called_where_its_configuration_says(
    tmp_path: Path, closed_port: int, silent_port: int
) -> None:
    file, name = tmp_path / "yarn-site.xml", "yarn.resourcemanager.address"
    environ = {"YARN_CONF_DIR": str(tmp_path)}
    file.write_text(SITE.format(name, f"127.0.0.1:{closed_port}", ""))
    error = refused("yarn", **environ)
    assert f"answers at 127.0.0.1:{closed_port}: connection refused" in error.message
    assert str(file) in str(error.hint)
    file.write_text(SITE.format(name, f"127.0.0.1:{silent_port}", ""))
    check_master("yarn", environ=environ)
    file.write_text(SITE.format(name, "${host}:8032", ""))
    check_master("yarn", environ=environ)
    second = f"<property><name>{name}.b</name><value>127.0.0.1:{closed_port}</value></property>"
    first = f"<property><name>{name}.a</name><value>127.0.0.1:{silent_port}</value></property>"
    file.write_text(SITE.format("yarn.resourcemanager.ha.rm-ids", "a,b", first + second))
    check_master("yarn", environ=environ)
    file.write_text("<configuration>")
    assert "is not valid XML" in refused("yarn", **environ).message


def test_the_command_line_names_a_master_that_does_not_answer(tmp_path: Path, closed_port: int) -> None:
    (tmp_path / "q.sql").write_text("SELECT 1 AS x;")
    master = f"spark://127.0.0.1:{closed_port}"
    result = CliRunner().invoke(main, ["run", str(tmp_path / "q.sql"), "--master", master])
    assert result.exit_code == 1
    assert f"error[external]: no Spark master answers at `{master}`: connection refused" in result.stderr
    assert "Traceback" not in result.stderr
    assert "bug" not in result.stderr


JAVA = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: External scheduler cannot be instantiated
\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:1)
Caused by: io.fabric8.kubernetes.client.KubernetesClientException: An error has occurred.
\tat io.fabric8.kubernetes.client.X.y(X.java:1)
Caused by: java.io.IOException: pods is forbidden
"""


def test_of_a_stack_of_java_the_first_message_and_the_root_are_told() -> None:
    assert _reason(RuntimeError(JAVA)) == "External scheduler cannot be instantiated: pods is forbidden"
    assert _reason(RuntimeError("")) == "RuntimeError"


@pytest.mark.parametrize(
    "master", ["sc://", "sc://:15002", "sc://host:99999", "sc://host/path", "sc://host/;token"]
)
def test_the_address_of_a_connect_server_that_cannot_be_read_is_refused(master: str) -> None:
    error = refused(master)
    assert isinstance(error, ConfigurationError)
    assert master in error.message
    assert "sc://host:15002" in str(error.hint)


def test_a_token_in_an_address_is_never_shown(closed_port: int) -> None:
    error = refused(f"sc://127.0.0.1:{closed_port}/;user_id=a;token=very-private")
    assert "very-private" not in str(error)
    assert "token=***" in error.message
    assert shown_master("spark://host:7077") == "spark://host:7077"


def test_a_server_that_does_not_speak_connect_is_told_within_seconds(silent_port: int) -> None:
    pytest.importorskip("grpc")
    from headrace.exchanges.spark import connect_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connect_session, "ANSWER_SECONDS", 1.0)
        with pytest.raises(ExternalError, match="does not answer as a Spark Connect server"):
            connect_session.open_session(f"sc://127.0.0.1:{silent_port}", {})
