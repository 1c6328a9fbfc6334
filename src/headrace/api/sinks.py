"""Sinks with their options: `stream.sink(hr.sinks.kafka(topic=…))`.

Written by `python -m docs.generate` from the options that connectors declare. Options that are left out have
the defaults that `docs/reference/operators-and-connectors.md` lists.
"""
# ruff: noqa: A002  options are called what they are called in SQL

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal

from headrace.api.connectors import UNSET, ConfiguredSink, checked_options
from headrace.api.schemas import Schema
from headrace.base.call_site import located

__all__ = [
    "blackhole",
    "confluent",
    "database",
    "delta",
    "filesystem",
    "iceberg",
    "kafka",
    "memory",
    "mqtt",
    "nats",
    "postgres",
    "rabbitmq",
    "redis",
    "single_file",
    "spark",
    "stdout",
    "webhook",
    "websocket",
]


def __dir__() -> list[str]:
    return [*__all__]


@located
def blackhole(
    *,
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
) -> ConfiguredSink:
    """Discards every row and counts them in the metric `rows`.

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
    """
    return ConfiguredSink("blackhole", checked_options("sink", "blackhole", locals()))


@located
def confluent(
    *,
    bootstrap_servers: str,
    topic: str,
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
    schema_registry_endpoint: str | None = UNSET,
    schema_registry_api_key: str | None = UNSET,
    schema_registry_api_secret: str | None = UNSET,
    value_subject: str | None = UNSET,
    client_configs: Mapping[str, str] | str = UNSET,
    bad_data: Literal["fail", "drop"] = UNSET,
    upsert: bool = UNSET,
    key_format: Literal["raw", "json"] | None = UNSET,
    sink_commit_mode: Literal["at_least_once", "exactly_once"] = UNSET,
    sink_key_field: str | None = UNSET,
    sink_timestamp_field: str | None = UNSET,
) -> ConfiguredSink:
    """Writes rows as messages of a topic of Confluent Cloud, as the kafka sink does.

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
        schema_registry_endpoint: The address of a schema registry, such as `http://host:8081`; several comma-
            separated.
        schema_registry_api_key: The API key (user name).
        schema_registry_api_secret: The API secret (password).
        value_subject: The subject of the schema; by default `{topic}-value`.
        bootstrap_servers: Brokers to connect to first, comma-separated, such as `host:9092,other:9092`.
        client_configs: Further settings of the client (librdkafka), as `name=value,name=value`.
        topic: The topic to write.
        bad_data: What to do with rows that have a value that cannot be written or read: end the run, or drop
            and count them.
        upsert: The topic is a table, as with Flink's `upsert-kafka`: a message is the current row of its key,
            the PRIMARY KEY, and a message without a value (a tombstone) deletes it.
        key_format: With `upsert`: how keys are written. `raw`, for a key of one column: its text, or its
            bytes; `json`: an object with the key columns. By default `raw` for one column, `json` for
            several.
        sink_commit_mode: `exactly_once` writes each epoch in a transaction, for consumers with
            `read_committed`; `at_least_once` writes rows before the commit, and again if the epoch is
            retried.
        sink_key_field: The column with the message key.
        sink_timestamp_field: The column with the message timestamp; by default the event time of the row.
        key: The API key of the cluster.
        secret: The secret of the API key.
    """
    return ConfiguredSink("confluent", checked_options("sink", "confluent", locals()))


@located
def database(
    *,
    url: str,
    table: str,
    username: str | None = UNSET,
    password: str | None = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    sink_create_table: bool = UNSET,
    sink_epochs_table: str = UNSET,
) -> ConfiguredSink:
    """Inserts rows into a table, or upserts and deletes them by key, in any database of SQLAlchemy.

    Args:
        url: The database as a SQLAlchemy URL, such as sqlite:////tmp/sales.db.
        username: The user, if not in `url`.
        password: The password, if not in `url`.
        table: The table, such as `orders` or `sales.orders`.
        schema: Column → type, such as int64, double, string, timestamp.
        primary_key: The columns of a primary key or unique index of the table: a row replaces the one with
            the same key. Without them rows are inserted.
        sink_create_table: Whether to create the table if it is missing.
        sink_epochs_table: The table in the same database that records the committed epochs; created if
            missing.
    """
    return ConfiguredSink("database", checked_options("sink", "database", locals()))


