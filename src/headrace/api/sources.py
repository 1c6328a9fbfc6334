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


def confluent(
    *,
    bootstrap_servers: str,
    topic: str,
    key: str,
    secret: str,
    format: Literal["json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes"] = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix_millis"] | None = UNSET,
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
    metadata: Mapping[str, str] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
    schema_registry_endpoint: str | None = UNSET,
    schema_registry_api_key: str | None = UNSET,
    schema_registry_api_secret: str | None = UNSET,
    value_subject: str | None = UNSET,
    client_configs: Mapping[str, str] | str = UNSET,
    source_offset: Literal["latest", "earliest", "group"] = UNSET,
    source_read_mode: Literal["read_uncommitted", "read_committed"] = UNSET,
    source_group_id: str | None = UNSET,
    source_group_id_prefix: str | None = UNSET,
    source_bounded: bool = UNSET,
    source_lost_messages: Literal["fail", "skip"] = UNSET,
) -> ConfiguredSource:
    """Reads the messages of a topic of Confluent Cloud, as the kafka source does.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `avro`, `protobuf`: records
            of a schema; `csv`: values with commas; `raw_string`, `raw_bytes`: the column `value` as it is.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are cut to this many bytes.
        schema: Column → type, such as int64, double, string, timestamp; other columns are left out.
        primary_key: The columns that tell which row a change of debezium_json is about.
        json_timestamp_format: How timestamps are written: RFC3339 texts, or unix_millis, as debezium_json
            does by default. Numbers that are read count in the unit of the column, nanoseconds by default.
        json_decimal_encoding: Decimals as numbers, texts, or the base64 of their bytes, as debezium_json has
            them by default.
        json_include_schema: Whether rows stand in `{"schema": …, "payload": …}`, as Kafka Connect writes
            them.
        json_unstructured: Whether each message is one JSON value of any shape, as a text in the column
            `value`.
        json_confluent_schema_registry: Whether each message names its schema in a schema registry.
        avro_confluent_schema_registry: Whether each message names the schema it was written with, in a schema
            registry.
        avro_raw_datums: Whether each message is a record alone; without it, and without a registry, each is
            an Avro file, with its schema.
        avro_schema: The schema of records that come without one, and of those that are written, as JSON or as
            the path of a file with it; by default it follows from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with compiled types: `protoc --include_imports --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, by its path or itself; what it imports is found beside it. Without
            it, and without a descriptor, the type follows from the columns.
        protobuf_message_name: The type of the messages; needed if the file has several.
        protobuf_length_delimited: Whether each row stands behind its length; a message then has any number of
            them.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message names its type in a schema registry.
        csv_delimiter: What stands between two values.
        csv_quote: What stands around values that have a delimiter in them; nothing for no quotes.
        csv_header: Whether the first line of a file names the columns; messages have no such line.
        csv_null: The texts without quotes that are read as null, with commas; the first is written.
        metadata: Column → what of a message it holds: offset_id, partition, topic, timestamp, key.
        idle_timeout: After this long without messages the source holds the watermark back no more.
        schema_registry_endpoint: The address of a schema registry, such as `http://host:8081`; several with
            commas.
        schema_registry_api_key: The user of the schema registry.
        schema_registry_api_secret: The user's password there.
        value_subject: What the schema of the messages is registered as; by default `{topic}-value`.
        bootstrap_servers: Some brokers of the cluster, such as `host:9092,other:9092`.
        topic: The topic to read or to write.
        client_configs: More settings of the client, librdkafka, as `name=value,name=value`.
        source_offset: Where a new pipeline starts: with what is `latest`, with the `earliest` message there
            is, or where the consumer group `source.group_id` stands, if it stands anywhere.
        source_read_mode: `read_committed` leaves out messages of transactions that are open or were aborted.
        source_group_id: The consumer group that shows how far the pipeline is; by default one of its own.
        source_group_id_prefix: How the name of the pipeline's own consumer group begins.
        source_bounded: Whether to finish with the last message that was there when the pipeline first
            started.
        source_lost_messages: What to do if messages were deleted before they were read: end the run, or go
            on.
        key: The API key of the cluster.
        secret: The secret of the API key.
    """
    return ConfiguredSource("confluent", checked_options("source", "confluent", locals()))


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
    """Reads the rows of a Delta Lake table, then, if it is watched, those that are appended to it.

    Args:
        storage: How an object store is reached, as `storage.KEY` = 'value': `storage.aws_endpoint`,
            `storage.aws_access_key_id`, `storage.aws_region`, `storage.allow_http`, … Never displayed; what
            is not given is taken from the environment.
        path: The directory of the table, as a path or a URL.
        watch_interval: Look for new files this often, for ever; without it what is there is read once.
        timestamp_column: The column with the event time: ISO texts, or numbers in timestamp_unit.
        timestamp_unit: The unit of event times that are numbers: s, ms, us or ns.
        idle_timeout: After this long without rows the files no longer hold the watermark back.
        format: The format of the files.
        schema: Column → type; other columns are left out. Without it the table's columns are read.
        starting_version: Begin with what this version of the table added, or with what comes after the
            `latest`; by default with all rows that are there.
        skip_change_commits: Whether versions that delete or change rows are left out, or end the run.
    """
    return ConfiguredSource("delta", checked_options("source", "delta", locals()))


