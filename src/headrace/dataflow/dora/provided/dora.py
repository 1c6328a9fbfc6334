"""`dora`, as far as a dataflow needs it: `from dora import DoraStatus, Node` works without dora-rs.

Every other name comes from the installed dora, if there is one.
"""

import sys
from enum import Enum
from importlib import util
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

__version__ = "1.1.0"
"""The version of dora whose names and behaviour these are."""

_HERE = Path(__file__).parent
_INSTALLED = "_installed_dora"


class DoraStatus(Enum):
    """What an operator returns: go on, stop this operator, stop the whole dataflow."""

    CONTINUE = 0
    STOP = 1
    STOP_ALL = 2


def __getattr__(name: str) -> Any:
    if name == "Node":
        return _node()
    if name == "__path__":  # asked for by the import system: `import dora.builder` finds the installed one
        spec = _find_installed()
        if spec is not None and spec.submodule_search_locations is not None:
            return spec.submodule_search_locations
    if name.startswith("__"):
        raise AttributeError(f"module 'dora' has no attribute {name!r}")
    try:
        return getattr(_load_installed(), name)
    except (ImportError, AttributeError) as error:
        raise AttributeError(
            f"Headrace provides `Node` and `DoraStatus` of dora, and no `{name}`. {_advice(error)}"
        ) from error


def _advice(error: Exception) -> str:
    if isinstance(error, AttributeError):
        return "The installed dora has none either"
    if isinstance(error, ModuleNotFoundError) and error.name == "dora":
        return "`pip install dora-rs` gives the rest"
    return f"The installed dora cannot be imported: {error}"


def _node() -> type:
    """`Node` is imported when it is asked for: operators need no more than `DoraStatus`."""
    try:
        from headrace.dataflow.dora.node import Node
    except ModuleNotFoundError as error:
        if error.name != "headrace":
            raise
        # This script runs with another Python than Headrace's. Last on the path, so that nothing is hidden.
        sys.path.append(str(_HERE.parents[3]))
        from headrace.dataflow.dora.node import Node
    globals()["Node"] = Node
    return Node


def _find_installed() -> ModuleSpec | None:
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != _HERE.resolve()]
    spec = PathFinder.find_spec("dora", elsewhere)
    return None if spec is None or spec.origin is None else spec


def _load_installed() -> ModuleType:
    if _INSTALLED in sys.modules:
        return sys.modules[_INSTALLED]
    origin = _find_installed()
    if origin is None:
        raise ModuleNotFoundError("dora is not installed", name="dora")
    spec = util.spec_from_file_location(
        _INSTALLED, origin.origin, submodule_search_locations=origin.submodule_search_locations
    )
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[_INSTALLED] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_INSTALLED]
        raise
    return module
