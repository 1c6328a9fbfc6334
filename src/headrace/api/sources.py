"""Sources with their options: `pipeline.source(hr.sources.kafka(topic=…))`.

Written by `python -m docs.generate` from the options that connectors declare. Options that are left out have
the defaults that `docs/reference/operators-and-connectors.md` lists.
"""
# ruff: noqa: A002  options are called what they are called in SQL

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from headrace.api.connectors import UNSET, ConfiguredSource, checked_options
from headrace.api.schemas import Schema
from headrace.base.call_site import located

__all__ = [
    "confluent",
    "delta",
    "filesystem",
    "impulse",
    "kafka",
    "memory",
    "mqtt",
    "nats",
    "nexmark",
    "polling_http",
    "postgres",
    "rabbitmq",
    "single_file",
    "spark",
    "sse",
    "websocket",
]


def __dir__() -> list[str]:
    return [*__all__]


@located
def confluent(
    *,
    bootstrap_servers: str,
    key: str,
    secret: str,
    format: Literal["json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes"] = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix", "unix_millis"] | None = UNSET,
    json_decimal_encoding: Literal["number", "string", "bytes"] | None = UNSET,
    json_include_schema: bool = UNSET,
    json_unstructured: bool = UNSET,
    json_confluent_schema_registry: bool = UNSET,
    avro_confluent_schema_registry: bool = UNSET,
    avro_raw_datums: bool = UNSET,
    avro_schema: str | None = UNSET,
    avro_into_unstructured_json: bool = UNSET,
    protobuf_descriptor: str | None = UNSET,
    protobuf_schema: str | None = UNSET,
    protobuf_message_name: str | None = UNSET,
    protobuf_length_delimited: bool = UNSET,
    protobuf_into_unstructured_json: bool = UNSET,
    protobuf_confluent_schema_registry: bool = UNSET,
    csv_delimiter: str = UNSET,
    csv_quote: str = UNSET,
    csv_header: bool = UNSET,
    csv_null: Sequence[str] | str = UNSET,
    max_record_bytes: int = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    metadata: Mapping[str, str] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
    schema_registry_endpoint: str | None = UNSET,
    schema_registry_api_key: str | None = UNSET,
    schema_registry_api_secret: str | None = UNSET,
    value_subject: str | None = UNSET,
    client_configs: Mapping[str, str] | str = UNSET,
    upsert: bool = UNSET,
    key_format: Literal["raw", "json"] | None = UNSET,
    topic: str | None = UNSET,
    topic_pattern: str | None = UNSET,
    source_offset: Literal["latest", "earliest", "group", "timestamp", "offsets"] = UNSET,
    source_timestamp: int | str | None = UNSET,
    source_offsets: Any = UNSET,
    source_read_mode: Literal["read_uncommitted", "read_committed"] = UNSET,
    source_group_id: str | None = UNSET,
    source_group_id_prefix: str | None = UNSET,
    source_bounded: bool = UNSET,
    source_lost_messages: Literal["fail", "skip"] = UNSET,
) -> ConfiguredSource:
    """Reads the messages of a topic of Confluent Cloud, as the kafka source does.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `avro`, `protobuf`: records
            of a schema; `csv`: comma-separated values; `raw_string`, `raw_bytes`: the column `value`,
            unchanged.
        schema: Column → type, such as int64, double, string, timestamp; other columns are ignored.
        primary_key: The columns that identify the row of a change (debezium_json).
        json_timestamp_format: How timestamps are written: RFC3339 strings, `unix` numbers in the unit of the
            column (the default of debezium_json), or `unix_millis`. Strings are read with each. Numbers are
            read in the unit of the column, nanoseconds for TIMESTAMP, or in milliseconds with `unix_millis`.
        json_decimal_encoding: How decimals are written: as numbers, strings, or base64 of their bytes.
            Numbers are read with each; strings are digits, or base64 with `bytes`, and in debezium_json
            unless this is set.
        json_include_schema: Whether rows are wrapped in `{"schema": …, "payload": …}`, as by Kafka Connect.
        json_unstructured: Whether each message is any JSON value, read as a string into the column `value`.
        json_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_raw_datums: Whether each message is a bare record; without it, and without a registry, each
            message is an Avro file with its schema.
        avro_schema: The schema of bare records, and of written ones, as JSON or as the path of a file; by
            default it is derived from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with a descriptor set: `protoc --include_imports
            --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, as a path or its content; imports are resolved relative to it.
            Without it, and without a descriptor, the type is derived from the columns.
        protobuf_message_name: The message type; needed if the file has several.
        protobuf_length_delimited: Rows are length-prefixed; a message then has any number of rows.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        csv_delimiter: The delimiter between values.
        csv_quote: Encloses values that contain a delimiter; empty for no quoting.
        csv_header: Whether the first line of a file names the columns; messages have no header.
        csv_null: Unquoted strings that are read as NULL, comma-separated; the first is used for writing.
        max_record_bytes: The most bytes of a line or a message. A longer one is bad data, of which only the
            beginning is reported.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are truncated to this many bytes.
        metadata: Column → what of a message it holds: offset_id, partition, topic, timestamp, key, headers,
            or `headers.NAME`, the last header of that name.
        idle_timeout: After this long without messages the source no longer holds the watermark back.
        schema_registry_endpoint: The address of a schema registry, such as `http://host:8081`; several comma-
            separated.
        schema_registry_api_key: The API key (user name).
        schema_registry_api_secret: The API secret (password).
        value_subject: The subject of the schema; by default `{topic}-value`.
        bootstrap_servers: Brokers to connect to first, comma-separated, such as `host:9092,other:9092`.
        client_configs: Further settings of the client (librdkafka), as `name=value,name=value`.
        upsert: The topic is a table, as with Flink's `upsert-kafka`: a message is the current row of its key,
            the PRIMARY KEY, and a message without a value (a tombstone) deletes it.
        key_format: With `upsert`: how keys are written. `raw`, for a key of one column: its text, or its
            bytes; `json`: an object with the key columns. By default `raw` for one column, `json` for
            several.
        topic: The topic to read.
        topic_pattern: Instead of `topic`: a regular expression for the whole name of topics. Topics and
            partitions that are created while the pipeline runs are read from their beginning.
        source_offset: Where a new pipeline starts: `latest`, `earliest`, the committed offset of the consumer
            group `source.group_id` if there is one (`group`), the time `source.timestamp`, or
            `source.offsets`.
        source_timestamp: With `source.offset` = 'timestamp': start with the first message of each partition
            that is not older, such as `2026-11-15T10:00:00Z` (UTC), or milliseconds since 1970.
        source_offsets: With `source.offset` = 'offsets': the first offset of partitions, such as `0:42, 1:7`;
            with `topic_pattern` `TOPIC/0:42`. The others start with their earliest.
        source_read_mode: `read_committed` skips messages of open and aborted transactions.
        source_group_id: The consumer group whose committed offsets show the progress of the pipeline; by
            default its own.
        source_group_id_prefix: Prefix of the name of the pipeline's own consumer group.
        source_bounded: End, for good, with the last message that existed when the pipeline first started: a
            later run reads nothing. For runs that each read what came since the last one, use
            `available_now`.
        source_lost_messages: What to do if messages were deleted before they were read: end the run, or
            continue.
        key: The API key of the cluster.
        secret: The secret of the API key.
    """
    return ConfiguredSource("confluent", checked_options("source", "confluent", locals()))


