"""The `delta` sink: append rows to a Delta Lake table, without Spark's own writer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from headrace.base.errors import ConfigurationError, ExternalError
from headrace.base.extras import load_extra
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors.base import Delivery
from headrace.connectors.filesystem.lake import (
    LakeOptions,
    LakeSink,
    check_fit,
    fit,
    lake_schema,
    schema_of,
    schema_text,
)
from headrace.connectors.filesystem.layout import (
    NameOptions,
    PartitionOptions,
    directory_problem,
    path_values,
    split_rows,
)
from headrace.connectors.filesystem.rolling import Encoded
from headrace.model.operator import OperatorContext
from headrace.storage.base import error_line
from headrace.storage.options import StorageOptions
from headrace.storage.urls import is_object_store, resolve_url

ZONE = "UTC"
_LONGEST = 64
_FORBIDDEN = {
    "columnMapping",
    "generatedColumns",
    "icebergCompatV1",
    "icebergCompatV2",
    "identityColumns",
    "rowTracking",
}
"""Table features that need more than adding a file."""


def load_client() -> Any:
    """Import the package `deltalake`."""
    return load_extra("deltalake", feature="the connector `delta`", extra="delta", package="deltalake")


def open_table(path: str, storage: Mapping[str, str], *, version: int | None = None) -> Any:
    """Open the table at a path, at its latest or a given version; None if it does not exist."""
    client = load_client()
    from deltalake.exceptions import TableNotFoundError

    url, settings = resolve_url(path, storage)
    try:
        return client.DeltaTable(url, version=version, storage_options=settings or None)
    except TableNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 - it raises OSError, ValueError and classes of its own
        raise table_error(path, "opened", error) from None


def table_error(path: str, what: str, error: BaseException) -> ExternalError:
    """Return an error of the library as one short line."""
    hint = "check the address, the options `storage.*` and the credentials" if is_object_store(path) else None
    return ExternalError(
        f"the table `{path}` cannot be {what}: {error_line(error)}", where="delta", hint=hint
    )


def columns_of(table: Any) -> pa.Schema:
    """Return the columns of a table."""
    return pa.schema(table.schema().to_arrow())


class DeltaSink(LakeSink):
    """Appends rows to a Delta Lake table; the rows of an epoch become visible in one version, once.

    Rows are collected over epochs until the rolling policy ends their file: by default at about 128 MB, and
    every 30 seconds, by the clock, so that there are few files and few versions. At the end of the data, and
    when the run is stopped, all of them are written.

    Every subtask writes its files to the directory of the table, where no reader sees them. After the commit
    point the driver adds them to the log of the table, all in one version. The version records the epoch as
    an application transaction (`txn`): a commit that is retried after a crash finds it and adds nothing, and
    one of a run that was replaced is refused by the log.
    Files of failed attempts are never part of the table; `VACUUM` removes them.

    The first commit creates a missing table. An existing table keeps its columns: rows must fit them, and
    columns that the rows do not have are null. Timestamps are microseconds, in UTC.

    `partitioning.time_pattern` only places the files in subdirectories: readers of the table do not see it.
    """

    class Options(LakeOptions, NameOptions, PartitionOptions, StorageOptions):
        """The options of the delta sink."""

        path: str = Field(min_length=1, description="The directory of the table, as a path or a URL.")

        @model_validator(mode="after")
        def _fits(self) -> Self:
            missing = [n for n in self.partition_fields if self.columns and n not in self.columns.names]
            if missing:
                raise ValueError(f"option `partitioning.fields`: there is no column `{missing[0]}`")
            return self

    options: Options
    zone = ZONE
    deliveries = (
        Delivery("exactly once", "the epoch is part of the table's log, in the version that adds its files"),
    )

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self._directory = self.options.open_storage(part_size=self.options.target_part_size)
        self._columns: Mapping[str, str] | None = None

    def claims(self) -> Sequence[str]:
        """Return the table: the rows of two sinks are brought together before one of them."""
        return [f"the table {self._directory.url}"]

    @property
    def table_label(self) -> str:
        return f"the table `{self.options.path}`"

    def load_package(self) -> None:
        """Import the client's package."""
        load_client()

    def validate(self) -> None:
        """Raise an error if the directory cannot be written or columns do not fit the table."""
        self._directory.check_directory()
        table = open_table(self.options.path, self.options.storage)
        if table is not None:
            self._check_table(table)
        self.check_declared_columns(None if table is None else columns_of(table))

    def reach(self) -> str:
        """Open the table, and return a line about it."""
        table = open_table(self.options.path, self.options.storage)
        if table is None:
            return "there is no table yet; the first commit makes it"
        return f"a table at version {table.version()} with {len(columns_of(table))} columns"

    def _check_table(self, table: Any) -> None:
        """Raise an error for a table with unsupported features or other partition columns."""
        settings, protocol = table.metadata().configuration or {}, table.protocol()
        unsupported = sorted(_FORBIDDEN & set(protocol.writer_features or ()))
        unsupported += sorted(name for name in settings if name.startswith("delta.constraints."))
        if settings.get("delta.columnMapping.mode", "none") != "none" and "columnMapping" not in unsupported:
            unsupported.append("columnMapping")
        if unsupported:
            raise ConfigurationError(
                f"{self.table_label} uses {', '.join(unsupported)}, which this sink cannot honour",
                hint="write to a table without it, or use the connector `spark` with the format delta",
            )
        parts = list(table.metadata().partition_columns)
        if parts != self.options.partition_fields:
            raise ConfigurationError(
                f"{self.table_label} is partitioned by ({', '.join(parts)}), "
                f"the sink by ({', '.join(self.options.partition_fields)})",
                hint=f"set `partitioning.fields` = '{', '.join(parts)}'" if parts else "leave it out",
            )

    def part(self, rows: pa.Table, ctx: OperatorContext) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows of each partition, in the types of the table."""
        columns: pa.Schema | None = ctx.resource("table", self._table_columns)
        fields = self.options.partition_fields
        for period, rows_of_period in split_rows(rows, (), self.options.time_pattern):
            part = self.columns_to_write(rows_of_period)
            part = fit(part, columns or lake_schema(part.schema, zone=ZONE), table=self.table_label)
            for directory, inside in split_rows(_without_zones(part, fields), fields):
                yield "/".join(filter(None, (period, directory))), inside

    def problem_of(self, directory: str) -> str | None:
        """Say why files cannot be written to a directory; None if they can."""
        return directory_problem(directory, self._directory.url, names=self.options)

    def _table_columns(self) -> pa.Schema | None:
        table = open_table(self.options.path, self.options.storage)
        return None if table is None else columns_of(table)

    def encode(self, rows: pa.Table) -> Iterator[Encoded]:
        """Encode the rows as Parquet files, without partition columns."""
        self._columns = schema_text(rows.schema)
        inside = rows.drop_columns(self.options.partition_fields)
        if not inside.num_columns:
            raise ConfigurationError(
                "all columns are in `partitioning.fields`: nothing is left for the files"
            )
        return super().encode(inside)

    def put(self, directory: str, data: bytes, number: int, ctx: OperatorContext) -> Any:
        """Write a file to the table's directory; the commit adds it to the log."""
        name = self.file_name(number, ctx)
        path = f"{directory}/{name}" if directory else name
        self._directory.write(path, data)
        return {
            "path": path,
            "size": len(data),
            "stats": _statistics(data),
            **({} if number else {"columns": self._columns}),
        }

    def write_error(self, error: Exception) -> ExternalError:
        """Convert an error of the client library to one that names the table."""
        return table_error(self.options.path, "written", error)

    def add_files(self, epoch: int, files: list[Any], commit_id: str, ctx: OperatorContext) -> None:
        """Add the files to the log in one version, unless an earlier commit did."""
        client = load_client()
        from deltalake.transaction import AddAction

        columns = next(file["columns"] for file in files if "columns" in file)
        table = open_table(self.options.path, self.options.storage) or self._create(columns)
        app = f"headrace/{ctx.task_info.job_id}/{ctx.task_info.operator_id}"
        # What a successor adds from here on is in conflict with this transaction, which has the same name.
        ctx.check_generation()
        last = table.transaction_version(app)
        if last is not None and last >= epoch and _is_committed(table, commit_id):
            return
        self._check_table(table)
        check_fit(schema_of(columns, zone=ZONE), columns_of(table), table=self.table_label)
        actions = [
            AddAction(
                path=file["path"],
                size=file["size"],
                partition_values=self._partition(file["path"]),
                modification_time=int(ctx.time * 1000),
                data_change=True,
                stats=file["stats"],
            )
            for file in files
        ]
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            self.options.partition_fields,
            commit_properties=client.CommitProperties(
                custom_metadata={"headrace": commit_id},
                app_transactions=[client.Transaction(app, epoch)],
            ),
        )

    def _partition(self, path: str) -> dict[str, str | None]:
        """The values of the partition columns of a file; a directory of its time may look like one."""
        values = path_values(path)
        return {name: values[name] for name in self.options.partition_fields}

    def _create(self, columns: Mapping[str, str]) -> Any:
        client = load_client()
        url, settings = resolve_url(self.options.path, self.options.storage)
        return client.DeltaTable.create(
            url,
            client.Schema.from_arrow(schema_of(columns, zone=ZONE)),
            mode="ignore",
            partition_by=self.options.partition_fields,
            storage_options=settings or None,
        )


