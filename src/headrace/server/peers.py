"""Which user has opened a loopback connection: a server without users answers only its own.

Everybody who works on a machine can connect to its loopback address. Whoever may create pipelines runs code
as the user of the server, so the kernel is asked who has opened the other end of a connection.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

Address: TypeAlias = tuple[str, int]

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL, _REMOTE, _USER, _INODE = 1, 2, 7, 9
_CLOSED = "0"
"""The inode of a connection that its process has closed: it says nothing of the user any more."""
_ATTEMPTS = 3
"""A table that changes while it is read may miss a line."""
_MAPPED = bytes(10) + b"\xff\xff"


@dataclass(frozen=True)
class LocalUser:
    """The user of a server, by the number that the kernel has for it."""

    number: int

    @classmethod
    def of(cls, listener: socket.socket) -> LocalUser | None:
        """The user of this process; None if this system does not tell who has opened a connection."""
        host, port = listener.getsockname()[:2]
        user = cls(os.geteuid())
        return user if _user_of((host, port), None) == user.number else None

    def has_opened(self, client: Address, server: Address) -> bool:
        """Whether the connection of a client to this server is one of this user's."""
        return any(_user_of(client, server) == self.number for _ in range(_ATTEMPTS))


def _user_of(local: Address, remote: Address | None) -> int | None:
    """Who has the socket with these addresses; None if there is none, or its process has closed it."""
    locals_ = set(_written(local))
    remotes = None if remote is None else set(_written(remote))
    for fields in _sockets():
        if fields[_LOCAL] in locals_ and (remotes is None or fields[_REMOTE] in remotes):
            return None if fields[_INODE] == _CLOSED else int(fields[_USER])
    return None


def _sockets() -> Iterator[list[str]]:
    for table in _TABLES:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        yield from (line.split() for line in lines)


def _written(address: Address) -> Iterator[str]:
    """An address as the tables have it: words in the order of this machine; of IPv4 also as IPv6 has it."""
    host, port = address
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    packed = socket.inet_pton(kind, host)
    for data in (packed,) if kind is socket.AF_INET6 else (packed, _MAPPED + packed):
        words = (int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data), 4))
        yield f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"
