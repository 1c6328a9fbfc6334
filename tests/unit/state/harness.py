"""A pipeline's life in miniature: one operator, epochs, crashes and changes of parallelism."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from headrace.base.keys import hash_key, subtask_of
from headrace.base.watermarks import Watermark
from headrace.state.backend import ParquetBackend
from headrace.state.config import TableConfig
from headrace.state.files import Migrate, _opened
from headrace.state.manager import TableManager
from headrace.state.metadata import CheckpointMetadata, OperatorCheckpointMetadata, SavedOperator
from headrace.storage.open import open_storage


class Life:
    """One operator over epochs. `begin` opens the subtasks of an epoch, `commit` saves them."""

    def __init__(
        self, root: Path, configs: Sequence[TableConfig], *, parallelism: int = 1, compact_after: int = 8
    ) -> None:
        self.storage = open_storage(str(root / "state"))
        self.cache_dir = str(root / "cache")
        self.backend = ParquetBackend(self.storage, cache_dir=self.cache_dir)
        self.configs = configs
        self.parallelism = parallelism
        self.compact_after = compact_after
        self.epoch = 0
        self.watermark: int | None = None
        self.restored: OperatorCheckpointMetadata | None = None
        self.migrate: Migrate | None = None
        self.managers: list[TableManager] = []
        self.begin()

    def begin(self, parallelism: int | None = None) -> None:
        """Open the next epoch anew; what the last one had not committed is lost."""
        self.parallelism = parallelism or self.parallelism
        _opened.clear()
        self.managers = [
            TableManager(
                storage=self.storage,
                job_id="job",
                operator_id="op",
                subtask=subtask,
                parallelism=self.parallelism,
                epoch=self.epoch + 1,
                configs=self.configs,
                restored=self.restored,
                watermark=self.watermark,
                migrate=self.migrate,
                compact_after=self.compact_after,
                cache_dir=self.cache_dir,
            )
            for subtask in range(self.parallelism)
        ]

    def commit(self, watermark: int | None = None, *, parallelism: int | None = None) -> None:
        """Save the epoch through the backend, and begin the next from what was saved."""
        self.epoch += 1
        if watermark is not None:
            self.watermark = watermark
        mark = None if self.watermark is None else Watermark(self.watermark)
        operator = OperatorCheckpointMetadata(
            job_id="job",
            operator_id="op",
            operator_name="Op",
            fingerprint="",
            epoch=self.epoch,
            parallelism=self.parallelism,
            table_configs={config.name: config for config in self.configs},
            subtasks=tuple(one.checkpoint(self.epoch, 0.0, mark) for one in self.managers),
        )
        self.backend.write_operator_checkpoint_metadata(operator)
        self.backend.write_checkpoint_metadata(checkpoint(self.epoch, {"op": self.epoch}))
        self.backend.mark_committed(self.epoch)
        self.restored = self.backend.load_operator_metadata("job", SavedOperator("op", self.epoch))
        self.begin(parallelism)

    def wipe_cache(self) -> None:
        shutil.rmtree(self.cache_dir, ignore_errors=True)
        self.begin()

    def by_subtask(
        self, batch: pa.RecordBatch, keys: Sequence[str], act: Callable[[TableManager, pa.RecordBatch], None]
    ) -> None:
        """Hand every subtask the rows that belong to it."""
        owners = subtask_of(hash_key(batch, keys), self.parallelism)
        for subtask, manager in enumerate(self.managers):
            part = batch.filter(pa.array(owners == subtask))
            if part.num_rows:
                act(manager, part)


def checkpoint(epoch: int, operators: dict[str, int]) -> CheckpointMetadata:
    return CheckpointMetadata(
        job_id="job",
        pipeline="p",
        epoch=epoch,
        min_epoch=1,
        parallelism=1,
        start_time=0.0,
        finish_time=1.0,
        offsets={"source": {"lane": epoch}},
        operators=operators,
    )
