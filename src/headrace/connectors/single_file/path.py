"""The path of the one file that the connector `single_file` reads or writes."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.base.errors import suggest


def absolute_path(path: str) -> Path:
    """Return the absolute path, independent of the working directory of a task."""
    # Workers may run in another directory than the driver.
    return Path(os.path.abspath(os.path.expanduser(path.removeprefix("file://"))))  # noqa: PTH100, PTH111


def suggest_path(path: Path) -> str | None:
    """Return a hint for a missing path: similar names in its directory."""
    try:
        return suggest(path.name, [entry.name for entry in path.parent.iterdir()])
    except OSError:
        return f"there is no directory `{path.parent}` either"
