"""A real Kafka broker for tests: Apache Kafka, fetched with Maven and kept in the user's cache."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.servers.processes import (
    cache_folder,
    find_java,
    free_port,
    from_maven,
    keep,
    wait_until_ended,
    wait_until_up,
)

VERSION = "4.1.0"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace.tests</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
  </dependency><dependency>
    <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
  </dependency></dependencies>
</project>
"""
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
USER, PASSWORD = "tester", "s3cret-w0rd"
LOGIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'


def fetch_broker() -> Path:
    """The folder with the broker's jars; skips the test, saying why, if they cannot be had."""
    jars = cache_folder() / f"kafka-{VERSION}-logging"
    if not jars.exists():
        with from_maven("Kafka", jars, "copy-dependencies", "-DincludeScope=runtime", pom=POM) as fetched:
            keep(fetched, jars)
    return jars


class KafkaBroker:
    """A broker on free loopback ports, open to all and for a user; it can be stopped and started again.

    Its data is in `folder`.
    """

    def __init__(self, folder: Path) -> None:
        self.address, self.guarded_address = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self._java = [find_java("Kafka"), "-Xmx256m", "-XX:TieredStopAtLevel=1"]
        self._java += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp"]
        self._java.append(f"{fetch_broker()}/*")
        self._folder = folder
        self._settings = folder / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        controller = f"127.0.0.1:{free_port()}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.address},SASL_PLAINTEXT://{self.guarded_address},"
            f"CONTROLLER://{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,"
            "CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": LOGIN,
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
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})

        def is_up() -> bool:
            try:
                admin.list_topics(timeout=1)
            except KafkaException:
                return False
            return True

        wait_until_up("Kafka", self._process, log, is_up, seconds=60)

    def stop(self) -> None:
        """End the broker; its data stays."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        wait_until_ended(process)

    def create(self, partitions: int = 1, *, prefix: str = "topic", **config: str) -> str:
        """A new topic that the broker knows of, and its name; its partitions may have no leaders yet."""
        from confluent_kafka.cimpl import NewTopic

        topic = f"{prefix}-{uuid.uuid4().hex[:12]}"
        made = NewTopic(topic, partitions, 1, config={key.replace("_", "."): v for key, v in config.items()})
        self.admin.create_topics([made])[topic].result(30)
        self._wait_for(topic, partitions)
        return topic

    def widen(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        from confluent_kafka.cimpl import NewPartitions

        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
        self._wait_for(topic, partitions)

    def _wait_for(self, topic: str, partitions: int) -> None:
        """Wait until the broker has heard of partitions that the controller has made."""
        from confluent_kafka import KafkaException, TopicCollection

        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(KafkaException):
                found = self.admin.describe_topics(TopicCollection([topic]))[topic].result(30)
                if len(found.partitions) == partitions:
                    return
            time.sleep(0.02)
        pytest.fail(f"the broker did not hear of {partitions} partitions")

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
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Write messages into one partition."""
        from confluent_kafka import Producer

        producer, lost = Producer({"bootstrap.servers": self.address}), []

        def told(problem: Any, _: Any) -> None:
            if problem is not None:
                lost.append(problem)

        for value in values:
            producer.produce(
                topic, value, key, partition, timestamp=time, on_delivery=told, headers=[*headers]
            )
        assert producer.flush(30) == 0
        assert not lost, lost[0]

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
        """Wait a little: a transaction ends for its producer before its mark is in the partitions.

        And the partitions of a new topic have no leader for a moment.
        """
        import confluent_kafka.admin
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

        client: Any = confluent_kafka.admin

        def ends(level: IsolationLevel) -> list[int]:
            latest = client.OffsetSpec.latest()
            wanted = {TopicPartition(topic, partition): latest for partition in partitions}
            found = self.admin.list_offsets(wanted, isolation_level=level)
            return [future.result(10).offset for future in found.values()]

        for _ in range(60):
            with contextlib.suppress(KafkaException):
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