@located
def delta(
    *,
    path: str,
    storage: Mapping[str, str] | str = UNSET,
    time_pattern: str | None = UNSET,
    partition_fields: Sequence[str] | str = UNSET,
    prefix: str | None = UNSET,
    suffix: str | None = UNSET,
    strategy: Literal["serial", "uuid", "uuid_v7", "ulid"] = UNSET,
    parquet_compression: Literal["uncompressed", "snappy", "gzip", "zstd", "lz4", "lz4_raw"] = UNSET,
    parquet_row_group_size: int | str | None = UNSET,
    file_size: int | str = UNSET,
    interval: str | float | timedelta = UNSET,
    inactivity_interval: str | float | timedelta | None = UNSET,
    watermark_expiration: str | float | timedelta | None = UNSET,
    shuffle_by_partition: bool = UNSET,
    target_part_size: int | str | None = UNSET,
    max_parts: int | None = UNSET,
    minimum_multipart_size: int | str | None = UNSET,
    version: Literal["v1", "v2"] = UNSET,
    format: Literal["parquet"] = UNSET,
    schema: Schema | None = UNSET,
    with_timestamp: bool = UNSET,
) -> ConfiguredSink:
    """Appends rows to a Delta Lake table; the rows of an epoch become visible in one version, once.

    Args:
        storage: Settings of the object store, as `storage.KEY` = 'value': `storage.aws_endpoint`,
            `storage.aws_access_key_id`, `storage.aws_region`, `storage.allow_http`, … Never displayed;
            missing settings are taken from the environment.
        path: The directory of the table, as a path or a URL.
        time_pattern: A directory for each period of event time, such as `%Y/%m/%d`.
        partition_fields: A directory `column=value` for each value of these columns.
        prefix: Prefix of file names.
        suffix: Extension of file names; by default the name of the format, such as `json`.
        strategy: How files are named: by epoch and subtask (serial), or by a unique id.
        parquet_compression: The compression of Parquet files.
        parquet_row_group_size: The approximate uncompressed size of a row group of a Parquet file.
        file_size: End a file at about this size.
        interval: End files at this interval, by the clock: no row stays invisible longer. `0` ends them with
            every epoch, which writes small files and saves a shuffle.
        inactivity_interval: End a file after this time without rows for it.
        watermark_expiration: End a file when the watermark has passed the last of its rows by this time.
        shuffle_by_partition: Whether one subtask writes all files of a directory: fewer and larger files.
        target_part_size: The part size of multipart uploads to an object store.
        max_parts: Accepted for compatibility; it has no effect.
        minimum_multipart_size: Accepted for compatibility; it has no effect.
        version: Accepted for compatibility; it has no effect.
        format: The format of the files.
        schema: Column → type of the rows; other columns are ignored. Without it all columns are written.
        with_timestamp: Whether to write the event time column `_timestamp` too.
    """
    return ConfiguredSink("delta", checked_options("sink", "delta", locals()))


