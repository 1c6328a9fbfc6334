"""Loads the pipeline of a Python file, a YAML dataflow, SQL files or a SQL string."""

from __future__ import annotations

import builtins
import importlib.util
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.api.arguments import check_argument
from headrace.api.pipeline import Pipeline
from headrace.base.call_site import located
from headrace.base.errors import UserError, suggest
from headrace.base.secrets import Secrets
from headrace.base.spans import Source, hide_written
from headrace.base.start_guard import start_forbidden
from headrace.dataflow.document.load import ENDINGS
from headrace.functions.user import load_udfs
from headrace.sql.compile import MakeSink, print_rows

UNNAMED = "query"
"""The name of a pipeline whose text did not come from a file."""

_PYTHON = re.compile(r".*\.py(:\w*)?", re.DOTALL)
_COMMENTS = re.compile(r"\s+|--[^\n]*|/\*.*?\*/", re.DOTALL)
_SQL = re.compile(r"(create|insert|select|with|set)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Program:
    """The program to run: a Python file, a YAML dataflow, or SQL scripts that are run as one."""

    name: str
    """The name of the pipeline that SQL becomes; a Python file names its own."""
    python: str | None = None
    """`file.py` or `file.py:name`."""
    sql: tuple[Source, ...] = ()
    dataflow: str | None = None
    """A YAML file."""

    @cached_property
    def secrets(self) -> Secrets:
        """The secrets that the program refers to as `{{ NAME }}`."""
        texts = [source.text for source in self.sql]
        if self.dataflow is not None and Path(self.dataflow).is_file():
            texts.append(Path(self.dataflow).read_text(encoding="utf-8", errors="replace"))
        return Secrets.named_in(texts)

    def load(self, *, udfs: Sequence[str] = (), preview: MakeSink = print_rows) -> Pipeline:
        """The pipeline; `udfs` are files or modules of functions, `preview` the sink of a bare SELECT."""
        if self.python is not None:
            if udfs:
                raise UserError(
                    "functions from files are for SQL, and this is a Python file",
                    hint="give them to Pipeline.from_sql(…, udfs=…) there",
                )
            return _load_python(self.python)
        functions = [function for file in udfs for function in load_udfs(file)]
        if self.dataflow is not None:
            return Pipeline.from_dataflow(self.dataflow, udfs=functions)
        return Pipeline.from_sql(self.sql, udfs=functions, name=self.name, preview=preview)


def find_program(files: Sequence[str], *, texts: Sequence[str] = ()) -> Program:
    """The program of these files, in order, followed by these SQL strings; `-` is standard input.

    A pipeline of SQL is called after the last file.
    """
    if any(_PYTHON.fullmatch(file) for file in files):
        if len(files) + len(texts) > 1:
            raise UserError(
                "a Python file is a program of its own", hint="name it alone; only SQL can be taken together"
            )
        return Program(UNNAMED, python=files[0])
    if any(file.lower().endswith(ENDINGS) for file in files):
        if len(files) + len(texts) > 1:
            raise UserError("a dataflow is a program of its own", hint="name its file alone")
        return Program(_name_of(files[0]), dataflow=files[0])
    if list(files).count("-") > 1:
        raise UserError("`-`, the standard input, can only be read once")
    read = [Source("-", sys.stdin.read()) if file == "-" else _read_sql(Path(file)) for file in files]
    named = [file for file in files if file != "-"]
    inline = [Source("-e", text) for text in texts]
    return Program(_name_of(named[-1]) if named else UNNAMED, sql=(*read, *inline))


@located
def load_pipeline(path: str | Path) -> Pipeline:
    """The pipeline that a file defines: `file.sql`, `file.yml`, `file.py`, or `file.py:name`.

    The name may be that of a `Pipeline` or of a function that returns one.

    Args:
        path: the file, with the name of a pipeline in a Python file that has several.

    Returns:
        The pipeline.

    Raises:
        UserError: there is no such file, or it has no valid pipeline.

    >>> import headrace as hr
    >>> try:
    ...     hr.load_pipeline("missing.py")
    ... except hr.UserError as error:
    ...     print(error.message)
    there is no file missing.py
    """
    check_argument(path, "path", (str, Path), "the path of a pipeline", example="load_pipeline('flow.py')")
    return find_program([str(path)]).load()


def _name_of(file: str) -> str:
    """A file's name as the name of a pipeline."""
    return re.sub(r"[^\w.-]+", "_", Path(file).stem).strip("_.") or UNNAMED


def _read_sql(file: Path) -> Source:
    if file.is_dir():
        raise UserError(f"{file} is a directory", hint="name the .sql, .py or .yml files in it")
    if not file.is_file():
        siblings = [p.name for p in file.parent.glob("*") if p.suffix in {".sql", ".py", *ENDINGS}]
        raise UserError(f"there is no file {file}", hint=suggest(file.name, siblings))
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (UnicodeDecodeError, OSError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    if file.suffix.lower() != ".sql" and not _SQL.match(text, _comments_end(text)):
        raise UserError(
            f"{file} is neither a .py or .yml file nor SQL",
            hint="SQL begins with CREATE, INSERT, SELECT, WITH or SET, or is in a file called .sql",
        )
    return Source(str(file), text)


def _comments_end(text: str) -> int:
    """Where what is not a comment begins."""
    at = 0
    while comment := _COMMENTS.match(text, at):
        at = comment.end()
    return at


def _load_python(path: str) -> Pipeline:
    file, _, name = path.partition(":")
    definitions = _pipelines(_load_module(Path(file)))
    if name:
        if name not in definitions:
            raise UserError(
                f"there is no pipeline called `{name}` in {file}",
                hint=suggest(name, definitions) or f"it defines {', '.join(definitions) or 'none'}",
            )
        return _called(definitions[name], name, file)
    pipelines = {n: value for n, value in definitions.items() if isinstance(value, Pipeline)}
    candidates = pipelines or {n: value for n, value in definitions.items() if n == "pipeline"}
    if len({id(value) for value in candidates.values()}) == 1:
        only = next(iter(candidates))
        return _called(candidates[only], only, file)
    if not candidates:
        raise UserError(
            f"{file} defines no pipeline",
            hint="make one at the top level of the file, `pipeline = headrace.Pipeline('name')`, or write a "
            "function `pipeline()` that returns one",
        )
    raise UserError(
        f"{file} defines several pipelines: {', '.join(candidates)}",
        hint=f"say which: {file}:{next(iter(candidates))}",
    )


def _called(value: Any, name: str, file: str) -> Pipeline:
    if isinstance(value, Pipeline):
        return value
    try:
        pipeline = value()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{name}() in {file} raised {type(error).__name__}: {error}") from error
    if not isinstance(pipeline, Pipeline):
        raise UserError(f"{name}() in {file} returned {type(pipeline).__name__}, not a Pipeline")
    return pipeline


def _pipelines(namespace: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in namespace.items()
        if not name.startswith("_")
        and (
            isinstance(value, Pipeline)
            or (callable(value) and not isinstance(value, type) and _is_local(value, namespace))
        )
    }


def _is_local(value: Any, namespace: Mapping[str, Any]) -> bool:
    return getattr(value, "__module__", None) == namespace.get("__name__")


def _load_module(file: Path) -> Mapping[str, Any]:
    if file.is_dir():
        raise UserError(f"{file} is a directory", hint="name the Python file in it that defines the pipeline")
    if not file.is_file():
        siblings = [p.name for p in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise UserError(f"there is no file {file}", hint=suggest(file.name, siblings))
    file = file.resolve()
    directory, name = str(file.parent), file.stem
    if directory not in sys.path:
        sys.path.insert(0, directory)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} cannot be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with start_forbidden(f"{file.name} starts a pipeline while it is loaded"):
            spec.loader.exec_module(module)
    except UserError as error:
        error.where = error.where or _line_in(error, file)
        raise
    except SyntaxError as error:
        caret = (
            ""
            if error.text is None
            else f"\n    {hide_written(error.text.rstrip())}\n    {' ' * ((error.offset or 1) - 1)}^"
        )
        raise UserError(
            f"{error.msg}{caret}", where=f"{file}, line {error.lineno}, column {error.offset}"
        ) from error
    except Exception as error:
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        hint = _similar_names(error, module)
        raise UserError(f"{file} raised {text}", where=_line_in(error, file), hint=hint) from error
    return vars(module)


def _similar_names(error: Exception, module: ModuleType) -> str | None:
    """What Python suggests for a misspelt name where it prints a traceback itself."""
    if isinstance(error, AttributeError) and error.name is not None:
        return suggest(error.name, [name for name in dir(error.obj) if not name.startswith("_")])
    if isinstance(error, NameError) and error.name is not None:
        return suggest(error.name, [*vars(module), *vars(builtins)])
    return None


def _line_in(error: BaseException, file: Path) -> str | None:
    """The last line of the user's file in the traceback of an error."""
    lines = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == file or Path(frame.filename).resolve() == file.resolve()
    ]
    if not lines:
        return None
    return f"{file}, line {lines[-1].lineno}: {lines[-1].line}"
