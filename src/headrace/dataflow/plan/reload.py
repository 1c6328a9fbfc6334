"""Takes up changes of operators' files while a dataflow runs."""

from __future__ import annotations

import time as clock
from collections.abc import Sequence

from headrace.base.errors import DataflowError
from headrace.dataflow.document.model import Dataflow
from headrace.dataflow.document.operator_file import read_operator
from headrace.dataflow.plan.lower import lower_dataflow
from headrace.dataflow.runtime.printed import Line, publish
from headrace.model.fragments import Function
from headrace.model.plan import Plan


class Reload:
    """Called between two epochs: the plan with the changed operators, or None if no file has changed.

    What a file says counts, not when it was written: it does not matter how an editor saves it. A file that
    is no operator any more is reported, and the one before runs on.
    """

    def __init__(self, dataflow: Dataflow, *, functions: Sequence[Function] = ()) -> None:
        self._dataflow = dataflow
        self._functions = tuple(functions)
        self._units = [unit for unit in dataflow.units if unit.kind == "python" and unit.file is not None]
        self._texts = {unit.address: read_operator(unit) for unit in self._units}
        self._refused: dict[str, str] = {}

    def __call__(self) -> Plan | None:
        """Look at the files."""
        changed: dict[str, str] = {}
        for unit in self._units:
            try:
                text = read_operator(unit)
            except DataflowError as error:
                if self._refused.get(unit.address) != str(error):
                    self._refused[unit.address] = str(error)
                    publish([Line(unit.address, "error", f"not reloaded: {error}", clock.time())])
                continue
            self._refused.pop(unit.address, None)
            if text != self._texts[unit.address]:
                changed[unit.address] = self._texts[unit.address]
                self._texts[unit.address] = text
        if not changed:
            return None
        for address in changed:
            publish([Line(address, "info", "reloaded", clock.time())])
        # The time, so that it is larger than any number of an earlier run.
        return lower_dataflow(
            self._dataflow, functions=self._functions, generation=clock.time_ns(), changed=changed
        ).plan()
