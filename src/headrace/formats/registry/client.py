"""Registries of schemas, Confluent's and those like it: messages name their schema by a number."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, model_validator

from headrace.base.errors import ConfigurationError, ExternalError
from headrace.base.options import Options, Secret
from headrace.formats._shared.wire import parts_of, without_first
from headrace.formats.base import LineError

PATIENCE_SECONDS = 20.0
"""How long a registry that does not answer is asked again."""

HEADER_BYTES = 5
"""A zero and the number of the schema, in front of every message."""

_ANSWER_SECONDS = 10
_NOT_THERE = range(40400, 40500)
"""What a registry says by `error_code` if it does not have a subject, a version or a schema."""
_MAY_PASS = {
    HTTPStatus.NOT_FOUND,  # without such a code it is of what stands before the registry
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
}
_TYPE = "application/vnd.schemaregistry.v1+json"

SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]


class RegistryOptions(Options):
    """Where schemas are registered, for connectors whose messages name them."""

    schema_registry_endpoint: str | None = Field(
        None,
        alias="schema_registry.endpoint",
        description="The address of a schema registry, such as `http://host:8081`; several with commas.",
    )
    schema_registry_api_key: Secret | None = Field(
        None, repr=False, alias="schema_registry.api_key", description="The user of the schema registry."
    )
    schema_registry_api_secret: Secret | None = Field(
        None, repr=False, alias="schema_registry.api_secret", description="The user's password there."
    )
    value_subject: str | None = Field(
        None,
        min_length=1,
        alias="value.subject",
        description="What the schema of the messages is registered as; by default `{topic}-value`.",
    )

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        for address in _addresses(self.schema_registry_endpoint or ""):
            if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
                raise ValueError(f"`schema_registry.endpoint` is an http or https address, got `{address}`")
        if (self.schema_registry_api_key is None) != (self.schema_registry_api_secret is None):
            raise ValueError("`schema_registry.api_key` and `schema_registry.api_secret` belong together")
        return self

    def registry_for(self, topic: str) -> SchemaRegistry | None:
        """The registry, for the messages of a topic; None if none is named."""
        if self.schema_registry_endpoint is None:
            return None
        return SchemaRegistry(
            self.schema_registry_endpoint,
            subject=self.value_subject or f"{topic}-value",
            key=self.schema_registry_api_key,
            secret=self.schema_registry_api_secret,
        )


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema of a registry, and those that it refers to, by name, each after those that it needs."""

    kind: SchemaType
    text: str
    references: Mapping[str, str] = field(default_factory=dict)


_KNOWN: dict[tuple[Any, ...], Any] = {}
"""What registries have told: what a number stands for never changes."""


