"""A pipeline as the server stores it, as plain data, and how it is loaded.

It is loaded by the process that runs it, and by calls of `run_apart` that plan it: never in the server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

from headrace.api.loading import find_program
from headrace.api.pipeline import Pipeline
from headrace.base.errors import HeadraceError, UserError
from headrace.base.secrets import Secrets
from headrace.base.spans import Source
from headrace.functions.user import load_udfs
from headrace.model.fragments import Function
from headrace.sql.compile import Preview
from headrace.sql.connection_profiles import SavedProfile, using_profiles

Kind: TypeAlias = Literal["sql", "python", "dataflow"]

QUERY = "query"
"""The name of a pipeline's SQL in errors: `query:3:14`."""
TABLES = "connection tables"
_MODULE = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True)
class StoredFunction:
    """A function's source, in Python or in Rust."""

    definition: str
    language: Literal["python", "rust"] = "python"


@dataclass(frozen=True)
class StoredProgram:
    """A pipeline as the server stores it, with the connections and functions that it may name.

    `tables` is SQL that defines connection tables. `files` are those of a dataflow, by their relative names.
    With `shows_sinks` the rows that a sink would write are shown instead.
    """

    name: str
    kind: Kind
    query: str
    files: Mapping[str, str] = field(default_factory=dict)
    udfs: tuple[StoredFunction, ...] = ()
    tables: str = ""
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    shows_sinks: bool = False

    def to_json(self) -> dict[str, Any]:
        """The program as JSON has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StoredProgram:
        """The program that `to_json` made."""
        return cls(**{**data, "udfs": tuple(StoredFunction(**udf) for udf in data["udfs"])})

    @property
    def plan_name(self) -> str:
        """The name in the plan and the state, which has no blanks."""
        return re.sub(r"\s", "_", self.name)

    @property
    def secrets(self) -> Secrets:
        """The secrets that it refers to as `{{ NAME }}`, as far as the environment has them."""
        options = [str(value) for profile in self.profiles.values() for value in profile["options"].values()]
        texts = [self.query, self.tables, *self.files.values(), *(udf.definition for udf in self.udfs)]
        return Secrets.named_in([*texts, *options])

    def load(self, folder: Path) -> Pipeline:
        """The pipeline; what has to be in files is written to the folder, where it stays for the run."""
        with self._profiles():
            functions = self.functions(folder)
            if self.kind == "sql":
                return self._load_sql(functions)
            if self.udfs:
                raise UserError(
                    f"functions from the server are for SQL, and this is a pipeline of kind `{self.kind}`",
                    hint="define them in its own text",
                )
            if self.kind == "python":
                return self._load_python(folder)
            return self._load_dataflow(folder)

    def functions(self, folder: Path) -> list[Function]:
        """Its functions, loaded; those in Rust are built."""
        functions: list[Function] = []
        for number, udf in enumerate(self.udfs, 1):
            file = folder / f"udf_{number}.{'py' if udf.language == 'python' else 'rs'}"
            _write(file, udf.definition)
            functions += load_udfs(file)
        return functions

    @contextmanager
    def _profiles(self) -> Iterator[None]:
        saved = {name: SavedProfile(**profile) for name, profile in self.profiles.items()}
        with using_profiles(saved):
            yield

    def _load_sql(self, functions: list[Function]) -> Pipeline:
        texts = [Source(TABLES, self.tables)] if self.tables else []
        shown = 0

        def show(_: Preview) -> tuple[str, dict[str, Any]]:
            nonlocal shown
            shown += 1
            return "preview", {"name": f"rows {shown}"}

        def show_table(_table: str, preview: Preview) -> tuple[str, dict[str, Any]]:
            return show(preview)

        return Pipeline.from_sql(
            [*texts, Source(QUERY, self.query)],
            udfs=functions,
            name=self.plan_name,
            preview=show,
            sinks=show_table if self.shows_sinks else None,
        )

    def _load_python(self, folder: Path) -> Pipeline:
        file = folder / f"{_MODULE.sub('_', self.name) or 'pipeline'}.py"
        _write(file, self.query)
        self._write_files(folder)
        return find_program([str(file)]).load()

    def _load_dataflow(self, folder: Path) -> Pipeline:
        file = folder / "dataflow.yml"
        _write(file, self.query)
        self._write_files(folder)
        return Pipeline.from_dataflow(file, name=self.plan_name)

    def _write_files(self, folder: Path) -> None:
        for name, text in self.files.items():
            _write(folder / check_file_name(name), text)


def check_file_name(name: str) -> str:
    """The name of a file of a pipeline; it is refused if it leads out of the pipeline's folder."""
    path = PurePosixPath(name)
    if not name or "\0" in name or "\\" in name or path.is_absolute() or ".." in path.parts or not path.parts:
        raise UserError(
            f"`{name}` cannot be the name of a file",
            hint="write it relative to the pipeline, such as `operators/count.py`",
        )
    return name


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except (OSError, UnicodeEncodeError) as error:
        raise UserError(f"the file {file.name} cannot be written: {error}") from None


def describe_error(error: BaseException, secrets: Secrets | None = None) -> dict[str, Any]:
    """An error as the server stores it: message, domain, and whether a retry can help."""
    hide = (secrets or Secrets()).hide
    if isinstance(error, HeadraceError):
        return {
            "message": hide(error.message),
            "details": hide(str(error)),
            "domain": error.domain,
            "retry": error.retry,
            "exit_code": error.exit_code,
            "operator_id": getattr(error, "operator_id", None),
            "task_index": getattr(error, "subtask", None),
        }
    return {
        "message": hide(f"{type(error).__name__}: {error}"),
        "details": "",
        "domain": "internal",
        "retry": False,
        "exit_code": 1,
        "operator_id": None,
        "task_index": None,
    }