@located
def delta(
    *,
    path: str,
    storage: Mapping[str, str] | str = UNSET,
    watch_interval: str | float | timedelta | None = UNSET,
    timestamp_column: str | None = UNSET,
    timestamp_unit: Literal["s", "ms", "us", "ns"] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
    format: Literal["parquet"] = UNSET,
    schema: Schema | None = UNSET,
    starting_version: int | Literal["latest"] | None = UNSET,
    skip_change_commits: bool = UNSET,
) -> ConfiguredSource:
    """Reads the rows of a Delta Lake table, then, if it is watched, the rows that are appended to it.

    Args:
        storage: Settings of the object store, as `storage.KEY` = 'value': `storage.aws_endpoint`,
            `storage.aws_access_key_id`, `storage.aws_region`, `storage.allow_http`, … Never displayed;
            missing settings are taken from the environment.
        path: The directory of the table, as a path or a URL.
        watch_interval: Look for new files at this interval and never end; without it the existing files are
            read once, or those that came since the last run by one with `available_now`.
        timestamp_column: The column with the event time: ISO 8601 strings, or numbers in timestamp_unit.
        timestamp_unit: The unit of event times that are numbers: s, ms, us or ns.
        idle_timeout: After this long without rows the files no longer hold the watermark back.
        format: The format of the files.
        schema: Column → type; other columns are ignored. Without it all columns are read.
        starting_version: Start with the rows added by this version, or after the `latest` version; by default
            with all existing rows.
        skip_change_commits: Skip versions that delete or change rows, instead of ending the run.
    """
    return ConfiguredSource("delta", checked_options("source", "delta", locals()))


@located
def filesystem(
    *,
    path: str,
    format: Literal["json", "debezium_json", "csv", "raw_string", "raw_bytes", "parquet", "avro"] = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix", "unix_millis"] | None = UNSET,
    json_decimal_encoding: Literal["number", "string", "bytes"] | None = UNSET,
    json_include_schema: bool = UNSET,
    json_unstructured: bool = UNSET,
    json_confluent_schema_registry: bool = UNSET,
    avro_confluent_schema_registry: bool = UNSET,
    avro_raw_datums: bool = UNSET,
    avro_schema: str | None = UNSET,
    avro_into_unstructured_json: bool = UNSET,
    protobuf_descriptor: str | None = UNSET,
    protobuf_schema: str | None = UNSET,
    protobuf_message_name: str | None = UNSET,
    protobuf_length_delimited: bool = UNSET,
    protobuf_into_unstructured_json: bool = UNSET,
    protobuf_confluent_schema_registry: bool = UNSET,
    csv_delimiter: str = UNSET,
    csv_quote: str = UNSET,
    csv_header: bool = UNSET,
    csv_null: Sequence[str] | str = UNSET,
    max_record_bytes: int = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    storage: Mapping[str, str] | str = UNSET,
    watch_interval: str | float | timedelta | None = UNSET,
    timestamp_column: str | None = UNSET,
    timestamp_unit: Literal["s", "ms", "us", "ns"] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
    regex_pattern: str | None = UNSET,
    compression: Literal["auto", "none", "gzip", "zstd", "bz2", "lz4", "brotli"] = UNSET,
) -> ConfiguredSource:
    """Reads every file of a directory once, in the order of the paths; then it ends, or watches for new ones.

    Args:
        format: In lines `json`, `debezium_json`, `csv`, `raw_string`, `raw_bytes`; `parquet`; `avro`.
        schema: Column → type, such as int64, double, string, timestamp; other columns are ignored.
        primary_key: The columns that identify the row of a change (debezium_json).
        json_timestamp_format: How timestamps are written: RFC3339 strings, `unix` numbers in the unit of the
            column (the default of debezium_json), or `unix_millis`. Strings are read with each. Numbers are
            read in the unit of the column, nanoseconds for TIMESTAMP, or in milliseconds with `unix_millis`.
        json_decimal_encoding: How decimals are written: as numbers, strings, or base64 of their bytes.
            Numbers are read with each; strings are digits, or base64 with `bytes`, and in debezium_json
            unless this is set.
        json_include_schema: Whether rows are wrapped in `{"schema": …, "payload": …}`, as by Kafka Connect.
        json_unstructured: Whether each message is any JSON value, read as a string into the column `value`.
        json_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_raw_datums: Whether each message is a bare record; without it, and without a registry, each
            message is an Avro file with its schema.
        avro_schema: The schema of bare records, and of written ones, as JSON or as the path of a file; by
            default it is derived from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with a descriptor set: `protoc --include_imports
            --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, as a path or its content; imports are resolved relative to it.
            Without it, and without a descriptor, the type is derived from the columns.
        protobuf_message_name: The message type; needed if the file has several.
        protobuf_length_delimited: Rows are length-prefixed; a message then has any number of rows.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        csv_delimiter: The delimiter between values.
        csv_quote: Encloses values that contain a delimiter; empty for no quoting.
        csv_header: Whether the first line of a file names the columns; messages have no header.
        csv_null: Unquoted strings that are read as NULL, comma-separated; the first is used for writing.
        max_record_bytes: The most bytes of a line or a message. A longer one is bad data, of which only the
            beginning is reported.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are truncated to this many bytes.
        storage: Settings of the object store, as `storage.KEY` = 'value': `storage.aws_endpoint`,
            `storage.aws_access_key_id`, `storage.aws_region`, `storage.allow_http`, … Never displayed;
            missing settings are taken from the environment.
        path: A file or a directory, as a path or a URL.
        watch_interval: Look for new files at this interval and never end; without it the existing files are
            read once, or those that came since the last run by one with `available_now`.
        timestamp_column: The column with the event time: ISO 8601 strings, or numbers in timestamp_unit.
        timestamp_unit: The unit of event times that are numbers: s, ms, us or ns.
        idle_timeout: After this long without rows the files no longer hold the watermark back.
        regex_pattern: Only files whose path below the directory contains a match are read.
        compression: Compression of files of lines; `auto` goes by the file name, such as `x.json.gz`.
    """
    return ConfiguredSource("filesystem", checked_options("source", "filesystem", locals()))


@located
def impulse(
    *,
    event_rate: float | None = UNSET,
    delay: str | float | timedelta | None = UNSET,
    event_time_interval: int | str | None = UNSET,
    message_count: int | None = UNSET,
    start_time: int | str | None = UNSET,
    align: str | float | timedelta | None = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
    schema: Schema | None = UNSET,
) -> ConfiguredSource:
    """Emits the numbers 0, 1, 2, … once each, at a rate or as fast as the machine can.

    Args:
        event_rate: Events per second over all subtasks; without it, no pause.
        delay: Time between two events of the whole source, instead of event_rate.
        event_time_interval: Event time between two events, a duration such as `10ms` or a number of
            nanoseconds: _timestamp = start + interval × counter. Without it, event time follows the wall
            clock.
        message_count: Events in total, over all subtasks (some engines count per subtask); without it, no
            end.
        start_time: Event time of the first event, ISO 8601 string or nanoseconds since 1970; by default now.
        align: Truncate the start to a multiple of this duration, such as `1m`.
        idle_timeout: After this long without events the source no longer holds the watermark back.
        schema: The columns to emit, of counter and subtask_index, and their integer types.
    """
    return ConfiguredSource("impulse", checked_options("source", "impulse", locals()))