@dataclass(frozen=True)
class SchemaRegistry:
    """The schemas of one subject, and any by number. It pickles; each process asks once for each."""

    endpoint: str
    subject: str
    key: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)

    def schema(self, number: int) -> RegisteredSchema:
        """The schema with this number; a LineError if there is none."""
        known = ("id", self.endpoint, number)
        if known not in _KNOWN:
            found = self._ask("GET", f"/schemas/ids/{number}")
            if found is None:
                raise LineError(
                    f"it names schema {number}, which the schema registry at {self.endpoint} does not have",
                    hint="check `schema_registry.endpoint`, and that the messages were written for it",
                )
            _KNOWN[known] = self._described(found)
        schema: RegisteredSchema = _KNOWN[known]
        return schema

    def latest(self) -> RegisteredSchema | None:
        """The newest schema of the subject; None if it has none."""
        found = self._ask("GET", f"/subjects/{_quoted(self.subject)}/versions/latest")
        return None if found is None else self._described(found)

    def wanted(self, kind: SchemaType) -> RegisteredSchema:
        """The newest schema of the subject, to find out the columns of its messages."""
        schema = self.latest()
        if schema is None or schema.kind != kind:
            what = "no schema" if schema is None else f"a schema of {schema.kind}"
            raise ConfigurationError(
                f"the schema registry at {self.endpoint} has {what} for `{self.subject}`",
                hint="declare the columns with the option `schema`, or set `value.subject`",
            )
        return schema

    def register(self, kind: SchemaType, text: str) -> int:
        """The number of a schema, which is registered for the subject if it is not yet."""
        known = ("text", self.endpoint, self.subject, kind, text)
        if known not in _KNOWN:
            body = {"schema": text} if kind == "AVRO" else {"schema": text, "schemaType": kind}
            found = self._ask("POST", f"/subjects/{_quoted(self.subject)}/versions", body)
            if found is None:
                raise ExternalError(
                    f"the schema registry at {self.endpoint} has no subjects to register schemas for",
                    hint="check the path in `schema_registry.endpoint`",
                    where="schema registry",
                )
            _KNOWN[known] = int(found["id"])
        number: int = _KNOWN[known]
        return number

    def _described(self, found: Mapping[str, Any]) -> RegisteredSchema:
        references: dict[str, str] = {}
        self._follow(found.get("references") or (), references)
        return RegisteredSchema(found.get("schemaType") or "AVRO", found["schema"], references)

    def _follow(self, references: Sequence[Mapping[str, Any]], into: dict[str, str]) -> None:
        for one in references:
            if one["name"] in into:
                continue
            place = f"/subjects/{_quoted(one['subject'])}/versions/{one['version']}"
            found = self._ask("GET", place)
            if found is None:
                raise ExternalError(
                    f"the schema registry at {self.endpoint} does not have version {one['version']} of "
                    f"`{one['subject']}`, which another schema refers to",
                    where="schema registry",
                )
            self._follow(found.get("references") or (), into)
            into[one["name"]] = found["schema"]

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer; None if what is asked for is not there. Asks again while the registry is silent."""
        deadline, pause = time.monotonic() + PATIENCE_SECONDS, 0.1
        while True:
            reason = ""
            for address in _addresses(self.endpoint):
                try:
                    return self._ask_one(method, address + path, body)
                except _SilentError as error:
                    reason = str(error)
            if time.monotonic() + pause > deadline:
                raise ExternalError(
                    f"the schema registry at {self.endpoint} does not answer: {reason}",
                    hint="check `schema_registry.endpoint`, and that the registry runs",
                    where="schema registry",
                )
            time.sleep(pause)
            pause = min(pause * 2, 2.0)

    def _ask_one(self, method: str, url: str, body: Any) -> Any:
        headers = {"Accept": f"{_TYPE}, application/json"}
        if self.key is not None:
            login = base64.b64encode(f"{self.key}:{self.secret}".encode()).decode()
            headers["Authorization"] = f"Basic {login}"
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), _TYPE
        # The options have made sure that it is an http address.
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310
        try:
            code, found = _answer(request)
        except (OSError, ValueError) as error:
            raise _SilentError(getattr(error, "reason", None) or error) from None
        except HTTPException as error:  # it was cut off, or is not HTTP
            raise _SilentError(repr(error)) from None
        if code >= HTTPStatus.BAD_REQUEST:
            return self._refused(code, found)
        wanted = "schema" if method == "GET" else "id"
        if wanted not in found:
            raise _SilentError(f"status {code} without `{wanted}`")
        return found

    def _refused(self, code: int, answer: Mapping[str, Any]) -> None:
        reason = str(answer.get("message") or f"status {code}")
        if answer.get("error_code") in _NOT_THERE:
            return
        if code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise ExternalError(
                f"the schema registry at {self.endpoint} refuses the user: {reason}",
                hint="check `schema_registry.api_key`, `schema_registry.api_secret` and the user's rights",
                where="schema registry",
            )
        if code == HTTPStatus.CONFLICT:
            raise ConfigurationError(
                f"the schema of the rows does not go with the earlier ones of `{self.subject}`: {reason}",
                hint="change the columns in a compatible way, or write to another `value.subject`",
            )
        if code < HTTPStatus.INTERNAL_SERVER_ERROR and code not in _MAY_PASS:
            raise ConfigurationError(f"the schema registry at {self.endpoint} refuses a request: {reason}")
        raise _SilentError(reason)


class _SilentError(Exception):
    """The registry did not answer, or not with an answer."""


def _answer(request: urllib.request.Request) -> tuple[int, dict[str, Any]]:
    """The status of an answer and its JSON object, which is empty if there is none."""
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310
            code, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            code, text = error.code, error.read()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return code, found if isinstance(found, dict) else {}


def _addresses(endpoint: str) -> list[str]:
    return [one.strip().rstrip("/") for one in endpoint.split(",") if one.strip()]


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def header(number: int) -> bytes:
    """What stands in front of a message whose schema has this number."""
    return b"\0" + number.to_bytes(4, "big")


def split_headers(messages: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    """The numbers of the messages' schemas, -1 where there is none, and the messages without them."""
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
)