def filesystem(
    *,
    path: str,
    parquet_compression: Literal["uncompressed", "snappy", "gzip", "zstd", "lz4", "lz4_raw"] = UNSET,
    parquet_row_group_size: int | str | None = UNSET,
    avro_compression: Literal["uncompressed", "deflate", "snappy", "zstd"] = UNSET,
    format: Literal["json", "debezium_json", "csv", "raw_string", "raw_bytes", "parquet", "avro"] = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix_millis"] | None = UNSET,
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
    json_compression: Literal["uncompressed", "gzip"] = UNSET,
    storage: Mapping[str, str] | str = UNSET,
    watch_interval: str | float | timedelta | None = UNSET,
    timestamp_column: str | None = UNSET,
    timestamp_unit: Literal["s", "ms", "us", "ns"] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
    regex_pattern: str | None = UNSET,
    compression: Literal["auto", "none", "gzip", "zstd", "bz2", "lz4", "brotli"] = UNSET,
) -> ConfiguredSource:
    """Reads every file of a directory once, in the order of their paths; then it is finished, or goes on.

    Args:
        parquet_compression: How Parquet files are compressed.
        parquet_row_group_size: About how many bytes of rows a row group of a Parquet file holds,
            uncompressed.
        avro_compression: How Avro files are compressed.
        format: In lines `json`, `debezium_json`, `csv`, `raw_string`, `raw_bytes`; `parquet`; `avro`.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are cut to this many bytes.
        schema: Column → type, such as int64, double, string, timestamp; other columns are left out.
        primary_key: The columns that tell which row a change of debezium_json is about.
        json_timestamp_format: How timestamps are written: RFC3339 texts, or unix_millis, as debezium_json
            does by default. Numbers that are read count in the unit of the column, nanoseconds by default.
        json_decimal_encoding: Decimals as numbers, texts, or the base64 of their bytes, as debezium_json has
            them by default.
        json_include_schema: Whether rows stand in `{"schema": …, "payload": …}`, as Kafka Connect writes
            them.
        json_unstructured: Whether each message is one JSON value of any shape, as a text in the column
            `value`.
        json_confluent_schema_registry: Whether each message names its schema in a schema registry.
        avro_confluent_schema_registry: Whether each message names the schema it was written with, in a schema
            registry.
        avro_raw_datums: Whether each message is a record alone; without it, and without a registry, each is
            an Avro file, with its schema.
        avro_schema: The schema of records that come without one, and of those that are written, as JSON or as
            the path of a file with it; by default it follows from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with compiled types: `protoc --include_imports --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, by its path or itself; what it imports is found beside it. Without
            it, and without a descriptor, the type follows from the columns.
        protobuf_message_name: The type of the messages; needed if the file has several.
        protobuf_length_delimited: Whether each row stands behind its length; a message then has any number of
            them.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message names its type in a schema registry.
        csv_delimiter: What stands between two values.
        csv_quote: What stands around values that have a delimiter in them; nothing for no quotes.
        csv_header: Whether the first line of a file names the columns; messages have no such line.
        csv_null: The texts without quotes that are read as null, with commas; the first is written.
        json_compression: How files of lines are compressed by a sink.
        storage: How an object store is reached, as `storage.KEY` = 'value': `storage.aws_endpoint`,
            `storage.aws_access_key_id`, `storage.aws_region`, `storage.allow_http`, … Never displayed; what
            is not given is taken from the environment.
        path: A file or a directory, as a path or a URL.
        watch_interval: Look for new files this often, for ever; without it what is there is read once.
        timestamp_column: The column with the event time: ISO texts, or numbers in timestamp_unit.
        timestamp_unit: The unit of event times that are numbers: s, ms, us or ns.
        idle_timeout: After this long without rows the files no longer hold the watermark back.
        regex_pattern: Only files whose path below the directory has a part that matches are read.
        compression: How files of lines are compressed; `auto` goes by their names, such as `x.json.gz`.
    """
    return ConfiguredSource("filesystem", checked_options("source", "filesystem", locals()))


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
        start_time: Event time of the first event, ISO text or nanoseconds since 1970; by default, now.
        align: Truncate the start to a multiple of this duration, such as `1m`.
        idle_timeout: After this long without events the source no longer holds the watermark back.
        schema: The columns to emit, of counter and subtask_index, and their integer types.
    """
    return ConfiguredSource("impulse", checked_options("source", "impulse", locals()))


def kafka(
    *,
    bootstrap_servers: str,
    topic: str,
    format: Literal["json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes"] = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix_millis"] | None = UNSET,
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
    metadata: Mapping[str, str] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
    schema_registry_endpoint: str | None = UNSET,
    schema_registry_api_key: str | None = UNSET,
    schema_registry_api_secret: str | None = UNSET,
    value_subject: str | None = UNSET,
    client_configs: Mapping[str, str] | str = UNSET,
    source_offset: Literal["latest", "earliest", "group"] = UNSET,
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
    """Reads the messages of a topic, each once; `_timestamp` is the time that Kafka has for them.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `avro`, `protobuf`: records
            of a schema; `csv`: values with commas; `raw_string`, `raw_bytes`: the column `value` as it is.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are cut to this many bytes.
        schema: Column → type, such as int64, double, string, timestamp; other columns are left out.
        primary_key: The columns that tell which row a change of debezium_json is about.
        json_timestamp_format: How timestamps are written: RFC3339 texts, or unix_millis, as debezium_json
            does by default. Numbers that are read count in the unit of the column, nanoseconds by default.
        json_decimal_encoding: Decimals as numbers, texts, or the base64 of their bytes, as debezium_json has
            them by default.
        json_include_schema: Whether rows stand in `{"schema": …, "payload": …}`, as Kafka Connect writes
            them.
        json_unstructured: Whether each message is one JSON value of any shape, as a text in the column
            `value`.
        json_confluent_schema_registry: Whether each message names its schema in a schema registry.
        avro_confluent_schema_registry: Whether each message names the schema it was written with, in a schema
            registry.
        avro_raw_datums: Whether each message is a record alone; without it, and without a registry, each is
            an Avro file, with its schema.
        avro_schema: The schema of records that come without one, and of those that are written, as JSON or as
            the path of a file with it; by default it follows from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with compiled types: `protoc --include_imports --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, by its path or itself; what it imports is found beside it. Without
            it, and without a descriptor, the type follows from the columns.
        protobuf_message_name: The type of the messages; needed if the file has several.
        protobuf_length_delimited: Whether each row stands behind its length; a message then has any number of
            them.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message names its type in a schema registry.
        csv_delimiter: What stands between two values.
        csv_quote: What stands around values that have a delimiter in them; nothing for no quotes.
        csv_header: Whether the first line of a file names the columns; messages have no such line.
        csv_null: The texts without quotes that are read as null, with commas; the first is written.
        metadata: Column → what of a message it holds: offset_id, partition, topic, timestamp, key.
        idle_timeout: After this long without messages the source holds the watermark back no more.
        schema_registry_endpoint: The address of a schema registry, such as `http://host:8081`; several with
            commas.
        schema_registry_api_key: The user of the schema registry.
        schema_registry_api_secret: The user's password there.
        value_subject: What the schema of the messages is registered as; by default `{topic}-value`.
        bootstrap_servers: Some brokers of the cluster, such as `host:9092,other:9092`.
        topic: The topic to read or to write.
        client_configs: More settings of the client, librdkafka, as `name=value,name=value`.
        source_offset: Where a new pipeline starts: with what is `latest`, with the `earliest` message there
            is, or where the consumer group `source.group_id` stands, if it stands anywhere.
        source_read_mode: `read_committed` leaves out messages of transactions that are open or were aborted.
        source_group_id: The consumer group that shows how far the pipeline is; by default one of its own.
        source_group_id_prefix: How the name of the pipeline's own consumer group begins.
        source_bounded: Whether to finish with the last message that was there when the pipeline first
            started.
        source_lost_messages: What to do if messages were deleted before they were read: end the run, or go
            on.
        auth_type: How to log in: `none`, or `sasl` with name and password.
        auth_mechanism: With sasl: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
        auth_protocol: With sasl: SASL_SSL or SASL_PLAINTEXT.
        auth_username: With sasl: the user.
        auth_password: With sasl: the password.
        auth_region: Of aws_msk_iam, which is refused.
    """
    return ConfiguredSource("kafka", checked_options("source", "kafka", locals()))


def memory(
    *,
    rows: Any | None = UNSET,
    lanes: Any | None = UNSET,
    timestamp_column: str | None = UNSET,
    timestamp_unit: Literal["s", "ms", "us", "ns"] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
) -> ConfiguredSource:
    """Emits the rows it was given, in order, once each; then it is finished.

    Args:
        rows: The rows of one lane: dicts, a pyarrow Table or record batches.
        lanes: Several independent lanes: a list of `rows`, or lane name → `rows`.
        timestamp_column: The column that holds the event time; by default `_timestamp`.
        timestamp_unit: The unit of event times that are numbers: s, ms, us or ns.
        idle_timeout: After this long without rows a lane no longer holds the watermark back.
    """
    return ConfiguredSource("memory", checked_options("source", "memory", locals()))


def mqtt(
    *,
    url: str,
    topic: str,
    format: Literal["json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes"] = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix_millis"] | None = UNSET,
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
    """Reads the messages of a topic, or with `+` and `#` of several; each is in a log before it is read.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `avro`, `protobuf`: records
            of a schema; `csv`: values with commas; `raw_string`, `raw_bytes`: the column `value` as it is.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are cut to this many bytes.
        schema: Column → type, such as int64, double, string, timestamp; other columns are left out.
        primary_key: The columns that tell which row a change of debezium_json is about.
        json_timestamp_format: How timestamps are written: RFC3339 texts, or unix_millis, as debezium_json
            does by default. Numbers that are read count in the unit of the column, nanoseconds by default.
        json_decimal_encoding: Decimals as numbers, texts, or the base64 of their bytes, as debezium_json has
            them by default.
        json_include_schema: Whether rows stand in `{"schema": …, "payload": …}`, as Kafka Connect writes
            them.
        json_unstructured: Whether each message is one JSON value of any shape, as a text in the column
            `value`.
        json_confluent_schema_registry: Whether each message names its schema in a schema registry.
        avro_confluent_schema_registry: Whether each message names the schema it was written with, in a schema
            registry.
        avro_raw_datums: Whether each message is a record alone; without it, and without a registry, each is
            an Avro file, with its schema.
        avro_schema: The schema of records that come without one, and of those that are written, as JSON or as
            the path of a file with it; by default it follows from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with compiled types: `protoc --include_imports --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, by its path or itself; what it imports is found beside it. Without
            it, and without a descriptor, the type follows from the columns.
        protobuf_message_name: The type of the messages; needed if the file has several.
        protobuf_length_delimited: Whether each row stands behind its length; a message then has any number of
            them.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message names its type in a schema registry.
        csv_delimiter: What stands between two values.
        csv_quote: What stands around values that have a delimiter in them; nothing for no quotes.
        csv_header: Whether the first line of a file names the columns; messages have no such line.
        csv_null: The texts without quotes that are read as null, with commas; the first is written.
        metadata: Column → what of a message it holds besides its content.
        idle_timeout: After this long without messages the source holds the watermark back no more.
        tls_ca: A file with the certificates to trust, instead of those of the system.
        tls_cert: A file with the certificate to show, if the server asks for one.
        tls_key: A file with the key of `tls.cert`, unless it is in the same file.
        url: The broker, such as mqtt://host:1883, or mqtts://, ws:// or wss:// (web sockets).
        username: The user, if the broker asks for one.
        password: The password of the user.
        client_prefix: How the name that the broker knows the client by begins.
        max_packet_size: Larger messages are not received, and not sent.
        protocol: The version of MQTT to speak.
        topic: The topic; `+` stands for any level, and `#` at the end for all that follow.
        qos: How sure the delivery is: AtMostOnce, AtLeastOnce or ExactlyOnce (QoS 0, 1 or 2).
        session_expiry: How long the broker keeps messages for a pipeline that does not run (MQTT 5).
    """
    return ConfiguredSource("mqtt", checked_options("source", "mqtt", locals()))


def nats(
    *,
    servers: Sequence[str] | str,
    format: Literal["json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes"] = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix_millis"] | None = UNSET,
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
    """Reads the messages of a JetStream stream by their sequences, or listens to a subject of core NATS.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `avro`, `protobuf`: records
            of a schema; `csv`: values with commas; `raw_string`, `raw_bytes`: the column `value` as it is.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are cut to this many bytes.
        schema: Column → type, such as int64, double, string, timestamp; other columns are left out.
        primary_key: The columns that tell which row a change of debezium_json is about.
        json_timestamp_format: How timestamps are written: RFC3339 texts, or unix_millis, as debezium_json
            does by default. Numbers that are read count in the unit of the column, nanoseconds by default.
        json_decimal_encoding: Decimals as numbers, texts, or the base64 of their bytes, as debezium_json has
            them by default.
        json_include_schema: Whether rows stand in `{"schema": …, "payload": …}`, as Kafka Connect writes
            them.
        json_unstructured: Whether each message is one JSON value of any shape, as a text in the column
            `value`.
        json_confluent_schema_registry: Whether each message names its schema in a schema registry.
        avro_confluent_schema_registry: Whether each message names the schema it was written with, in a schema
            registry.
        avro_raw_datums: Whether each message is a record alone; without it, and without a registry, each is
            an Avro file, with its schema.
        avro_schema: The schema of records that come without one, and of those that are written, as JSON or as
            the path of a file with it; by default it follows from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with compiled types: `protoc --include_imports --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, by its path or itself; what it imports is found beside it. Without
            it, and without a descriptor, the type follows from the columns.
        protobuf_message_name: The type of the messages; needed if the file has several.
        protobuf_length_delimited: Whether each row stands behind its length; a message then has any number of
            them.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message names its type in a schema registry.
        csv_delimiter: What stands between two values.
        csv_quote: What stands around values that have a delimiter in them; nothing for no quotes.
        csv_header: Whether the first line of a file names the columns; messages have no such line.
        csv_null: The texts without quotes that are read as null, with commas; the first is written.
        metadata: Column → what of a message it holds: subject, sequence.
        idle_timeout: After this long without messages the source holds the watermark back no more.
        servers: Some servers, such as `nats://host:4222,nats://other:4222`.
        auth_type: How to log in: `none`, `credentials` (user and password), `jwt` or `nkey`.
        auth_username: With credentials: the user.
        auth_password: With credentials: the password.
        auth_jwt: With jwt: the token of the user.
        auth_nkey_seed: With jwt and nkey: the seed of the user's key.
        tls_ca: A file with the certificates that those of servers must go back to.
        tls_cert: A file with the certificate that this side shows.
        tls_key: A file with the key of `tls.cert`.
        stream: The JetStream stream to read; instead of `subject`.
        subject: The subject of core NATS to listen to, such as `orders.*`; instead of `stream`.
        source_offset: Where a new pipeline starts in a stream: with its first message, or with what is new.
        source_bounded: Whether to finish with the last message that the stream had when the pipeline started.
        source_lost_messages: What to do if a stream dropped messages before they were read: end the run, or
            go on.
        consumer_description: How the consumers of the stream are described.
        consumer_filter_subjects: Only messages of these subjects are read.
        consumer_num_replicas: How many copies a consumer has.
        consumer_inactive_threshold: When the servers forget a consumer that nobody uses.
        consumer_max_batch: How many messages are asked for at once.
        consumer_max_bytes: How many bytes are asked for at once.
        consumer_replay_policy: `Instant`: as fast as can be; no other.
        consumer_ack_policy: When messages are done: accepted, and not used: the checkpoint knows what was
            read.
        consumer_ack_wait: When a message is sent again: accepted, and not used: the checkpoint knows what was
            read.
        consumer_sample_frequency: Observed acknowledgements: accepted, and not used.
        consumer_rate_limit: Bits in a second: accepted, and not used.
        consumer_max_ack_pending: Messages that are not done: accepted, and not used: the checkpoint knows
            what was read.
        consumer_max_deliver: How often a message is sent again: accepted, and not used: the checkpoint knows
            what was read.
        consumer_max_waiting: Waiting requests: accepted, and not used.
        consumer_max_expires: How long a request waits: accepted, and not used.
    """
    return ConfiguredSource("nats", checked_options("source", "nats", locals()))


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
        base_time: Event time of the first event, ISO text or nanoseconds since 1970; by default, when the
            pipeline was first started.
        seed: Another seed gives other people, auctions and bids.
        paced: Whether events appear at event_rate on the wall clock; if false, as fast as they can be read,
            which needs runtime or message_count.
    """
    return ConfiguredSource("nexmark", checked_options("source", "nexmark", locals()))


