"""The HTTP client of the connectors: URLs, headers, certificates, checks of responses."""

from __future__ import annotations

import email.utils
import functools
import ipaddress
import logging
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from headrace.base.errors import ConfigurationError, ExternalError, RefusedError
from headrace.base.extras import load_extra
from headrace.base.options import Options as DeclaredOptions
from headrace.base.retry import Backoff
from headrace.connectors.base import Connector
from headrace.connectors.received import Inbox

CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 30.0
"""How long to wait for a connection, and for an answer."""
PATIENCE_SECONDS = 60.0
"""How long a sink retries without a connection or a good answer."""
_LONGEST_WAIT = 86_400.0
BACKOFF = Backoff(first=0.1, longest=10.0)
_REDIRECTS = 5
_EXCERPT, _DRAINED = 300, 65_536
_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_NEXT_HEADER = re.compile(rf"[,\n]\s*(?={_NAME}\s*:(?!//))")
_TRANSIENT = {408, 425, 429}
_PORTS: Mapping[str, int] = {"http": 80, "https": 443, "ws": 80, "wss": 443}


def _read_headers(value: Any) -> Any:
    # What cannot be read is told by the options as a whole: a refused value would be shown.
    if isinstance(value, Mapping):
        return {str(name).strip(): str(text).strip() for name, text in value.items()}
    if not isinstance(value, str):
        return {"": ""}
    pairs = [part.partition(":") for part in _NEXT_HEADER.split(value) if part.strip()]
    return {name.strip() if colon else "": text.strip() for name, colon, text in pairs}


Headers = Annotated[
    dict[str, str],
    BeforeValidator(_read_headers),
    PlainSerializer(
        lambda headers: dict.fromkeys(headers, "***"), return_type=dict[str, str], when_used="json"
    ),
]
"""An option that takes headers as a mapping or as `Name: value, Name: value`; values may be secrets."""


def display_address(endpoint: str) -> str:
    """Return an address without user, password and query.

    >>> display_address("https://me:secret@host:8443/path?key=secret#x")
    'https://host:8443/path'
    """
    parts = urlsplit(endpoint)
    return SplitResult(parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "").geturl()


Address = Annotated[str, PlainSerializer(display_address, return_type=str, when_used="json")]
"""An option that takes an address; its user, password and query are not displayed."""


class TlsOptions(DeclaredOptions):
    """The TLS options."""

    tls_ca: str | None = Field(
        None,
        alias="tls.ca",
        description="A file with the certificates to trust, instead of those of the system.",
    )
    tls_cert: str | None = Field(
        None, alias="tls.cert", description="A file with the client certificate, if the server asks for one."
    )
    tls_key: str | None = Field(
        None, alias="tls.key", description="A file with the key of `tls.cert`, unless it is in the same file."
    )

    @model_validator(mode="after")
    def _key_has_a_certificate(self) -> Self:
        if self.tls_key is not None and self.tls_cert is None:
            raise ValueError("`tls.key` needs `tls.cert`")
        return self

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS context; certificates are always checked."""
        return _tls_context(self.tls_ca, self.tls_cert, self.tls_key)


@functools.lru_cache(maxsize=16)
def _tls_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise _no_file("tls.ca", ca, error) from None
    if ca is None:
        with suppress(ImportError):
            import certifi

            context.load_verify_locations(certifi.where())  # for a system that has none of its own
    if cert is not None:
        try:
            context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            raise _no_file("tls.cert", cert, error) from None
    return context


def _no_file(option: str, path: str | None, error: Exception) -> ConfigurationError:
    reason = getattr(error, "strerror", None) or str(error)
    return ConfigurationError(
        f"option `{option}`: `{path}` cannot be read: {reason}", hint="it is the path of a PEM file"
    )


class EndpointOptions(TlsOptions):
    """The address of an endpoint, and the headers of requests."""

    SCHEMES: ClassVar[Sequence[str]] = ("http", "https")

    endpoint: Address = Field(repr=False, description="The address, such as https://host/path.")
    headers: Headers = Field(
        default={},
        repr=False,
        description="Headers of every request, as `Name: value, Name: value`; their values are never shown.",
    )

    @model_validator(mode="after")
    def _can_be_sent(self) -> Self:
        try:
            parts = urlsplit(self.endpoint)
            good = parts.scheme in self.SCHEMES and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good or re.search(r"\s", self.endpoint):
            raise ValueError(f"option `endpoint` is an address such as {self.SCHEMES[-1]}://host/path")
        for name, value in self.headers.items():
            if not re.fullmatch(_NAME, name):
                raise ValueError("option `headers` is written as `Name: value, Name: value`")
            if not value.isprintable():
                raise ValueError(
                    f"option `headers`: the value of `{name}` has a character that cannot be sent"
                )
        return self

    @property
    def address(self) -> str:
        """Return the endpoint without user, password and query."""
        return display_address(self.endpoint)

    @property
    def is_local(self) -> bool:
        """Whether the endpoint is on this machine, so that no proxy is used."""
        return is_loopback(urlsplit(self.endpoint).hostname or "")

    def hide(self, text: str) -> str:
        """Remove the values of headers from a message of the server."""
        for value in self.headers.values():
            for secret in (value, value.rpartition(" ")[2]):
                if len(secret) >= 4:
                    text = text.replace(secret, "***")
        return text


class EndpointConnector(Connector):
    """The base of sources and sinks with an endpoint."""

    label: ClassVar[str]
    """The connector's name."""

    @property
    def address(self) -> str:
        """Return the endpoint, without secrets."""
        address: str = self.options.address
        return address

    def load_client(self) -> None:
        """Import the client's package."""
        load_client(self.label)

    def load_package(self) -> None:
        """Import the client's package."""
        self.load_client()

    def validate(self) -> None:
        """Raise an error if the client's package is missing or certificates cannot be read."""
        super().validate()
        self.load_client()
        self.options.tls_context()

    def display(self) -> str:
        """Return the endpoint, without secrets."""
        return f"{type(self).__name__}({self.address})"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine.

    >>> is_loopback("localhost"), is_loopback("127.0.0.5"), is_loopback("example.com")
    (True, True, False)
    """
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_client(connector: str) -> Any:
    """Import the HTTP client's package."""
    client = load_extra("httpx", feature=f"the connector `{connector}`", extra="http", package="httpx")
    quieten("httpx")
    return client


