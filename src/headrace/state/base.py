"""The base of state tables."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace

from headrace.state.config import TableConfig
from headrace.state.files import RunFiles
from headrace.state.messages import TableData
from headrace.state.metadata import StateFile
from headrace.state.runs import Run, RunLayout


class StateTable(ABC):
    """What every state table has: a declaration, its saved runs and the changes of this epoch."""

    def __init__(
        self,
        config: TableConfig,
        *,
        files: Sequence[StateFile],
        run_files: RunFiles,
        low: int,
        high: int,
        watermark: int | None = None,
    ) -> None:
        self.config = config
        self.layout = RunLayout.of(config)
        self.saved = [restored_run(file, self.layout, run_files) for file in files]
        """The runs of earlier epochs, oldest first; nothing of them is read before it is needed."""
        self.low, self.high = low, high
        self.late_rows = 0
        """The number of rows of this epoch that arrived too late."""
        self._watermark = watermark

    @property
    def name(self) -> str:
        """Return the name of the table in `tables()`."""
        return self.config.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def advance(self, watermark: int) -> None:
        """Advance event time to `watermark`: reads no longer see rows older than the retention."""
        if self._watermark is None or watermark > self._watermark:
            self._watermark = watermark

    @property
    def cutoff(self) -> int:
        """Return the first instant that reads still see."""
        return self.layout.cutoff(self._watermark)

    def files(self) -> list[StateFile]:
        """Return the saved files, oldest first, with their deleted ranges of time."""
        return [replace(run.file, deleted=run.deleted) for run in self.saved if run.file is not None]

    @abstractmethod
    def changes(self) -> Iterator[TableData]:
        """Return the changes of this epoch, as messages to the writer."""


def restored_run(file: StateFile, layout: RunLayout, run_files: RunFiles) -> Run:
    """Return a saved run, which is opened when it is first read."""
    return Run(
        load=functools.cache(functools.partial(run_files.segments, file, layout)),
        rows=file.rows,
        low=file.min_key,
        high=file.max_key,
        deleted=file.deleted,
        file=file,
        tombstones=file.tombstones,
    )
