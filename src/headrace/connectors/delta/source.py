"""The `delta` source: read a Delta Lake table, and the rows that are appended to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import unquote

import pyarrow as pa
from pydantic import ConfigDict, Field

from headrace.base.errors import ConfigurationError, ExternalError, PlanError, suggest
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors.base import Delivery, check_column
from headrace.connectors.delta.sink import columns_of, load_client, open_table, table_error
from headrace.connectors.filesystem.content import ParquetContent
from headrace.connectors.filesystem.files import FilesOptions, FilesSource
from headrace.connectors.filesystem.lake import schema_text
from headrace.connectors.filesystem.listing import File
from headrace.formats.options import Columns

_KNOWN = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "deletionVectors", "inCommitTimestamp"}
"""Reader features that need no support, or are checked where they occur."""


class DeltaSource(FilesSource):
    """Reads the rows of a Delta Lake table, then, if it is watched, the rows that are appended to it.

    The source reads the version of the table at the first start, file by file; with `source.watch_interval`
    it reads later versions in order, each once. The version, the file and the next row are part of the
    checkpoint: a pipeline resumes with the next row. With `source.starting_version` it starts with the rows
    that a version added.

    A version that deletes or changes rows ends the run, or is skipped with `source.skip_change_commits`. One
    that only rewrites files, as `OPTIMIZE` does, is skipped. The tasks of an epoch divide its files, and
    large files, among them. Event time is the commit time of the version, unless `timestamp_column` is set.
    """

    class Options(FilesOptions):
        """The options of the delta source."""

        model_config = ConfigDict(arbitrary_types_allowed=True)

        path: str = Field(min_length=1, description="The directory of the table, as a path or a URL.")
        format: Literal["parquet"] = Field("parquet", description="The format of the files.")
        columns: Columns | None = Field(
            None,
            alias="schema",
            description="Column → type; other columns are ignored. Without it all columns are read.",
        )
        starting_version: int | Literal["latest"] | None = Field(
            None,
            alias="source.starting_version",
            description=(
                "Start with the rows added by this version, or after the `latest` version; by default "
                "with all existing rows."
            ),
        )
        skip_change_commits: bool = Field(
            default=False,
            alias="source.skip_change_commits",
            description="Skip versions that delete or change rows, instead of ending the run.",
        )

    options: Options
    content: ParquetContent
    deliveries = (Delivery("exactly once", "the checkpoint holds the table's version and the next row"),)

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self._directory = self.options.open_storage()
        self.content = ParquetContent(self._directory)
        self._checked = False

    @property
    def schema(self) -> pa.Schema | None:
        """The declared columns."""
        return self.options.columns

    def load_package(self) -> None:
        """Import the client's package."""
        load_client()

    def validate(self) -> None:
        """Raise an error if the table is missing, cannot be read or lacks a column."""
        table = self._table()
        self._check_protocol(table.protocol().reader_features, table.metadata().configuration)
        table_columns = columns_of(table)
        for name in self.options.columns.names if self.options.columns is not None else ():
            if name not in table_columns.names:
                raise ConfigurationError(
                    f"the table `{self.options.path}` has no column `{name}`",
                    hint=suggest(name, table_columns.names, listing="its columns are"),
                )
        if self.options.timestamp_column is not None:
            columns = self.options.columns or table_columns
            check_column(
                self.options.timestamp_column, columns.names, what="delta, option `timestamp_column`"
            )

    def reach(self) -> str:
        """Open the table, and return a line about it."""
        table = self._table()
        return f"a table at version {table.version()} with {len(columns_of(table))} columns"

    def _table(self, version: int | None = None) -> Any:
        table = open_table(self.options.path, self.options.storage, version=version)
        if table is None:
            raise ConfigurationError(f"there is no Delta table at `{self.options.path}`")
        return table

    def _check_protocol(self, features: Sequence[str] | None, settings: Mapping[str, Any] | None) -> None:
        unknown = sorted(set(features or ()) - _KNOWN)
        if (settings or {}).get(
            "delta.columnMapping.mode", "none"
        ) != "none" and "columnMapping" not in unknown:
            unknown.append("columnMapping")
        if unknown:
            raise ConfigurationError(
                f"the table `{self.options.path}` needs readers that support {', '.join(unknown)}",
                hint="read it with the connector `spark` and the format delta",
            )

    def infer(self, files: Sequence[File]) -> dict[str, str] | None:
        """Return the columns of the table at the first start."""
        try:
            return schema_text(columns_of(self._table()))
        except PlanError as error:
            raise ConfigurationError(error.message, hint="declare the columns to read") from None

    def values(self, file: Mapping[str, Any]) -> Mapping[str, str | None]:
        """Return the partition values of a file."""
        values: Mapping[str, str | None] = file["values"]
        return values

    # ------------------------------------------------------------------------ versions

    def discover(self, more: Mapping[str, Any] | None, listed: set[str]) -> tuple[list[File], dict[str, Any]]:
        """Return the files of the table, or those that new versions added."""
        if more is not None:
            return self._changes(more["version"])
        start = self.options.starting_version
        table = self._table()
        if start == "latest":
            return [], {"version": table.version()}
        if start is not None:
            if start > table.version():
                raise ConfigurationError(
                    f"option `source.starting_version` is {start}, the table is at version {table.version()}"
                )
            return self._changes(start - 1)
        return self._snapshot(table), {"version": table.version()}

    def _snapshot(self, table: Any) -> list[File]:
        try:
            deleted = table.deletion_vectors().read_all().num_rows
            actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        except Exception as error:  # noqa: BLE001 - it raises OSError, ValueError and classes of its own
            raise table_error(self.options.path, "read", error) from None
        if deleted:
            raise self._deleted(table.version())
        partitions = table.metadata().partition_columns
        files = [
            self._file(
                action["path"],
                action["size_bytes"],
                action["modification_time"],
                {name: _text(action[f"partition.{name}"]) for name in partitions},
                action.get("num_records"),
            )
            for action in sorted(actions, key=lambda action: (action["modification_time"], action["path"]))
        ]
        return self._measured(files)

    def _changes(self, version: int) -> tuple[list[File], dict[str, Any]]:
        files: list[File] = []
        while True:
            try:
                log = self._directory.read(f"_delta_log/{version + 1:020}.json")
            except FileNotFoundError:
                break
            version += 1
            files += self._added(version, log)
        if not self._checked:
            self._checked = True
            if (latest := self._table().version()) > version:
                raise ExternalError(
                    f"version {version + 1} of the table `{self.options.path}` is no longer in its log; "
                    f"the table is at version {latest}",
                    where="delta",
                    hint="start anew in another state directory, and keep the log of the table for longer",
                )
        return self._measured(files), {"version": version}

    def _added(self, version: int, log: bytes) -> list[File]:
        """Return the files that a version adds."""
        actions = [json.loads(line) for line in log.splitlines() if line.strip()]
        for action in actions:
            if "protocol" in action:
                self._check_protocol(action["protocol"].get("readerFeatures"), None)
            if "metaData" in action:
                self._check_protocol(None, action["metaData"].get("configuration"))
        adds = [action["add"] for action in actions if "add" in action and action["add"]["dataChange"]]
        removes = [action for action in actions if "remove" in action and action["remove"]["dataChange"]]
        if removes or any(add.get("deletionVector") for add in adds):
            if self.options.skip_change_commits:
                return []
            raise self._deleted(version)
        files = []
        for add in adds:
            stats = json.loads(add.get("stats") or "{}")
            values = {name: value or None for name, value in add["partitionValues"].items()}
            path, size, modified = add["path"], add["size"], add["modificationTime"]
            files.append(self._file(path, size, modified, values, stats.get("numRecords")))
        return files

    def _deleted(self, version: int) -> ConfigurationError:
        return ConfigurationError(
            f"version {version} of the table `{self.options.path}` deletes or changes rows, "
            "which added rows cannot express",
            hint="leave such versions out with `source.skip_change_commits` = 'true', "
            "or begin after them with `source.starting_version`",
        )

    def _file(
        self, path: str, size: int, modified: int, values: Mapping[str, str | None], rows: int | None
    ) -> File:
        if "://" in path or path.startswith("/"):
            raise ConfigurationError(
                f"the table `{self.options.path}` refers to a file elsewhere: {path}",
                hint="a shallow clone cannot be read; make a deep one",
            )
        file = {"path": unquote(path), "size": size, "values": dict(values), "time": modified * 1_000_000}
        return file if rows is None else {**file, "rows": rows}

    def _measured(self, files: list[File]) -> list[File]:
        """Return the files with the number of their rows, which the log may not have."""
        measured = self._directory.map(
            lambda file: file if "rows" in file else self.content.measure(file), files
        )
        return [dict(file) for file in measured if file is not None and file["rows"]]


def _text(value: Any) -> str | None:
    """Return a partition value as the log stores it."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None or value == "" else str(value)
