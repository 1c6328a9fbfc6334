"""A client for schema registries with Confluent's API: messages start with the id of their schema."""

from __future__ import annotations

import json
import logging
import ssl
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, model_validator

from headrace.base.errors import ConfigurationError, ExternalError, RefusedError
from headrace.base.extras import load_extra
from headrace.base.options import Options, Secret
from headrace.base.retry import Backoff, with_retry
from headrace.formats._shared.wire import parts_of, without_first
from headrace.formats.base import LineError

PATIENCE_SECONDS = 20.0
"""How long to retry a registry that does not answer."""

MISSING_SECONDS = 1.0
"""How long a registry is not asked again for a schema that it does not have."""

HEADER_BYTES = 5
"""The header of every message: a zero and the schema id."""

_BACKOFF = Backoff(first=0.1, longest=2.0)
_TIMEOUT_SECONDS = 10
_NOT_FOUND_CODES = range(40400, 40500)
"""The `error_code` of a missing subject, version or schema."""
_TRANSIENT_STATUSES = {
    HTTPStatus.NOT_FOUND,  # without such a code it comes from a proxy or gateway before the registry
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
}
_TYPE = "application/vnd.schemaregistry.v1+json"

SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]


class RegistryOptions(Options):
    """The options of a schema registry."""

    schema_registry_endpoint: str | None = Field(
        None,
        alias="schema_registry.endpoint",
        description="The address of a schema registry, such as `http://host:8081`; several comma-separated.",
    )
    schema_registry_api_key: Secret | None = Field(
        None, repr=False, alias="schema_registry.api_key", description="The API key (user name)."
    )
    schema_registry_api_secret: Secret | None = Field(
        None, repr=False, alias="schema_registry.api_secret", description="The API secret (password)."
    )
    value_subject: str | None = Field(
        None,
        min_length=1,
        alias="value.subject",
        description="The subject of the schema; by default `{topic}-value`.",
    )

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        for address in _addresses(self.schema_registry_endpoint or ""):
            parts = urllib.parse.urlsplit(address)
            if parts.scheme not in ("http", "https"):
                raise ValueError(f"`schema_registry.endpoint` is an http or https address, got `{address}`")
            if "@" in parts.netloc:
                raise ValueError(
                    "`schema_registry.endpoint` is an address without a user: name the user and the password "
                    "with `schema_registry.api_key` and `schema_registry.api_secret`"
                )
        if (self.schema_registry_api_key is None) != (self.schema_registry_api_secret is None):
            raise ValueError("`schema_registry.api_key` and `schema_registry.api_secret` belong together")
        return self

    def registry_for(self, topic: str) -> SchemaRegistry | None:
        """Return the registry for the messages of a topic; None if there is none."""
        if self.schema_registry_endpoint is None:
            return None
        _load_httpx()  # a missing package is told before anything runs
        return SchemaRegistry(
            self.schema_registry_endpoint,
            subject=self.value_subject or f"{topic}-value",
            key=self.schema_registry_api_key,
            secret=self.schema_registry_api_secret,
        )


@dataclass(frozen=True)
class RegisteredSchema:
    """A registered schema, and the schemas that it references, by name, in order of dependency."""

    kind: SchemaType
    text: str
    references: Mapping[str, str] = field(default_factory=dict)


_CACHE: dict[tuple[Any, ...], Any] = {}
"""Schemas by id, and ids by schema: the schema of an id never changes."""
_MISSING: dict[tuple[Any, ...], float] = {}
"""Until when a registry is not asked again for the schema of an id, which it does not have."""


