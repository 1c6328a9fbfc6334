"""Reads pickled state, also when it was written by a version whose modules had other paths."""

from __future__ import annotations

import io
import pickle
from typing import Any

_MOVED = {
    "headrace.dataflow.messages": "headrace.dataflow.runtime.messages",
    "headrace.dataflow.scheduler": "headrace.dataflow.runtime.scheduler",
}
"""Modules whose classes are in saved state, by the paths they had before."""


class StateUnpickler(pickle.Unpickler):
    """Finds classes of Headrace where they are now, and public ones wherever they were before."""

    def find_class(self, module: str, name: str) -> Any:
        """The class that a pickle names by its module and name."""
        try:
            return super().find_class(_MOVED.get(module, module), name)
        except ModuleNotFoundError:
            import headrace

            if module.startswith("headrace.") and name in headrace.__all__:
                return getattr(headrace, name)
            raise


def load_state(data: bytes) -> Any:
    """What `pickle.dumps` made of some state."""
    return StateUnpickler(io.BytesIO(data)).load()
