"""The options of Kafka's connectors: the cluster, the login, the topic, and where and what a source reads."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import pyarrow as pa
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from headrace.base.options import Options as DeclaredOptions
from headrace.base.options import Secret, read_settings
from headrace.connectors._shared.messages import Bounded, MessageOptions
from headrace.connectors.base import parse_instant
from headrace.connectors.kafka.client import Partition, Settings
from headrace.connectors.kafka.upsert import INDEX, UpsertOptions
from headrace.formats.options import FormatOptions
from headrace.formats.registry.client import RegistryOptions, SchemaRegistry

METADATA: Mapping[str, pa.DataType] = {
    "offset_id": pa.int64(),
    "partition": pa.int32(),
    "topic": pa.string(),
    "timestamp": pa.int64(),
    "key": pa.binary(),
    "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
}
"""What METADATA FROM can name, with the type of the column."""
HEADER = "headers."
"""What METADATA FROM names one header with: `headers.trace-id`."""

OWN_SETTINGS: Mapping[str, str] = {
    "bootstrap.servers": "bootstrap_servers",
    "enable.auto.commit": "source.group_id",
    "enable.partition.eof": "source.bounded",
    "group.id": "source.group_id",
    "isolation.level": "source.read_mode",
    "auto.offset.reset": "source.offset",
    "transactional.id": "sink.commit_mode",
    "enable.idempotence": "sink.commit_mode",
    "delivery.report.only.error": "sink.commit_mode",
}
"""Settings of the client that Headrace sets itself, and the option to use instead."""


ClientSettings = Annotated[
    dict[str, str],
    BeforeValidator(read_settings),
    PlainSerializer(
        lambda settings: dict.fromkeys(settings, "***"), return_type=dict[str, str], when_used="json"
    ),
]
"""An option that takes settings as a mapping or as `name=value,name=value`; values may be secrets."""


class ClusterOptions(RegistryOptions, FormatOptions):
    """A Kafka cluster and the format of the messages."""

    bootstrap_servers: str = Field(
        min_length=1,
        description="Brokers to connect to first, comma-separated, such as `host:9092,other:9092`.",
    )
    client_configs: ClientSettings = Field(
        default={},
        repr=False,
        description="Further settings of the client (librdkafka), as `name=value,name=value`.",
    )

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        for name in self.client_configs:
            if name in OWN_SETTINGS:
                raise ValueError(
                    f"`client_configs` may not set `{name}`: see the option `{OWN_SETTINGS[name]}`"
                )
        return self

    def login(self) -> Settings:
        """Return the client settings for the login."""
        return {}

    def settings(self) -> Settings:
        """Return the settings that every client of this cluster has."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": "headrace",
            "log_level": 2,  # errors are told where they matter; librdkafka would print them
            **self.login(),
            **self.client_configs,
        }


class TopicOptions(ClusterOptions):
    """A Kafka topic and the format of its messages."""

    topic: str = Field(min_length=1, description="The topic to write.")

    def registry(self) -> SchemaRegistry | None:
        """The schema registry for the topic's messages."""
        return self.registry_for(self.topic)


class LoginOptions(DeclaredOptions):
    """The login options of `kafka`."""

    auth_type: Literal["none", "sasl", "aws_msk_iam"] = Field(
        "none", alias="auth.type", description="How to log in: `none`, or `sasl` with user and password."
    )
    auth_mechanism: str | None = Field(
        None, alias="auth.mechanism", description="With sasl: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."
    )
    auth_protocol: str | None = Field(
        None, alias="auth.protocol", description="With sasl: SASL_SSL or SASL_PLAINTEXT."
    )
    auth_username: str | None = Field(None, alias="auth.username", description="With sasl: the user.")
    auth_password: Secret | None = Field(
        None, repr=False, alias="auth.password", description="With sasl: the password."
    )
    auth_region: str | None = Field(
        None, alias="auth.region", description="For aws_msk_iam, which is not supported."
    )

    @model_validator(mode="after")
    def _can_log_in(self) -> Self:
        if self.auth_type == "aws_msk_iam":
            raise ValueError("`auth.type` = 'aws_msk_iam' is not supported: use `sasl` with SCRAM-SHA-512")
        details = {
            "auth.mechanism": self.auth_mechanism,
            "auth.protocol": self.auth_protocol,
            "auth.username": self.auth_username,
            "auth.password": self.auth_password,
        }
        for name, value in details.items():
            if self.auth_type == "sasl" and not value:
                raise ValueError(f"`auth.type` = 'sasl' needs `{name}`")
            if self.auth_type == "none" and value:
                raise ValueError(f"`{name}` needs `auth.type` = 'sasl'")
        return self

    def login(self) -> Settings:
        """Return the client settings for the login."""
        if self.auth_type == "none":
            return {}
        return {
            "security.protocol": self.auth_protocol,
            "sasl.mechanism": self.auth_mechanism,
            "sasl.username": self.auth_username,
            "sasl.password": self.auth_password,
        }