def quieten(name: str) -> None:
    """Silence the request log of a client: it has addresses and headers."""
    log = logging.getLogger(name)
    if log.level < logging.WARNING:
        log.setLevel(logging.WARNING)


def connect(options: EndpointOptions, connector: str, *, connections: int = 1, patient: bool = False) -> Any:
    """Return a client with the headers of the options; `patient` reads a response without a timeout."""
    httpx = load_client(connector)
    headers = {"User-Agent": "headrace", **options.headers}
    return httpx.Client(
        headers=[(name.encode(), value.encode()) for name, value in headers.items()],
        verify=options.tls_context(),
        trust_env=not options.is_local,
        timeout=httpx.Timeout(
            ANSWER_SECONDS, connect=CONNECT_SECONDS, read=None if patient else ANSWER_SECONDS
        ),
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
    )


@contextmanager
def ask(
    client: Any,
    options: EndpointOptions,
    connector: str,
    method: str = "GET",
    *,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    follow: bool = True,
) -> Iterator[Any]:
    """Send a request, and return the response with an unread body; raises an ExternalError.

    With `follow` a redirect is followed if it stays on the origin, or only adds TLS: headers may be secrets.
    """
    httpx = load_client(connector)
    request_headers = [(name.encode(), value.strip().encode()) for name, value in (headers or {}).items()]
    try:
        request = client.build_request(method, options.endpoint, content=content, headers=request_headers)
        response = client.send(request, stream=True)
        for _ in range(_REDIRECTS):
            again = response.next_request
            if not follow or again is None or not is_same_origin(str(request.url), str(again.url)):
                break
            response.close()
            request, response = again, client.send(again, stream=True)
        try:
            yield response
        finally:
            response.close()
    except httpx.HTTPError as error:
        raise no_answer(error, options.address, connector) from None


def is_same_origin(old: str, new: str) -> bool:
    """Whether an address has the scheme, host and port of another, or only adds TLS on the usual ports.

    >>> is_same_origin("http://host/a", "http://host:80/b"), is_same_origin("http://host/a", "https://host/a")
    (True, True)
    >>> is_same_origin("https://host/a", "http://host/a"), is_same_origin("http://host", "http://host:81")
    (False, False)
    """
    before, after = _origin(old), _origin(new)
    scheme, host, port = before
    upgraded = ({"http": "https", "ws": "wss"}.get(scheme), host, 443)
    return after == before or (port == 80 and after == upgraded)


def _origin(address: str) -> tuple[str, str, int | None]:
    parts = urlsplit(address)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)


def elsewhere(
    status: str, location: str | None, *, where: str, answered_before: bool = False
) -> ExternalError:
    """Return the error for a redirect that is not followed."""
    message = status if location is None else f"{status}, to {display_address(location)}"
    kind = ExternalError if answered_before else RefusedError
    return kind(message, hint="write the new address as `endpoint`", where=where)


