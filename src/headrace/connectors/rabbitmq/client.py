"""The RabbitMQ client that the source and the sink share: connections and errors."""

from __future__ import annotations

import logging
import re
import ssl
from typing import Any, Self

from pydantic import Field, model_validator

from headrace.base.errors import ConfigurationError, ExternalError, RefusedError
from headrace.base.extras import load_extra
from headrace.base.options import Options as DeclaredOptions
from headrace.base.options import Secret
from headrace.connectors.base import Connector

PATIENCE_SECONDS = 60.0
"""How long a sink waits for a server that does not answer: servers restart."""
CONNECT_SECONDS, ANSWER_SECONDS = 10, 30
_HEARTBEAT_SECONDS = 60
_PORT, _TLS_PORT, _STREAM_PORTS = 5672, 5671, {5551, 5552}
_REFUSED, _NOT_FOUND, _NOT_ALLOWED = 403, 404, 530
_UNSAID, _SHUTS_DOWN, _INTERNAL_ERROR = 0, 320, 541
_TRANSIENT = {_UNSAID, _SHUTS_DOWN, _INTERNAL_ERROR}


class RabbitServerOptions(DeclaredOptions):
    """The server and the login."""

    host: str = Field(min_length=1, description="The name or address of the server.")
    port: int | None = Field(
        None, ge=1, le=65535, description="Its port for AMQP 0.9.1; by default 5672, with TLS 5671."
    )
    username: str = Field("guest", description="The user.")
    password: Secret = Field("guest", repr=False, description="The password of the user.")
    virtual_host: str = Field("/", description="The virtual host.")
    tls_enabled: bool = Field(
        default=False, alias="tls_config.enabled", description="Whether to connect through TLS."
    )
    tls_trust: bool = Field(
        default=False,
        alias="tls_config.trust_certificates",
        description="Whether any server certificate is accepted; for tests.",
    )
    tls_root: str | None = Field(
        None,
        alias="tls_config.root_certificates_path",
        description="A file with the CA certificates to trust.",
    )
    tls_cert: str | None = Field(
        None,
        alias="tls_config.client_certificates_path",
        description="A file with the client certificate.",
    )
    tls_key: str | None = Field(
        None,
        alias="tls_config.client_keys_path",
        description="A file with the key of the client certificate.",
    )
    load_balancer_mode: bool = Field(
        default=False, description="Whether the host is a load balancer: accepted, and not used."
    )

    @model_validator(mode="after")
    def _can_connect(self) -> Self:
        tls_options = (self.tls_trust, self.tls_root, self.tls_cert, self.tls_key)
        if any(tls_options) and not self.tls_enabled:
            raise ValueError("the options of `tls_config` need `tls_config.enabled` = true")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError(
                "`tls_config.client_certificates_path` and `tls_config.client_keys_path` go together"
            )
        return self