@located
def kafka(
    *,
    bootstrap_servers: str,
    format: Literal["json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes"] = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix", "unix_millis"] | None = UNSET,
    json_decimal_encoding: Literal["number", "string", "bytes"] | None = UNSET,
    json_include_schema: bool = UNSET,
    json_unstructured: bool = UNSET,
    json_confluent_schema_registry: bool = UNSET,
    avro_confluent_schema_registry: bool = UNSET,
    avro_raw_datums: bool = UNSET,
    avro_schema: str | None = UNSET,
    avro_into_unstructured_json: bool = UNSET,
    protobuf_descriptor: str | None = UNSET,
    protobuf_schema: str | None = UNSET,
    protobuf_message_name: str | None = UNSET,
    protobuf_length_delimited: bool = UNSET,
    protobuf_into_unstructured_json: bool = UNSET,
    protobuf_confluent_schema_registry: bool = UNSET,
    csv_delimiter: str = UNSET,
    csv_quote: str = UNSET,
    csv_header: bool = UNSET,
    csv_null: Sequence[str] | str = UNSET,
    max_record_bytes: int = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    metadata: Mapping[str, str] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
    schema_registry_endpoint: str | None = UNSET,
    schema_registry_api_key: str | None = UNSET,
    schema_registry_api_secret: str | None = UNSET,
    value_subject: str | None = UNSET,
    client_configs: Mapping[str, str] | str = UNSET,
    upsert: bool = UNSET,
    key_format: Literal["raw", "json"] | None = UNSET,
    topic: str | None = UNSET,
    topic_pattern: str | None = UNSET,
    source_offset: Literal["latest", "earliest", "group", "timestamp", "offsets"] = UNSET,
    source_timestamp: int | str | None = UNSET,
    source_offsets: Any = UNSET,
    source_read_mode: Literal["read_uncommitted", "read_committed"] = UNSET,
    source_group_id: str | None = UNSET,
    source_group_id_prefix: str | None = UNSET,
    source_bounded: bool = UNSET,
    source_lost_messages: Literal["fail", "skip"] = UNSET,
    auth_type: Literal["none", "sasl", "aws_msk_iam"] = UNSET,
    auth_mechanism: str | None = UNSET,
    auth_protocol: str | None = UNSET,
    auth_username: str | None = UNSET,
    auth_password: str | None = UNSET,
    auth_region: str | None = UNSET,
) -> ConfiguredSource:
    """Reads the messages of topics, each once; `_timestamp` is the timestamp of the Kafka message.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `avro`, `protobuf`: records
            of a schema; `csv`: comma-separated values; `raw_string`, `raw_bytes`: the column `value`,
            unchanged.
        schema: Column → type, such as int64, double, string, timestamp; other columns are ignored.
        primary_key: The columns that identify the row of a change (debezium_json).
        json_timestamp_format: How timestamps are written: RFC3339 strings, `unix` numbers in the unit of the
            column (the default of debezium_json), or `unix_millis`. Strings are read with each. Numbers are
            read in the unit of the column, nanoseconds for TIMESTAMP, or in milliseconds with `unix_millis`.
        json_decimal_encoding: How decimals are written: as numbers, strings, or base64 of their bytes.
            Numbers are read with each; strings are digits, or base64 with `bytes`, and in debezium_json
            unless this is set.
        json_include_schema: Whether rows are wrapped in `{"schema": …, "payload": …}`, as by Kafka Connect.
        json_unstructured: Whether each message is any JSON value, read as a string into the column `value`.
        json_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_raw_datums: Whether each message is a bare record; without it, and without a registry, each
            message is an Avro file with its schema.
        avro_schema: The schema of bare records, and of written ones, as JSON or as the path of a file; by
            default it is derived from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with a descriptor set: `protoc --include_imports
            --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, as a path or its content; imports are resolved relative to it.
            Without it, and without a descriptor, the type is derived from the columns.
        protobuf_message_name: The message type; needed if the file has several.
        protobuf_length_delimited: Rows are length-prefixed; a message then has any number of rows.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        csv_delimiter: The delimiter between values.
        csv_quote: Encloses values that contain a delimiter; empty for no quoting.
        csv_header: Whether the first line of a file names the columns; messages have no header.
        csv_null: Unquoted strings that are read as NULL, comma-separated; the first is used for writing.
        max_record_bytes: The most bytes of a line or a message. A longer one is bad data, of which only the
            beginning is reported.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are truncated to this many bytes.
        metadata: Column → what of a message it holds: offset_id, partition, topic, timestamp, key, headers,
            or `headers.NAME`, the last header of that name.
        idle_timeout: After this long without messages the source no longer holds the watermark back.
        schema_registry_endpoint: The address of a schema registry, such as `http://host:8081`; several comma-
            separated.
        schema_registry_api_key: The API key (user name).
        schema_registry_api_secret: The API secret (password).
        value_subject: The subject of the schema; by default `{topic}-value`.
        bootstrap_servers: Brokers to connect to first, comma-separated, such as `host:9092,other:9092`.
        client_configs: Further settings of the client (librdkafka), as `name=value,name=value`.
        upsert: The topic is a table, as with Flink's `upsert-kafka`: a message is the current row of its key,
            the PRIMARY KEY, and a message without a value (a tombstone) deletes it.
        key_format: With `upsert`: how keys are written. `raw`, for a key of one column: its text, or its
            bytes; `json`: an object with the key columns. By default `raw` for one column, `json` for
            several.
        topic: The topic to read.
        topic_pattern: Instead of `topic`: a regular expression for the whole name of topics. Topics and
            partitions that are created while the pipeline runs are read from their beginning.
        source_offset: Where a new pipeline starts: `latest`, `earliest`, the committed offset of the consumer
            group `source.group_id` if there is one (`group`), the time `source.timestamp`, or
            `source.offsets`.
        source_timestamp: With `source.offset` = 'timestamp': start with the first message of each partition
            that is not older, such as `2026-11-15T10:00:00Z` (UTC), or milliseconds since 1970.
        source_offsets: With `source.offset` = 'offsets': the first offset of partitions, such as `0:42, 1:7`;
            with `topic_pattern` `TOPIC/0:42`. The others start with their earliest.
        source_read_mode: `read_committed` skips messages of open and aborted transactions.
        source_group_id: The consumer group whose committed offsets show the progress of the pipeline; by
            default its own.
        source_group_id_prefix: Prefix of the name of the pipeline's own consumer group.
        source_bounded: End, for good, with the last message that existed when the pipeline first started: a
            later run reads nothing. For runs that each read what came since the last one, use
            `available_now`.
        source_lost_messages: What to do if messages were deleted before they were read: end the run, or
            continue.
        auth_type: How to log in: `none`, or `sasl` with user and password.
        auth_mechanism: With sasl: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
        auth_protocol: With sasl: SASL_SSL or SASL_PLAINTEXT.
        auth_username: With sasl: the user.
        auth_password: With sasl: the password.
        auth_region: For aws_msk_iam, which is not supported.
    """
    return ConfiguredSource("kafka", checked_options("source", "kafka", locals()))


@located
def memory(
    *,
    rows: Any | None = UNSET,
    lanes: Any | None = UNSET,
    timestamp_column: str | None = UNSET,
    timestamp_unit: Literal["s", "ms", "us", "ns"] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
) -> ConfiguredSource:
    """Emits the given rows, in order, once each; then it ends.

    Args:
        rows: The rows of one lane: dicts, a pyarrow Table or record batches.
        lanes: Several independent lanes: a list of `rows`, or lane name → `rows`.
        timestamp_column: The column that holds the event time; by default `_timestamp`.
        timestamp_unit: The unit of event times that are numbers: s, ms, us or ns.
        idle_timeout: After this long without rows a lane no longer holds the watermark back.
    """
    return ConfiguredSource("memory", checked_options("source", "memory", locals()))


