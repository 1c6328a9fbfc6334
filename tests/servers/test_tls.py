"""Encrypted connections, and those over web sockets, to servers that mean it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace import Pipeline
from headrace.base.errors import ExternalError, RefusedError
from headrace.connectors.database.sink import DatabaseSink
from headrace.connectors.mqtt.source import MqttSource
from headrace.connectors.postgres.sink import PostgresSink
from headrace.connectors.rabbitmq.source import RabbitSource
from headrace.testing.in_process import run_in_process
from tests.servers.http import found, make_certificate, query, run_until, table
from tests.servers.mqtt import PASSWORD, USER, Mosquitto, subscribe
from tests.servers.postgres import Database
from tests.servers.rabbitmq import RabbitServer

NUMBERS = list(range(200))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate that no server knows, and its key."""
    return make_certificate(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> tuple[Path, Path]:
    """A certificate for a client that goes back to the server's, and its key."""
    folder = tmp_path_factory.mktemp("client")
    made = folder / "cert.pem", folder / "key.pem"
    command = [str(shutil.which("openssl")), "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]
    command += ["-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=client"]
    command += ["-CA", str(certificate[0]), "-CAkey", str(certificate[1])]
    command += ["-out", str(made[0]), "-keyout", str(made[1])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"openssl could not sign a certificate: {done.stderr.strip()[:300]}")
    return made


def write_numbers(folder: Path, connector: str, **options: Any) -> Pipeline:
    """A pipeline that sends numbers from a file."""
    path = folder / "numbers.json"
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in NUMBERS))
    source = table("single_file", "n BIGINT", "source", "numbers", path=path)
    sink = table(connector, "n BIGINT", "sink", "sent", **options)
    return query(f"{source} {sink} INSERT INTO sent SELECT n FROM numbers;")


def read_numbers(connector: str, **options: Any) -> Pipeline:
    return query(table(connector, "n BIGINT", **options) + "SELECT n FROM numbers")


# -------------------------------------------------------------------------------------------- rabbitmq


def trusting(cert: Path) -> dict[str, Any]:
    return {"tls_config.enabled": "true", "tls_config.root_certificates_path": str(cert)}


def showing(pair: tuple[Path, Path]) -> dict[str, Any]:
    cert, key = map(str, pair)
    return {"tls_config.client_certificates_path": cert, "tls_config.client_keys_path": key}


def test_rabbitmq_is_written_and_read_over_tls_by_a_client_with_a_certificate(
    rabbitmq: RabbitServer, tmp_path: Path, certificate: tuple[Path, Path], shown: tuple[Path, Path]
) -> None:
    queue = rabbitmq.create()
    tls = {"host": "127.0.0.1", "port": rabbitmq.secured_port, **trusting(certificate[0]), **showing(shown)}
    writing = write_numbers(tmp_path, "rabbitmq", routing_key=queue, **tls)
    assert run_in_process(writing, tmp_path / "out").reason == "finished"
    assert rabbitmq.waiting(queue) == len(NUMBERS)
    reading = read_numbers("rabbitmq", queue=queue, **tls)
    assert sorted(found(run_until(reading, tmp_path / "in", len(NUMBERS)))) == NUMBERS


def test_a_rabbitmq_that_is_not_trusted_is_not_asked_again(
    rabbitmq: RabbitServer, tmp_path: Path, stranger: tuple[Path, Path], shown: tuple[Path, Path]
) -> None:
    queue = rabbitmq.create()
    tls = {"host": "127.0.0.1", "port": rabbitmq.secured_port, **trusting(stranger[0]), **showing(shown)}
    for number, pipeline in enumerate(
        (
            write_numbers(tmp_path, "rabbitmq", routing_key=queue, **tls),
            read_numbers("rabbitmq", queue=queue, **tls),
        )
    ):
        with pytest.raises(RefusedError, match="the certificate of the server is not trusted") as caught:
            run_until(pipeline, tmp_path / str(number), 1)
        assert "tls_config.root_certificates_path" in str(caught.value.hint)
    assert rabbitmq.waiting(queue) == 0


def test_a_rabbitmq_that_refuses_the_password_at_a_commit_is_understood(
    rabbitmq: RabbitServer, tmp_path: Path
) -> None:
    options = {"host": "127.0.0.1", "port": rabbitmq.port, "routing_key": "any", "password": "open-sesame"}
    with pytest.raises(ExternalError, match="refuses access") as caught:
        run_in_process(write_numbers(tmp_path, "rabbitmq", **options), tmp_path / "state")
    assert "open-sesame" not in str(caught.value)


