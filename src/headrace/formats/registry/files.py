"""Options that take a schema or the path of a file, which is read where the options are parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer

_SHOWN = 60


def _read_text(value: Any) -> Any:
    if not isinstance(value, str) or value.lstrip()[:1] in {"{", "[", '"'} or value.strip().isalpha():
        return value
    return load_file(value).decode("utf-8", "replace")


def _show(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


SchemaText = Annotated[
    str, BeforeValidator(_read_text), PlainSerializer(_show, return_type=str, when_used="json")
]
"""An option that takes a schema in JSON, or the path of a file with it."""


class LoadedFile(str):
    """The path of a file and its content, so that workers need no access to the file."""

    __slots__ = ("content",)
    content: bytes

    @classmethod
    def load(cls, path: str) -> LoadedFile:
        """Read the file; raises a ValueError for a bad path."""
        file = cls(path)
        file.content = load_file(path)
        return file


SchemaFile = Annotated[str, AfterValidator(LoadedFile.load)]
"""An option that takes the path of a file; its value is a `LoadedFile`."""


def load_file(path: str) -> bytes:
    """Return the content of a local file; raises a ValueError for a bad path."""
    file = Path(path.strip().removeprefix("file://")).expanduser()
    try:
        return file.read_bytes()
    except OSError as error:
        raise ValueError(f"`{file}` cannot be read: {error.strerror or error}") from None