@located
def mqtt(
    *,
    url: str,
    topic: str,
    format: Literal["json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes"] = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix", "unix_millis"] | None = UNSET,
    json_decimal_encoding: Literal["number", "string", "bytes"] | None = UNSET,
    json_include_schema: bool = UNSET,
    json_unstructured: bool = UNSET,
    json_confluent_schema_registry: bool = UNSET,
    avro_confluent_schema_registry: bool = UNSET,
    avro_raw_datums: bool = UNSET,
    avro_schema: str | None = UNSET,
    avro_into_unstructured_json: bool = UNSET,
    protobuf_descriptor: str | None = UNSET,
    protobuf_schema: str | None = UNSET,
    protobuf_message_name: str | None = UNSET,
    protobuf_length_delimited: bool = UNSET,
    protobuf_into_unstructured_json: bool = UNSET,
    protobuf_confluent_schema_registry: bool = UNSET,
    csv_delimiter: str = UNSET,
    csv_quote: str = UNSET,
    csv_header: bool = UNSET,
    csv_null: Sequence[str] | str = UNSET,
    max_record_bytes: int = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    metadata: Mapping[str, str] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
    tls_ca: str | None = UNSET,
    tls_cert: str | None = UNSET,
    tls_key: str | None = UNSET,
    username: str | None = UNSET,
    password: str | None = UNSET,
    client_prefix: str | None = UNSET,
    max_packet_size: int | str | None = UNSET,
    protocol: Literal["5", "3.1.1"] = UNSET,
    qos: Literal["AtMostOnce", "AtLeastOnce", "ExactlyOnce"] = UNSET,
    session_expiry: str | float | timedelta = UNSET,
) -> ConfiguredSource:
    """Reads the messages of a topic, or with `+` and `#` of several; each is logged before it is processed.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `avro`, `protobuf`: records
            of a schema; `csv`: comma-separated values; `raw_string`, `raw_bytes`: the column `value`,
            unchanged.
        schema: Column → type, such as int64, double, string, timestamp; other columns are ignored.
        primary_key: The columns that identify the row of a change (debezium_json).
        json_timestamp_format: How timestamps are written: RFC3339 strings, `unix` numbers in the unit of the
            column (the default of debezium_json), or `unix_millis`. Strings are read with each. Numbers are
            read in the unit of the column, nanoseconds for TIMESTAMP, or in milliseconds with `unix_millis`.
        json_decimal_encoding: How decimals are written: as numbers, strings, or base64 of their bytes.
            Numbers are read with each; strings are digits, or base64 with `bytes`, and in debezium_json
            unless this is set.
        json_include_schema: Whether rows are wrapped in `{"schema": …, "payload": …}`, as by Kafka Connect.
        json_unstructured: Whether each message is any JSON value, read as a string into the column `value`.
        json_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_raw_datums: Whether each message is a bare record; without it, and without a registry, each
            message is an Avro file with its schema.
        avro_schema: The schema of bare records, and of written ones, as JSON or as the path of a file; by
            default it is derived from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with a descriptor set: `protoc --include_imports
            --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, as a path or its content; imports are resolved relative to it.
            Without it, and without a descriptor, the type is derived from the columns.
        protobuf_message_name: The message type; needed if the file has several.
        protobuf_length_delimited: Rows are length-prefixed; a message then has any number of rows.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        csv_delimiter: The delimiter between values.
        csv_quote: Encloses values that contain a delimiter; empty for no quoting.
        csv_header: Whether the first line of a file names the columns; messages have no header.
        csv_null: Unquoted strings that are read as NULL, comma-separated; the first is used for writing.
        max_record_bytes: The most bytes of a line or a message. A longer one is bad data, of which only the
            beginning is reported.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are truncated to this many bytes.
        metadata: Column → the metadata field that it holds.
        idle_timeout: After this long without messages the source no longer holds the watermark back.
        tls_ca: A file with the certificates to trust, instead of those of the system.
        tls_cert: A file with the client certificate, if the server asks for one.
        tls_key: A file with the key of `tls.cert`, unless it is in the same file.
        url: The broker, such as mqtt://host:1883, or mqtts://, ws:// or wss:// (WebSocket).
        username: The user, if the broker asks for one.
        password: The password of the user.
        client_prefix: Prefix of the MQTT client id.
        max_packet_size: The largest message to receive or send.
        protocol: The version of MQTT.
        topic: The topic; `+` matches any level, and `#` at the end all further levels.
        qos: The quality of service: AtMostOnce, AtLeastOnce or ExactlyOnce (QoS 0, 1 or 2).
        session_expiry: How long the broker stores messages for a stopped pipeline (MQTT 5).
    """
    return ConfiguredSource("mqtt", checked_options("source", "mqtt", locals()))


