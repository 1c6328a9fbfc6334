"""Fixtures with real servers."""

from tests.servers.kafka import kafka
from tests.servers.redis import redis_client, redis_port, redis_program
from tests.servers.s3 import s3_server, s3_url

__all__ = ["kafka", "redis_client", "redis_port", "redis_program", "s3_server", "s3_url"]