@located
def filesystem(
    *,
    path: str,
    storage: Mapping[str, str] | str = UNSET,
    file_size: int | str = UNSET,
    interval: str | float | timedelta = UNSET,
    inactivity_interval: str | float | timedelta | None = UNSET,
    watermark_expiration: str | float | timedelta | None = UNSET,
    shuffle_by_partition: bool = UNSET,
    target_part_size: int | str | None = UNSET,
    max_parts: int | None = UNSET,
    minimum_multipart_size: int | str | None = UNSET,
    version: Literal["v1", "v2"] = UNSET,
    time_pattern: str | None = UNSET,
    partition_fields: Sequence[str] | str = UNSET,
    prefix: str | None = UNSET,
    suffix: str | None = UNSET,
    strategy: Literal["serial", "uuid", "uuid_v7", "ulid"] = UNSET,
    parquet_compression: Literal["uncompressed", "snappy", "gzip", "zstd", "lz4", "lz4_raw"] = UNSET,
    parquet_row_group_size: int | str | None = UNSET,
    avro_compression: Literal["uncompressed", "deflate", "snappy", "zstd"] = UNSET,
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
    bad_data: Literal["fail", "drop"] = UNSET,
    json_compression: Literal["uncompressed", "gzip"] = UNSET,
    with_timestamp: bool = UNSET,
) -> ConfiguredSink:
    """Writes rows to new files of a directory; a file becomes visible when it is complete.

    Args:
        storage: Settings of the object store, as `storage.KEY` = 'value': `storage.aws_endpoint`,
            `storage.aws_access_key_id`, `storage.aws_region`, `storage.allow_http`, … Never displayed;
            missing settings are taken from the environment.
        path: The directory to write to, as a path or a URL.
        file_size: End a file at about this size.
        interval: End files at this interval, by the clock: no row stays invisible longer. `0` ends them with
            every epoch, which writes small files and saves a shuffle.
        inactivity_interval: End a file after this time without rows for it.
        watermark_expiration: End a file when the watermark has passed the last of its rows by this time.
        shuffle_by_partition: Whether one subtask writes all files of a directory: fewer and larger files.
        target_part_size: The part size of multipart uploads to an object store.
        max_parts: Accepted for compatibility; it has no effect.
        minimum_multipart_size: Accepted for compatibility; it has no effect.
        version: Accepted for compatibility; it has no effect.
        time_pattern: A directory for each period of event time, such as `%Y/%m/%d`.
        partition_fields: A directory `column=value` for each value of these columns.
        prefix: Prefix of file names.
        suffix: Extension of file names; by default the name of the format, such as `json`.
        strategy: How files are named: by epoch and subtask (serial), or by a unique id.
        parquet_compression: The compression of Parquet files.
        parquet_row_group_size: The approximate uncompressed size of a row group of a Parquet file.
        avro_compression: The compression of Avro files.
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
        bad_data: What to do with rows that have a value that cannot be written or read: end the run, or drop
            and count them.
        json_compression: The compression of files of lines that a sink writes.
        with_timestamp: Whether to write the event time column `_timestamp` too.
    """
    return ConfiguredSink("filesystem", checked_options("sink", "filesystem", locals()))