@located
def nats(
    *,
    servers: Sequence[str] | str,
    format: Literal["json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes"] = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix", "unix_millis"] | None = UNSET,
    json_decimal_encoding: Literal["number", "string", "bytes"] | None = UNSET,
    json_include_schema: bool = UNSET,
    json_unstructured: bool = UNSET,
    json_confluent_schema_registry: bool = UNSET,
    avro_confluent_schema_registry: bool = UNSET,
    avro_raw_datums: bool = UNSET,
    avro_schema: str | None = UNSET,
    avro_into_unstructured_json: bool = UNSET,
    protobuf_descriptor: str | None = UNSET,
    protobuf_schema: str | None = UNSET,
    protobuf_message_name: str | None = UNSET,
    protobuf_length_delimited: bool = UNSET,
    protobuf_into_unstructured_json: bool = UNSET,
    protobuf_confluent_schema_registry: bool = UNSET,
    csv_delimiter: str = UNSET,
    csv_quote: str = UNSET,
    csv_header: bool = UNSET,
    csv_null: Sequence[str] | str = UNSET,
    max_record_bytes: int = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    metadata: Mapping[str, str] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
    auth_type: Literal["none", "credentials", "jwt", "nkey"] = UNSET,
    auth_username: str | None = UNSET,
    auth_password: str | None = UNSET,
    auth_jwt: str | None = UNSET,
    auth_nkey_seed: str | None = UNSET,
    tls_ca: str | None = UNSET,
    tls_cert: str | None = UNSET,
    tls_key: str | None = UNSET,
    stream: str | None = UNSET,
    subject: str | None = UNSET,
    source_offset: Literal["earliest", "latest"] = UNSET,
    source_bounded: bool = UNSET,
    source_lost_messages: Literal["fail", "skip"] = UNSET,
    consumer_description: str | None = UNSET,
    consumer_filter_subjects: Sequence[str] | str = UNSET,
    consumer_num_replicas: int = UNSET,
    consumer_inactive_threshold: str | float | timedelta = UNSET,
    consumer_max_batch: int = UNSET,
    consumer_max_bytes: int | str = UNSET,
    consumer_replay_policy: Literal["Instant", "Original"] = UNSET,
    consumer_ack_policy: Literal["Explicit", "None", "All"] = UNSET,
    consumer_ack_wait: str | float | timedelta = UNSET,
    consumer_sample_frequency: int = UNSET,
    consumer_rate_limit: int = UNSET,
    consumer_max_ack_pending: int = UNSET,
    consumer_max_deliver: int = UNSET,
    consumer_max_waiting: int = UNSET,
    consumer_max_expires: int = UNSET,
) -> ConfiguredSource:
    """Reads a JetStream stream by sequence numbers, or subscribes to a subject of core NATS.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `avro`, `protobuf`: records
            of a schema; `csv`: comma-separated values; `raw_string`, `raw_bytes`: the column `value`,
            unchanged.
        schema: Column → type, such as int64, double, string, timestamp; other columns are ignored.
        primary_key: The columns that identify the row of a change (debezium_json).
        json_timestamp_format: How timestamps are written: RFC3339 strings, `unix` numbers in the unit of the
            column (the default of debezium_json), or `unix_millis`. Strings are read with each. Numbers are
            read in the unit of the column, nanoseconds for TIMESTAMP, or in milliseconds with `unix_millis`.
        json_decimal_encoding: How decimals are written: as numbers, strings, or base64 of their bytes.
            Numbers are read with each; strings are digits, or base64 with `bytes`, and in debezium_json
            unless this is set.
        json_include_schema: Whether rows are wrapped in `{"schema": …, "payload": …}`, as by Kafka Connect.
        json_unstructured: Whether each message is any JSON value, read as a string into the column `value`.
        json_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_raw_datums: Whether each message is a bare record; without it, and without a registry, each
            message is an Avro file with its schema.
        avro_schema: The schema of bare records, and of written ones, as JSON or as the path of a file; by
            default it is derived from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with a descriptor set: `protoc --include_imports
            --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, as a path or its content; imports are resolved relative to it.
            Without it, and without a descriptor, the type is derived from the columns.
        protobuf_message_name: The message type; needed if the file has several.
        protobuf_length_delimited: Rows are length-prefixed; a message then has any number of rows.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        csv_delimiter: The delimiter between values.
        csv_quote: Encloses values that contain a delimiter; empty for no quoting.
        csv_header: Whether the first line of a file names the columns; messages have no header.
        csv_null: Unquoted strings that are read as NULL, comma-separated; the first is used for writing.
        max_record_bytes: The most bytes of a line or a message. A longer one is bad data, of which only the
            beginning is reported.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are truncated to this many bytes.
        metadata: Column → what of a message it holds: subject, sequence.
        idle_timeout: After this long without messages the source no longer holds the watermark back.
        servers: Servers to connect to, comma-separated, such as `nats://host:4222,nats://other:4222`.
        auth_type: How to log in: `none`, `credentials` (user and password), `jwt` or `nkey`.
        auth_username: With credentials: the user.
        auth_password: With credentials: the password.
        auth_jwt: With jwt: the token of the user.
        auth_nkey_seed: With jwt and nkey: the seed of the user's key.
        tls_ca: A file with the CA certificates to trust.
        tls_cert: A file with the client certificate.
        tls_key: A file with the key of `tls.cert`.
        stream: The JetStream stream to read; instead of `subject`.
        subject: The subject of core NATS to subscribe to, such as `orders.*`; instead of `stream`.
        source_offset: Where a new pipeline starts in a stream: `earliest`, or `latest` for new messages only.
        source_bounded: End, for good, with the last message that existed when the pipeline first started: a
            later run reads nothing. For runs that each read what came since the last one, use
            `available_now`.
        source_lost_messages: What to do if messages were dropped before they were read: end the run, or
            continue.
        consumer_description: The description of the consumers.
        consumer_filter_subjects: Only messages of these subjects are read.
        consumer_num_replicas: The number of replicas of a consumer.
        consumer_inactive_threshold: How long the servers keep an inactive consumer.
        consumer_max_batch: The most messages in one request.
        consumer_max_bytes: The most bytes in one request.
        consumer_replay_policy: Only `Instant`: as fast as possible.
        consumer_ack_policy: When messages are done: accepted, and not used: the checkpoint knows what was
            read.
        consumer_ack_wait: When a message is sent again: accepted, and not used: the checkpoint knows what was
            read.
        consumer_sample_frequency: Sampling of acknowledgements: accepted, and not used.
        consumer_rate_limit: Bits per second: accepted, and not used.
        consumer_max_ack_pending: Messages that are not done: accepted, and not used: the checkpoint knows
            what was read.
        consumer_max_deliver: How often a message is sent again: accepted, and not used: the checkpoint knows
            what was read.
        consumer_max_waiting: Waiting requests: accepted, and not used.
        consumer_max_expires: How long a request waits: accepted, and not used.
    """
    return ConfiguredSource("nats", checked_options("source", "nats", locals()))


@located
def nexmark(
    *,
    event_rate: float,
    runtime: str | float | timedelta | None = UNSET,
    message_count: int | None = UNSET,
    base_time: int | str | None = UNSET,
    seed: int = UNSET,
    paced: bool = UNSET,
) -> ConfiguredSource:
    """Emits the events of an auction house: of every 50, one person, three auctions and 46 bids.

    Args:
        event_rate: Events per second of event time, over all subtasks.
        runtime: Event time to cover, a duration or seconds: event_rate × runtime events in all.
        message_count: Events in total, over all subtasks; without it and runtime, no end.
        base_time: Event time of the first event, ISO 8601 string or nanoseconds since 1970; by default the
            time of the first start.
        seed: Another seed gives other people, auctions and bids.
        paced: Whether events appear at event_rate on the wall clock; if false, as fast as they can be read,
            which needs runtime or message_count.
    """
    return ConfiguredSource("nexmark", checked_options("source", "nexmark", locals()))


