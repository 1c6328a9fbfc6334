"""Fixtures with real servers."""

from tests.servers.http import certificate
from tests.servers.kafka import kafka
from tests.servers.mqtt import mosquitto
from tests.servers.nats import nats_server
from tests.servers.postgres import postgres, postgres_server
from tests.servers.rabbitmq import rabbitmq
from tests.servers.redis import redis_client, redis_port, redis_program
from tests.servers.registry import schema_registry
from tests.servers.s3 import s3_server, s3_url
from tests.servers.seaweedfs import atomic_s3_url, seaweedfs

__all__ = [
    "atomic_s3_url",
    "certificate",
    "kafka",
    "mosquitto",
    "nats_server",
    "postgres",
    "postgres_server",
    "rabbitmq",
    "redis_client",
    "redis_port",
    "redis_program",
    "s3_server",
    "s3_url",
    "schema_registry",
    "seaweedfs",
]
