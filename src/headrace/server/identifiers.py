"""Ids and times as the REST API has them."""

from __future__ import annotations

import secrets
import time
from typing import Final, Literal

Prefix = Literal["pl", "job", "ct", "cp", "udf", "msg"]

_LETTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def new_id(prefix: Prefix) -> str:
    """A new id: the prefix and ten letters or digits, such as `pl_3fK0aZ81bQ`."""
    return f"{prefix}_{''.join(secrets.choice(_LETTERS) for _ in range(10))}"


def now_micros() -> int:
    """The time in microseconds since 1970."""
    return time.time_ns() // 1000