@located
def polling_http(
    *,
    endpoint: str,
    format: Literal["json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes"] = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix", "unix_millis"] | None = UNSET,
    json_decimal_encoding: Literal["number", "string", "bytes"] | None = UNSET,
    json_include_schema: bool = UNSET,
    json_unstructured: bool = UNSET,
    json_confluent_schema_registry: bool = UNSET,
    avro_confluent_schema_registry: bool = UNSET,
    avro_raw_datums: bool = UNSET,
    avro_schema: str | None = UNSET,
    avro_into_unstructured_json: bool = UNSET,
    protobuf_descriptor: str | None = UNSET,
    protobuf_schema: str | None = UNSET,
    protobuf_message_name: str | None = UNSET,
    protobuf_length_delimited: bool = UNSET,
    protobuf_into_unstructured_json: bool = UNSET,
    protobuf_confluent_schema_registry: bool = UNSET,
    csv_delimiter: str = UNSET,
    csv_quote: str = UNSET,
    csv_header: bool = UNSET,
    csv_null: Sequence[str] | str = UNSET,
    max_record_bytes: int = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    metadata: Mapping[str, str] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
    tls_ca: str | None = UNSET,
    tls_cert: str | None = UNSET,
    tls_key: str | None = UNSET,
    headers: Mapping[str, str] | str = UNSET,
    method: Literal["GET", "POST", "PUT", "PATCH"] = UNSET,
    body: str | None = UNSET,
    poll_interval_ms: int = UNSET,
    emit_behavior: Literal["all", "changed"] = UNSET,
    max_body_size: int | str = UNSET,
) -> ConfiguredSource:
    """Requests an address at an interval; each response is a message, logged before it is processed.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `avro`, `protobuf`: records
            of a schema; `csv`: comma-separated values; `raw_string`, `raw_bytes`: the column `value`,
            unchanged.
        schema: Column → type, such as int64, double, string, timestamp; other columns are ignored.
        primary_key: The columns that identify the row of a change (debezium_json).
        json_timestamp_format: How timestamps are written: RFC3339 strings, `unix` numbers in the unit of the
            column (the default of debezium_json), or `unix_millis`. Strings are read with each. Numbers are
            read in the unit of the column, nanoseconds for TIMESTAMP, or in milliseconds with `unix_millis`.
        json_decimal_encoding: How decimals are written: as numbers, strings, or base64 of their bytes.
            Numbers are read with each; strings are digits, or base64 with `bytes`, and in debezium_json
            unless this is set.
        json_include_schema: Whether rows are wrapped in `{"schema": …, "payload": …}`, as by Kafka Connect.
        json_unstructured: Whether each message is any JSON value, read as a string into the column `value`.
        json_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_raw_datums: Whether each message is a bare record; without it, and without a registry, each
            message is an Avro file with its schema.
        avro_schema: The schema of bare records, and of written ones, as JSON or as the path of a file; by
            default it is derived from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with a descriptor set: `protoc --include_imports
            --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, as a path or its content; imports are resolved relative to it.
            Without it, and without a descriptor, the type is derived from the columns.
        protobuf_message_name: The message type; needed if the file has several.
        protobuf_length_delimited: Rows are length-prefixed; a message then has any number of rows.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        csv_delimiter: The delimiter between values.
        csv_quote: Encloses values that contain a delimiter; empty for no quoting.
        csv_header: Whether the first line of a file names the columns; messages have no header.
        csv_null: Unquoted strings that are read as NULL, comma-separated; the first is used for writing.
        max_record_bytes: The most bytes of a line or a message. A longer one is bad data, of which only the
            beginning is reported.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are truncated to this many bytes.
        metadata: Column → the metadata field that it holds.
        idle_timeout: After this long without messages the source no longer holds the watermark back.
        tls_ca: A file with the certificates to trust, instead of those of the system.
        tls_cert: A file with the client certificate, if the server asks for one.
        tls_key: A file with the key of `tls.cert`, unless it is in the same file.
        endpoint: The address, such as https://host/path.
        headers: Headers of every request, as `Name: value, Name: value`; their values are never shown.
        method: The HTTP method.
        body: The body of every request.
        poll_interval_ms: Milliseconds between the starts of two requests.
        emit_behavior: Whether every response is a message, or only a changed one.
        max_body_size: The largest response, uncompressed.
    """
    return ConfiguredSource("polling_http", checked_options("source", "polling_http", locals()))


@located
def postgres(
    *,
    url: str,
    table: str,
    username: str | None = UNSET,
    password: str | None = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    source_changes: Literal["all", "inserts"] = UNSET,
    source_snapshot: bool = UNSET,
    source_bounded: bool = UNSET,
    source_slot: str | None = UNSET,
    source_publication: str | None = UNSET,
    source_truncate: Literal["fail", "ignore"] = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
) -> ConfiguredSource:
    """Reads the rows of a PostgreSQL table, then every change of it, each once.

    Args:
        url: The database, such as postgresql://user:password@host:5432/database.
        username: The user, if not in `url`.
        password: The password, if not in `url`.
        table: The table, such as `orders` or `sales.orders`.
        schema: Column → type, such as int64, double, string, timestamp.
        primary_key: The columns of the primary key.
        source_changes: `all`: rows are added and retracted as the table changes; `inserts`: inserts only.
        source_snapshot: Read a snapshot of the existing rows first.
        source_bounded: End, for good, after the snapshot of the existing rows: a later run reads nothing. For
            runs that each read what changed since the last one, use `available_now`.
        source_slot: The replication slot to create; by default it is named after the pipeline.
        source_publication: The publication that includes the table; created if it is missing.
        source_truncate: What to do when the table is truncated: end the run, or keep the rows.
        bad_data: What to do with rows that have a value out of range for its column, such as the timestamp
            `infinity`: end the run, drop and count them, or send them to the output `dead_letter` (in SQL:
            `dead_letter_table`).
        idle_timeout: After this long without changes the source no longer holds the watermark back.
    """
    return ConfiguredSource("postgres", checked_options("source", "postgres", locals()))


@located
def rabbitmq(
    *,
    host: str,
    format: Literal["json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes"] = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix", "unix_millis"] | None = UNSET,
    json_decimal_encoding: Literal["number", "string", "bytes"] | None = UNSET,
    json_include_schema: bool = UNSET,
    json_unstructured: bool = UNSET,
    json_confluent_schema_registry: bool = UNSET,
    avro_confluent_schema_registry: bool = UNSET,
    avro_raw_datums: bool = UNSET,
    avro_schema: str | None = UNSET,
    avro_into_unstructured_json: bool = UNSET,
    protobuf_descriptor: str | None = UNSET,
    protobuf_schema: str | None = UNSET,
    protobuf_message_name: str | None = UNSET,
    protobuf_length_delimited: bool = UNSET,
    protobuf_into_unstructured_json: bool = UNSET,
    protobuf_confluent_schema_registry: bool = UNSET,
    csv_delimiter: str = UNSET,
    csv_quote: str = UNSET,
    csv_header: bool = UNSET,
    csv_null: Sequence[str] | str = UNSET,
    max_record_bytes: int = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    metadata: Mapping[str, str] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
    port: int | None = UNSET,
    username: str = UNSET,
    password: str = UNSET,
    virtual_host: str = UNSET,
    tls_enabled: bool = UNSET,
    tls_trust: bool = UNSET,
    tls_root: str | None = UNSET,
    tls_cert: str | None = UNSET,
    tls_key: str | None = UNSET,
    load_balancer_mode: bool = UNSET,
    queue: str | None = UNSET,
    stream: str | None = UNSET,
    source_offset: Literal["first", "last", "next", "earliest", "latest"] = UNSET,
    source_prefetch: int = UNSET,
) -> ConfiguredSource:
    """Reads the messages of a queue, or of a stream.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `avro`, `protobuf`: records
            of a schema; `csv`: comma-separated values; `raw_string`, `raw_bytes`: the column `value`,
            unchanged.
        schema: Column → type, such as int64, double, string, timestamp; other columns are ignored.
        primary_key: The columns that identify the row of a change (debezium_json).
        json_timestamp_format: How timestamps are written: RFC3339 strings, `unix` numbers in the unit of the
            column (the default of debezium_json), or `unix_millis`. Strings are read with each. Numbers are
            read in the unit of the column, nanoseconds for TIMESTAMP, or in milliseconds with `unix_millis`.
        json_decimal_encoding: How decimals are written: as numbers, strings, or base64 of their bytes.
            Numbers are read with each; strings are digits, or base64 with `bytes`, and in debezium_json
            unless this is set.
        json_include_schema: Whether rows are wrapped in `{"schema": …, "payload": …}`, as by Kafka Connect.
        json_unstructured: Whether each message is any JSON value, read as a string into the column `value`.
        json_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_raw_datums: Whether each message is a bare record; without it, and without a registry, each
            message is an Avro file with its schema.
        avro_schema: The schema of bare records, and of written ones, as JSON or as the path of a file; by
            default it is derived from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with a descriptor set: `protoc --include_imports
            --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, as a path or its content; imports are resolved relative to it.
            Without it, and without a descriptor, the type is derived from the columns.
        protobuf_message_name: The message type; needed if the file has several.
        protobuf_length_delimited: Rows are length-prefixed; a message then has any number of rows.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        csv_delimiter: The delimiter between values.
        csv_quote: Encloses values that contain a delimiter; empty for no quoting.
        csv_header: Whether the first line of a file names the columns; messages have no header.
        csv_null: Unquoted strings that are read as NULL, comma-separated; the first is used for writing.
        max_record_bytes: The most bytes of a line or a message. A longer one is bad data, of which only the
            beginning is reported.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are truncated to this many bytes.
        metadata: Column → what of a message it holds: exchange, routing_key, message_id, redelivered, offset.
        idle_timeout: After this long without messages the source no longer holds the watermark back.
        host: The name or address of the server.
        port: Its port for AMQP 0.9.1; by default 5672, with TLS 5671.
        username: The user.
        password: The password of the user.
        virtual_host: The virtual host.
        tls_enabled: Whether to connect through TLS.
        tls_trust: Whether any server certificate is accepted; for tests.
        tls_root: A file with the CA certificates to trust.
        tls_cert: A file with the client certificate.
        tls_key: A file with the key of the client certificate.
        load_balancer_mode: Whether the host is a load balancer: accepted, and not used.
        queue: The queue to read; instead of `stream`.
        stream: The stream to read; instead of `queue`.
        source_offset: Where a new pipeline starts in a stream: with the `first` message (or `earliest`), with
            the `last` chunk of messages, or with the `next` one to come (or `latest`).
        source_prefetch: The prefetch count: the most messages that are not acknowledged.
    """
    return ConfiguredSource("rabbitmq", checked_options("source", "rabbitmq", locals()))


