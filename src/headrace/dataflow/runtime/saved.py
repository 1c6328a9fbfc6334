"""Reads pickled state, also when it was written by a version whose modules had other paths."""

from __future__ import annotations

import io
import pickle
from typing import Any

_MOVED = {
    "headrace.dataflow.messages": "headrace.dataflow.runtime.messages",
    "headrace.dataflow.scheduler": "headrace.dataflow.runtime.scheduler",
    "headrace.errors": "headrace.base.errors",
    "headrace.operator": "headrace.model.operator",
    "headrace.options": "headrace.base.options",
    "headrace.watermarks": "headrace.base.watermarks",
}
"""Modules whose classes can be in saved state, by the paths they had before: Headrace's own, and public
classes that a user's operator may hold in its attributes."""


class StateUnpickler(pickle.Unpickler):
    """Finds classes of Headrace where they are now."""

    def find_class(self, module: str, name: str) -> Any:
        """The class that a pickle names by its module and name."""
        return super().find_class(_MOVED.get(module, module), name)


def load_state(data: bytes) -> Any:
    """Load a state that `pickle.dumps` wrote."""
    return StateUnpickler(io.BytesIO(data)).load()
