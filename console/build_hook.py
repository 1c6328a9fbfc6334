"""A hook of the wheel's build: without the console in it, `headrace serve` would have no pages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

INDEX = "src/headrace/server/console/index.html"
WITHOUT = "HEADRACE_WITHOUT_CONSOLE"


class ConsoleHook(BuildHookInterface[Any]):
    """Refuses to build a wheel or a source distribution while the console is not built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or os.environ.get(WITHOUT) == "1" or (Path(self.root) / INDEX).is_file():
            return
        raise SystemExit(
            f"the console is not built: there is no {INDEX}\n"
            "build it first with `make console`, which needs Node 20.19 or newer and npm;\n"
            f"or set {WITHOUT}=1 for a package whose `headrace serve` has the REST API alone"
        )
