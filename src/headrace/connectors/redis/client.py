"""What the lookup and the sink of `redis` share: how servers are reached, and what their errors mean."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, PlainSerializer, model_validator

from headrace.base.errors import ConfigurationError, ExternalError
from headrace.base.extras import load_extra
from headrace.base.options import Names, Secret
from headrace.base.options import Options as DeclaredOptions
from headrace.base.retry import Backoff, with_retry

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""How long servers that do not answer are waited for: they restart."""
CONNECT_SECONDS, ANSWER_SECONDS = 10, 30
"""After this long without a connection, or an answer, it is tried again."""
_BACKOFF = Backoff(first=0.1, longest=2.0)
_PASSING = re.compile(
    "(?:^|of pipeline caused error: |discarded because of: )"
    "(?:BUSY|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|OOM|READONLY) "
)
"""How answers begin that pass and have no class in the client, or none if they end a transaction."""


def without_password(address: str) -> str:
    """The address of a server as it may be shown."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


Address = Annotated[str, PlainSerializer(without_password, return_type=str, when_used="json")]
"""An option that takes an address, and shows it without its password."""
Addresses = Annotated[
    Names,
    PlainSerializer(
        lambda given: list(map(without_password, given)), return_type=list[str], when_used="json"
    ),
]


class RedisServerOptions(DeclaredOptions):
    """The server or the cluster, and who asks."""

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
        description="A file with the certificates that those of servers must go back to.",
    )
    tls_cert: str | None = Field(
        None, alias="tls.cert", description="A file with the certificate that this side shows."
    )
    tls_key: str | None = Field(None, alias="tls.key", description="A file with the key of `tls.cert`.")

    @property
    def addresses(self) -> list[str]:
        """The server, or some servers of the cluster."""
        return self.cluster_addresses or ([self.address] if self.address else [])

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if bool(self.address) == bool(self.cluster_addresses):
            raise ValueError("it takes either `address` or `cluster.addresses`")
        given = (self.tls_ca, self.tls_cert, self.tls_key)
        if any(given) and not all(one.startswith("rediss://") for one in self.addresses):
            raise ValueError("`tls.ca`, `tls.cert` and `tls.key` need addresses that begin with rediss://")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("`tls.cert` and `tls.key` go together")
        return self


class RedisServer:
    """A server, or a cluster: clients for it, and what its errors mean. It pickles."""

    def __init__(self, options: RedisServerOptions) -> None:
        self._options = options
        self.shown = ", ".join(map(without_password, options.addresses))

    def check_settings(self) -> None:
        """Raise a ConfigurationError for addresses that are none."""
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
        """A client; without `tries` it sends nothing a second time by itself."""
        redis, options = load_client(), self._options
        given = {
            "username": options.username,
            "password": options.password,
            "socket_connect_timeout": CONNECT_SECONDS,
            "socket_timeout": ANSWER_SECONDS,
            "ssl_ca_certs": options.tls_ca,
            "ssl_certfile": options.tls_cert,
            "ssl_keyfile": options.tls_key,
        }
        given = {name: value for name, value in given.items() if value is not None}
        if not tries:
            given["retry"] = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        if options.address:
            return redis.Redis.from_url(options.address, **given)
        first, *others = options.addresses
        parsed = [redis.connection.parse_url(address) for address in others]
        nodes = [redis.cluster.ClusterNode(one["host"], one.get("port", 6379)) for one in parsed]
        return redis.RedisCluster.from_url(first, startup_nodes=nodes, **given)

    def reach(self) -> str:
        """The version of the server, or the size of the cluster."""
        try:
            client = self.connect()
            if self._options.address:
                return f"Redis {client.info('server')['redis_version']} at {self.shown}"
            client.ping()
            return f"a Redis cluster of {len(client.get_nodes())} servers at {self.shown}"
        except client_errors() as error:
            raise self.failure(error) from None

    def with_retry(self, action: Callable[[], T]) -> T:
        """Do something, again while its errors are transient, so it must be repeatable.

        Raises an ExternalError for other errors, and for those that last longer than PATIENCE_SECONDS.
        """
        try:
            return with_retry(action, is_transient=is_transient, backoff=_BACKOFF, deadline=PATIENCE_SECONDS)
        except client_errors() as error:
            raise self.failure(error) from None

    def failure(self, error: Exception) -> ExternalError:
        """What a person can make of an error of the client."""
        errors, text = load_client().exceptions, str(error) or type(error).__name__
        if isinstance(error, (errors.AuthenticationError, errors.NoPermissionError)):
            return ExternalError(
                f"redis refuses access: {text}",
                hint="check `username`, `password` and the rights of the user",
                where=self.shown,
            )
        if is_transient(error):
            return ExternalError(f"redis does not answer: {text}", where=self.shown)
        return ExternalError(f"redis refuses a command: {text}", where=self.shown)


def client_errors() -> tuple[type[Exception], ...]:
    """What the client throws for what is wrong outside."""
    errors = load_client().exceptions
    return (errors.RedisError, errors.RedisClusterException, OSError)


def is_transient(error: Exception) -> bool:
    """Whether trying again may help: servers restart, become writable, or have room again."""
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
    return isinstance(error, (*lost, *passing)) or _PASSING.search(str(error)) is not None


def load_client() -> Any:
    """The package of the client; raises a MissingExtraError if it is not installed."""
    return load_extra(
        "redis",
        feature="the connector `redis`",
        extra="redis",
        package="redis",
        submodules=["backoff", "retry"],
    )
