"""A real Kafka broker for tests: Apache Kafka, fetched with Maven and kept in the user's cache."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

VERSION = "4.1.0"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace.tests</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def fetch_broker() -> Path:
    """The folder with the broker's jars; skips the test, saying why, if they cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace-tests"
    jars = cache / f"kafka-{VERSION}"
    if jars.exists():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip(f"Kafka is fetched with Maven, which is not installed; or put its jars into {jars}")
    part = cache / f"part-{os.getpid()}"
    part.mkdir(parents=True, exist_ok=True)
    (part / "pom.xml").write_text(POM)
    command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    command.append(f"-DoutputDirectory={part / 'jars'}")
    try:
        done = subprocess.run(command, cwd=part, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"Kafka could not be fetched: {(done.stdout + done.stderr).strip()[:300]}")
        (part / "jars").replace(jars)
    except subprocess.TimeoutExpired:
        pytest.skip("Kafka could not be fetched in five minutes")
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return jars


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class KafkaBroker:
    """A broker on a free loopback port, with its data in `folder`; it can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        java = shutil.which("java")
        if java is None:
            pytest.skip("Kafka needs Java")
        self.address = f"127.0.0.1:{_free_port()}"
        self._java = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{fetch_broker()}/*"]
        self._folder = folder
        self._settings = folder / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        controller = f"127.0.0.1:{_free_port()}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": folder / "data",
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            # Tests write messages with old timestamps; the default would delete them within minutes.
            "log.retention.ms": -1,
        }
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._settings)]
        done = subprocess.run([*self._java, *tool], capture_output=True, text=True, check=False, cwd=folder)
        if done.returncode:
            pytest.fail(f"Kafka's folder could not be made:\n{done.stdout}{done.stderr}")

    def start(self) -> None:
        """Run the broker and wait until it answers."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        log = self._folder / "broker.log"
        with log.open("ab") as out:
            command = [*self._java, "kafka.Kafka", str(self._settings)]
            self._process = subprocess.Popen(command, stdout=out, stderr=out, cwd=self._folder)
        admin, deadline = (
            AdminClient({"bootstrap.servers": self.address, "log_level": 0}),
            time.monotonic() + 60,
        )
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(KafkaException):
                admin.list_topics(timeout=1)
                return
        pytest.fail(f"Kafka did not start:\n{log.read_text(errors='replace')[-2000:]}")

    def stop(self) -> None:
        """End the broker; its data stays."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def create(self, partitions: int = 1, **config: str) -> str:
        """A new topic and its name."""
        from confluent_kafka.cimpl import NewTopic

        topic = f"topic-{uuid.uuid4().hex[:12]}"
        made = NewTopic(topic, partitions, 1, config={key.replace("_", "."): v for key, v in config.items()})
        self.admin.create_topics([made])[topic].result(30)
        return topic

    def widen(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        from confluent_kafka.cimpl import NewPartitions

        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)

    @functools.cached_property
    def admin(self) -> Any:
        """A client that changes topics."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def send(
        self,
        topic: str,
        values: Sequence[bytes | str | None],
        *,
        partition: int = 0,
        key: bytes | None = None,
        time: int = 0,
    ) -> None:
        """Write messages into one partition."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address})
        for value in values:
            producer.produce(topic, value, key, partition, timestamp=time)
        assert producer.flush(30) == 0

    def read(self, topic: str) -> list[Any]:
        """The committed messages of a topic, by partition and offset."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "tests",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 20,
            }
        )
        partitions = sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        self._settle(topic, partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        found, ended = [], 0
        while ended < len(partitions):
            for message in consumer.consume(1000, 0.1):
                problem = message.error()
                if problem is None:
                    found.append(message)
                else:
                    assert problem.name() == "_PARTITION_EOF", problem
                    ended += 1
        consumer.close()
        return sorted(found, key=lambda one: (one.partition(), one.offset()))

    def _settle(self, topic: str, partitions: Sequence[int]) -> None:
        """Wait a little: a transaction ends for its producer before its mark is in the partitions."""
        import confluent_kafka.admin
        from confluent_kafka import IsolationLevel, TopicPartition

        client: Any = confluent_kafka.admin

        def ends(level: IsolationLevel) -> list[int]:
            latest = client.OffsetSpec.latest()
            wanted = {TopicPartition(topic, partition): latest for partition in partitions}
            found = self.admin.list_offsets(wanted, isolation_level=level)
            return [future.result(10).offset for future in found.values()]

        for _ in range(60):
            if ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED):
                return
            time.sleep(0.05)

    def options(self, topic: str, **more: Any) -> Mapping[str, Any]:
        """The options that a connector needs to reach a topic."""
        return {"bootstrap_servers": self.address, "topic": topic, **more}


@contextlib.contextmanager
def run_broker(folder: Path) -> Iterator[KafkaBroker]:
    """Run a broker until the block ends."""
    broker = KafkaBroker(folder)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One broker for all tests of a run."""
    pytest.importorskip("confluent_kafka")
    with run_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker
