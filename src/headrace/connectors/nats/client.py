"""The NATS client that the source and the sink share: connections, requests, errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from headrace.base.errors import ConfigurationError, ExternalError, RefusedError
from headrace.base.extras import load_extra
from headrace.base.retry import Backoff, with_retry
from headrace.connectors.nats.options import NatsServerOptions, without_password

FIRST_CONTACT_SECONDS = 10.0
"""How long to wait for servers that never answered: their addresses may be wrong."""
PATIENCE_SECONDS = 60.0
"""How long to wait for servers that answered before: servers restart."""
CONNECT_SECONDS, ANSWER_SECONDS = 5, 10.0
_CLOSE_SECONDS = 2.0
_BACKOFF = Backoff(first=0.1, longest=2.0)
NOT_FOUND, NOT_NOW, _TOO_MANY, _SERVERS_FAULT = 404, 503, 429, 500
_TRANSIENT = ("expecting info", "connections exceeded", "authentication timeout")
"""Errors at connecting to servers that restart or are overloaded."""

T = TypeVar("T")
_log = logging.getLogger("headrace.nats")


class ApiError(Exception):
    """An error response of JetStream."""

    def __init__(self, code: int, text: str, failure: ExternalError | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.failure = failure
        """The error to raise in the end, if there is a better one."""


class NatsServers:
    """The servers of a NATS cluster: connections and requests. It pickles.

    Every failure is an ExternalError with the addresses.
    """

    def __init__(self, options: NatsServerOptions) -> None:
        self._options = options
        self.addresses = ", ".join(map(without_password, options.servers))

    def check_settings(self) -> None:
        """Raise a ConfigurationError for addresses, seeds and files that are not valid."""
        load_client()
        for address in self._options.servers:
            try:
                parts = urlsplit(address if "://" in address else f"nats://{address}")
                valid = parts.scheme in {"nats", "tls", "ws", "wss"} and parts.hostname and parts.port != 0
            except ValueError:
                valid = False
            if not valid:
                raise ConfigurationError(
                    f"`{without_password(address)}` is not the address of a NATS server",
                    hint="write it as nats://host:port, or tls://host:port",
                )
        if self._options.auth_nkey_seed is not None:
            _check_seed(self._options.auth_nkey_seed)
        self._tls()

    def ask(self, work: Callable[[Any], Awaitable[T]], *, patience: float | None = None) -> T:
        """Run `work` with a connection of this process, with retries up to `patience`; return its result."""
        deadline = PATIENCE_SECONDS if patience is None else patience
        try:
            return with_retry(
                lambda: in_loop(self._work(work)),
                is_transient=is_transient,
                backoff=_BACKOFF,
                deadline=deadline,
                waits_for=f"NATS at {self.addresses}",
            )
        except client_errors() as error:
            raise self.failure(error) from None

    async def _work(self, work: Callable[[Any], Awaitable[T]]) -> T:
        key = (os.getpid(), *(str(getattr(self._options, name)) for name in NatsServerOptions.model_fields))
        connection = _CONNECTIONS.get(key)
        if connection is None or not connection.is_connected:
            connection = await self.connect()
            _CONNECTIONS[key] = connection
        try:
            return await work(connection)
        except Exception as error:
            if is_transient(error):
                _CONNECTIONS.pop(key, None)
                await close(connection)
            raise

    async def connect(self) -> Any:
        """Return a new connection, which does not reconnect."""
        client, problems = load_client(), []

        async def on_error(error: Exception) -> None:
            problems.append(error)
            if isinstance(error, client.errors.SlowConsumerError):
                _log.warning(
                    "nats: messages on `%s` came faster than they were read, and are lost", error.subject
                )

        settings: dict[str, Any] = {
            "name": "headrace",
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            "connect_timeout": CONNECT_SECONDS,
            "ping_interval": 10,
            "error_cb": on_error,
            **self._login(),
        }
        if (tls := self._tls()) is not None:
            settings["tls"] = tls
        for address in random.sample(self._options.servers, len(self._options.servers)):
            connection = client.aio.client.Client()
            try:
                await connection.connect(servers=[address], **settings)
            except (client.errors.Error, OSError) as error:
                problems.append(error)
                await close(connection)
            else:
                return connection
        refused = [error for error in problems if _refuses(error)]
        real = [error for error in problems if not isinstance(error, client.errors.NoServersError)]
        raise (refused or real or problems)[-1]

    def _login(self) -> Mapping[str, Any]:
        options = self._options
        if options.auth_type == "credentials":
            return {"user": options.auth_username, "password": options.auth_password}
        if options.auth_type == "nkey":
            return {"nkeys_seed_str": options.auth_nkey_seed}
        if options.auth_type == "jwt":
            parts = (("NATS USER JWT", options.auth_jwt), ("USER NKEY SEED", options.auth_nkey_seed))
            written = "".join(
                f"-----BEGIN {name}-----\n{value}\n------END {name}------\n" for name, value in parts
            )
            return {"user_credentials": load_client().aio.client.RawCredentials(written)}
        return {}

    def _tls(self) -> ssl.SSLContext | None:
        options = self._options
        if not options.tls_ca and not options.tls_cert:
            return None
        try:
            context = ssl.create_default_context(cafile=options.tls_ca)
            if options.tls_cert:
                context.load_cert_chain(options.tls_cert, options.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"the certificates for NATS cannot be read: {error}",
                hint="see the options `tls.ca`, `tls.cert` and `tls.key`",
            ) from None
        return context

    def failure(self, error: Exception) -> ExternalError:
        """Return an error of the client as an ExternalError with a hint."""
        errors = load_client().errors
        text = str(error) or type(error).__name__
        if isinstance(error, ApiError) and error.failure is not None:
            return error.failure
        if _refuses(error):
            return RefusedError(
                f"NATS at {self.addresses} refuses access: {text}",
                hint="check `auth.type`, what goes with it, and the rights of the user",
                where="nats",
            )
        if isinstance(error, errors.NoRespondersError) or getattr(error, "code", 0) == NOT_NOW:
            return ExternalError(
                f"NATS at {self.addresses} has no JetStream, or it does not answer: {text}",
                hint="start the servers with JetStream, or read and write a `subject` without `stream`",
                where="nats",
            )
        if isinstance(error, errors.MaxPayloadError):
            return ExternalError(
                f"NATS at {self.addresses} refuses a message that is too large",
                hint="allow larger ones: `max_payload` of the servers",
                where="nats",
            )
        if isinstance(error, ApiError) or not is_transient(error):
            return ExternalError(f"NATS at {self.addresses}: {text}", where="nats")
        return ExternalError(
            f"NATS at {self.addresses} does not answer: {text}",
            hint="check `servers`, and that they run",
            where="nats",
        )


async def close(connection: Any) -> None:
    """Close a connection in any state."""
    with contextlib.suppress(Exception):  # a transport whose TLS failed never says that it is closed
        await asyncio.wait_for(connection.close(), _CLOSE_SECONDS)


def load_client() -> Any:
    """Import the client's package; raises a MissingExtraError if it is not installed."""
    return load_extra(
        "nats",
        feature="the connector `nats`",
        extra="nats",
        package="nats-py",
        submodules=["aio.client", "errors"],
    )