@located
def iceberg(
    *,
    table_name: str,
    storage: Mapping[str, str] | str = UNSET,
    catalog_type: Literal["rest", "sql", "glue", "hive", "dynamodb"] = UNSET,
    catalog_name: str = UNSET,
    catalog_rest_url: str | None = UNSET,
    catalog_rest_token: str | None = UNSET,
    catalog_url: str | None = UNSET,
    catalog_warehouse: str | None = UNSET,
    catalog_settings: Mapping[str, str] | str = UNSET,
    namespace: str = UNSET,
    location_path: str | None = UNSET,
    prefix: str | None = UNSET,
    suffix: str | None = UNSET,
    strategy: Literal["serial", "uuid", "uuid_v7", "ulid"] = UNSET,
    parquet_compression: Literal["uncompressed", "snappy", "gzip", "zstd", "lz4", "lz4_raw"] = UNSET,
    parquet_row_group_size: int | str | None = UNSET,
    file_size: int | str = UNSET,
    interval: str | float | timedelta = UNSET,
    inactivity_interval: str | float | timedelta | None = UNSET,
    watermark_expiration: str | float | timedelta | None = UNSET,
    shuffle_by_partition: bool = UNSET,
    target_part_size: int | str | None = UNSET,
    max_parts: int | None = UNSET,
    minimum_multipart_size: int | str | None = UNSET,
    version: Literal["v1", "v2"] = UNSET,
    format: Literal["parquet"] = UNSET,
    schema: Schema | None = UNSET,
    with_timestamp: bool = UNSET,
    partition_fields: Sequence[str] | str = UNSET,
) -> ConfiguredSink:
    """Appends rows to an Iceberg table; the rows of an epoch become visible in one snapshot, once.

    Args:
        storage: Settings of the object store, as `storage.KEY` = 'value': `storage.aws_endpoint`,
            `storage.aws_access_key_id`, `storage.aws_region`, `storage.allow_http`, … Never displayed;
            missing settings are taken from the environment.
        catalog_type: The kind of catalog.
        catalog_name: The name of the catalog.
        catalog_rest_url: The address of a REST catalog.
        catalog_rest_token: The token for a REST catalog.
        catalog_url: The address of another kind of catalog, such as postgresql://user:password@host/db.
        catalog_warehouse: The warehouse: a name, or the location of new tables.
        catalog_settings: Further settings of the catalog, as `name=value,name=value`. Never displayed.
        namespace: The namespace of the table.
        table_name: The name of the table.
        location_path: The location of a new table, as a URL; by default the catalog decides.
        prefix: Prefix of file names.
        suffix: Extension of file names; by default the name of the format, such as `json`.
        strategy: How files are named: by epoch and subtask (serial), or by a unique id.
        parquet_compression: The compression of Parquet files.
        parquet_row_group_size: The approximate uncompressed size of a row group of a Parquet file.
        file_size: End a file at about this size.
        interval: End files at this interval, by the clock: no row stays invisible longer. `0` ends them with
            every epoch, which writes small files and saves a shuffle.
        inactivity_interval: End a file after this time without rows for it.
        watermark_expiration: End a file when the watermark has passed the last of its rows by this time.
        shuffle_by_partition: Whether one subtask writes all files of a directory: fewer and larger files.
        target_part_size: The part size of multipart uploads to an object store.
        max_parts: Accepted for compatibility; it has no effect.
        minimum_multipart_size: Accepted for compatibility; it has no effect.
        version: Accepted for compatibility; it has no effect.
        format: The format of the files.
        schema: Column → type of the rows; other columns are ignored. Without it all columns are written.
        with_timestamp: Whether to write the event time column `_timestamp` too.
        partition_fields: The partition fields of a new table, such as `country, day(at), bucket(id, 16)`; an
            existing table must have the same.
    """
    return ConfiguredSink("iceberg", checked_options("sink", "iceberg", locals()))


@located
def kafka(
    *,
    bootstrap_servers: str,
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
    schema_registry_endpoint: str | None = UNSET,
    schema_registry_api_key: str | None = UNSET,
    schema_registry_api_secret: str | None = UNSET,
    value_subject: str | None = UNSET,
    client_configs: Mapping[str, str] | str = UNSET,
    bad_data: Literal["fail", "drop"] = UNSET,
    upsert: bool = UNSET,
    key_format: Literal["raw", "json"] | None = UNSET,
    sink_commit_mode: Literal["at_least_once", "exactly_once"] = UNSET,
    sink_key_field: str | None = UNSET,
    sink_timestamp_field: str | None = UNSET,
    auth_type: Literal["none", "sasl", "aws_msk_iam"] = UNSET,
    auth_mechanism: str | None = UNSET,
    auth_protocol: str | None = UNSET,
    auth_username: str | None = UNSET,
    auth_password: str | None = UNSET,
    auth_region: str | None = UNSET,
) -> ConfiguredSink:
    """Writes rows as messages of a topic, from every subtask.

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
        schema_registry_endpoint: The address of a schema registry, such as `http://host:8081`; several comma-
            separated.
        schema_registry_api_key: The API key (user name).
        schema_registry_api_secret: The API secret (password).
        value_subject: The subject of the schema; by default `{topic}-value`.
        bootstrap_servers: Brokers to connect to first, comma-separated, such as `host:9092,other:9092`.
        client_configs: Further settings of the client (librdkafka), as `name=value,name=value`.
        topic: The topic to write.
        bad_data: What to do with rows that have a value that cannot be written or read: end the run, or drop
            and count them.
        upsert: The topic is a table, as with Flink's `upsert-kafka`: a message is the current row of its key,
            the PRIMARY KEY, and a message without a value (a tombstone) deletes it.
        key_format: With `upsert`: how keys are written. `raw`, for a key of one column: its text, or its
            bytes; `json`: an object with the key columns. By default `raw` for one column, `json` for
            several.
        sink_commit_mode: `exactly_once` writes each epoch in a transaction, for consumers with
            `read_committed`; `at_least_once` writes rows before the commit, and again if the epoch is
            retried.
        sink_key_field: The column with the message key.
        sink_timestamp_field: The column with the message timestamp; by default the event time of the row.
        auth_type: How to log in: `none`, or `sasl` with user and password.
        auth_mechanism: With sasl: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
        auth_protocol: With sasl: SASL_SSL or SASL_PLAINTEXT.
        auth_username: With sasl: the user.
        auth_password: With sasl: the password.
        auth_region: For aws_msk_iam, which is not supported.
    """
    return ConfiguredSink("kafka", checked_options("sink", "kafka", locals()))