def test_what_is_wrong_with_tls_to_rabbitmq_is_told(
    rabbitmq: RabbitServer, certificate: tuple[Path, Path], stranger: tuple[Path, Path]
) -> None:
    plain, tls = rabbitmq.port, rabbitmq.secured_port
    trusted = trusting(certificate[0])
    for options, hint in (
        ({"port": tls, **trusted}, "tls_config.client_certificates_path"),
        ({"port": tls, **trusted, **showing(stranger)}, "tls_config.client_certificates_path"),
        ({"port": plain, **trusted}, "no TLS at this port"),
        ({"port": tls}, "set `tls_config.enabled`"),
    ):
        source = RabbitSource(host="127.0.0.1", queue="any", format="json", **options)
        with pytest.raises(ExternalError, match="does not answer") as caught:
            source.reach()
        assert hint in str(caught.value.hint), options


# -------------------------------------------------------------------------------------------- mqtt


@pytest.fixture
def web(mosquitto: Mosquitto) -> Mosquitto:
    if not mosquitto.has_web:
        pytest.skip("this mosquitto was built without web sockets")
    return mosquitto


@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_mqtt_is_written_and_read_over_web_sockets(
    web: Mosquitto, tmp_path: Path, certificate: tuple[Path, Path], secured: bool, protocol: str
) -> None:
    options: dict[str, Any] = {"url": web.web_url, "username": USER, "password": PASSWORD}
    if secured:
        options = {"url": web.secured_web_url, "tls.ca": str(certificate[0])}
    options |= {"topic": web.topic(), "qos": "ExactlyOnce", "protocol": protocol}
    reading = read_numbers("mqtt", **options)
    subscribe(reading, tmp_path / "in")
    run_in_process(write_numbers(tmp_path, "mqtt", **options), tmp_path / "out")
    assert found(run_until(reading, tmp_path / "in", len(NUMBERS))) == NUMBERS


def test_what_is_wrong_with_web_sockets_is_told(web: Mosquitto, stranger: tuple[Path, Path]) -> None:
    for options, message, hint in (
        ({"url": web.secured_web_url, "tls.ca": str(stranger[0])}, "not trusted", "tls.ca"),
        ({"url": web.web_url, "username": USER, "password": "wrong"}, "Not authorized", "password"),
        ({"url": web.url.replace("mqtt:", "ws:")}, "does not answer", "web sockets at this port"),
    ):
        with pytest.raises(ExternalError, match=message) as caught:
            MqttSource(topic="any", format="json", **options).reach()
        assert hint in str(caught.value.hint), options
        assert PASSWORD not in str(caught.value)


# -------------------------------------------------------------------------------------------- postgres

ELSEWHERE = "127.1"
"""The loopback address in a spelling that Headrace does not take for this machine."""


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PGSSLMODE", "PGSSLROOTCERT", "PGSERVICE", "PGHOST", "PGHOSTADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # without ~/.postgresql/root.crt


def writers(url: str) -> list[Any]:
    columns = {"schema": {"n": "int64"}, "table": "t"}
    return [
        PostgresSink(url=url, **columns),
        DatabaseSink(url=url.replace("postgresql:", "postgresql+psycopg:"), **columns),
    ]


def test_a_postgres_elsewhere_has_to_offer_tls_unless_the_user_says_otherwise(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.run("CREATE TABLE t (n bigint)")
    elsewhere = postgres.url.replace("127.0.0.1", ELSEWHERE)
    for sink in writers(elsewhere):
        with pytest.raises(RefusedError, match="does not support SSL") as caught:
            sink.reach()
        assert "sslmode=disable" in str(caught.value.hint)
    for sink in [*writers(postgres.url), *writers(f"{elsewhere}?sslmode=disable")]:
        assert "table t" in sink.reach()
    monkeypatch.setenv("PGSSLMODE", "prefer")
    for sink in writers(elsewhere):
        assert "table t" in sink.reach()


def test_a_postgres_elsewhere_has_to_show_a_certificate_that_is_trusted(
    postgres: Database, certificate: tuple[Path, Path], stranger: tuple[Path, Path]
) -> None:
    postgres.run("CREATE TABLE t (n bigint)")
    elsewhere = postgres.url.replace("127.0.0.1", ELSEWHERE)
    with postgres.server.with_tls(*certificate):
        for url in (elsewhere, f"{elsewhere}?sslrootcert={stranger[0]}"):
            for sink in writers(url):
                with pytest.raises(RefusedError, match="certificate") as caught:
                    sink.reach()
                assert "sslrootcert=" in str(caught.value.hint)
        for url in (f"{elsewhere}?sslrootcert={certificate[0]}", f"{elsewhere}?sslmode=require"):
            for sink in writers(url):
                assert "table t" in sink.reach()