@dataclass(frozen=True)
class SchemaRegistry:
    """The schemas of one subject, and any schema by id, cached in each process. It pickles."""

    endpoint: str
    subject: str
    key: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)

    def schema(self, number: int) -> RegisteredSchema:
        """Return the schema with this id; raises a LineError if there is none."""
        cache_key = ("id", self.endpoint, number)
        if cache_key not in _CACHE:
            for key in [key for key, end in _MISSING.items() if end <= time.monotonic()]:
                del _MISSING[key]
            answer = None if cache_key in _MISSING else self._request("GET", f"/schemas/ids/{number}")
            if answer is None:
                _MISSING.setdefault(cache_key, time.monotonic() + MISSING_SECONDS)
                raise LineError(
                    f"it names schema {number}, which the schema registry at {self.endpoint} does not have",
                    hint="check `schema_registry.endpoint`, and that the messages were written for it",
                    fault="unknown-schema",
                )
            _CACHE[cache_key] = self._registered(answer)
        schema: RegisteredSchema = _CACHE[cache_key]
        return schema

    def latest(self) -> RegisteredSchema | None:
        """Return the latest schema of the subject; None if it has none."""
        answer = self._request("GET", f"/subjects/{_quoted(self.subject)}/versions/latest")
        return None if answer is None else self._registered(answer)

    def latest_of_kind(self, kind: SchemaType) -> RegisteredSchema:
        """Return the latest schema of the subject, to find the columns of its messages."""
        schema = self.latest()
        if schema is None or schema.kind != kind:
            what = "no schema" if schema is None else f"a schema of {schema.kind}"
            raise ConfigurationError(
                f"the schema registry at {self.endpoint} has {what} for `{self.subject}`",
                hint="declare the columns with the option `schema`, or set `value.subject`",
            )
        return schema

    def register(self, kind: SchemaType, text: str) -> int:
        """Return the id of a schema, which is registered for the subject if needed."""
        cache_key = ("text", self.endpoint, self.subject, kind, text)
        if cache_key not in _CACHE:
            body = {"schema": text} if kind == "AVRO" else {"schema": text, "schemaType": kind}
            answer = self._request("POST", f"/subjects/{_quoted(self.subject)}/versions", body)
            if answer is None:
                raise ExternalError(
                    f"the schema registry at {self.endpoint} has no subjects to register schemas for",
                    hint="check the path in `schema_registry.endpoint`",
                    where="schema registry",
                )
            _CACHE[cache_key] = int(answer["id"])
        number: int = _CACHE[cache_key]
        return number

    def _registered(self, answer: Mapping[str, Any]) -> RegisteredSchema:
        references: dict[str, str] = {}
        self._add_references(answer, references)
        return RegisteredSchema(answer.get("schemaType") or "AVRO", answer["schema"], references)

    def _add_references(self, answer: Mapping[str, Any], texts: dict[str, str]) -> None:
        """Add the schemas that a schema references, in order of dependency."""
        references: Sequence[Mapping[str, Any]] = answer.get("references") or ()
        for reference in references:
            name, subject, version = reference["name"], reference["subject"], reference["version"]
            if name in texts:
                continue
            referred = self._request("GET", f"/subjects/{_quoted(subject)}/versions/{version}")
            if referred is None:
                raise ExternalError(
                    f"the schema registry at {self.endpoint} does not have version {version} of "
                    f"`{subject}`, which another schema refers to",
                    where="schema registry",
                )
            self._add_references(referred, texts)
            texts[name] = referred["schema"]

    def reach(self) -> None:
        """Ask once for the last schema of the subject, which need not be there; raises an ExternalError."""
        self._request("GET", f"/subjects/{_quoted(self.subject)}/versions/latest", patience=0)

    def _request(self, method: str, path: str, body: Any = None, *, patience: float | None = None) -> Any:
        """Send a request, and return the response; None if the registry does not have it.

        Tries all addresses, with retries for PATIENCE_SECONDS while none of them answers.
        """
        httpx = _load_httpx()
        auth = None if self.key is None else httpx.BasicAuth(self.key, self.secret)
        try:
            with _open_client(httpx, auth) as client:
                return with_retry(
                    lambda: self._request_from_any(client, method, path, body),
                    is_transient=lambda error: isinstance(error, _UnavailableError),
                    backoff=_BACKOFF,
                    deadline=PATIENCE_SECONDS if patience is None else patience,
                    waits_for=f"the schema registry at {self.endpoint}",
                )
        except _UnavailableError as error:
            raise ExternalError(
                f"the schema registry at {self.endpoint} does not answer: {error}",
                hint="check `schema_registry.endpoint`, and that the registry runs",
                where="schema registry",
            ) from None

    def _request_from_any(self, client: Any, method: str, path: str, body: Any) -> Any:
        unavailable = _UnavailableError("it has no address")
        for address in _addresses(self.endpoint):
            try:
                return self._request_from(client, method, address + path, body)
            except _UnavailableError as error:
                unavailable = error
        raise unavailable

    def _request_from(self, client: Any, method: str, url: str, body: Any) -> Any:
        httpx = _load_httpx()
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": _TYPE}
        try:
            response = client.request(method, url, content=content, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _UnavailableError(str(error) or type(error).__name__) from None
        answer = _json_object(response.content)
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            return self._check_refusal(response.status_code, answer)
        member = "schema" if method == "GET" else "id"
        if member not in answer:
            raise _UnavailableError(f"status {response.status_code} without `{member}`")
        return answer

    def _check_refusal(self, status: int, answer: Mapping[str, Any]) -> None:
        """Return for a missing subject, version or schema; raise every other error."""
        reason = str(answer.get("message") or f"status {status}")
        if answer.get("error_code") in _NOT_FOUND_CODES:
            return
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise RefusedError(
                f"the schema registry at {self.endpoint} refuses the user: {reason}",
                hint="check `schema_registry.api_key`, `schema_registry.api_secret` and the user's rights",
                where="schema registry",
            )
        if status == HTTPStatus.CONFLICT:
            raise ConfigurationError(
                f"the schema of the rows does not go with the earlier ones of `{self.subject}`: {reason}",
                hint="change the columns in a compatible way, or write to another `value.subject`",
            )
        if status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _TRANSIENT_STATUSES:
            raise ConfigurationError(f"the schema registry at {self.endpoint} refuses a request: {reason}")
        raise _UnavailableError(reason)


class _UnavailableError(Exception):
    """Raised if the registry does not answer, or the answer is not a registry's."""


def _load_httpx() -> Any:
    httpx = load_extra("httpx", feature="a schema registry", extra="registry", package="httpx")
    log = logging.getLogger("httpx")
    if log.level < logging.WARNING:
        log.setLevel(logging.WARNING)  # it logs every request
    return httpx


def _open_client(httpx: Any, auth: Any) -> Any:
    """Return a client with the system's certificates and the proxies of the environment.

    It follows redirects, without user and password if one leads to another origin.
    """
    try:
        return httpx.Client(
            auth=auth,
            headers={"User-Agent": "headrace", "Accept": f"{_TYPE}, application/json"},
            verify=ssl.create_default_context(),
            timeout=_TIMEOUT_SECONDS,
            follow_redirects=True,
        )
    except (ImportError, ValueError) as error:
        raise ConfigurationError(
            f"the proxy that the environment names cannot be used for the schema registry: {error}",
            hint="correct HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or name the registry's host in NO_PROXY",
        ) from None


def _json_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object of a response, empty if there is none."""
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _addresses(endpoint: str) -> list[str]:
    return [address.strip().rstrip("/") for address in endpoint.split(",") if address.strip()]


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def header(number: int) -> bytes:
    """Return the header of a message with this schema id."""
    return b"\0" + number.to_bytes(4, "big")


def split_headers(messages: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    """Return the schema ids of messages, -1 where there is none, and the messages without headers."""
    data, offsets = parts_of(messages)
    long = np.diff(offsets) >= HEADER_BYTES
    numbers = np.full(len(messages), -1, np.int64)
    heads = data[offsets[:-1][long, None] + np.arange(HEADER_BYTES)].astype(np.int64)
    values = heads[:, 1] << 24 | heads[:, 2] << 16 | heads[:, 3] << 8 | heads[:, 4]
    numbers[long] = np.where(heads[:, 0] == 0, values, -1)
    return numbers, without_first(messages, HEADER_BYTES)


NO_HEADER = LineError(
    "it does not begin as messages do that name their schema: with a zero and four more bytes",
    hint="if the messages have no schema in a registry, leave out `confluent_schema_registry`",
    fault="unknown-schema",
)
