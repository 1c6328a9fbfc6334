"""The sources of a job in the process that plans and commits its epochs: one object for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from headrace.base.log_context import log_context
from headrace.engine.chain import load_operator, wrap_failure
from headrace.engine.context import JobContext
from headrace.engine.stages import StagePlan
from headrace.model.operator import Offset, SourceOperator
from headrace.state.generation import Generation
from headrace.storage.base import Storage


class JobSources(Mapping[str, SourceOperator]):
    """The source objects of the driver by node, which plan epochs and are notified of commits."""

    def __init__(self, stages: StagePlan) -> None:
        self._sources: dict[str, SourceOperator] = {node.id: load_operator(node) for node in stages.sources}

    def __getitem__(self, node: str) -> SourceOperator:
        return self._sources[node]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    @contextmanager
    def opened(
        self, storage: Storage, job: JobContext, *, epoch: int, claim: Generation | None
    ) -> Iterator[None]:
        """Open the sources for as long as the block lasts; those that could be opened are closed again."""
        with ExitStack() as opened:
            for node, source in self.items():
                source.claim = claim
                with self.calling(node, epoch):
                    source.open(storage, job_id=job.job_id, node=node)
                opened.callback(source.close)
            yield

    def committed(self, offsets: Mapping[str, Offset], *, epoch: int) -> None:
        """Tell each source that everything before its offset is durable."""
        for node, source in self.items():
            with self.calling(node, epoch):
                source.committed(offsets[node])

    def expired(self, offsets: Mapping[str, Offset], *, epoch: int) -> None:
        """Tell each source the offset of the oldest checkpoint that is kept, if the source was in it."""
        for node, source in self.items():
            if node in offsets:
                with self.calling(node, epoch):
                    source.expired(offsets[node])

    @property
    def store_ranges(self) -> bool:
        """Whether any source wants to know what has expired."""
        return any(type(source).expired is not SourceOperator.expired for source in self.values())

    @contextmanager
    def calling(self, node: str, epoch: int) -> Iterator[None]:
        """What a source raises inside the block becomes an error that names the source."""
        try:
            with log_context(operator=node, epoch=epoch):
                yield
        except Exception as error:
            raise wrap_failure(error, node, 0, epoch) from error
