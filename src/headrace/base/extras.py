"""Load optional client libraries, with an error that says what to install."""

import importlib
from collections.abc import Iterable
from types import ModuleType

from headrace.base.errors import MissingExtraError


def load_extra(
    module: str, *, feature: str, extra: str, package: str, submodules: Iterable[str] = ()
) -> ModuleType:
    """Import a module of an optional package, and the submodules that it does not import by itself.

    `feature` is what needs it, `extra` the extra of Headrace that installs it, and `package` its name for
    pip. Raises a MissingExtraError with the command that installs it.

    >>> load_extra("no_such_client", feature="`x`", extra="x", package="no-such-client")
    Traceback (most recent call last):
    headrace.base.errors.MissingExtraError: `x` needs the package `no-such-client`, which is not installed
      hint: pip install 'headrace[x]'
    """
    try:
        loaded = importlib.import_module(module)
        for submodule in submodules:
            importlib.import_module(f"{module}.{submodule}")
    except ImportError as error:
        # A module that the installed package misses by itself is another mistake.
        if error.name is not None and module.split(".", maxsplit=1)[0] != error.name.split(".")[0]:
            raise
        raise MissingExtraError(feature, extra=extra, package=package) from None
    return loaded
