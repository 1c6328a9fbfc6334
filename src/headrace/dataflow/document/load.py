"""Reads the file of a dataflow."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.base.errors import UserError, suggest
from headrace.base.spans import Source
from headrace.dataflow.document.model import Dataflow
from headrace.dataflow.document.read import read_document

ENDINGS = (".yml", ".yaml")


def load_dataflow(file: Path, *, name: str | None = None, check_files: bool = True) -> Dataflow:
    """The dataflow in a file, called after it unless a name is given."""
    if file.is_dir():
        raise UserError(f"{file} is a directory", hint="name the .yml file in it")
    if not file.is_file():
        siblings = [entry.name for entry in file.parent.glob("*") if entry.suffix in ENDINGS]
        raise UserError(f"there is no file {file}", hint=suggest(file.name, siblings))
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (UnicodeDecodeError, OSError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    called = name or re.sub(r"[^\w.-]+", "_", file.stem).strip("_.") or "dataflow"
    return read_document(Source(str(file), text), directory=file.parent, name=called, check_files=check_files)
