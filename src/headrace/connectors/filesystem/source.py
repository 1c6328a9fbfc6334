"""The `filesystem` source: read files of lines, Parquet or Avro from a directory or an object store."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from headrace.base.errors import ConfigurationError
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors.base import Delivery, check_column
from headrace.connectors.filesystem.content import (
    AvroContent,
    Compression,
    Content,
    LineContent,
    ParquetContent,
)
from headrace.connectors.filesystem.files import FilesOptions, FilesSource
from headrace.connectors.filesystem.layout import path_values
from headrace.connectors.filesystem.listing import File
from headrace.formats.options import (
    FileReadOptions,
    check_readable,
    implied_columns,
    infer_from,
)
from headrace.formats.types import format_type
from headrace.storage.base import Storage, StoredFile


class FileSystemSource(FilesSource):
    """Reads every file of a directory once, in the order of the paths; then it ends, or watches for new ones.

    The files and their sizes are listed when the pipeline first starts. The list is part of the checkpoint,
    together with the position in the current file: a pipeline resumes with the next row. With
    `source.watch_interval` the directory is listed repeatedly, and new files are read in the order of their
    modification; a file must appear complete, such as by renaming it. Lines that are appended to a file later
    are not read; a file that is replaced by another while it is read is an error. Hidden files (`.x`, `_x`)
    are skipped.

    Partition directories (`day=3/country=DE/…`) give the values of their columns, unless the file has the
    column itself; without declared columns such columns are strings. The tasks of an epoch divide its files,
    and large files, among them; every worker must see the files under the same path. A compressed file of
    lines is read by one task, from its beginning in each epoch. Event time is the time of the first start,
    or, if files are watched, the modification time of the file, unless `timestamp_column` is set.
    """

    class Options(FilesOptions, FileReadOptions):
        """The options of the filesystem source."""

        path: str = Field(min_length=1, description="A file or a directory, as a path or a URL.")
        regex_pattern: str | None = Field(
            None,
            alias="source.regex_pattern",
            description="Only files whose path below the directory contains a match are read.",
        )
        compression: Compression = Field(
            "auto",
            alias="source.compression",
            description="Compression of files of lines; `auto` goes by the file name, such as `x.json.gz`.",
        )

        @model_validator(mode="after")
        def _fits(self) -> Self:
            if self.regex_pattern is not None:
                try:
                    re.compile(self.regex_pattern)
                except re.error as error:
                    raise ValueError(f"option `source.regex_pattern` is not a pattern: {error}") from None
            if self.format in {"parquet", "avro"} and self.compression not in {"auto", "none"}:
                raise ValueError(
                    f"{self.format.capitalize()} files say themselves how they are compressed: "
                    "leave `source.compression`"
                )
            return self

    options: Options
    remembers = True
    deliveries = (Delivery("exactly once", "the checkpoint holds the file and the next byte or row"),)

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self._directory = self.options.open_storage()
        self.content: Content
        if self.options.format == "parquet":
            self.content = ParquetContent(self._directory, drop_bad=self.options.bad_data != "fail")
        elif self.options.format == "avro":
            self.content = AvroContent(self._directory, self.options)
        else:
            self.content = LineContent(self._directory, self.options, self.options.compression)

    @property
    def schema(self) -> pa.Schema | None:
        """The declared columns."""
        return self.options.columns

    def validate(self) -> None:
        """Raise an error for a local path that does not exist, and for columns that cannot be read."""
        if self._directory.is_local:
            self.reach()
        if self.options.format != "parquet":
            check_readable(self.options)
        column, columns = self.options.timestamp_column, self.options.columns
        if columns is not None and column is not None:
            check_column(column, columns.names, what="filesystem, option `timestamp_column`")

    def reach(self) -> str:
        """Look for the directory, and return a line about it."""
        if self._directory.is_there():
            return f"there are files at {self._directory.url}"
        if self.options.watch_interval is None:
            raise ConfigurationError(f"there is no file or directory `{self._directory.url}`")
        return f"{self._directory.url} is not there yet"

    def _files(self) -> list[StoredFile]:
        pattern = re.compile(self.options.regex_pattern or "")
        watched = self.options.watch_interval is not None
        return [
            file
            for file in _visible_files(self._directory, may_be_missing=watched)
            if not file.path or pattern.search(file.path)
        ]

    def discover(self, more: Mapping[str, Any] | None, listed: set[str]) -> tuple[list[File], dict[str, Any]]:
        """Return the files of the directory that are not listed yet."""
        files = [file for file in self._files() if file.size and file.path not in listed]
        if more is not None:
            files.sort(key=lambda file: (file.modified, file.path))
        watched = self.options.watch_interval is not None
        candidates = [
            {"path": file.path, "size": file.size, **({"time": file.modified} if watched else {})}
            for file in files
        ]
        return [dict(file) for file in self._directory.map(self.content.measure, candidates) if file], {}

    def infer(self, files: Sequence[File]) -> dict[str, str] | None:
        """Return the columns, inferred from the first file and its path."""
        if isinstance(self.content, ParquetContent):
            return None
        sample = self.content.sample(files[0]) if files else None
        if sample is not None:
            columns = infer_from(self.options, sample, where=self.content.where(files[0]))
        elif (columns := implied_columns(self.options)) is None:
            raise ConfigurationError(
                f"there are no files in `{self._directory.url}` to find out the columns from",
                hint="declare them with the option `schema`",
            )
        of_path = dict.fromkeys(self.values(files[0]), "string") if files else {}
        return {**of_path, **{field.name: format_type(field.type) for field in columns}}

    def find_columns(self) -> pa.Schema:
        """Return the columns of the first file and of its path."""
        if not isinstance(self.content, ParquetContent):
            return super().find_columns()
        self.validate()
        files = self.first()
        if not files:
            return pa.schema([])
        with self.content.open(files[0]) as file:
            columns = pq.read_schema(file)
        of_path = [pa.field(name, pa.string()) for name in self.values(files[0]) if name not in columns.names]
        return pa.schema([*of_path, *columns])

    def first(self) -> Sequence[File]:
        """Return the first file that is not empty."""
        listed = ({"path": file.path, "size": file.size} for file in self._files() if file.size)
        measured = (self.content.measure(file) for file in listed)
        return [dict(file) for file in itertools.islice(filter(None, measured), 1)]

    def values(self, file: Mapping[str, Any]) -> Mapping[str, str | None]:
        """Return the partition values in the path of a file."""
        return path_values(file["path"])


def _visible_files(storage: Storage, *, may_be_missing: bool) -> list[StoredFile]:
    """Return the file itself, or all files below the directory, sorted, without hidden ones (`.x`, `_x`)."""
    files = storage.list_files()
    if files is None:
        if may_be_missing:
            return []
        raise ConfigurationError(f"there is no file or directory `{storage.url}`")
    return sorted(
        file for file in files if not any(part.startswith((".", "_")) for part in file.path.split("/"))
    )