class RabbitServer:
    """A server: connections to it, and its errors. It pickles."""

    def __init__(self, options: RabbitServerOptions) -> None:
        self._options = options
        self._port = options.port or (_TLS_PORT if options.tls_enabled else _PORT)
        self.address = f"{options.host}:{self._port}"

    def check_settings(self) -> None:
        """Raise a ConfigurationError for certificates that cannot be read."""
        self.settings()

    def settings(self) -> Any:
        """Return the connection parameters of the client."""
        client, options = load_client(), self._options
        tls = None
        if options.tls_enabled:
            tls = client.SSLOptions(self._context(), options.host)
        return client.ConnectionParameters(
            options.host,
            self._port,
            options.virtual_host,
            client.PlainCredentials(options.username, options.password),
            heartbeat=_HEARTBEAT_SECONDS,
            blocked_connection_timeout=_HEARTBEAT_SECONDS,
            socket_timeout=CONNECT_SECONDS,
            stack_timeout=CONNECT_SECONDS,
            ssl_options=tls,
            client_properties={"connection_name": "headrace"},
        )

    def _context(self) -> ssl.SSLContext:
        options = self._options
        try:
            context = ssl.create_default_context(cafile=options.tls_root)
            if options.tls_cert:
                context.load_cert_chain(options.tls_cert, options.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"the certificates for RabbitMQ cannot be read: {error}",
                hint="see the options of `tls_config`",
            ) from None
        if options.tls_trust:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def connect(self) -> Any:
        """Return a new blocking connection; raises `client_errors`."""
        return load_client().BlockingConnection(self.settings())

    def failure(self, error: BaseException, *, of: str = "") -> ExternalError:
        """Return an error of the client as an ExternalError with a hint; `of` is the queue or exchange."""
        errors, code = load_client().exceptions, _code_of(error)
        text = str(getattr(error, "reply_text", "")) or str(error) or type(error).__name__
        if isinstance(error, errors.AuthenticationError) or code in {_REFUSED, _NOT_ALLOWED}:
            return RefusedError(
                f"RabbitMQ at {self.address} refuses access: {text}",
                hint="check `username`, `password`, `virtual_host` and the rights of the user",
                where="rabbitmq",
            )
        if code == _NOT_FOUND:
            return ExternalError(
                f"RabbitMQ at {self.address} has no {of}: {text}",
                hint="create it there, or correct the options",
                where="rabbitmq",
            )
        if isinstance(error, errors.NackError):
            message = f"RabbitMQ at {self.address}, {of}: the server could not keep a message"
            return ExternalError(message, where="rabbitmq")
        if code not in _TRANSIENT:
            return ExternalError(f"RabbitMQ at {self.address}, {of}: {text}", where="rabbitmq")
        cause = cause_of(error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return RefusedError(
                f"RabbitMQ at {self.address}: the certificate of the server is not trusted: {cause}",
                hint="name the file with the certificate to trust: `tls_config.root_certificates_path`",
                where="rabbitmq",
            )
        message = f"RabbitMQ at {self.address} does not answer: {text if code else cause}"
        return ExternalError(message, hint=self._what_to_check(cause), where="rabbitmq")

    def _what_to_check(self, cause: BaseException) -> str:
        if self._port in _STREAM_PORTS:
            return "streams are read with AMQP 0.9.1 here: leave out `port`, or give the one of AMQP"
        text, errors = str(cause), load_client().exceptions
        if isinstance(cause, (errors.ProbableAuthenticationError, errors.ProbableAccessDeniedError)):
            return "it may run no more, or refuse who asks: check `username`, `password` and `virtual_host`"
        if "WRONG_VERSION_NUMBER" in text:
            return "there seems to be no TLS at this port: check `port`, or leave out `tls_config.enabled`"
        if self._options.tls_enabled and ("SSL" in text or "reset by peer" in text):
            return (
                "the server may want to see a certificate, or another one: "
                "`tls_config.client_certificates_path` and `tls_config.client_keys_path`"
            )
        if "connection lost" in text:
            return "check `port`; if the server speaks TLS there, set `tls_config.enabled`"
        return "check `host` and `port`, and that the server runs"


class RabbitConnector(Connector):
    """What the source and the sink share: the connection to the server."""

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self.server = RabbitServer(self.options)

    def load_package(self) -> None:
        """Import the client's package."""
        load_client()

    def validate(self) -> None:
        """Raise an error if the client's package is missing or certificates cannot be read."""
        self.server.check_settings()


def client_errors() -> tuple[type[Exception], ...]:
    """Return the exception classes of the client for external failures."""
    return (load_client().exceptions.AMQPError, OSError)


def is_transient(error: Exception) -> bool:
    """Whether retrying can help: the server restarts or is full; it does not help after a refusal."""
    if not isinstance(error, client_errors()):
        return False
    return (
        not isinstance(error, load_client().exceptions.AuthenticationError) and _code_of(error) in _TRANSIENT
    )


def _code_of(error: BaseException) -> int:
    """Return the server's error code; before a connection is open, it is only in the message."""
    match = re.match(r"ConnectionClosedByBroker: \((\d+)\)", str(error))
    return int(match[1]) if match else getattr(error, "reply_code", _UNSAID)


def load_client() -> Any:
    """Import the client's package; raises a MissingExtraError if it is not installed."""
    client = load_extra(
        "pika",
        feature="the connector `rabbitmq`",
        extra="rabbitmq",
        package="pika",
        submodules=["exceptions"],
    )
    # What goes wrong is told where it matters; the client would log all of it, with tracebacks.
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    return client


def cause_of(error: BaseException) -> BaseException:
    """Return the innermost cause of an error, one of `client_errors`."""
    inner = error
    for _ in range(10):
        deeper = [*getattr(inner, "exceptions", ()), getattr(inner, "exception", None), *inner.args]
        causes = [cause for cause in deeper if isinstance(cause, BaseException)]
        if not causes:
            break
        inner = causes[-1]
    if isinstance(inner, client_errors()) and str(inner):
        return inner
    return OSError(str(inner) or type(inner).__name__)