def _is_committed(table: Any, commit_id: str) -> bool:
    """Whether a version of the table was written by this commit, and not by another attempt of the epoch."""
    return any(version.get("headrace") == commit_id for version in table.history(1000))


def _without_zones(rows: pa.Table, names: list[str]) -> pa.Table:
    """Return partition columns without time zones, as the log stores them."""
    for name in names:
        index = rows.schema.get_field_index(name)
        if index >= 0 and pa.types.is_timestamp(rows.schema.field(index).type):
            rows = rows.set_column(index, name, rows.column(index).cast(pa.timestamp("us")))
    return rows


def _statistics(data: bytes) -> str:
    """Return the statistics of a file: the number of rows and the bounds of each column."""
    metadata = pq.read_metadata(pa.BufferReader(data))
    bounds: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    for number in range(metadata.num_columns):
        name = metadata.schema.column(number).path
        groups = [metadata.row_group(g).column(number).statistics for g in range(metadata.num_row_groups)]
        if "." in name or any(group is None for group in groups):
            continue
        bounds["nullCount"][name] = sum(group.null_count or 0 for group in groups)
        if all(group.has_min_max for group in groups):
            least, most = min(group.min for group in groups), max(group.max for group in groups)
            if _is_plain(least) and _is_plain(most):
                bounds["minValues"][name] = _bound(least)
                bounds["maxValues"][name] = _bound(most, up=True)
    return json.dumps({"numRecords": metadata.num_rows, **bounds})


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST
    if isinstance(value, datetime):
        return value.tzinfo is not None
    return isinstance(value, int | date) or (isinstance(value, float) and value == value)  # noqa: PLR0124


def _bound(value: Any, *, up: bool = False) -> Any:
    if isinstance(value, datetime):
        # Bounds are written in milliseconds.
        moved = value + timedelta(microseconds=999 if up else 0)
        return moved.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value
