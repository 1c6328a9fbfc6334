"""`filesystem` as a source: files of lines or of Parquet in a directory or an object store."""

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
from headrace.formats.options import FileFormatOptions, check_readable, implied_columns, infer_from
from headrace.formats.types import format_type
from headrace.storage.base import Storage, StoredFile


class FileSystemSource(FilesSource):
    """Reads every file of a directory once, in the order of their paths; then it is finished, or goes on.

    The files and their sizes are listed when the pipeline first starts and kept with the checkpoint, together
    with the file and the byte or row that comes next: a resumed pipeline goes on with the next row, and every
    range is read alike. With `source.watch_interval` the directory is listed again and again, and files that
    were not there before are read, in the order of their modification; a file must appear whole, such as by
    renaming it. Lines that are appended to a file later are not read. Hidden files (`.x`, `_x`) are left out.

    A column that directories name (`day=3/country=DE/…`) has that value, unless the file has one itself;
    without declared columns such columns are texts. The tasks of an epoch share its files, and large ones
    among them; every worker must see the files under the same path. A compressed file of lines is read by one
    task, from its beginning in each epoch. Event time is the moment of the first start, or, if files are
    watched, of a file's modification, unless `timestamp_column` names one.
    """

    class Options(FilesOptions, FileFormatOptions):
        """The options of the filesystem source."""

        path: str = Field(min_length=1, description="A file or a directory, as a path or a URL.")
        regex_pattern: str | None = Field(
            None,
            alias="source.regex_pattern",
            description="Only files whose path below the directory has a part that matches are read.",
        )
        compression: Compression = Field(
            "auto",
            alias="source.compression",
            description="How files of lines are compressed; `auto` goes by their names, such as `x.json.gz`.",
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
    deliveries = (
        Delivery("exactly once", "the checkpoint holds the file and the byte or row that comes next"),
    )

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
        """Refuse a path that is not there, and columns that cannot be read."""
        self._files()
        if self.options.format != "parquet":
            check_readable(self.options)
        column, columns = self.options.timestamp_column, self.options.columns
        if columns is not None and column is not None:
            check_column(column, columns.names, what="filesystem, option `timestamp_column`")

    def reach(self) -> str:
        """What is there."""
        files = self._files()
        return f"{len(files)} files, {sum(file.size for file in files)} bytes"

    def _files(self) -> list[StoredFile]:
        pattern = re.compile(self.options.regex_pattern or "")
        watched = self.options.watch_interval is not None
        return [
            file
            for file in _visible_files(self._directory, may_be_missing=watched)
            if not file.path or pattern.search(file.path)
        ]

    def discover(self, more: Mapping[str, Any] | None, known: set[str]) -> tuple[list[File], dict[str, Any]]:
        """The files of the directory that are not known yet."""
        files = [file for file in self._files() if file.size and file.path not in known]
        if more is not None:
            files.sort(key=lambda file: (file.modified, file.path))
        watched = self.options.watch_interval is not None
        listed = [
            {"path": file.path, "size": file.size, **({"time": file.modified} if watched else {})}
            for file in files
        ]
        return [dict(file) for file in self._directory.map(self.content.measure, listed) if file], {}

    def infer(self, files: Sequence[File]) -> dict[str, str] | None:
        """The columns of lines or records, from the first file and its path."""
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
        """Those of the first file, and what its directories name."""
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
        """The first file that holds something."""
        listed = ({"path": file.path, "size": file.size} for file in self._files() if file.size)
        measured = (self.content.measure(file) for file in listed)
        return [dict(file) for file in itertools.islice(filter(None, measured), 1)]

    def values(self, file: Mapping[str, Any]) -> Mapping[str, str | None]:
        """What the directories say."""
        return path_values(file["path"])


def _visible_files(storage: Storage, *, may_be_missing: bool) -> list[StoredFile]:
    """The file itself, or every file below the directory but hidden ones (`.x`, `_x`), sorted by path."""
    files = storage.list_files()
    if files is None:
        if may_be_missing:
            return []
        raise ConfigurationError(f"there is no file or directory `{storage.url}`")
    return sorted(
        file for file in files if not any(part.startswith((".", "_")) for part in file.path.split("/"))
    )
