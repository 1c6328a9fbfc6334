"""Runs the server: one process that listens, and ends on SIGTERM while pipelines go on."""

from __future__ import annotations

import fcntl
import ipaddress
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from headrace.base.errors import ConfigurationError
from headrace.base.private import make_private
from headrace.server.application import make_application
from headrace.server.peers import LocalUser
from headrace.server.service import Service, ServiceOptions
from headrace.server.users import Accounts

_log = logging.getLogger("headrace.server")

PORT = 5115
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_DRAIN_SECONDS = 2


@dataclass(frozen=True)
class ListenOptions:
    """Where the server listens, and what protects it."""

    host: str = "127.0.0.1"
    port: int = PORT
    accounts: Accounts = Accounts()  # noqa: RUF009 - it has no users and keeps no sessions
    allowed_hosts: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    log_level: str = "info"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def hosts(self) -> frozenset[str] | None:
        """The names that it may be asked under; None for any."""
        own = {f"[{self.host}]" if ":" in self.host else self.host}
        if self.is_loopback:
            return _LOOPBACK | own | {name.lower() for name in self.allowed_hosts}
        return frozenset(name.lower() for name in self.allowed_hosts) | own if self.allowed_hosts else None

    def check(self) -> None:
        """Refuse settings that would give everybody access."""
        if not self.is_loopback and not self.accounts.required:
            raise ConfigurationError(
                f"the server would listen on {self.host} for everybody",
                hint="name a file with a token, `--token-file FILE`, or with users, `--users FILE`; or "
                "listen on 127.0.0.1, which only this machine can reach",
            )
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("--tls-cert and --tls-key belong together")
        for file in (self.certificate, self.key):
            if file is not None and not file.is_file():
                raise ConfigurationError(f"there is no file {file}")


def serve(
    options: ListenOptions, service_options: ServiceOptions, *, on_address: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or Ctrl-C; `on_address` is called with the address when it listens."""
    options.check()
    listener = _listen(options)
    lock = _hold(service_options.data_dir)
    try:
        service = Service(service_options)
        is_secure = options.certificate is not None
        app = make_application(
            service,
            options.accounts,
            hosts=options.hosts,
            is_secure=is_secure,
            local_user=_local_user(options, listener),
        )
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        on_address(f"{'https' if is_secure else 'http'}://{shown}:{port}")
        config = uvicorn.Config(
            app.state.guard,
            log_config=None,
            access_log=False,
            server_header=False,
            ssl_certfile=options.certificate,
            ssl_keyfile=options.key,
            timeout_graceful_shutdown=_DRAIN_SECONDS,
            lifespan="on",
        )
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        os.close(lock)


def _listen(options: ListenOptions) -> socket.socket:
    try:
        address = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(address[0], address[1])
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address[4])
    except OSError as error:
        raise ConfigurationError(
            f"the server cannot listen on {options.host}:{options.port}: {error.strerror or error}",
            hint="another server may have the port: choose one with --port",
        ) from None
    return listener


def _local_user(options: ListenOptions, listener: socket.socket) -> LocalUser | None:
    """Who is answered without having said who it is."""
    if options.accounts.required:
        return None
    listener.listen()
    user = LocalUser.of(listener)
    if user is None:
        _log.warning(
            "this system does not tell who connects: every user of this machine can use this server, and run "
            "code as you; `--token-file FILE` keeps others out"
        )
    return user


def _hold(data_dir: Path) -> int:
    """Keep other servers away from a data directory for as long as the file is open."""
    make_private(data_dir)
    lock = os.open(data_dir / "server.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigurationError(
            f"another server uses the data directory {data_dir}", hint="stop it, or choose another --data-dir"
        ) from None
    return lock
