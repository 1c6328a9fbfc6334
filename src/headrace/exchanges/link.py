"""The connection between the driver and a task that stays: each proves to the other that it knows the secret.

The secret is made for one run and comes to the task with its code. It is not sent: each end answers a random
question with it. What follows is pickled, so nothing is read from anybody else: every message is signed, with
its number and who has sent it, by a key that both questions and the secret give. It is not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import pickle
import secrets
import socket
import time
from multiprocessing.connection import Connection
from typing import Any

_QUESTION = 32
_ANSWER = hashlib.sha256().digest_size
_AUTHENTICATION_SECONDS = 5.0
_DRIVER, _TASK = b"headrace driver", b"headrace task"


class TaskLink:
    """One end of a connection that is authenticated; `own` and `other` are the names of the two ends."""

    def __init__(self, connected: socket.socket, key: bytes, *, own: bytes, other: bytes) -> None:
        connected.settimeout(None)
        self._connection = Connection(connected.detach())
        self._key = key
        self._own, self._other = own, other
        self._sent = self._received = 0

    def fileno(self) -> int:
        """The file that can be read when something has arrived."""
        return self._connection.fileno()

    def send(self, message: Any) -> None:
        """Send a message; an OSError says that the other end has gone."""
        content = pickle.dumps(message, protocol=5)
        self._connection.send_bytes(self._signature(self._own, self._sent, content) + content)
        self._sent += 1

    def receive(self) -> Any:
        """The next message; an EOFError or OSError says that the other end has gone.

        Or that somebody else has sent the message, or it has come again or too early.
        """
        data = self._connection.recv_bytes()
        signature, content = data[:_ANSWER], memoryview(data)[_ANSWER:]
        if not hmac.compare_digest(signature, self._signature(self._other, self._received, content)):
            raise PermissionError("a message of the resident task was changed on its way")
        self._received += 1
        return pickle.loads(content)  # noqa: S301 - the other end knows the secret

    def _signature(self, who: bytes, number: int, content: bytes | memoryview) -> bytes:
        signed = hmac.new(self._key, b"%s message %d\0" % (who, number), hashlib.sha256)
        signed.update(content)
        return signed.digest()

    def poll(self, seconds: float = 0.0) -> bool:
        """Wait until there is something to receive, also the end; whether there is."""
        return self._connection.poll(seconds)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


class Listener:
    """The driver's end: waits for the task to connect."""

    def __init__(self, host: str) -> None:
        self.secret = secrets.token_bytes(32)
        self._socket = socket.create_server((host, 0))

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._socket.getsockname()[1]
        return port

    def accept(self, seconds: float) -> TaskLink | None:
        """The task's connection; None if none comes in time, or somebody else does."""
        self._socket.settimeout(seconds)
        try:
            connected, _ = self._socket.accept()
        except TimeoutError:
            return None
        try:
            _prepare(connected)
            key = _prove(connected, self.secret, own=_DRIVER, other=_TASK)
        except (OSError, EOFError, PermissionError):
            connected.close()
            return None
        return TaskLink(connected, key, own=_DRIVER, other=_TASK)

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()


def connect(address: tuple[str, int], secret: bytes) -> TaskLink:
    """Connect a task to its driver; an OSError says that it is not there, or another program is."""
    connected = socket.create_connection(address, timeout=_AUTHENTICATION_SECONDS)
    try:
        _prepare(connected)
        key = _prove(connected, secret, own=_TASK, other=_DRIVER)
    except BaseException:
        connected.close()
        raise
    return TaskLink(connected, key, own=_TASK, other=_DRIVER)


def _prepare(connected: socket.socket) -> None:
    connected.settimeout(_AUTHENTICATION_SECONDS)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _prove(connected: socket.socket, secret: bytes, *, own: bytes, other: bytes) -> bytes:
    """Exchange questions and answers; returns the key for messages, which is another for each connection.

    Raises a PermissionError if the other end does not know the secret.

    Both questions and the name of who answers are in an answer: it is good for nothing else.
    """
    deadline = time.monotonic() + _AUTHENTICATION_SECONDS
    asked = secrets.token_bytes(_QUESTION)
    connected.sendall(asked)
    received = _read(connected, _QUESTION, deadline)
    connected.sendall(_answer(secret, own, received, asked))
    if not hmac.compare_digest(_read(connected, _ANSWER, deadline), _answer(secret, other, asked, received)):
        raise PermissionError("the other end does not know the secret of this run")
    questions = b"".join(sorted((asked, received)))
    return hmac.digest(secret, b"headrace messages" + questions, hashlib.sha256)


def _answer(secret: bytes, who: bytes, question: bytes, own_question: bytes) -> bytes:
    return hmac.digest(secret, who + question + own_question, hashlib.sha256)


def _read(connected: socket.socket, size: int, deadline: float) -> bytes:
    """Exactly so many bytes; one who sends them one by one has no more time than any other."""
    data = b""
    while len(data) < size:
        connected.settimeout(max(0.001, deadline - time.monotonic()))
        part = connected.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data