@located
def memory(
    *,
    name: str = UNSET,
) -> ConfiguredSink:
    """Collects the committed rows in the driver, where `collected(job_id, name)` returns them.

    Args:
        name: The name of the collected rows.
    """
    return ConfiguredSink("memory", checked_options("sink", "memory", locals()))


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
    bad_data: Literal["fail", "drop"] = UNSET,
    tls_ca: str | None = UNSET,
    tls_cert: str | None = UNSET,
    tls_key: str | None = UNSET,
    username: str | None = UNSET,
    password: str | None = UNSET,
    client_prefix: str | None = UNSET,
    max_packet_size: int | str | None = UNSET,
    protocol: Literal["5", "3.1.1"] = UNSET,
    qos: Literal["AtMostOnce", "AtLeastOnce", "ExactlyOnce"] = UNSET,
    sink_retain: bool = UNSET,
) -> ConfiguredSink:
    """Publishes each row as a message of a topic, in order, after the commit point of its epoch.

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
        bad_data: What to do with rows that have a value that cannot be written or read: end the run, or drop
            and count them.
        tls_ca: A file with the certificates to trust, instead of those of the system.
        tls_cert: A file with the client certificate, if the server asks for one.
        tls_key: A file with the key of `tls.cert`, unless it is in the same file.
        url: The broker, such as mqtt://host:1883, or mqtts://, ws:// or wss:// (WebSocket).
        username: The user, if the broker asks for one.
        password: The password of the user.
        client_prefix: Prefix of the MQTT client id.
        max_packet_size: The largest message to receive or send.
        protocol: The version of MQTT.
        topic: The topic.
        qos: The quality of service: AtMostOnce, AtLeastOnce or ExactlyOnce (QoS 0, 1 or 2).
        sink_retain: Whether the broker retains the last message for later subscribers.
    """
    return ConfiguredSink("mqtt", checked_options("sink", "mqtt", locals()))


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
    bad_data: Literal["fail", "drop"] = UNSET,
    auth_type: Literal["none", "credentials", "jwt", "nkey"] = UNSET,
    auth_username: str | None = UNSET,
    auth_password: str | None = UNSET,
    auth_jwt: str | None = UNSET,
    auth_nkey_seed: str | None = UNSET,
    tls_ca: str | None = UNSET,
    tls_cert: str | None = UNSET,
    tls_key: str | None = UNSET,
    subject: str | None = UNSET,
    stream: str | None = UNSET,
    sink_subject_field: str | None = UNSET,
) -> ConfiguredSink:
    """Publishes rows as messages of a subject, when their epoch is committed.

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
        bad_data: What to do with rows that have a value that cannot be written or read: end the run, or drop
            and count them.
        servers: Servers to connect to, comma-separated, such as `nats://host:4222,nats://other:4222`.
        auth_type: How to log in: `none`, `credentials` (user and password), `jwt` or `nkey`.
        auth_username: With credentials: the user.
        auth_password: With credentials: the password.
        auth_jwt: With jwt: the token of the user.
        auth_nkey_seed: With jwt and nkey: the seed of the user's key.
        tls_ca: A file with the CA certificates to trust.
        tls_cert: A file with the client certificate.
        tls_key: A file with the key of `tls.cert`.
        subject: The subject of the messages, or of rows without their own.
        stream: The JetStream stream that stores the subject.
        sink_subject_field: The column with the subject of the message.
    """
    return ConfiguredSink("nats", checked_options("sink", "nats", locals()))


