"""The Redis client that the lookup and the sink share: connections and errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Annotated, Any, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, PlainSerializer, model_validator

from headrace.base.errors import ConfigurationError, ExternalError, RefusedError
from headrace.base.extras import load_extra
from headrace.base.options import Names, Secret
from headrace.base.options import Options as DeclaredOptions
from headrace.base.retry import Backoff, with_retry

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""How long to wait for servers that do not answer: they may restart."""
CONNECT_SECONDS, ANSWER_SECONDS = 10, 30
"""The timeout for a connection and for an answer; then it is retried."""
_BACKOFF = Backoff(first=0.1, longest=2.0)
_TRANSIENT = re.compile(
    "(?:^|of pipeline caused error: |discarded because of: )"
    "(?:BUSY|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|OOM|READONLY) "
)
"""The beginnings of transient errors without their own class in the client."""


def without_password(address: str) -> str:
    """Return the address of a server without its password."""
    try:
        parts = urlsplit(address)
    except ValueError:  # it is no address
        return "***"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


Address = Annotated[str, PlainSerializer(without_password, return_type=str, when_used="json")]
"""An option that takes an address, and displays it without its password."""
Addresses = Annotated[
    Names,
    PlainSerializer(
        lambda addresses: list(map(without_password, addresses)), return_type=list[str], when_used="json"
    ),
]


class RedisServerOptions(DeclaredOptions):
    """The server or the cluster, and the login."""

    address: Address | None = Field(
        None, repr=False, description="The server, such as redis://localhost:6379/0, or rediss://… for TLS."
    )
    cluster_addresses: Addresses | None = Field(
        None,
        repr=False,
        alias="cluster.addresses",
        description="Some servers of a cluster, instead of `address`.",
    )
    username: str | None = Field(None, description="The user, if the server asks for one.")
    password: Secret | None = Field(None, repr=False, description="The password, if the server asks for one.")
    tls_ca: str | None = Field(
        None,
        alias="tls.ca",
        description="A file with the CA certificates to trust.",
    )
    tls_cert: str | None = Field(None, alias="tls.cert", description="A file with the client certificate.")
    tls_key: str | None = Field(None, alias="tls.key", description="A file with the key of `tls.cert`.")

    @property
    def addresses(self) -> list[str]:
        """Return the server, or the servers of the cluster."""
        return self.cluster_addresses or ([self.address] if self.address else [])

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if bool(self.address) == bool(self.cluster_addresses):
            raise ValueError("it takes either `address` or `cluster.addresses`")
        tls_options = (self.tls_ca, self.tls_cert, self.tls_key)
        if any(tls_options) and not all(address.startswith("rediss://") for address in self.addresses):
            raise ValueError("`tls.ca`, `tls.cert` and `tls.key` need addresses that begin with rediss://")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("`tls.cert` and `tls.key` go together")
        return self


class RedisServer:
    """A server or a cluster: clients for it, and its errors. It pickles."""

    def __init__(self, options: RedisServerOptions) -> None:
        self._options = options
        self.addresses = ", ".join(map(without_password, options.addresses))

    def check_settings(self) -> None:
        """Raise a ConfigurationError for addresses that are not valid."""
        parse = load_client().connection.parse_url
        for address in self._options.addresses:
            try:
                parse(address)
            except ValueError as error:
                raise ConfigurationError(
                    f"`{without_password(address)}` is not the address of a Redis server: {error}",
                    hint="write it as redis://host:port",
                ) from None

    def connect(self, *, tries: bool = True) -> Any:
        """Return a client; without `tries` it does not retry commands."""
        redis, options = load_client(), self._options
        settings = {
            "username": options.username,
            "password": options.password,
            "socket_connect_timeout": CONNECT_SECONDS,
            "socket_timeout": ANSWER_SECONDS,
            "ssl_ca_certs": options.tls_ca,
            "ssl_certfile": options.tls_cert,
            "ssl_keyfile": options.tls_key,
        }
        settings = {name: value for name, value in settings.items() if value is not None}
        if all(address.startswith("rediss://") for address in options.addresses):
            settings["ssl_check_hostname"] = True  # clients before version 6 do not by themselves
        if not tries:
            settings["retry"] = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        if options.address:
            return redis.Redis.from_url(options.address, **settings)
        first, *further = options.addresses
        parsed = [redis.connection.parse_url(address) for address in further]
        nodes = [redis.cluster.ClusterNode(node["host"], node.get("port", 6379)) for node in parsed]
        return redis.RedisCluster.from_url(first, startup_nodes=nodes, **settings)

    def reach(self) -> str:
        """Return a line with the version of the server, or the size of the cluster."""
        try:
            with contextlib.closing(self.connect(tries=not self._options.address)) as client:
                if not self._options.address:
                    client.ping()
                    return f"a Redis cluster of {len(client.get_nodes())} servers at {self.addresses}"
                try:
                    return f"Redis {client.info('server')['redis_version']} at {self.addresses}"
                except load_client().exceptions.NoPermissionError:  # the login is good
                    return f"Redis at {self.addresses}"
        except client_errors() as error:
            raise self.failure(error) from None

    def with_retry(self, action: Callable[[], T]) -> T:
        """Run a function, with retries after transient errors: it must be repeatable.

        Raises an ExternalError for other errors, and for those that last longer than PATIENCE_SECONDS.
        """
        try:
            return with_retry(
                action,
                is_transient=is_transient,
                backoff=_BACKOFF,
                deadline=PATIENCE_SECONDS,
                waits_for=f"redis at {self.addresses}",
            )
        except client_errors() as error:
            raise self.failure(error) from None

    def failure(self, error: Exception) -> ExternalError:
        """Return an error of the client as an ExternalError with a hint."""
        errors, text = load_client().exceptions, str(error) or type(error).__name__
        if isinstance(error, (errors.AuthenticationError, errors.NoPermissionError)):
            return RefusedError(
                f"redis refuses access: {text}",
                hint="check `username`, `password` and the rights of the user",
                where=self.addresses,
            )
        if is_transient(error):
            return ExternalError(
                f"redis does not answer: {text}",
                hint="check the address, and that the server runs",
                where=self.addresses,
            )
        return ExternalError(f"redis refuses a command: {text}", where=self.addresses)


def client_errors() -> tuple[type[Exception], ...]:
    """Return the exception classes of the client for external failures."""
    errors = load_client().exceptions
    return (errors.RedisError, errors.RedisClusterException, OSError)


def is_transient(error: Exception) -> bool:
    """Whether retrying can help: servers restart, become writable, or have memory again."""
    errors = load_client().exceptions
    if isinstance(error, errors.AuthenticationError) or not isinstance(error, client_errors()):
        return False
    lost = (errors.ConnectionError, errors.TimeoutError, errors.RedisClusterException, OSError)
    # The client throws a WatchError also if it loses the connection while it watches a key.
    passing = (
        errors.ReadOnlyError,
        errors.TryAgainError,
        errors.ClusterError,
        errors.OutOfMemoryError,
        errors.WatchError,
    )
    return isinstance(error, (*lost, *passing)) or _TRANSIENT.search(str(error)) is not None


def load_client() -> Any:
    """Import the client's package; raises a MissingExtraError if it is not installed."""
    return load_extra(
        "redis",
        feature="the connector `redis`",
        extra="redis",
        package="redis",
        submodules=["backoff", "retry"],
    )
