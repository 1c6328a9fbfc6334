"""The `iceberg` sink: append rows to an Iceberg table of a catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from headrace.base.errors import ConfigurationError, ExternalError, HeadraceError
from headrace.base.extras import load_extra
from headrace.base.options import Options as DeclaredOptions
from headrace.base.options import Secret
from headrace.base.retry import with_retry
from headrace.connectors.base import Delivery, check_column
from headrace.connectors.filesystem.lake import LakeOptions, LakeSink, fit, lake_schema
from headrace.connectors.filesystem.layout import NameOptions
from headrace.connectors.iceberg.partitions import (
    PartitionFields,
    field_texts,
    parse_field,
    part_rows,
    values_of,
)
from headrace.model.operator import OperatorContext
from headrace.storage.base import error_line
from headrace.storage.options import HiddenSettings, ObjectStoreOptions

COMMIT, EPOCH, JOB = "headrace.commit", "headrace.epoch", "headrace.job"
"""The snapshot properties that identify the commit."""
_CONCURRENT = 8
_ATTEMPTS = 10
"""How often a commit is tried if other writers change the table in the same moment."""
_OF_STORE = {
    "endpoint": "s3.endpoint",
    "endpoint_url": "s3.endpoint",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "token": "s3.session-token",
    "region": "s3.region",
    "default_region": "s3.region",
}
"""Object store settings under the names of PyIceberg; others are passed on unchanged."""


class CatalogOptions(DeclaredOptions):
    """The catalog of a table, and how to connect to it."""

    catalog_type: Literal["rest", "sql", "glue", "hive", "dynamodb"] = Field(
        "rest", alias="catalog.type", description="The kind of catalog."
    )
    catalog_name: str = Field(
        "default", min_length=1, alias="catalog.name", description="The name of the catalog."
    )
    catalog_rest_url: str | None = Field(
        None, alias="catalog.rest.url", description="The address of a REST catalog."
    )
    catalog_rest_token: Secret | None = Field(
        None, alias="catalog.rest.token", repr=False, description="The token for a REST catalog."
    )
    catalog_url: Secret | None = Field(
        None,
        alias="catalog.url",
        repr=False,
        description="The address of another kind of catalog, such as postgresql://user:password@host/db.",
    )
    catalog_warehouse: str | None = Field(
        None, alias="catalog.warehouse", description="The warehouse: a name, or the location of new tables."
    )
    catalog_settings: HiddenSettings = Field(
        default={},
        alias="catalog.settings",
        repr=False,
        description="Further settings of the catalog, as `name=value,name=value`. Never displayed.",
    )
    namespace: str = Field("default", min_length=1, description="The namespace of the table.")
    table_name: str = Field(min_length=1, description="The name of the table.")
    location_path: str | None = Field(
        None, description="The location of a new table, as a URL; by default the catalog decides."
    )


def load_client() -> Any:
    """Import the package `pyiceberg`."""
    return load_extra(
        "pyiceberg",
        feature="the connector `iceberg`",
        extra="iceberg",
        package="pyiceberg",
        submodules=["catalog"],
    )


def load_catalog(options: Any) -> Any:
    """Load the catalog that the options name."""
    client = load_client()
    properties = {
        "type": options.catalog_type,
        "uri": options.catalog_rest_url or options.catalog_url,
        "token": options.catalog_rest_token,
        "warehouse": options.catalog_warehouse,
        **options.catalog_settings,
    }
    for key, value in options.storage.items():
        name = _OF_STORE.get(key.lower().removeprefix("aws_"), key)
        if not name.endswith("allow_http"):
            properties[name] = value
    return client.catalog.load_catalog(
        options.catalog_name, **{name: value for name, value in properties.items() if value is not None}
    )


class IcebergSink(LakeSink):
    """Appends rows to an Iceberg table; the rows of an epoch become visible in one snapshot, once.

    Rows are collected over epochs until the rolling policy ends their file: by default at about 128 MB, and
    every 30 seconds, by the clock, so that there are few files and few snapshots. At the end of the data, and
    when the run is stopped, all of them are written.

    Every subtask writes its files to the location of the table, where no reader sees them. After the commit
    point the driver adds them to the table in one snapshot, whose properties name the commit: a commit that
    is retried after a crash finds it and adds nothing, and one of a run that was replaced is refused, because
    the table has another snapshot by then. (Do not expire snapshots while a crashed pipeline is
    down.) Files of failed attempts are never part of the table; orphan file removal deletes them.

    A missing table is created when the first rows arrive. An existing table keeps its columns: rows must fit
    them, and columns that the rows do not have are null. Timestamps are microseconds, without a zone in a new
    table.
    """

    class Options(LakeOptions, NameOptions, CatalogOptions, ObjectStoreOptions):
        """The options of the iceberg sink."""

        partition_fields: PartitionFields = Field(
            default=[],
            alias="partitioning.fields",
            description=(
                "The partition fields of a new table, such as `country, day(at), bucket(id, 16)`; an "
                "existing table must have the same."
            ),
        )

        @model_validator(mode="after")
        def _fits(self) -> Self:
            if self.catalog_type == "rest" and not (self.catalog_rest_url or self.catalog_url):
                raise ValueError("a REST catalog needs `catalog.rest.url`")
            for text in self.partition_fields:
                try:
                    column, _ = parse_field(text)
                    if self.columns is not None:
                        check_column(column, self.columns.names, what="option `partitioning.fields`")
                except ConfigurationError as error:
                    raise ValueError(f"{error.message}; {error.hint}") from None
            return self

    options: Options
    zone = None
    deliveries = (
        Delivery("exactly once", "the commit is a property of the table's snapshot that adds its files"),
    )

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self._name = (*self.options.namespace.split("."), self.options.table_name)

    @property
    def table_label(self) -> str:
        return f"the table `{'.'.join(self._name)}`"

    # ------------------------------------------------------------------------ the table

    def _error(self, what: str, error: BaseException) -> ExternalError:
        return ExternalError(
            f"{self.table_label} cannot be {what}: {type(error).__name__}: {error_line(error)}",
            where="iceberg",
            hint="check the options `catalog.*` and `storage.*`, and that the catalog can be reached",
        )

    def _open(self) -> Any:
        """Load the table; None if it does not exist."""
        try:
            catalog = load_catalog(self.options)
            from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

            try:
                return catalog.load_table(self._name)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
        except HeadraceError:
            raise
        except Exception as error:  # noqa: BLE001 - catalogs raise what their clients raise
            raise self._error("opened", error) from None

    def _make(self, columns: pa.Schema) -> Any:
        """Load the table, or create it."""
        table = self._open()
        if table is None:
            table = self._create(columns)
        self._check_partitions(table)
        return table

    def _create(self, columns: pa.Schema) -> Any:
        from pyiceberg.exceptions import TableAlreadyExistsError
        from pyiceberg.transforms import parse_transform

        schema = lake_schema(columns, zone=None)
        try:
            catalog = load_catalog(self.options)
            catalog.create_namespace_if_not_exists(self._name[:-1])
            try:
                with (
                    catalog.create_table_transaction(
                        self._name, schema=schema, location=self.options.location_path
                    ) as change,
                    change.update_spec() as spec,
                ):
                    for text in self.options.partition_fields:
                        column, transform = parse_field(text)
                        spec.add_field(column, parse_transform(transform))
            except TableAlreadyExistsError:
                pass  # another subtask was faster
            return catalog.load_table(self._name)
        except HeadraceError:
            raise
        except ValueError as error:
            raise ConfigurationError(
                f"{self.table_label} cannot be made: {error_line(error)}",
                hint="check `partitioning.fields` and `location_path`",
            ) from None
        except Exception as error:  # noqa: BLE001 - catalogs raise what their clients raise
            raise self._error("made", error) from None

    def _check_partitions(self, table: Any) -> None:
        actual = field_texts(table)
        expected = [_canonical(text) for text in self.options.partition_fields]
        if expected and actual != expected:
            raise ConfigurationError(
                f"{self.table_label} is partitioned by ({', '.join(actual)}), "
                f"the sink by ({', '.join(expected)})",
                hint="leave out `partitioning.fields`: an existing table keeps its partitioning",
            )

    def load_package(self) -> None:
        """Import the client's package."""
        load_client()

    def validate(self) -> None:
        """Raise an error for a catalog that does not answer, and for columns that do not fit the table."""
        table = self._open()
        if table is not None:
            self._check_partitions(table)
        self.check_declared_columns(None if table is None else _arrow(table))

    def reach(self) -> str:
        """Load the table, and return a line about it."""
        table = self._open()
        if table is None:
            return "the catalog answers; the table is not there yet, the first rows make it"
        return f"a table with {len(table.schema().fields)} columns and {len(table.snapshots())} snapshots"

    # ------------------------------------------------------------------------ files

    def part(self, rows: pa.Table, ctx: OperatorContext) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows of each partition, in the types of the table."""
        rows = self.columns_to_write(rows)
        table = self._table_of(rows.schema, ctx)
        return part_rows(fit(rows, _arrow(table), table=self.table_label), table)

    def _table_of(self, columns: pa.Schema, ctx: OperatorContext) -> Any:
        return ctx.resource("table", lambda: self._make(columns))

    def put(self, directory: str, data: bytes, number: int, ctx: OperatorContext) -> Any:
        """Write a file to the location of the table; the commit adds it in a snapshot."""
        table = self._table_of(pq.read_schema(pa.BufferReader(data)), ctx)
        path = table.location_provider().new_data_location(self.file_name(number, ctx))
        try:
            with table.io.new_output(path).create(overwrite=True) as stream:
                stream.write(data)
        except OSError as error:
            raise self._error("written", error) from None
        return {"path": path, "size": len(data), "partition": directory, "spec": table.spec().spec_id}

    # ------------------------------------------------------------------------ the commit

    def write_error(self, error: Exception) -> ExternalError:
        """Convert an error of the client library to one that names the table."""
        return self._error("written", error)

    def add_files(self, epoch: int, files: list[Any], commit_id: str, ctx: OperatorContext) -> None:
        """Add the files to the table in one snapshot, unless an earlier commit did."""
        with_retry(
            lambda: self._append(epoch, files, commit_id, ctx),
            is_transient=_is_conflict,
            attempts=_ATTEMPTS,
        )

    def _append(self, epoch: int, files: list[Any], commit_id: str, ctx: OperatorContext) -> None:
        table = self._open()
        if table is None:
            raise ExternalError(
                f"{self.table_label} is gone, and files for it are waiting to be added", where="iceberg"
            )
        # Read before the check: if a successor adds a snapshot from here on, this commit fails. PyIceberg
        # must not repeat it on top of that one, as it does by default; the setting is only in this copy.
        ctx.check_generation()
        table.metadata.properties["commit.retry.num-retries"] = "0"
        if any(old.summary is not None and old.summary[COMMIT] == commit_id for old in table.snapshots()):
            return
        if any(file["spec"] != table.spec().spec_id for file in files):
            raise ConfigurationError(
                f"{self.table_label} has been partitioned otherwise while the pipeline ran",
                hint="undo that, let the pipeline commit, and change it while the pipeline is stopped",
            )
        with ThreadPoolExecutor(_CONCURRENT) as pool:
            described = list(pool.map(lambda file: _data_file(table, file), files))
        properties = {COMMIT: commit_id, EPOCH: str(epoch), JOB: ctx.task_info.job_id}
        with (
            table.transaction() as change,
            change.update_snapshot(snapshot_properties=properties).merge_append() as snapshot,
        ):
            for file in described:
                snapshot.append_data_file(file)


def _is_conflict(error: Exception) -> bool:
    """Whether another writer has changed the table since."""
    from pyiceberg.exceptions import CommitFailedException

    return isinstance(error, CommitFailedException)


def _canonical(text: str) -> str:
    column, transform = parse_field(text)
    kind, _, size = transform.rstrip("]").partition("[")
    return column if kind == "identity" else f"{kind}({column}{f', {size}' if size else ''})"


def _arrow(table: Any) -> pa.Schema:
    """Return the columns of a table with their field ids."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(table.schema(), include_field_ids=True)


def _data_file(table: Any, file: Mapping[str, Any]) -> Any:
    """Return a data file with its statistics, from its footer."""
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    with table.io.new_input(file["path"]).open() as stream:
        footer = pq.read_metadata(stream)
    figures = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(table.schema(), table.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(table.schema()),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file["path"],
        file_format=FileFormat.PARQUET,
        partition=Record(*values_of(file["partition"])),
        file_size_in_bytes=file["size"],
        sort_order_id=None,
        spec_id=file["spec"],
        equality_ids=None,
        key_metadata=None,
        **figures.to_serialized_dict(),
    )
