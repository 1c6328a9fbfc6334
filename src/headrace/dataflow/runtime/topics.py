"""Messages of a running dataflow for whoever looks at them: `headrace topic` and `headrace top`.

A reader has a socket in the user's private directory, with the job in its name, and a file
beside it that says what it wants. Whoever runs units looks for readers when an epoch begins, and sends them
what units send, as JSON. Nobody waits for a reader: what it does not take is lost, and its numbers say so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import select
import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from headrace.base.private import socket_address, socket_addresses, user_at
from headrace.dataflow.document.model import Output
from headrace.dataflow.runtime.messages import Closed, Message, Unreadable

SHOWN_ITEMS = 32
"""How many items of an array are shown."""
_SHOWN_BYTES = 50_000
"""How large a message may be, and what is shown of an array in memory."""
_LONGEST = 1024 * 1024


def _suffix(job_id: str) -> str:
    return f"{hashlib.sha256(job_id.encode()).hexdigest()[:12]}-topic"


class TopicReader:
    """Receives messages of a job that runs on this machine, from its next epoch on; a context manager.

    `outputs` are those whose messages it wants, as `node/output`; with `values` false without what is in
    them. With `ports` it is told at the end of each epoch what the inputs of units did in it.
    """

    def __init__(
        self, job_id: str, outputs: Collection[str] = (), *, values: bool = True, ports: bool = False
    ) -> None:
        self._address = socket_address(os.getpid(), f"{secrets.token_hex(4)}-{_suffix(job_id)}")
        self._wants = {"outputs": sorted(outputs), "values": values, "ports": ports}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._senders: dict[int, tuple[socket.socket, int]] = {}
        """Who runs units, by the file, with the number of the next message."""
        self._ready = select.poll()
        self.lost = 0
        """How many messages came too fast."""

    def __enter__(self) -> Self:
        _wants_file(self._address).write_text(json.dumps(self._wants), encoding="utf-8")
        self._listener.bind(str(self._address))
        self._address.chmod(0o600)
        self._listener.listen()
        self._ready.register(self._listener, select.POLLIN)
        return self

    def __exit__(self, *_: object) -> None:
        self._address.unlink(missing_ok=True)
        _wants_file(self._address).unlink(missing_ok=True)
        self._listener.close()
        for sender, _number in self._senders.values():
            sender.close()

    def receive(self, timeout: float) -> dict[str, Any] | None:
        """The next message; None if there is none within `timeout` seconds."""
        until = time.monotonic() + timeout
        while ready := self._ready.poll(max(0.0, until - time.monotonic()) * 1000):
            for file, _ in ready:
                if file == self._listener.fileno():
                    self._accept()
                elif (message := self._receive_from(file)) is not None:
                    return message
        return None

    def _accept(self) -> None:
        sender, _ = self._listener.accept()
        if user_at(sender) != os.geteuid():
            sender.close()
            return
        self._senders[sender.fileno()] = sender, 0
        self._ready.register(sender, select.POLLIN)

    def _receive_from(self, file: int) -> dict[str, Any] | None:
        sender, expected = self._senders[file]
        try:
            data = sender.recv(_LONGEST)
        except OSError:
            data = b""
        if not data:
            self._ready.unregister(file)
            del self._senders[file]
            sender.close()
            return None
        message: dict[str, Any] = json.loads(data)
        number = message.pop("number")
        self.lost += number - expected
        self._senders[file] = sender, number + 1
        return message


@dataclass
class _Wish:
    """A reader, as whoever runs units sees it."""

    socket: socket.socket
    outputs: frozenset[str]
    values: bool
    ports: bool
    sent: int = field(default=0)

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send without waiting; False if nobody is there any more."""
        data = json.dumps({**message, "number": self.sent}, default=str).encode()
        self.sent += 1
        try:
            self.socket.send(data)
        except BlockingIOError:  # it has not taken what came before
            return True
        except OSError:
            return False
        return True


class Topics:
    """The readers of a job, as whoever runs its units sees them."""

    def __init__(self, job_id: str) -> None:
        self._suffix = _suffix(job_id)
        self._readers: dict[Path, _Wish] = {}

    def look(self) -> bool:
        """Find the readers that are there now; whether there are any, or were."""
        before = bool(self._readers)
        there = socket_addresses(self._suffix)
        for address in self._readers.keys() - there:
            self._readers.pop(address).socket.close()
        for address in there:
            if address not in self._readers:
                with contextlib.suppress(OSError, ValueError, KeyError):  # it has gone already
                    self._readers[address] = _wish(address)
        return before or bool(self._readers)

    @property
    def has_readers(self) -> bool:
        """Whether somebody wants messages."""
        return any(reader.outputs for reader in self._readers.values())

    @property
    def wants_ports(self) -> bool:
        """Whether somebody wants to know what inputs do."""
        return any(reader.ports for reader in self._readers.values())

    def show(self, output: Output, message: Message | Closed | Unreadable) -> None:
        """Send a message to all who want those of its output."""
        name = str(output)
        for address, reader in list(self._readers.items()):
            if name in reader.outputs and not reader.send(_shown(name, message, values=reader.values)):
                self._readers.pop(address).socket.close()

    def show_ports(self, ports: Mapping[str, Mapping[str, float]]) -> None:
        """Send what inputs have done to all who want to know."""
        for address, reader in list(self._readers.items()):
            if reader.ports and not reader.send({"ports": ports}):
                self._readers.pop(address).socket.close()


def _wants_file(address: Path) -> Path:
    return address.with_suffix(".json")


def _wish(address: Path) -> _Wish:
    wants = json.loads(_wants_file(address).read_text(encoding="utf-8"))
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connected.setblocking(False)
        connected.connect(str(address))
    except OSError:
        connected.close()
        raise
    return _Wish(connected, frozenset(wants["outputs"]), wants["values"], wants["ports"])


def _shown(output: str, message: Message | Closed | Unreadable, *, values: bool) -> dict[str, Any]:
    """A message as JSON has it; of a large one only what it is."""
    shown: dict[str, Any] = {"output": output, "at": time.time()}
    if isinstance(message, Closed):
        return {**shown, "closed": True}
    if isinstance(message, Unreadable):
        return {**shown, "error": message.error}
    value = message.value
    shown |= {"time": message.time, "type": str(value.type), "length": len(value), "bytes": value.nbytes}
    if not values:
        return shown
    few = value.slice(0, SHOWN_ITEMS)
    whole = {
        **shown,
        "metadata": dict(message.metadata or {}),
        "value": few.to_pylist() if few.nbytes <= _SHOWN_BYTES else None,
    }
    return whole if len(json.dumps(whole, default=str)) <= _SHOWN_BYTES else shown