class CloudLoginOptions(DeclaredOptions):
    """The login options of `confluent`."""

    key: Secret = Field(min_length=1, repr=False, description="The API key of the cluster.")
    secret: Secret = Field(min_length=1, repr=False, description="The secret of the API key.")

    def login(self) -> Settings:
        """Return the client settings for the login."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": self.key,
            "sasl.password": self.secret,
        }


def _read_milliseconds(value: Any) -> Any:
    if value is None:
        return None
    number = str(value).strip()
    return int(number) if number.isdigit() else parse_instant(value) // 1_000_000


def _read_offsets(value: Any) -> Any:
    """Parse `0:42, 1:7` or `orders/0:42`; return anything else unchanged."""
    if not isinstance(value, str):
        return {str(name): offset for name, offset in value.items()} if isinstance(value, Mapping) else value
    offsets: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in value.split(","))):
        name, colon, offset = part.rpartition(":")
        if not colon:
            raise ValueError(f"write offsets as `0:42, 1:7`, a partition and its first offset; not `{part}`")
        if name.strip() in offsets:
            raise ValueError(f"partition `{name.strip()}` is named twice")
        offsets[name.strip()] = offset.strip()
    return offsets


class KafkaSourceOptions(UpsertOptions, ClusterOptions, MessageOptions):
    """Which topics to read, where to start, and which messages to read."""

    METADATA: ClassVar = METADATA

    topic: str | None = Field(None, min_length=1, description="The topic to read.")
    topic_pattern: str | None = Field(
        None,
        min_length=1,
        description=(
            "Instead of `topic`: a regular expression for the whole name of topics. Topics and partitions "
            "that are created while the pipeline runs are read from their beginning."
        ),
    )
    source_offset: Literal["latest", "earliest", "group", "timestamp", "offsets"] = Field(
        "latest",
        alias="source.offset",
        description=(
            "Where a new pipeline starts: `latest`, `earliest`, the committed offset of the consumer group "
            "`source.group_id` if there is one (`group`), the time `source.timestamp`, or `source.offsets`."
        ),
    )
    source_timestamp: Annotated[int, BeforeValidator(_read_milliseconds)] | None = Field(
        None,
        alias="source.timestamp",
        description=(
            "With `source.offset` = 'timestamp': start with the first message of each partition that is not "
            "older, such as `2026-11-15T10:00:00Z` (UTC), or milliseconds since 1970."
        ),
    )
    source_offsets: Annotated[dict[str, Annotated[int, Field(ge=0)]], BeforeValidator(_read_offsets)] = Field(
        default={},
        alias="source.offsets",
        description=(
            "With `source.offset` = 'offsets': the first offset of partitions, such as `0:42, 1:7`; with "
            "`topic_pattern` `TOPIC/0:42`. The others start with their earliest."
        ),
    )
    source_read_mode: Literal["read_uncommitted", "read_committed"] = Field(
        "read_uncommitted",
        alias="source.read_mode",
        description="`read_committed` skips messages of open and aborted transactions.",
    )
    source_group_id: str | None = Field(
        None,
        min_length=1,
        alias="source.group_id",
        description=(
            "The consumer group whose committed offsets show the progress of the pipeline; by default "
            "its own."
        ),
    )
    source_group_id_prefix: str | None = Field(
        None,
        min_length=1,
        alias="source.group_id_prefix",
        description="Prefix of the name of the pipeline's own consumer group.",
    )
    source_bounded: Bounded = False
    source_lost_messages: Literal["fail", "skip"] = Field(
        "fail",
        alias="source.lost_messages",
        description="What to do if messages were deleted before they were read: end the run, or continue.",
    )
    metadata: Mapping[str, str] = Field(
        default={},
        description=(
            f"Column → what of a message it holds: {', '.join(METADATA)}, or `headers.NAME`, the last "
            "header of that name."
        ),
    )

    @classmethod
    def metadata_type(cls, name: str) -> pa.DataType | None:
        """The type of what METADATA FROM names; a single header is bytes."""
        if name == INDEX:
            return pa.int64()
        if name.startswith(HEADER) and name != HEADER:
            return pa.binary()
        return super().metadata_type(name)

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        if (self.topic is None) == (self.topic_pattern is None):
            raise ValueError("a source needs either `topic` or `topic_pattern`")
        if self.topic_pattern is not None:
            try:
                re.compile(self.topic_pattern)
            except re.error as error:
                raise ValueError(f"`topic_pattern` is not a regular expression: {error}") from None
        needs = {"group": "source_group_id", "timestamp": "source_timestamp", "offsets": "source_offsets"}
        for start, name in needs.items():
            option = type(self).model_fields[name].alias
            value = getattr(self, name)
            if self.source_offset == start and value in (None, {}):
                raise ValueError(f"`source.offset` = '{start}' needs `{option}`")
            if self.source_offset != start and value not in (None, {}) and start != "group":
                raise ValueError(f"`{option}` needs `source.offset` = '{start}'")
        for name in self.source_offsets:
            self.lane_partition(name)
        return self

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        """The pattern of the topics to read."""
        return re.compile(self.topic_pattern or re.escape(self.topic or ""))

    def lane(self, partition: Partition) -> str:
        """The name of a partition in checkpoints: `3`, or with a pattern `orders/3`."""
        topic, number = partition
        return str(number) if self.topic is not None else f"{topic}/{number}"

    def lane_partition(self, lane: str) -> Partition:
        """The partition with this name."""
        topic, slash, number = lane.rpartition("/")
        if not number.isdigit() or bool(slash) == (self.topic is not None):
            shape = "its number" if self.topic is not None else "`TOPIC/NUMBER`"
            raise ValueError(f"`{lane}` is not the name of a partition: write {shape}")
        return topic or self.topic or "", int(number)

    def registry(self) -> SchemaRegistry | None:
        """The schema registry for the messages; topics of a pattern have no subject of their own."""
        return self.registry_for(self.topic or self.topic_pattern or "")