@located
def postgres(
    *,
    url: str,
    table: str,
    username: str | None = UNSET,
    password: str | None = UNSET,
    schema: Schema | None = UNSET,
    primary_key: Sequence[str] | str = UNSET,
    sink_create_table: bool = UNSET,
    sink_epochs_table: str = UNSET,
) -> ConfiguredSink:
    """Inserts rows into a table of PostgreSQL, or upserts and deletes them by the primary key.

    Args:
        url: The database, such as postgresql://user:password@host:5432/database.
        username: The user, if not in `url`.
        password: The password, if not in `url`.
        table: The table, such as `orders` or `sales.orders`.
        schema: Column → type, such as int64, double, string, timestamp.
        primary_key: The columns of a primary key or unique index of the table: a row replaces the one with
            the same key. Without them rows are inserted.
        sink_create_table: Whether to create the table if it is missing.
        sink_epochs_table: The table in the same database that records the committed epochs; created if
            missing.
    """
    return ConfiguredSink("postgres", checked_options("sink", "postgres", locals()))


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
    bad_data: Literal["fail", "drop"] = UNSET,
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
    exchange: str = UNSET,
    routing_key: str | None = UNSET,
    sink_routing_key_field: str | None = UNSET,
    sink_persistent: bool = UNSET,
    sink_unroutable: Literal["fail", "drop"] = UNSET,
) -> ConfiguredSink:
    """Publishes rows as messages to an exchange, when their epoch is committed.

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
        bad_data: What to do with rows that have a value that cannot be written or read: end the run, or drop
            and count them.
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
        exchange: The exchange to publish to; by default the default exchange, which routes to queues by name.
        routing_key: The routing key of the messages; without `exchange`, the name of the queue.
        sink_routing_key_field: The column with the routing key; where it is null, `routing_key` is used.
        sink_persistent: Whether messages in durable queues survive a restart of the server.
        sink_unroutable: What to do with unroutable messages: end the run, or drop them.
    """
    return ConfiguredSink("rabbitmq", checked_options("sink", "rabbitmq", locals()))


@located
def redis(
    *,
    target: Literal["string", "list", "hash"],
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
    bad_data: Literal["fail", "drop"] = UNSET,
    address: str | None = UNSET,
    cluster_addresses: Sequence[str] | str | None = UNSET,
    username: str | None = UNSET,
    password: str | None = UNSET,
    tls_ca: str | None = UNSET,
    tls_cert: str | None = UNSET,
    tls_key: str | None = UNSET,
    key_prefix: str = UNSET,
    key_column: str | None = UNSET,
    ttl: int | None = UNSET,
    field_column: str | None = UNSET,
    operation: Literal["append", "prepend"] = UNSET,
    max_length: int | None = UNSET,
) -> ConfiguredSink:
    """Writes rows to Redis, when their epoch is committed: as strings, in lists, or as fields of hashes.

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
        bad_data: What to do with rows that have a value that cannot be written or read: end the run, or drop
            and count them.
        address: The server, such as redis://localhost:6379/0, or rediss://… for TLS.
        cluster_addresses: Some servers of a cluster, instead of `address`.
        username: The user, if the server asks for one.
        password: The password, if the server asks for one.
        tls_ca: A file with the CA certificates to trust.
        tls_cert: A file with the client certificate.
        tls_key: A file with the key of `tls.cert`.
        target: The data type to write: a `string` for each row, entries of a `list`, or fields of a `hash`.
        key_prefix: Prefix of the keys; without a key column, the key.
        key_column: The column whose value is appended to the prefix.
        ttl: Seconds after which a written key expires.
        field_column: With `hash`: the column with the field name.
        operation: With `list`: where new rows are added.
        max_length: With `list`: the most entries to keep.
    """
    return ConfiguredSink("redis", checked_options("sink", "redis", locals()))


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
    with_timestamp: bool = UNSET,
    wait_for_control: bool = UNSET,
) -> ConfiguredSink:
    """Writes committed rows to one local file as lines; the file holds exactly what was committed.

    Args:
        format: `json`: an object for each row; `debezium_json`: changes of rows; `csv`: comma-separated
            values; `raw_string`, `raw_bytes`: the column `value`, unchanged.
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
        path: The file to write, on the machine of the driver.
        with_timestamp: Whether to write the event time column `_timestamp` too.
        wait_for_control: Accepted for compatibility; it has no effect.
    """
    return ConfiguredSink("single_file", checked_options("sink", "single_file", locals()))


