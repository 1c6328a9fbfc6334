"""The metadata of a checkpoint: plain data that is stored as JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

from headrace.base.errors import IncompatibleStateError
from headrace.base.watermarks import Watermark
from headrace.state.config import TableConfig

FORMAT: Final = 2
"""The version of the layout, the metadata and the files that this code reads and writes."""


def check_format(version: object, path: str, *, where: str) -> None:
    """Refuse a file of the state directory that a newer version of Headrace wrote."""
    if not isinstance(version, int) or version > FORMAT:
        raise IncompatibleStateError(
            f"`{path}` has format {version}, and this version reads formats up to {FORMAT}",
            where=where,
            hint="use the version of Headrace that wrote it, or a newer one",
        )


@dataclass(frozen=True)
class StateFile:
    """One live Parquet file of a table.

    `file` is relative to the state directory. `min_key`/`max_key` are the part of the key space this subtask
    uses the file for; after a rescale that may be less than the file holds. `order` is the newest epoch whose
    changes are in the file: among files of one key the greater one wins. `tombstones` is how many of the rows
    delete older ones. `deleted` are the ranges of time (start included, end not) whose rows in this file are
    deleted.
    """

    file: str
    epoch: int
    order: int
    level: int
    rows: int
    bytes: int
    checksum: str
    min_key: int
    max_key: int
    min_time: int | None = None
    max_time: int | None = None
    version: int = 1
    tombstones: int = 0
    deleted: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As it is stored; what has its default is left out."""
        values = {name: value for name in _FILE_FIELDS if (value := getattr(self, name)) is not None}
        if self.version == 1:
            del values["version"]
        if not self.tombstones:
            del values["tombstones"]
        if not self.deleted:
            del values["deleted"]
        return values

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StateFile:
        deleted = tuple((start, end) for start, end in data.get("deleted", ()))
        return cls(**{**data, "deleted": deleted})


_FILE_FIELDS = tuple(each.name for each in fields(StateFile))


@dataclass(frozen=True)
class SubtaskCheckpointMetadata:
    """What one subtask of one operator saved in one epoch: its live files and its commit data."""

    operator_id: str
    subtask: int
    epoch: int
    watermark: Watermark | None
    tables: Mapping[str, tuple[StateFile, ...]] = field(default_factory=dict)
    commit_data: Mapping[str, bytes] = field(default_factory=dict)
    bytes_written: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "operator_id": self.operator_id,
            "subtask": self.subtask,
            "epoch": self.epoch,
            "watermark": None if self.watermark is None else self.watermark.to_json(),
            "tables": {name: [file.to_json() for file in files] for name, files in self.tables.items()},
            "commit_data": {name: base64.b64encode(data).decode() for name, data in self.commit_data.items()},
            "bytes_written": self.bytes_written,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SubtaskCheckpointMetadata:
        watermark = data["watermark"]
        return cls(
            operator_id=data["operator_id"],
            subtask=data["subtask"],
            epoch=data["epoch"],
            watermark=None if watermark is None else Watermark.from_json(watermark),
            tables={
                name: tuple(StateFile.from_json(file) for file in files)
                for name, files in data["tables"].items()
            },
            commit_data={name: base64.b64decode(text) for name, text in data["commit_data"].items()},
            bytes_written=data["bytes_written"],
        )


@dataclass(frozen=True, slots=True)
class TableSize:
    """How much of a state table is live, over all subtasks."""

    rows: int
    bytes: int


@dataclass(frozen=True)
class OperatorCheckpointMetadata:
    """The state of one operator at one epoch, over all its subtasks."""

    job_id: str
    operator_id: str
    operator_name: str
    fingerprint: str
    epoch: int
    parallelism: int
    table_configs: Mapping[str, TableConfig]
    subtasks: tuple[SubtaskCheckpointMetadata, ...]
    routing: str = ""
    generation: int = 0
    """The generation of the run that wrote it; 0 in state from before there were any."""

    def files(self) -> list[StateFile]:
        return [file for subtask in self.subtasks for files in subtask.tables.values() for file in files]

    def table_sizes(self) -> dict[str, TableSize]:
        """The size of each table; a file that several subtasks share counts once."""
        files: dict[str, dict[str, StateFile]] = {}
        for subtask in self.subtasks:
            for table, parts in subtask.tables.items():
                files.setdefault(table, {}).update((file.file, file) for file in parts)
        return {
            table: TableSize(
                rows=sum(file.rows for file in parts.values()),
                bytes=sum(file.bytes for file in parts.values()),
            )
            for table, parts in files.items()
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "operator_id": self.operator_id,
            "operator_name": self.operator_name,
            "fingerprint": self.fingerprint,
            "epoch": self.epoch,
            "parallelism": self.parallelism,
            "table_configs": {n: config.to_json() for n, config in self.table_configs.items()},
            "subtasks": [subtask.to_json() for subtask in self.subtasks],
            "routing": self.routing,
            "generation": self.generation,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OperatorCheckpointMetadata:
        return cls(
            job_id=data["job_id"],
            operator_id=data["operator_id"],
            operator_name=data["operator_name"],
            fingerprint=data["fingerprint"],
            epoch=data["epoch"],
            parallelism=data["parallelism"],
            table_configs={
                name: TableConfig.from_json(config) for name, config in data["table_configs"].items()
            },
            subtasks=tuple(SubtaskCheckpointMetadata.from_json(item) for item in data["subtasks"]),
            routing=data.get("routing", ""),
            generation=data.get("generation", 0),
        )


class SavedOperator(NamedTuple):
    """Which operator metadata a checkpoint refers to."""

    operator_id: str
    epoch: int
    generation: int = 0


@dataclass(frozen=True)
class CheckpointMetadata:
    """One checkpoint: the commit point of its epoch.

    `operators` maps each operator with state to the epoch whose operator metadata holds it (an operator
    without changes keeps the older one), and `operator_generations` to the generation that wrote it; 0 is
    left out. `offsets` is where every source continues. `watermarks` holds
    the last event time of each source lane, by the operator the lane's rows leave the source's chain
    through, and of each operator's output by subtask.
    """

    job_id: str
    pipeline: str
    epoch: int
    min_epoch: int
    parallelism: int
    start_time: float
    finish_time: float
    offsets: Mapping[str, Any]
    operators: Mapping[str, int]
    watermarks: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)
    finished: bool = False
    needs_commit: bool = True
    """Whether a sink has staged something that its commit makes visible."""
    rows_in: int = 0
    rows_out: int = 0
    operator_names: Mapping[str, str] = field(default_factory=dict)
    lineages: Mapping[str, str] = field(default_factory=dict)
    """What the rows of each operator were computed from, as a hash."""
    run_id: str = ""
    """Which run wrote it, so that a run recognizes its own write when the response was lost."""
    format: int = 1
    generation: int = 0
    """The generation of the run that wrote it; 0 in state from before there were any."""
    operator_generations: Mapping[str, int] = field(default_factory=dict)

    def saved_operators(self) -> list[SavedOperator]:
        """Return which metadata holds the state of each operator."""
        return [
            SavedOperator(operator_id, epoch, self.operator_generations.get(operator_id, 0))
            for operator_id, epoch in self.operators.items()
        ]

    def to_json(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CheckpointMetadata:
        return cls(**data)