def client_errors() -> tuple[type[Exception], ...]:
    """Return the exception classes of the client for external failures."""
    return (load_client().errors.Error, OSError, ApiError)


def in_loop(work: Awaitable[T]) -> T:
    """Run a coroutine in the event loop of this process, and return its result."""
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()  # type: ignore[arg-type]


_LOOPS: dict[int, asyncio.AbstractEventLoop] = {}
_CONNECTIONS: dict[tuple[Any, ...], Any] = {}
_LOCK = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process, which runs in its own thread."""
    with _LOCK:
        loop = _LOOPS.get(os.getpid())
        if loop is None:
            loop = _LOOPS[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="nats", daemon=True).start()
        return loop


def _refuses(error: Exception) -> bool:
    return isinstance(error, load_client().errors.AuthorizationError) or "authorization" in str(error).lower()


def is_transient(error: Exception) -> bool:
    """Whether retrying can help."""
    if not isinstance(error, client_errors()):
        return False
    errors = load_client().errors
    if isinstance(error, ApiError):
        return error.code >= _SERVERS_FAULT or error.code == _TOO_MANY  # such as 500, by who is no leader
    passing = (OSError, errors.NoServersError, errors.NoRespondersError, errors.ConnectionClosedError)
    lost = (errors.StaleConnectionError, errors.OutboundBufferLimitError, errors.ConnectionDrainingError)
    is_listed = any(text in str(error).lower() for text in _TRANSIENT)
    return (is_listed or isinstance(error, (*passing, *lost))) and not _refuses(error)


def _check_seed(seed: str) -> None:
    nkeys = load_extra("nkeys", feature="`auth.nkey_seed`", extra="nats", package="nkeys")
    try:
        nkeys.from_seed(bytearray(seed.strip().encode())).wipe()
    except Exception:  # noqa: BLE001 - what is thrown depends on what is wrong; it may show the seed
        raise ConfigurationError(
            "`auth.nkey_seed` is not the seed of a key", hint="it begins with SU, as `nsc` and `nk` write it"
        ) from None