@located
def spark(
    *,
    format: str,
    options: Mapping[str, str] | str = UNSET,
    path: str | None = UNSET,
    schema: Schema | None = UNSET,
    mode: Literal["append", "overwrite"] = UNSET,
    table: str | None = UNSET,
) -> ConfiguredSink:
    """Writes the rows of an epoch with Spark, by the name of a format and its options.

    Args:
        format: The name of the format in Spark, such as `rate`, `delta` or a class.
        options: The options of the format, as `name=value,name=value`.
        path: The path, for formats that have one.
        schema: The columns that are written.
        mode: Whether rows are added, or what is there is replaced by each epoch.
        table: A table of Spark's catalog, instead of a path.
    """
    return ConfiguredSink("spark", checked_options("sink", "spark", locals()))


@located
def stdout(
    *,
    format: Literal["auto", "table", "json", "debezium_json", "raw_string", "raw_bytes"] = UNSET,
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
    with_timestamp: bool = UNSET,
) -> ConfiguredSink:
    """Writes committed rows to the standard output of the driver, one write per epoch.

    Args:
        format: `table`, `json` (lines), `debezium_json`, `raw_string`, `raw_bytes`, or `auto`: a table on a
            terminal, else lines of `json`, or of `debezium_json` if rows change.
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
        with_timestamp: Whether to write the event time column `_timestamp` too.
    """
    return ConfiguredSink("stdout", checked_options("sink", "stdout", locals()))


@located
def webhook(
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
    bad_data: Literal["fail", "drop"] = UNSET,
    tls_ca: str | None = UNSET,
    tls_cert: str | None = UNSET,
    tls_key: str | None = UNSET,
    headers: Mapping[str, str] | str = UNSET,
    batch_size: int = UNSET,
    batch_format: Literal["lines", "array"] = UNSET,
    max_in_flight: int = UNSET,
) -> ConfiguredSink:
    """Sends rows to an address with POST, after the commit point of their epoch.

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
        bad_data: What to do with rows that have a value that cannot be written or read: end the run, or drop
            and count them.
        tls_ca: A file with the certificates to trust, instead of those of the system.
        tls_cert: A file with the client certificate, if the server asks for one.
        tls_key: A file with the key of `tls.cert`, unless it is in the same file.
        endpoint: The address, such as https://host/path.
        headers: Headers of every request, as `Name: value, Name: value`; their values are never shown.
        batch_size: The most rows in one request.
        batch_format: With several rows: one in each line, or all in a JSON array.
        max_in_flight: The most requests in flight; 1 keeps the order of rows.
    """
    return ConfiguredSink("webhook", checked_options("sink", "webhook", locals()))


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
    bad_data: Literal["fail", "drop"] = UNSET,
    tls_ca: str | None = UNSET,
    tls_cert: str | None = UNSET,
    tls_key: str | None = UNSET,
    headers: Mapping[str, str] | str = UNSET,
    subscription_message: str | None = UNSET,
    subscription_messages: Sequence[str] = UNSET,
    max_message_size: int | str = UNSET,
) -> ConfiguredSink:
    """Sends each row as a WebSocket message, in order, after the commit point of its epoch.

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
        bad_data: What to do with rows that have a value that cannot be written or read: end the run, or drop
            and count them.
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
    return ConfiguredSink("websocket", checked_options("sink", "websocket", locals()))
