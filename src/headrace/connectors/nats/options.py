"""The options of `nats`: servers, login and what to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import pyarrow as pa
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from headrace.base.options import Duration, Names, Secret, Size
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors._shared.messages import Bounded, MessageOptions

METADATA: Mapping[str, pa.DataType] = {"subject": pa.string(), "sequence": pa.int64()}
"""What METADATA FROM can name, with the type of the column."""

_NOT_USED = "accepted, and not used: the checkpoint knows what was read."


def without_password(address: str) -> str:
    """Return the address of a server without its password."""
    scheme, separator, rest = address.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


Servers = Annotated[
    Names,
    PlainSerializer(
        lambda addresses: list(map(without_password, addresses)), return_type=list[str], when_used="json"
    ),
]
"""An option that takes addresses, and displays them without passwords."""


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class NatsServerOptions(DeclaredOptions):
    """The servers and the login."""

    servers: Servers = Field(
        min_length=1,
        repr=False,
        description="Servers to connect to, comma-separated, such as `nats://host:4222,nats://other:4222`.",
    )
    auth_type: Annotated[Literal["none", "credentials", "jwt", "nkey"], BeforeValidator(_lower)] = Field(
        "none",
        alias="auth.type",
        description="How to log in: `none`, `credentials` (user and password), `jwt` or `nkey`.",
    )
    auth_username: str | None = Field(None, alias="auth.username", description="With credentials: the user.")
    auth_password: Secret | None = Field(
        None, repr=False, alias="auth.password", description="With credentials: the password."
    )
    auth_jwt: Secret | None = Field(
        None, repr=False, alias="auth.jwt", description="With jwt: the token of the user."
    )
    auth_nkey_seed: Secret | None = Field(
        None, repr=False, alias="auth.nkey_seed", description="With jwt and nkey: the seed of the user's key."
    )
    tls_ca: str | None = Field(
        None,
        alias="tls.ca",
        description="A file with the CA certificates to trust.",
    )
    tls_cert: str | None = Field(None, alias="tls.cert", description="A file with the client certificate.")
    tls_key: str | None = Field(None, alias="tls.key", description="A file with the key of `tls.cert`.")

    @model_validator(mode="after")
    def _can_log_in(self) -> Self:
        values = {
            "auth.username": self.auth_username,
            "auth.password": self.auth_password,
            "auth.jwt": self.auth_jwt,
            "auth.nkey_seed": self.auth_nkey_seed,
        }
        required = {
            "none": (),
            "credentials": ("auth.username", "auth.password"),
            "jwt": ("auth.jwt", "auth.nkey_seed"),
            "nkey": ("auth.nkey_seed",),
        }
        for name, value in values.items():
            if name in required[self.auth_type] and not value:
                raise ValueError(f"`auth.type` = '{self.auth_type}' needs `{name}`")
            if name not in required[self.auth_type] and value:
                kinds = " or ".join(f"'{kind}'" for kind, names in required.items() if name in names)
                raise ValueError(f"`{name}` needs `auth.type` = {kinds}")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("`tls.cert` and `tls.key` go together")
        return self


def _capital(value: Any) -> Any:
    return value.capitalize() if isinstance(value, str) else value


class NatsSourceOptions(NatsServerOptions, MessageOptions):
    """What to read, and where to start."""

    METADATA: ClassVar = METADATA

    stream: str | None = Field(
        None, min_length=1, description="The JetStream stream to read; instead of `subject`."
    )
    subject: str | None = Field(
        None,
        min_length=1,
        description="The subject of core NATS to subscribe to, such as `orders.*`; instead of `stream`.",
    )
    source_offset: Literal["earliest", "latest"] = Field(
        "earliest",
        alias="source.offset",
        description="Where a new pipeline starts in a stream: `earliest`, or `latest` for new messages only.",
    )
    source_bounded: Bounded = False
    source_lost_messages: Literal["fail", "skip"] = Field(
        "fail",
        alias="source.lost_messages",
        description="What to do if messages were dropped before they were read: end the run, or continue.",
    )
    consumer_description: str | None = Field(
        None, alias="consumer.description", description="The description of the consumers."
    )
    consumer_filter_subjects: Names = Field(
        default=[], alias="consumer.filter_subjects", description="Only messages of these subjects are read."
    )
    consumer_num_replicas: int = Field(
        1, ge=1, le=5, alias="consumer.num_replicas", description="The number of replicas of a consumer."
    )
    consumer_inactive_threshold: Duration = Field(
        "10m",
        validate_default=True,
        alias="consumer.inactive_threshold",
        description="How long the servers keep an inactive consumer.",
    )
    consumer_max_batch: int = Field(
        10_000, ge=1, alias="consumer.max_batch", description="The most messages in one request."
    )
    consumer_max_bytes: Size = Field(
        104_857_600, ge=1, alias="consumer.max_bytes", description="The most bytes in one request."
    )
    consumer_replay_policy: Annotated[Literal["Instant", "Original"], BeforeValidator(_capital)] = Field(
        "Instant", alias="consumer.replay_policy", description="Only `Instant`: as fast as possible."
    )
    consumer_ack_policy: Annotated[Literal["Explicit", "None", "All"], BeforeValidator(_capital)] = Field(
        "Explicit", alias="consumer.ack_policy", description=f"When messages are done: {_NOT_USED}"
    )
    consumer_ack_wait: Duration = Field(
        "30s",
        validate_default=True,
        alias="consumer.ack_wait",
        description=f"When a message is sent again: {_NOT_USED}",
    )
    consumer_sample_frequency: int = Field(
        0,
        alias="consumer.sample_frequency",
        description="Sampling of acknowledgements: accepted, and not used.",
    )
    consumer_rate_limit: int = Field(
        -1, alias="consumer.rate_limit", description="Bits per second: accepted, and not used."
    )
    consumer_max_ack_pending: int = Field(
        -1, alias="consumer.max_ack_pending", description=f"Messages that are not done: {_NOT_USED}"
    )
    consumer_max_deliver: int = Field(
        -1, alias="consumer.max_deliver", description=f"How often a message is sent again: {_NOT_USED}"
    )
    consumer_max_waiting: int = Field(
        1_000_000, alias="consumer.max_waiting", description="Waiting requests: accepted, and not used."
    )
    consumer_max_expires: int = Field(
        300_000, alias="consumer.max_expires", description="How long a request waits: accepted, and not used."
    )
    metadata: Mapping[str, str] = Field(
        default={}, description=f"Column → what of a message it holds: {', '.join(METADATA)}."
    )

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        if (self.stream is None) == (self.subject is None):
            raise ValueError("it takes either `stream` or `subject`")
        if self.stream is not None and not set(self.stream).isdisjoint(" \t.*>/\\"):
            raise ValueError(f"`{self.stream}` is not the name of a stream")
        if self.subject is not None:
            for name in (
                "source_bounded",
                "source_offset",
                "source_lost_messages",
                "consumer_filter_subjects",
            ):
                if name in self.model_fields_set:
                    alias = type(self).model_fields[name].alias
                    raise ValueError(f"`{alias}` needs `stream`: a subject keeps nothing")
        if self.consumer_replay_policy != "Instant":
            raise ValueError(
                "`consumer.replay_policy` = 'Original' is not supported: event time is in the messages"
            )
        return self