def no_answer(error: Exception, where: str, connector: str) -> ExternalError:
    """Return the error for a request without a response."""
    text = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text or isinstance(error, ssl.SSLCertVerificationError):
        return RefusedError(
            f"{connector}: the certificate of the server is not trusted: {text}",
            hint="name the file of the certificate to trust with `tls.ca`",
            where=where,
        )
    return ExternalError(
        f"{connector} does not answer: {text}",
        hint="check the address, and that the server runs",
        where=where,
    )


def check_answer(
    response: Any, options: EndpointOptions, connector: str, *, answered_before: bool = False
) -> None:
    """Raise an error unless the status of a response is 2xx.

    An ExternalError can be retried, a RefusedError cannot. If the server answered well before
    (`answered_before`), every error can be retried: it may be restarting.
    """
    code = response.status_code
    if 200 <= code < 300:
        return
    if 300 <= code < 400:
        location = response.headers.get("Location")
        raise elsewhere(
            f"{connector} is sent elsewhere: {code} {response.reason_phrase}",
            str(response.url.join(location)) if location else None,
            where=options.address,
            answered_before=answered_before,
        )
    text = options.hide(beginning(response))
    message = f"{connector} is answered {code} {response.reason_phrase}".rstrip() + (
        f": {text}" if text else ""
    )
    if code in _TRANSIENT or code >= 500 or answered_before:
        raise ExternalError(message, where=options.address)
    hint = "check the option `endpoint`"
    if code in {401, 403, 407}:
        hint = "check the option `headers`: the server wants to know who asks, such as by `Authorization`"
    raise RefusedError(message, hint=hint, where=options.address)


def ask_options(options: EndpointOptions, connector: str) -> str:
    """Send OPTIONS, which changes nothing, and return a line about the response.

    Raises a RefusedError if the login is wrong. Any other answer is one: many servers have no OPTIONS, and
    some refuse it to everybody with 403.
    """
    with (
        connect(options, connector) as client,
        ask(client, options, connector, "OPTIONS", follow=False) as response,
    ):
        if response.status_code in {401, 407}:
            check_answer(response, options, connector)
        return f"{options.address} answers {response.status_code} to OPTIONS"


def check_source_answer(response: Any, options: EndpointOptions, connector: str, inbox: Inbox) -> None:
    """Like `check_answer`, for a source; waits for the time in Retry-After before it raises."""
    try:
        check_answer(response, options, connector, answered_before=inbox.contacts > 0)
    except ExternalError:
        wait = retry_after(response)
        inbox.extend_patience(wait)
        inbox.closed.wait(wait)
        raise


def beginning(response: Any) -> str:
    """Return the beginning of a response as one line."""
    httpx = load_client("http")
    with suppress(httpx.HTTPError):
        text = b""
        for part in response.iter_bytes():
            text += part
            if len(text) > 4 * _EXCERPT:
                break
        line = " ".join(text.decode("utf-8", "replace").split())
        return line if len(line) <= _EXCERPT else line[:_EXCERPT] + "…"
    return ""


def read_body(response: Any, most: int, options: EndpointOptions, connector: str) -> bytes:
    """Return the uncompressed body of a response; raises a RefusedError above `most` bytes."""
    body = bytearray()
    for part in response.iter_bytes():
        body += part
        if len(body) > most:
            raise RefusedError(
                f"{connector} is answered with more than {most} bytes",
                hint="allow more with `max_body_size`, or ask for less",
                where=options.address,
            )
    return bytes(body)


def drain(response: Any) -> None:
    """Read the rest of a short response, so that its connection can be reused."""
    size = 0
    for part in response.iter_raw():
        size += len(part)
        if size > _DRAINED:
            break


def retry_after(response: Any) -> float:
    """Return the seconds of Retry-After; 0 if there is none."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), _LONGEST_WAIT)
    try:
        date = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return 0.0
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return min(max(0.0, date.timestamp() - time.time()), _LONGEST_WAIT)


def socket_of(response: Any) -> socket.socket | None:
    """Return the socket of a response."""
    stream = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    return connection if isinstance(connection, socket.socket) else None


def hang_up(connection: socket.socket) -> None:
    """Shut down a connection that another thread may be reading from."""
    with suppress(OSError):
        # Not the method of a TLS socket, which takes away what the other thread works with.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def keep_alive(connection: socket.socket) -> None:
    """Enable TCP keepalive, so that a dead connection is noticed within two minutes."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
