"""Records what passes through ports of a pipeline, each epoch once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.connectors.base import stage, unstage
from headrace.connectors.recording.files import RecordingWriter, to_streams
from headrace.model.operator import ArrowOperator, CheckpointBarrier, Collector, OperatorContext


class Recorder(ArrowOperator):
    """Takes one port at each input, in one subtask; the commit of an epoch appends it to the recording.

    `ports` are the names of the inputs in their order, `header` is what the recording says of itself.
    """

    max_parallelism = 1
    accepts_updates = True

    def __init__(self, directory: str, ports: Sequence[str], header: Mapping[str, Any]) -> None:
        self._directory = directory
        self._ports = tuple(ports)
        self._header = {**header, "ports": list(ports)}
        self._received: dict[str, list[pa.RecordBatch]] = {}
        self._stopping = False
        self._writer: RecordingWriter | None = None

    @property
    def name(self) -> str:
        return "recorder"

    def display(self) -> str:
        """Where it records."""
        return f"recorder({self._directory})"

    def claims(self) -> Sequence[str]:
        """The directory: two recorders would mix their epochs."""
        return [f"the recording in {self._directory}"]

    def process_batch(self, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector) -> None:
        """The first port."""
        self._received.setdefault(self._ports[0], []).append(batch)

    def process_batch_index(
        self, index: int, total: int, batch: pa.RecordBatch, ctx: OperatorContext, collector: Collector
    ) -> None:
        """Keep the batch for the end of the epoch."""
        self._received.setdefault(self._ports[index], []).append(batch)

    def handle_stop(self, final: bool, ctx: OperatorContext, collector: Collector) -> None:
        """Note that in this epoch the run was told to stop."""
        self._stopping = True

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: Collector
    ) -> None:
        """Hand what the epoch brought to its commit."""
        received, self._received = self._received, {}
        streams = {port: to_streams(batches) for port, batches in received.items()}
        rows = {port: sum(batch.num_rows for batch in batches) for port, batches in received.items()}
        head: dict[str, Any] = {
            "time": ctx.time,
            "stopped": self._stopping,
            "ended": [self._ports[index] for index in sorted(ctx.ended_inputs)],
            "ports": [[port, len(data), rows[port]] for port, data in streams.items()],
        }
        payload = b"".join(streams.values())
        ctx.insert_committing_data("epoch", stage(ctx, "recorded.arrows", payload, **head))

    def handle_commit(
        self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: OperatorContext
    ) -> None:
        """Append the epoch to the recording, unless another run has taken over."""
        ctx.check_generation()
        if self._writer is None:
            header = {**self._header, "first_epoch": epoch}
            self._writer = RecordingWriter(Path(self._directory), header=header, job_id=ctx.task_info.job_id)
        payload, head = unstage(ctx, data["epoch"][0])
        streams: dict[str, tuple[bytes, int]] = {}
        start = 0
        for port, size, rows in head["ports"]:
            streams[port] = (payload[start : start + size], rows)
            start += size
        self._writer.append(
            epoch,
            head["time"],
            streams,
            ended=head["ended"],
            stopped=head["stopped"],
            check=ctx.check_generation,
        )