def polling_http(
    *,
    endpoint: str,
    format: Literal["json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes"] = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix_millis"] | None = UNSET,
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
    """Asks an address at an interval; each answer is a message, in the state directory before it is read.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `avro`, `protobuf`: records
            of a schema; `csv`: values with commas; `raw_string`, `raw_bytes`: the column `value` as it is.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are cut to this many bytes.
        schema: Column → type, such as int64, double, string, timestamp; other columns are left out.
        primary_key: The columns that tell which row a change of debezium_json is about.
        json_timestamp_format: How timestamps are written: RFC3339 texts, or unix_millis, as debezium_json
            does by default. Numbers that are read count in the unit of the column, nanoseconds by default.
        json_decimal_encoding: Decimals as numbers, texts, or the base64 of their bytes, as debezium_json has
            them by default.
        json_include_schema: Whether rows stand in `{"schema": …, "payload": …}`, as Kafka Connect writes
            them.
        json_unstructured: Whether each message is one JSON value of any shape, as a text in the column
            `value`.
        json_confluent_schema_registry: Whether each message names its schema in a schema registry.
        avro_confluent_schema_registry: Whether each message names the schema it was written with, in a schema
            registry.
        avro_raw_datums: Whether each message is a record alone; without it, and without a registry, each is
            an Avro file, with its schema.
        avro_schema: The schema of records that come without one, and of those that are written, as JSON or as
            the path of a file with it; by default it follows from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with compiled types: `protoc --include_imports --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, by its path or itself; what it imports is found beside it. Without
            it, and without a descriptor, the type follows from the columns.
        protobuf_message_name: The type of the messages; needed if the file has several.
        protobuf_length_delimited: Whether each row stands behind its length; a message then has any number of
            them.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message names its type in a schema registry.
        csv_delimiter: What stands between two values.
        csv_quote: What stands around values that have a delimiter in them; nothing for no quotes.
        csv_header: Whether the first line of a file names the columns; messages have no such line.
        csv_null: The texts without quotes that are read as null, with commas; the first is written.
        metadata: Column → what of a message it holds besides its content.
        idle_timeout: After this long without messages the source holds the watermark back no more.
        tls_ca: A file with the certificates to trust, instead of those of the system.
        tls_cert: A file with the certificate to show, if the server asks for one.
        tls_key: A file with the key of `tls.cert`, unless it is in the same file.
        endpoint: The address, such as https://host/path.
        headers: Headers of every request, as `Name: value, Name: value`; their values are never shown.
        method: How it is asked.
        body: What is sent with every request.
        poll_interval_ms: How many milliseconds are between the beginnings of two requests.
        emit_behavior: Whether every answer is a message, or only one that has changed.
        max_body_size: How large an answer may be, uncompressed.
    """
    return ConfiguredSource("polling_http", checked_options("source", "polling_http", locals()))


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
    """Reads the rows of a table of PostgreSQL, then every change of it, each once.

    Args:
        url: The database, such as postgresql://user:password@host:5432/database.
        username: The user, if not in `url`.
        password: The password, if not in `url`.
        table: The table, such as `orders` or `sales.orders`.
        schema: Column → type, such as int64, double, string, timestamp.
        primary_key: The columns that tell rows apart.
        source_changes: `all`: rows are added and taken back as the table changes; `inserts`: only added.
        source_snapshot: Whether the rows that are there when the pipeline first starts come first.
        source_bounded: Whether to finish with the rows that are there when the pipeline first starts.
        source_slot: The replication slot that is created; by default one named after the pipeline.
        source_publication: The publication that holds the table; created if it is missing.
        source_truncate: What to do when the table is truncated: end the run, or keep the rows as they were.
        bad_data: What to do with rows that have a value which its column cannot hold, such as the timestamp
            `infinity`: end the run, drop and count them, or send them to the output `dead_letter` (in SQL:
            `dead_letter_table`).
        idle_timeout: After this long without changes the source holds the watermark back no more.
    """
    return ConfiguredSource("postgres", checked_options("source", "postgres", locals()))


def rabbitmq(
    *,
    host: str,
    format: Literal["json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes"] = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix_millis"] | None = UNSET,
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
            of a schema; `csv`: values with commas; `raw_string`, `raw_bytes`: the column `value` as it is.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are cut to this many bytes.
        schema: Column → type, such as int64, double, string, timestamp; other columns are left out.
        primary_key: The columns that tell which row a change of debezium_json is about.
        json_timestamp_format: How timestamps are written: RFC3339 texts, or unix_millis, as debezium_json
            does by default. Numbers that are read count in the unit of the column, nanoseconds by default.
        json_decimal_encoding: Decimals as numbers, texts, or the base64 of their bytes, as debezium_json has
            them by default.
        json_include_schema: Whether rows stand in `{"schema": …, "payload": …}`, as Kafka Connect writes
            them.
        json_unstructured: Whether each message is one JSON value of any shape, as a text in the column
            `value`.
        json_confluent_schema_registry: Whether each message names its schema in a schema registry.
        avro_confluent_schema_registry: Whether each message names the schema it was written with, in a schema
            registry.
        avro_raw_datums: Whether each message is a record alone; without it, and without a registry, each is
            an Avro file, with its schema.
        avro_schema: The schema of records that come without one, and of those that are written, as JSON or as
            the path of a file with it; by default it follows from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with compiled types: `protoc --include_imports --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, by its path or itself; what it imports is found beside it. Without
            it, and without a descriptor, the type follows from the columns.
        protobuf_message_name: The type of the messages; needed if the file has several.
        protobuf_length_delimited: Whether each row stands behind its length; a message then has any number of
            them.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message names its type in a schema registry.
        csv_delimiter: What stands between two values.
        csv_quote: What stands around values that have a delimiter in them; nothing for no quotes.
        csv_header: Whether the first line of a file names the columns; messages have no such line.
        csv_null: The texts without quotes that are read as null, with commas; the first is written.
        metadata: Column → what of a message it holds: exchange, routing_key, message_id, redelivered, offset.
        idle_timeout: After this long without messages the source holds the watermark back no more.
        host: The name or address of the server.
        port: Its port for AMQP 0.9.1; by default 5672, with TLS 5671.
        username: The user.
        password: The password of the user.
        virtual_host: The virtual host.
        tls_enabled: Whether to connect through TLS.
        tls_trust: Whether any certificate of the server will do; for tests.
        tls_root: A file with the certificates that the server's must go back to.
        tls_cert: A file with the certificate that this side shows.
        tls_key: A file with the key of that certificate.
        load_balancer_mode: Whether the host stands for several servers: accepted, and not used.
        queue: The queue to read; instead of `stream`.
        stream: The stream to read; instead of `queue`.
        source_offset: Where a new pipeline starts in a stream: with the `first` message (or `earliest`), with
            the `last` chunk of messages, or with the `next` one to come (or `latest`).
        source_prefetch: How many messages may be on the way or not yet in the log.
    """
    return ConfiguredSource("rabbitmq", checked_options("source", "rabbitmq", locals()))


def single_file(
    *,
    path: str,
    format: Literal["json", "debezium_json", "csv", "raw_string", "raw_bytes"] = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix_millis"] | None = UNSET,
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
    timestamp_column: str | None = UNSET,
    timestamp_unit: Literal["s", "ms", "us", "ns"] = UNSET,
    wait_for_control: bool = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
) -> ConfiguredSource:
    """Reads the lines of one local file from beginning to end, each line once; then it is finished.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `csv`: values with commas;
            `raw_string`, `raw_bytes`: the column `value` as it is.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are cut to this many bytes.
        schema: Column → type, such as int64, double, string, timestamp; other columns are ignored. Without
            it, types are inferred from the first 1000 lines, texts staying texts.
        primary_key: The columns that tell which row a change of debezium_json is about.
        json_timestamp_format: How timestamps are written: RFC3339 texts, or unix_millis, as debezium_json
            does by default. Numbers that are read count in the unit of the column, nanoseconds by default.
        json_decimal_encoding: Decimals as numbers, texts, or the base64 of their bytes, as debezium_json has
            them by default.
        json_include_schema: Whether rows stand in `{"schema": …, "payload": …}`, as Kafka Connect writes
            them.
        json_unstructured: Whether each message is one JSON value of any shape, as a text in the column
            `value`.
        json_confluent_schema_registry: Whether each message names its schema in a schema registry.
        avro_confluent_schema_registry: Whether each message names the schema it was written with, in a schema
            registry.
        avro_raw_datums: Whether each message is a record alone; without it, and without a registry, each is
            an Avro file, with its schema.
        avro_schema: The schema of records that come without one, and of those that are written, as JSON or as
            the path of a file with it; by default it follows from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with compiled types: `protoc --include_imports --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, by its path or itself; what it imports is found beside it. Without
            it, and without a descriptor, the type follows from the columns.
        protobuf_message_name: The type of the messages; needed if the file has several.
        protobuf_length_delimited: Whether each row stands behind its length; a message then has any number of
            them.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message names its type in a schema registry.
        csv_delimiter: What stands between two values.
        csv_quote: What stands around values that have a delimiter in them; nothing for no quotes.
        csv_header: Whether the first line of a file names the columns; messages have no such line.
        csv_null: The texts without quotes that are read as null, with commas; the first is written.
        path: The file to read.
        timestamp_column: The column with the event time: ISO texts, or numbers in timestamp_unit.
        timestamp_unit: The unit of event times that are numbers: s, ms, us or ns.
        wait_for_control: Accepted for compatibility; it has no effect.
        idle_timeout: After this long without rows the file no longer holds the watermark back.
    """
    return ConfiguredSource("single_file", checked_options("source", "single_file", locals()))


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
        bounded: Whether to finish with what is there when the pipeline first starts.
        trigger: The shortest time between two micro-batches.
        timestamp_column: The column that is the event time.
        timestamp_unit: What numbers in that column count.
        idle_timeout: After this long without rows the source holds the watermark back no more.
    """
    return ConfiguredSource("spark", checked_options("source", "spark", locals()))


def sse(
    *,
    endpoint: str,
    format: Literal["json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes"] = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix_millis"] | None = UNSET,
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
    metadata: Mapping[str, str] = UNSET,
    idle_timeout: str | float | timedelta | None = UNSET,
    tls_ca: str | None = UNSET,
    tls_cert: str | None = UNSET,
    tls_key: str | None = UNSET,
    headers: Mapping[str, str] | str = UNSET,
    events: Sequence[str] | str = UNSET,
    max_event_size: int | str = UNSET,
) -> ConfiguredSource:
    """Reads an event stream; the data of each event is a message, in the state directory before it is read.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `avro`, `protobuf`: records
            of a schema; `csv`: values with commas; `raw_string`, `raw_bytes`: the column `value` as it is.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are cut to this many bytes.
        schema: Column → type, such as int64, double, string, timestamp; other columns are left out.
        primary_key: The columns that tell which row a change of debezium_json is about.
        json_timestamp_format: How timestamps are written: RFC3339 texts, or unix_millis, as debezium_json
            does by default. Numbers that are read count in the unit of the column, nanoseconds by default.
        json_decimal_encoding: Decimals as numbers, texts, or the base64 of their bytes, as debezium_json has
            them by default.
        json_include_schema: Whether rows stand in `{"schema": …, "payload": …}`, as Kafka Connect writes
            them.
        json_unstructured: Whether each message is one JSON value of any shape, as a text in the column
            `value`.
        json_confluent_schema_registry: Whether each message names its schema in a schema registry.
        avro_confluent_schema_registry: Whether each message names the schema it was written with, in a schema
            registry.
        avro_raw_datums: Whether each message is a record alone; without it, and without a registry, each is
            an Avro file, with its schema.
        avro_schema: The schema of records that come without one, and of those that are written, as JSON or as
            the path of a file with it; by default it follows from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with compiled types: `protoc --include_imports --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, by its path or itself; what it imports is found beside it. Without
            it, and without a descriptor, the type follows from the columns.
        protobuf_message_name: The type of the messages; needed if the file has several.
        protobuf_length_delimited: Whether each row stands behind its length; a message then has any number of
            them.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message names its type in a schema registry.
        csv_delimiter: What stands between two values.
        csv_quote: What stands around values that have a delimiter in them; nothing for no quotes.
        csv_header: Whether the first line of a file names the columns; messages have no such line.
        csv_null: The texts without quotes that are read as null, with commas; the first is written.
        metadata: Column → what of a message it holds besides its content.
        idle_timeout: After this long without messages the source holds the watermark back no more.
        tls_ca: A file with the certificates to trust, instead of those of the system.
        tls_cert: A file with the certificate to show, if the server asks for one.
        tls_key: A file with the key of `tls.cert`, unless it is in the same file.
        endpoint: The address, such as https://host/path.
        headers: Headers of every request, as `Name: value, Name: value`; their values are never shown.
        events: The events that are wanted, by name, with commas between; by default all of them.
        max_event_size: How large an event may be.
    """
    return ConfiguredSource("sse", checked_options("source", "sse", locals()))


def websocket(
    *,
    endpoint: str,
    format: Literal["json", "debezium_json", "avro", "protobuf", "csv", "raw_string", "raw_bytes"] = UNSET,
    bad_data: Literal["fail", "drop", "dead_letter"] = UNSET,
    framing: Literal["newline"] | None = UNSET,
    framing_max_length: int | None = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    json_timestamp_format: Literal["RFC3339", "unix_millis"] | None = UNSET,
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
    """Reads the messages of a web socket, texts and bytes alike; each is in a log before it is read.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `avro`, `protobuf`: records
            of a schema; `csv`: values with commas; `raw_string`, `raw_bytes`: the column `value` as it is.
        bad_data: What to do with rows that cannot be read: end the run, drop and count them, or send them to
            the output `dead_letter` (in SQL: `dead_letter_table`).
        framing: `newline`: a message holds several rows, one in each line.
        framing_max_length: Lines are cut to this many bytes.
        schema: Column → type, such as int64, double, string, timestamp; other columns are left out.
        primary_key: The columns that tell which row a change of debezium_json is about.
        json_timestamp_format: How timestamps are written: RFC3339 texts, or unix_millis, as debezium_json
            does by default. Numbers that are read count in the unit of the column, nanoseconds by default.
        json_decimal_encoding: Decimals as numbers, texts, or the base64 of their bytes, as debezium_json has
            them by default.
        json_include_schema: Whether rows stand in `{"schema": …, "payload": …}`, as Kafka Connect writes
            them.
        json_unstructured: Whether each message is one JSON value of any shape, as a text in the column
            `value`.
        json_confluent_schema_registry: Whether each message names its schema in a schema registry.
        avro_confluent_schema_registry: Whether each message names the schema it was written with, in a schema
            registry.
        avro_raw_datums: Whether each message is a record alone; without it, and without a registry, each is
            an Avro file, with its schema.
        avro_schema: The schema of records that come without one, and of those that are written, as JSON or as
            the path of a file with it; by default it follows from the columns.
        avro_into_unstructured_json: Whether each record is read as JSON, into the column `value`, whatever
            its schema.
        protobuf_descriptor: A file with compiled types: `protoc --include_imports --descriptor_set_out=FILE`.
        protobuf_schema: A `.proto` file, by its path or itself; what it imports is found beside it. Without
            it, and without a descriptor, the type follows from the columns.
        protobuf_message_name: The type of the messages; needed if the file has several.
        protobuf_length_delimited: Whether each row stands behind its length; a message then has any number of
            them.
        protobuf_into_unstructured_json: Whether each message is read as JSON, into the column `value`,
            whatever its type.
        protobuf_confluent_schema_registry: Whether each message names its type in a schema registry.
        csv_delimiter: What stands between two values.
        csv_quote: What stands around values that have a delimiter in them; nothing for no quotes.
        csv_header: Whether the first line of a file names the columns; messages have no such line.
        csv_null: The texts without quotes that are read as null, with commas; the first is written.
        metadata: Column → what of a message it holds besides its content.
        idle_timeout: After this long without messages the source holds the watermark back no more.
        tls_ca: A file with the certificates to trust, instead of those of the system.
        tls_cert: A file with the certificate to show, if the server asks for one.
        tls_key: A file with the key of `tls.cert`, unless it is in the same file.
        endpoint: The address, such as wss://host/path.
        headers: Headers of every request, as `Name: value, Name: value`; their values are never shown.
        subscription_message: A message that is sent first, after every connection.
        subscription_messages: Several of them; in SQL as subscription_messages.0, subscription_messages.1 and
            so on.
        max_message_size: How large a message that comes may be, uncompressed.
    """
    return ConfiguredSource("websocket", checked_options("source", "websocket", locals()))
