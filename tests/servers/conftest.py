"""Fixtures with real servers."""

from tests.servers.s3 import s3_server, s3_url

__all__ = ["s3_server", "s3_url"]