@located
def single_file(
    *,
    path: str,
    format: Literal["json", "debezium_json", "csv", "raw_string", "raw_bytes"] = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix", "unix_millis"] | None = UNSET,
    json_decimal_encoding: Literal["number", "string", "bytes"] | None = UNSET,
    json_include_schema: bool = UNSET,
    json_unstructured: bool = UNSET,
    json_confluent_schema_registry: bool = UNSET,
    avro_confluent_schema_registry: bool = UNSET,
    avro_raw_datums: bool = UNSET,
    avro_schema: str | None = UNSET,
    avro_into_unstructured_json: bool = UNSET,
    protobuf_descriptor: str | None = UNSET,
    protobuf_schema: str | None = UNSET,
    protobuf_message_name: str | None = UNSET,
    protobuf_length_delimited: bool = UNSET,
    protobuf_into_unstructured_json: bool = UNSET,
    protobuf_confluent_schema_registry: bool = UNSET,
    csv_delimiter: str = UNSET,
    csv_quote: str = UNSET,
    csv_header: bool = UNSET,
    csv_null: Sequence[str] | str = UNSET,
    max_record_bytes: int = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    timestamp_column: str | None = UNSET,
    timestamp_unit: Literal["s", "ms", "us", "ns"] = UNSET,
    wait_for_control: bool = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
) -> ConfiguredSource:
    """Reads the lines of one local file, each line once; then it ends.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `csv`: comma-separated
            values; `raw_string`, `raw_bytes`: the column `value`, unchanged.
        schema: Column → type, such as int64, double, string, timestamp; other columns are ignored. Without
            it, types are inferred from the first 1000 lines; strings stay strings.
        primary_key: The columns that identify the row of a change (debezium_json).
        json_timestamp_format: How timestamps are written: RFC3339 strings, `unix` numbers in the unit of the
            column (the default of debezium_json), or `unix_millis`. Strings are read with each. Numbers are
            read in the unit of the column, nanoseconds for TIMESTAMP, or in milliseconds with `unix_millis`.
        json_decimal_encoding: How decimals are written: as numbers, strings, or base64 of their bytes.
            Numbers are read with each; strings are digits, or base64 with `bytes`, and in debezium_json
            unless this is set.
        json_include_schema: Whether rows are wrapped in `{"schema": …, "payload": …}`, as by Kafka Connect.
        json_unstructured: Whether each message is any JSON value, read as a string into the column `value`.
        json_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_raw_datums: Whether each message is a bare record; without it, and without a registry, each
            message is an Avro file with its schema.
        avro_schema: The schema of bare records, and of written ones, as JSON or as the path of a file; by
            default it is derived from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with a descriptor set: `protoc --include_imports
            --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, as a path or its content; imports are resolved relative to it.
            Without it, and without a descriptor, the type is derived from the columns.
        protobuf_message_name: The message type; needed if the file has several.
        protobuf_length_delimited: Rows are length-prefixed; a message then has any number of rows.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        csv_delimiter: The delimiter between values.
        csv_quote: Encloses values that contain a delimiter; empty for no quoting.
        csv_header: Whether the first line of a file names the columns; messages have no header.
        csv_null: Unquoted strings that are read as NULL, comma-separated; the first is used for writing.
        max_record_bytes: The most bytes of a line or a message. A longer one is bad data, of which only the
            beginning is reported.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are truncated to this many bytes.
        path: The file to read.
        timestamp_column: The column with the event time: ISO 8601 strings, or numbers in timestamp_unit.
        timestamp_unit: The unit of event times that are numbers: s, ms, us or ns.
        wait_for_control: Accepted for compatibility; it has no effect.
        idle_timeout: After this long without rows the file no longer holds the watermark back.
    """
    return ConfiguredSource("single_file", checked_options("source", "single_file", locals()))


@located
def spark(
    *,
    format: str,
    options: Mapping[str, str] | str = UNSET,
    path: str | None = UNSET,
    schema: Schema | None = UNSET,
    checkpoint: str | None = UNSET,
    bounded: bool = UNSET,
    trigger: str | float | timedelta | None = UNSET,
    timestamp_column: str | None = UNSET,
    timestamp_unit: Literal["s", "ms", "us", "ns"] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
) -> ConfiguredSource:
    """Reads any streaming source of Spark, in a query of its own beside the pipeline.

    Args:
        format: The name of the format in Spark, such as `rate`, `delta` or a class.
        options: The options of the format, as `name=value,name=value`.
        path: The path, for formats that have one.
        schema: Column → type; by default whatever columns there are.
        checkpoint: Where Spark keeps the query's checkpoint, if the state is not on a file system.
        bounded: Whether to finish, for good, with what is there when the pipeline first starts. For runs that
            each read what came since the last one, use `available_now`.
        trigger: The shortest time between two micro-batches.
        timestamp_column: The column that is the event time.
        timestamp_unit: What numbers in that column count.
        idle_timeout: After this long without rows the source no longer holds the watermark back.
    """
    return ConfiguredSource("spark", checked_options("source", "spark", locals()))


