"""A sink of one's own that takes part in the commit: one Parquet file per epoch, each exactly once.

Phase one runs in the subtasks: `process_batch` collects rows, `handle_checkpoint` writes them to a staging
file that nobody else reads, and hands its path to the commit. Phase two runs on the driver once the
checkpoint is durable: `handle_commit` copies the staged rows to their final place. After a crash it is
called again for the same epoch, so it is written to be repeatable: the name of the file is the epoch, and
it replaces whatever has that name.
"""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr


class ParquetFiles(hr.ArrowOperator):
    """Writes `epoch-0000001.parquet`, `epoch-0000002.parquet`, … into a directory."""

    def __init__(self, directory: str) -> None:
        self.directory = str(Path(directory).absolute())
        self.rows: list[pa.RecordBatch] = []

    @property
    def stateless(self) -> bool:
        """Not inside the task of a source: every subtask shall run, and commit, in every epoch."""
        return False

    def process_batch(self, batch: pa.RecordBatch, ctx: hr.OperatorContext, collector: hr.Collector) -> None:
        self.rows.append(batch)

    def handle_checkpoint(
        self, barrier: hr.CheckpointBarrier, ctx: hr.OperatorContext, collector: hr.Collector
    ) -> None:
        """Phase one: stage. `ctx.staging` is unique to this attempt, and is removed with its checkpoint."""
        path = ""
        if self.rows:
            out = pa.BufferOutputStream()
            pq.write_table(pa.Table.from_batches(self.rows), out)
            path = f"{ctx.staging}/rows.parquet"
            ctx.storage.write(path, out.getvalue().to_pybytes())
        ctx.insert_committing_data("files", path.encode())

    def handle_commit(
        self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: hr.OperatorContext
    ) -> None:
        """Phase two: publish. Called again after a crash, and when `--from-epoch` goes back to this epoch."""
        directory = Path(self.directory)
        directory.mkdir(parents=True, exist_ok=True)
        for later in directory.glob("epoch-*.parquet"):
            if int(later.stem.removeprefix("epoch-")) > epoch:
                later.unlink()
        paths = [path.decode() for _, path in sorted(data["files"].items()) if path]
        if paths:
            tables = [pq.read_table(pa.BufferReader(ctx.storage.read(path))) for path in paths]
            final = directory / f"epoch-{epoch:07}.parquet"
            pq.write_table(pa.concat_tables(tables), final.with_suffix(".new"))
            final.with_suffix(".new").replace(final)


pipeline = hr.Pipeline("custom-sink")
numbers = pipeline.source("impulse", message_count=10_000, event_time_interval="1s", start_time="2026-01-01")
numbers.sink(ParquetFiles("numbers"), id="files")
