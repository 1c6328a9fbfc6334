"""Verify checkpoints: read every file that they refer to, and compare sizes and checksums."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final

from headrace.base.errors import StateError
from headrace.base.keys import KEY_SPACE
from headrace.state.base import restored_run
from headrace.state.files import RunFiles, operator_directory, read_verified
from headrace.state.global_table import decode_value
from headrace.state.manager import select_files
from headrace.state.metadata import CheckpointMetadata, OperatorCheckpointMetadata, StateFile
from headrace.state.received import MANIFEST, check_part, needed_manifests, needed_parts
from headrace.state.references import FileReference, find_references, find_texts, unseal
from headrace.state.runs import MIN_TIME, RunLayout, merge
from headrace.storage.base import Storage

METADATA: Final = "metadata"
STATE: Final = "state files"
STAGED: Final = "staged"
"""What sinks staged for the commit."""
WAITING: Final = "waiting"
"""Rows that wait for a file of a sink."""
RECEIVED: Final = "received"
"""Messages that cannot be received again."""
SOURCES: Final = "sources"
"""What the offsets of sources refer to: listings and snapshots."""
KINDS: Final = (METADATA, STATE, STAGED, WAITING, RECEIVED, SOURCES)


@dataclass(frozen=True)
class Verification:
    """The files that were read for a checkpoint, by kind, and the problems; it is whole without any.

    `unchecked` files were written by an earlier version, without a checksum: they are there.
    """

    epoch: int
    files: Mapping[str, int]
    bytes: int = 0
    unchecked: int = 0
    problems: tuple[str, ...] = field(default_factory=tuple)


@dataclass(frozen=True)
class _Outcome:
    size: int = 0
    checked: bool = True
    problem: str | None = None
    content: bytes | None = None


class FileChecks:
    """Checks the files of checkpoints, one checkpoint after the other, and reads each file once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._outcomes: dict[Hashable, _Outcome] = {}
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Begin a checkpoint."""
        self._epoch = epoch
        self._files: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self._problems: list[str] = []
        self._bytes = self._unchecked = 0
        self._counted: set[Hashable] = set()

    def end(self) -> Verification:
        """Return the result for the checkpoint that was begun."""
        return Verification(
            self._epoch, dict(self._files), self._bytes, self._unchecked, tuple(self._problems)
        )

    def count(self, kind: str) -> None:
        """Count a file that was read."""
        self._files[kind] += 1

    def problem(self, message: str) -> None:
        """Add a problem of the checkpoint, once."""
        if message not in self._problems:
            self._problems.append(message)

    def check_checkpoint(
        self,
        metadata: CheckpointMetadata,
        operators: Sequence[OperatorCheckpointMetadata],
        *,
        with_state: bool,
    ) -> None:
        """Check the files of a checkpoint whose metadata could be read."""
        for operator in operators:
            if with_state:
                for file in operator.files():
                    self._check(STATE, file.file, partial(self._read_state, file))
            if operator.epoch == metadata.epoch:  # what an earlier epoch staged is committed
                self._check_references(STAGED, staged_files(operator), "staged file")
            self._check_references(WAITING, waiting_files(self._storage, operator), "file of waiting rows")
        sources: Mapping[str, Any] = metadata.offsets.get("sources", {})
        self._check_references(SOURCES, source_files(sources), "file of a source")
        for node, part, expected in needed_parts(self._storage, sources):
            self._check(
                RECEIVED,
                (node, part, expected),
                partial(self._read_part, node, part, expected),
            )

        for path in needed_manifests(self._storage, sources):
            manifest = self._check(RECEIVED, path, partial(self._read_manifest, path))
            if manifest.content is not None:
                for file in json.loads(manifest.content):
                    reference = FileReference.from_json(file)
                    self._check_reference(RECEIVED, reference, "file of a micro-batch")

    def _read_manifest(self, path: str) -> _Outcome:
        head, _ = unseal(self._storage, path, what=MANIFEST)
        content = json.dumps(head["files"]).encode()
        return _Outcome(len(content), "checksum" in head, content=content)

    def _read_state(self, file: StateFile) -> _Outcome:
        return _Outcome(len(read_verified(self._storage, file)))

    def _read_part(self, node: str, part: int, expected: str | None) -> _Outcome:
        return _Outcome(*check_part(self._storage, node, part, expected))

    def _check_references(self, kind: str, references: Iterator[FileReference], what: str) -> None:
        """Check all that can be found; what cannot be read is a problem of its own."""
        try:
            for reference in references:
                self._check_reference(kind, reference, what)
        except StateError as error:
            self.problem(error.message)

    def _check_reference(self, kind: str, reference: FileReference, what: str) -> None:
        outcome = self._check(kind, reference, partial(self._read_reference, reference, what))
        if reference.index and outcome.content is not None:
            for inner in find_references(json.loads(outcome.content)):
                self._check_reference(kind, inner, what)

    def _read_reference(self, reference: FileReference, what: str) -> _Outcome:
        content = reference.read(self._storage, what=what)
        return _Outcome(len(content), bool(reference.checksum), content=content if reference.index else None)

    def _check(self, kind: str, key: Hashable, read: Callable[[], _Outcome]) -> _Outcome:
        if key not in self._outcomes:
            try:
                self._outcomes[key] = read()
            except StateError as error:
                self._outcomes[key] = _Outcome(problem=error.message)
        outcome = self._outcomes[key]
        if key not in self._counted:
            self._counted.add(key)
            # Several ranges of a file are one file.
            path = key.path if isinstance(key, FileReference) else key
            if (kind, path) not in self._counted:
                self._counted.add((kind, path))
                self.count(kind)
            self._bytes += outcome.size
            self._unchecked += not outcome.checked
            if outcome.problem is not None:
                self.problem(outcome.problem)
        return outcome


@dataclass(frozen=True)
class NeededPaths:
    """The files and folders that a checkpoint refers to; everything below a folder is needed."""

    paths: frozenset[str]
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        storage: Storage,
        metadata: CheckpointMetadata,
        operators: Sequence[OperatorCheckpointMetadata],
        paths: set[str],
    ) -> NeededPaths:
        """Add to the paths of metadata and tables what commit data, offsets and entries refer to.

        Every text counts that is a path or a folder: connectors of users have forms of their own.
        """
        texts = set(find_texts(metadata.offsets))
        prefixes: list[str] = []
        for operator in operators:
            for value in global_values(storage, operator):
                texts |= set(find_texts(value))
            if operator.epoch != metadata.epoch:
                continue
            for value in commit_values(operator):
                texts |= set(find_texts(value))
                if not _is_staged(value):
                    # It may name files in a form that is not known here.
                    prefixes.append(f"{operator_directory(operator.epoch, operator.operator_id)}/staged-")
        return cls(frozenset(paths | texts), tuple(prefixes))

    def needs(self, path: str) -> bool:
        """Whether the checkpoint refers to a file, or to a folder that it is in."""
        if path in self.paths or path.startswith(self.prefixes):
            return True
        parents = PurePosixPath(path).parents
        return any(str(parent) in self.paths or f"{parent}/" in self.paths for parent in parents)


def _is_staged(value: Any) -> bool:
    """Whether commit data is in the form of `connectors.base.stage`."""
    return isinstance(value, Mapping) and "id" in value and bool({"inline", "file", "path"} & value.keys())


def staged_files(operator: OperatorCheckpointMetadata) -> Iterator[FileReference]:
    """Yield the files that the commit data of an operator refers to."""
    for value in commit_values(operator):
        references = list(find_references(value))
        yield from references
        # Earlier versions wrote only the path.
        if not references and isinstance(value, Mapping) and {"id", "path"} <= value.keys():
            yield FileReference(str(value["path"]))


def commit_values(operator: OperatorCheckpointMetadata) -> Iterator[Any]:
    """Yield the commit data of an operator that is JSON; other data yields None."""
    for subtask in operator.subtasks:
        for data in subtask.commit_data.values():
            try:
                yield json.loads(data)
            except ValueError:
                yield None


def waiting_files(storage: Storage, operator: OperatorCheckpointMetadata) -> Iterator[FileReference]:
    """Yield the files that the entries of global tables refer to."""
    for value in global_values(storage, operator):
        references = list(find_references(value))
        yield from references
        # Earlier versions wrote the path and the range.
        if not references and isinstance(value, Mapping) and {"path", "range", "rows"} <= value.keys():
            begin, size = value["range"]
            yield FileReference(str(value["path"]), size, begin=begin)


def global_values(storage: Storage, operator: OperatorCheckpointMetadata) -> Iterator[Any]:
    """Yield the values of the global tables of an operator."""
    files = RunFiles(storage, use_cache=False)
    for name, config in operator.table_configs.items():
        layout = RunLayout.of(config)
        if not layout.is_global:
            continue
        selected = select_files(operator, name, low=0, high=KEY_SPACE - 1, is_global=True)
        runs = [restored_run(file, layout, files) for file in selected]
        for batch in merge(runs, layout, oldest=True, cutoff=MIN_TIME):
            yield from map(decode_value, batch.column("value").to_pylist())


def source_files(sources: Mapping[str, Any]) -> Iterator[FileReference]:
    """Yield the files that offsets refer to."""
    yield from find_references(sources)
    for offset in sources.values():
        for position in offset.values() if isinstance(offset, Mapping) else ():
            pages: Iterable[Any] = position.get("pages", ()) if isinstance(position, Mapping) else ()
            for page in pages:
                # The name of a page of a listing is the first half of its checksum.
                if isinstance(page, Mapping) and "name" in page and "files" in page:
                    name = str(page["name"])
                    digest = name.rpartition("/")[2].removesuffix(".json")
                    yield FileReference(name, page.get("bytes"), digest)