@located
def sse(
    *,
    endpoint: str,
    format: Literal["json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes"] = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix", "unix_millis"] | None = UNSET,
    json_decimal_encoding: Literal["number", "string", "bytes"] | None = UNSET,
    json_include_schema: bool = UNSET,
    json_unstructured: bool = UNSET,
    json_confluent_schema_registry: bool = UNSET,
    avro_confluent_schema_registry: bool = UNSET,
    avro_raw_datums: bool = UNSET,
    avro_schema: str | None = UNSET,
    avro_into_unstructured_json: bool = UNSET,
    protobuf_descriptor: str | None = UNSET,
    protobuf_schema: str | None = UNSET,
    protobuf_message_name: str | None = UNSET,
    protobuf_length_delimited: bool = UNSET,
    protobuf_into_unstructured_json: bool = UNSET,
    protobuf_confluent_schema_registry: bool = UNSET,
    csv_delimiter: str = UNSET,
    csv_quote: str = UNSET,
    csv_header: bool = UNSET,
    csv_null: Sequence[str] | str = UNSET,
    max_record_bytes: int = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    metadata: Mapping[str, str] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
    tls_ca: str | None = UNSET,
    tls_cert: str | None = UNSET,
    tls_key: str | None = UNSET,
    headers: Mapping[str, str] | str = UNSET,
    events: Sequence[str] | str = UNSET,
    max_event_size: int | str = UNSET,
) -> ConfiguredSource:
    """Reads an event stream; the data of each event is a message, logged before it is processed.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `avro`, `protobuf`: records
            of a schema; `csv`: comma-separated values; `raw_string`, `raw_bytes`: the column `value`,
            unchanged.
        schema: Column → type, such as int64, double, string, timestamp; other columns are ignored.
        primary_key: The columns that identify the row of a change (debezium_json).
        json_timestamp_format: How timestamps are written: RFC3339 strings, `unix` numbers in the unit of the
            column (the default of debezium_json), or `unix_millis`. Strings are read with each. Numbers are
            read in the unit of the column, nanoseconds for TIMESTAMP, or in milliseconds with `unix_millis`.
        json_decimal_encoding: How decimals are written: as numbers, strings, or base64 of their bytes.
            Numbers are read with each; strings are digits, or base64 with `bytes`, and in debezium_json
            unless this is set.
        json_include_schema: Whether rows are wrapped in `{"schema": …, "payload": …}`, as by Kafka Connect.
        json_unstructured: Whether each message is any JSON value, read as a string into the column `value`.
        json_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_raw_datums: Whether each message is a bare record; without it, and without a registry, each
            message is an Avro file with its schema.
        avro_schema: The schema of bare records, and of written ones, as JSON or as the path of a file; by
            default it is derived from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with a descriptor set: `protoc --include_imports
            --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, as a path or its content; imports are resolved relative to it.
            Without it, and without a descriptor, the type is derived from the columns.
        protobuf_message_name: The message type; needed if the file has several.
        protobuf_length_delimited: Rows are length-prefixed; a message then has any number of rows.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        csv_delimiter: The delimiter between values.
        csv_quote: Encloses values that contain a delimiter; empty for no quoting.
        csv_header: Whether the first line of a file names the columns; messages have no header.
        csv_null: Unquoted strings that are read as NULL, comma-separated; the first is used for writing.
        max_record_bytes: The most bytes of a line or a message. A longer one is bad data, of which only the
            beginning is reported.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are truncated to this many bytes.
        metadata: Column → the metadata field that it holds.
        idle_timeout: After this long without messages the source no longer holds the watermark back.
        tls_ca: A file with the certificates to trust, instead of those of the system.
        tls_cert: A file with the client certificate, if the server asks for one.
        tls_key: A file with the key of `tls.cert`, unless it is in the same file.
        endpoint: The address, such as https://host/path.
        headers: Headers of every request, as `Name: value, Name: value`; their values are never shown.
        events: The names of the events to read, comma-separated; by default all.
        max_event_size: The largest event.
    """
    return ConfiguredSource("sse", checked_options("source", "sse", locals()))


@located
def websocket(
    *,
    endpoint: str,
    format: Literal["json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes"] = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix", "unix_millis"] | None = UNSET,
    json_decimal_encoding: Literal["number", "string", "bytes"] | None = UNSET,
    json_include_schema: bool = UNSET,
    json_unstructured: bool = UNSET,
    json_confluent_schema_registry: bool = UNSET,
    avro_confluent_schema_registry: bool = UNSET,
    avro_raw_datums: bool = UNSET,
    avro_schema: str | None = UNSET,
    avro_into_unstructured_json: bool = UNSET,
    protobuf_descriptor: str | None = UNSET,
    protobuf_schema: str | None = UNSET,
    protobuf_message_name: str | None = UNSET,
    protobuf_length_delimited: bool = UNSET,
    protobuf_into_unstructured_json: bool = UNSET,
    protobuf_confluent_schema_registry: bool = UNSET,
    csv_delimiter: str = UNSET,
    csv_quote: str = UNSET,
    csv_header: bool = UNSET,
    csv_null: Sequence[str] | str = UNSET,
    max_record_bytes: int = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    metadata: Mapping[str, str] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
    tls_ca: str | None = UNSET,
    tls_cert: str | None = UNSET,
    tls_key: str | None = UNSET,
    headers: Mapping[str, str] | str = UNSET,
    subscription_message: str | None = UNSET,
    subscription_messages: Sequence[str] = UNSET,
    max_message_size: int | str = UNSET,
) -> ConfiguredSource:
    """Reads the messages of a WebSocket, text or binary; each is logged before it is processed.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `avro`, `protobuf`: records
            of a schema; `csv`: comma-separated values; `raw_string`, `raw_bytes`: the column `value`,
            unchanged.
        schema: Column → type, such as int64, double, string, timestamp; other columns are ignored.
        primary_key: The columns that identify the row of a change (debezium_json).
        json_timestamp_format: How timestamps are written: RFC3339 strings, `unix` numbers in the unit of the
            column (the default of debezium_json), or `unix_millis`. Strings are read with each. Numbers are
            read in the unit of the column, nanoseconds for TIMESTAMP, or in milliseconds with `unix_millis`.
        json_decimal_encoding: How decimals are written: as numbers, strings, or base64 of their bytes.
            Numbers are read with each; strings are digits, or base64 with `bytes`, and in debezium_json
            unless this is set.
        json_include_schema: Whether rows are wrapped in `{"schema": …, "payload": …}`, as by Kafka Connect.
        json_unstructured: Whether each message is any JSON value, read as a string into the column `value`.
        json_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        avro_raw_datums: Whether each message is a bare record; without it, and without a registry, each
            message is an Avro file with its schema.
        avro_schema: The schema of bare records, and of written ones, as JSON or as the path of a file; by
            default it is derived from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with a descriptor set: `protoc --include_imports
            --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, as a path or its content; imports are resolved relative to it.
            Without it, and without a descriptor, the type is derived from the columns.
        protobuf_message_name: The message type; needed if the file has several.
        protobuf_length_delimited: Rows are length-prefixed; a message then has any number of rows.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message starts with the id of its schema in a schema
            registry.
        csv_delimiter: The delimiter between values.
        csv_quote: Encloses values that contain a delimiter; empty for no quoting.
        csv_header: Whether the first line of a file names the columns; messages have no header.
        csv_null: Unquoted strings that are read as NULL, comma-separated; the first is used for writing.
        max_record_bytes: The most bytes of a line or a message. A longer one is bad data, of which only the
            beginning is reported.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are truncated to this many bytes.
        metadata: Column → the metadata field that it holds.
        idle_timeout: After this long without messages the source no longer holds the watermark back.
        tls_ca: A file with the certificates to trust, instead of those of the system.
        tls_cert: A file with the client certificate, if the server asks for one.
        tls_key: A file with the key of `tls.cert`, unless it is in the same file.
        endpoint: The address, such as wss://host/path.
        headers: Headers of every request, as `Name: value, Name: value`; their values are never shown.
        subscription_message: A message to send after connecting, such as a subscription.
        subscription_messages: Several such messages; in SQL as subscription_messages.0,
            subscription_messages.1 and so on.
        max_message_size: The largest incoming message, uncompressed.
    """
    return ConfiguredSource("websocket", checked_options("source", "websocket", locals()))
