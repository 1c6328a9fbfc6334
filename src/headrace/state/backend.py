"""Checkpoints on storage: metadata, the commit point, and the removal of unreferenced files.

    checkpoints/checkpoint-0000012/metadata-0000003.json    the commit point of epoch 12, by generation 3
    checkpoints/checkpoint-0000012/committed.json           its sinks have committed
    checkpoints/checkpoint-0000012/operator-<id>/metadata-0000003.json    which files hold an operator's state
    checkpoints/checkpoint-0000012/operator-<id>/table-….parquet

An epoch is a checkpoint if and only if its metadata exist. They are written last and removed first. Each
generation writes its own, so that a run that does not know yet that it was replaced cannot touch those of its
successor; the newest generation counts (`state/generation.py`). State from before there were generations has
`metadata.json`.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from headrace.base.errors import (
    CorruptStateError,
    IncompatibleStateError,
    StateError,
    StateInUseError,
)
from headrace.state.cache import drop_cached, evict_cache
from headrace.state.files import (
    checkpoint_directory,
    operator_directory,
)
from headrace.state.generation import Start, generations, last_number, start_of
from headrace.state.metadata import (
    FORMAT,
    CheckpointMetadata,
    OperatorCheckpointMetadata,
    SavedOperator,
    check_format,
)
from headrace.state.verify import METADATA, FileChecks, NeededPaths, Verification
from headrace.storage.base import Storage

_ROOT: Final = "checkpoints"
_EPOCH: Final = re.compile(r"checkpoint-(\d{7,})")
_METADATA: Final = re.compile(r"metadata(?:-(\d+))?\.json")
_LISTING_PAUSES: Final = (0.1, 0.5, 2.0)
"""Seconds until a listing that shows no checkpoint, where one must be, is asked for again."""
_T = TypeVar("_T")


class SavedCheckpoint(NamedTuple):
    """Which checkpoint of an epoch counts."""

    epoch: int
    generation: int


class BackingStore(Protocol):
    """A store for checkpoints."""

    def name(self) -> str:
        """Return the name of the store in settings."""

    def prepare_checkpoint_load(self, metadata: CheckpointMetadata) -> None:
        """Check that a checkpoint can be restored; raises a StateError if it cannot."""

    def load_checkpoint_metadata(self, job_id: str, epoch: int) -> CheckpointMetadata:
        """Load the metadata of one checkpoint."""

    def load_operator_metadata(self, job_id: str, saved: SavedOperator) -> OperatorCheckpointMetadata | None:
        """Load the state of one operator as a checkpoint refers to it; None if there is none."""

    def write_operator_checkpoint_metadata(self, metadata: OperatorCheckpointMetadata) -> None:
        """Save the state of one operator, before the checkpoint that refers to it."""

    def write_checkpoint_metadata(self, metadata: CheckpointMetadata) -> None:
        """Commit a checkpoint, in one step and only once."""

    def cleanup_checkpoint(self, metadata: CheckpointMetadata, old_min_epoch: int, min_epoch: int) -> None:
        """Remove the checkpoints from `old_min_epoch` to before `min_epoch` and what only they use."""


class ParquetBackend:
    """Checkpoints as Parquet and JSON files; one pipeline per state directory."""

    def __init__(self, storage: Storage, *, cache_dir: str | None = None) -> None:
        self.storage = storage
        self._cache_dir = cache_dir
        self._settled: set[int] = set()
        """Epochs that are no longer checkpoints and hold only files that are still in use."""
        self._needs: dict[int, set[str]] = {}
        """The files of each retained checkpoint; they do not change, so an epoch reads only the newest."""
        self._generations: dict[int, int] = {}
        """The generation of each checkpoint that this object has written: it need not be looked for."""
        self._written: dict[int, CheckpointMetadata] = {}
        self._files: dict[SavedOperator, frozenset[str]] = {}
        """What this object has written, and the files that it refers to: they need not be read back."""
        self._starts: dict[int, Start] = {}
        """Where each generation started, which does not change."""

    def name(self) -> str:
        """Return the name of the store in settings."""
        return "parquet"

    # ------------------------------------------------------------------------------ reading

    def epochs(self) -> list[int]:
        """Return every epoch that a run can start from, oldest first."""
        claims = generations(self.storage)
        epochs = self._saved_epochs(claims)
        oldest = self._oldest_of(epochs, claims)
        return [epoch for epoch in epochs if epoch >= oldest]

    def oldest_epoch(self) -> int:
        """Return the oldest epoch that a run may start from, which grows only.

        A checkpoint says so before its run removes earlier ones. So a run that is suspended in the middle of
        that removes nothing that another one could have gone back to.
        """
        claims = generations(self.storage)
        return self._oldest_of(self._saved_epochs(claims), claims)

    def _oldest_of(self, epochs: list[int], claims: list[int]) -> int:
        oldest = max((start.oldest for _, start in self._starts_of(claims) if start is not None), default=1)
        for epoch in reversed(epochs):
            try:
                return max(oldest, self.load_checkpoint_metadata("", epoch).min_epoch)
            except StateError:
                continue  # it is damaged: the one before it says nearly as much
        return oldest

    def _saved_epochs(self, claims: list[int]) -> list[int]:
        """Return every epoch that is a checkpoint, oldest first, also those that are being removed."""
        listed = [epoch for epoch in self._directories() if self._generation_of(epoch, claims) is not None]
        newest = listed[-1] if listed else 0
        return [*listed, *range(newest + 1, self._last_after(newest, claims) + 1)]

    def latest(self) -> SavedCheckpoint | None:
        """Return the newest checkpoint, or None if there is none.

        Checkpoints follow each other, and cleanup removes the oldest first. So whatever a listing shows, the
        newest one is reached by name from any that is there, also from where the last run started.
        """
        first = 0
        for pause in (*_LISTING_PAUSES, None):
            claims, directories = generations(self.storage), self._directories()
            start = next((start for _, start in self._starts_of(claims) if start is not None), None)
            first = 0 if start is None else start.epoch
            after = directories[-1] + 1 if directories else 1
            for epoch in (*reversed(directories), first, after):
                if epoch and self._generation_of(epoch, claims) is not None:
                    newest = self._last_after(epoch, claims)
                    generation = self._generation_of(newest, claims)
                    if generation is not None:  # else it was removed in this moment
                        return SavedCheckpoint(newest, generation)
            if first == 0:
                return None
            # The run that is at work has removed what the listing showed: there is more than it showed.
            if pause is not None:
                time.sleep(pause)
        raise CorruptStateError(
            f"there is no checkpoint in `{_ROOT}`, and the last run started from that of epoch {first}",
            where=self.storage.url,
            hint="restore the directory from a copy, or start anew in another one; if the store lists files "
            "late, try again later",
        )

    def latest_epoch(self) -> int | None:
        """Return the epoch of the newest checkpoint, or None if there is none."""
        latest = self.latest()
        return None if latest is None else latest.epoch

    def has_checkpoint(self, epoch: int) -> bool:
        """Whether an epoch is a checkpoint."""
        return self._generation_of(epoch, generations(self.storage)) is not None

    def _was_checkpoint(self, epoch: int) -> bool:
        """Whether an epoch has a checkpoint; one that this object wrote is not looked up."""
        return epoch in self._generations or self.has_checkpoint(epoch)

    def _last_after(self, epoch: int, claims: list[int]) -> int:
        """Return the last of the checkpoints that follow that of an epoch; the epoch itself if none does."""
        return last_number(epoch, lambda number: self._generation_of(number, claims) is not None)

    def _generation_of(self, epoch: int, claims: list[int]) -> int | None:
        """Return the generation whose checkpoint of an epoch counts; None if there is none.

        `claims` are the generations that the directory remembers. The last one that started before the epoch
        has written it: those before it had been replaced already.
        """
        for number, start in self._starts_of(claims):
            if start is None or start.epoch > epoch:
                continue
            writer = start.generation if start.epoch == epoch else number
            if writer is not None:
                return writer if self.storage.exists(_metadata_path(epoch, writer)) else None
        # It is older than every run that is remembered, and so is what a listing shows of it.
        names = self.storage.children(checkpoint_directory(epoch))
        written = [int(match[1] or 0) for match in map(_METADATA.fullmatch, names) if match]
        return max(written, default=None)

    def _starts_of(self, claims: list[int]) -> Iterator[tuple[int, Start | None]]:
        """Yield the checkpoint that each generation started from, if it has one yet, the newest first."""
        for number in reversed(claims):
            if number not in self._starts and (start := start_of(self.storage, number)) is not None:
                self._starts[number] = start
            yield number, self._starts.get(number)

    def _directories(self) -> list[int]:
        matches = (_EPOCH.fullmatch(name) for name in self.storage.children(_ROOT))
        return sorted(int(match.group(1)) for match in matches if match)

    def load_checkpoint_metadata(self, job_id: str, epoch: int) -> CheckpointMetadata:
        """Load the metadata of one checkpoint; an empty `job_id` accepts any job."""
        generation = self._generations.get(epoch)
        if generation is None:
            generation = self._generation_of(epoch, generations(self.storage)) or 0
        path = _metadata_path(epoch, generation)
        try:
            metadata = self._load(path, CheckpointMetadata.from_json)
        except FileNotFoundError:
            epochs = self._saved_epochs(generations(self.storage))
            raise StateError(
                f"there is no checkpoint of epoch {epoch}",
                where=self.storage.url,
                hint=f"there are {epochs[0]} to {epochs[-1]}" if epochs else "there is none at all",
            ) from None
        _check_job(path, job_id, metadata.job_id)
        return metadata

    def load_operator_metadata(self, job_id: str, saved: SavedOperator) -> OperatorCheckpointMetadata | None:
        """Load the state of one operator as a checkpoint refers to it; None if there is none."""
        path = _operator_path(saved)
        try:
            metadata = self._load(path, OperatorCheckpointMetadata.from_json)
        except FileNotFoundError:
            return None
        _check_job(path, job_id, metadata.job_id)
        return metadata

    def prepare_checkpoint_load(self, metadata: CheckpointMetadata) -> None:
        """Check that the metadata of every operator and all their files exist, with the expected sizes.

        The content of files is checked when they are read: a resume must not read the whole state.
        """
        for saved in metadata.saved_operators():
            for file in self._referred(metadata.job_id, saved).files():
                try:
                    size = self.storage.size(file.file)
                except FileNotFoundError:
                    problem = "is missing"
                else:
                    if size == file.bytes:
                        continue
                    problem = f"has {size} bytes, {file.bytes} were written"
                raise CorruptStateError(
                    f"state file `{file.file}` of checkpoint {metadata.epoch} {problem}",
                    where=self.storage.url,
                    hint="restore the file, or resume from an older checkpoint",
                )

    def _referred(self, job_id: str, saved: SavedOperator) -> OperatorCheckpointMetadata:
        operator = self.load_operator_metadata(job_id, saved)
        if operator is None:
            raise CorruptStateError(
                f"`{_operator_path(saved)}` is missing, and a checkpoint refers to it",
                where=self.storage.url,
                hint="restore the file, or resume from an older checkpoint",
            )
        return operator

    def _load(self, path: str, parse: Callable[[Mapping[str, Any]], _T]) -> _T:
        data = self.storage.read(path)

        def damaged(reason: str) -> CorruptStateError:
            return CorruptStateError(
                f"`{path}` is damaged: {reason}",
                where=self.storage.url,
                hint="restore the file, or resume from an older checkpoint",
            )

        try:
            envelope = json.loads(data)
            check_format(envelope["format"], path, where=self.storage.url)
            checksum, content = envelope["checksum"], envelope["metadata"]
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(f"{len(data)} bytes that are not metadata ({error})") from None
        actual = content_checksum(content)
        if actual != checksum:
            raise damaged(f"expected checksum {str(checksum)[:16]}…, found {actual[:16]}…")
        try:
            return parse(content)
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(f"its content is not understood ({error})") from None

    # ------------------------------------------------------------------------------ writing

    def write_operator_checkpoint_metadata(self, metadata: OperatorCheckpointMetadata) -> None:
        """Save the state of one operator; may overwrite that of a failed epoch, never of a committed one."""
        if self.storage.exists(_metadata_path(metadata.epoch, metadata.generation)):
            raise self._in_use_error(metadata.epoch)
        self._write_operator(metadata)

    def _write_operator(self, metadata: OperatorCheckpointMetadata) -> None:
        saved = _saved(metadata)
        self._files.pop(saved, None)
        self.storage.write(_operator_path(saved), _dump(metadata.to_json()))
        self._files[saved] = frozenset(file.file for file in metadata.files())

    def rewrite_operator_metadata(self, metadata: OperatorCheckpointMetadata) -> None:
        """Replace the list of an operator's files by an equivalent one; offline compaction only."""
        self._write_operator(metadata)

    def write_checkpoint_metadata(self, metadata: CheckpointMetadata) -> None:
        """Commit the epoch: this is the commit point. A second writer of the epoch gets a StateInUseError."""
        path, data = _metadata_path(metadata.epoch, metadata.generation), _dump(metadata.to_json())
        # A store may report a conflict with our own write, when it retried one whose answer was lost.
        if not self.storage.create(path, data) and self.storage.read(path) != data:
            raise self._in_use_error(metadata.epoch)
        self._generations[metadata.epoch] = metadata.generation
        self._written[metadata.epoch] = metadata

    def _in_use_error(self, epoch: int) -> StateInUseError:
        return StateInUseError(
            f"epoch {epoch} has already been committed by another run",
            where=self.storage.url,
            hint="one state directory serves one run of one pipeline; stop one of them",
        )

    def mark_committed(self, epoch: int, generation: int = 0) -> None:
        """Record that the sinks of an epoch have committed, in a run of `generation`; may be repeated."""
        mark = {"epoch": epoch, "time": time.time(), "generation": generation}
        self.storage.write(_committed_path(epoch), _dump(mark))

    def is_committed(self, metadata: CheckpointMetadata) -> bool:
        """Whether the sinks of an epoch have committed, or had nothing to commit.

        The mark of an earlier generation than that of the checkpoint was meant for another checkpoint.
        """
        if not metadata.needs_commit:
            return True
        try:
            mark = self._load(_committed_path(metadata.epoch), dict)
        except FileNotFoundError:
            return False
        return bool(mark.get("generation", 0) >= metadata.generation)

    def is_past(self, epoch: int, *, writer: int, generation: int) -> bool:
        """Whether the run of `generation`, or a later one, has committed an epoch that `writer` wrote.

        Or its checkpoint is gone: then that was long ago.
        """
        try:
            mark = self._load(_committed_path(epoch), dict)
        except FileNotFoundError:
            return not self.storage.exists(_metadata_path(epoch, writer))
        return bool(mark.get("generation", 0) >= generation)

    # ------------------------------------------------------------------------------ checking

    def live_files(self, epoch: int) -> set[str]:
        """Return every state file that a checkpoint refers to."""
        metadata = self.load_checkpoint_metadata("", epoch)
        return {
            file.file
            for saved in metadata.saved_operators()
            for file in self._referred(metadata.job_id, saved).files()
        }

    def verify(self, epoch: int) -> list[str]:
        """Read every file of a checkpoint; return what is wrong with it, nothing if it is good."""
        return list(self.verification(epoch).problems)

    def verification(
        self, epoch: int, checks: FileChecks | None = None, *, with_state: bool = True
    ) -> Verification:
        """Read every file that a checkpoint refers to, and return what was read and what is wrong.

        `checks` remembers files that several checkpoints share. Without `with_state` the files of the tables
        are left out, except those that refer to other files.
        """
        checks = checks or FileChecks(self.storage)
        checks.begin(epoch)
        try:
            metadata = self.load_checkpoint_metadata("", epoch)
        except StateError as error:
            checks.problem(error.message)
            return checks.end()
        checks.count(METADATA)
        operators = []
        for saved in metadata.saved_operators():
            try:
                operators.append(self._referred(metadata.job_id, saved))
                checks.count(METADATA)
            except StateError as error:
                checks.problem(error.message)
        checks.check_checkpoint(metadata, operators, with_state=with_state)
        return checks.end()

    def last_good_epoch(self, before: int) -> int | None:
        """Return the newest checkpoint older than `before` with all files intact."""
        checks = FileChecks(self.storage)
        for epoch in reversed(self.epochs()):
            if epoch < before and not self.verification(epoch, checks).problems:
                return epoch
        return None

    def needed_paths(self, epoch: int) -> NeededPaths:
        """Return what a checkpoint refers to; raises a StateError if that cannot be read."""
        metadata = self.load_checkpoint_metadata("", epoch)
        operators = [self._referred(metadata.job_id, saved) for saved in metadata.saved_operators()]
        return NeededPaths.of(self.storage, metadata, operators, self._needed_by(epoch))

    # ------------------------------------------------------------------------------ removing

    def discard_after(self, epoch: int, *, check: Callable[[], None] = lambda: None) -> None:
        """Delete every checkpoint newer than `epoch`, so that a run can resume there.

        `check` raises if another run has taken over: what that one writes is not listed yet, and stays.
        """
        newer = [newer_epoch for newer_epoch in self._directories() if newer_epoch > epoch]
        # The newest first: whatever a crash leaves is again an unbroken row of checkpoints.
        paths = [
            path for number in reversed(newer) for path in self.storage.list(checkpoint_directory(number))
        ]
        check()
        # First what makes them checkpoints: of each epoch the mark of its commit, which would speak for the
        # next checkpoint of that number, and then its metadata.
        for path in sorted(paths, key=lambda path: path.count("/") > 2):
            self.storage.delete(path)
        self._settled -= set(newer)
        for newer_epoch in newer:
            self._generations.pop(newer_epoch, None)
        self._needs, self._written, self._files = {}, {}, {}

    def cleanup_checkpoint(self, metadata: CheckpointMetadata, old_min_epoch: int, min_epoch: int) -> None:
        """Remove the checkpoints from `old_min_epoch` to before `min_epoch` and what only they use."""
        epochs = [candidate for candidate in self._directories() if old_min_epoch <= candidate < min_epoch]
        retained = [candidate for candidate in self.epochs() if min_epoch <= candidate <= metadata.epoch]
        self._remove(epochs, retained)

    def cleanup(
        self, keep: int, current_epoch: int, *, oldest: int = 1, check: Callable[[], None] = lambda: None
    ) -> list[int]:
        """Keep the last `keep` checkpoints up to `current_epoch`; returns the epochs removed.

        None before `oldest` is kept: those may be half removed. `check` raises if another run has taken over:
        one that starts from an earlier checkpoint writes epochs of the same numbers. What it writes is not
        listed yet, and stays.

        Only expired epochs are examined, and once in the life of this object all older ones, for files of
        failed attempts and interrupted cleanups.
        """
        directories = self._directories()
        older = [epoch for epoch in directories if epoch <= current_epoch]
        # By name: a listing that is behind leaves out the newest.
        first = max(oldest, current_epoch - max(1, keep) + 1, min(older, default=current_epoch))
        retained = [
            epoch
            for epoch in range(first, current_epoch + 1)
            if epoch in self._needs or self._was_checkpoint(epoch)
        ]
        if not retained:
            return []
        doomed = [epoch for epoch in older if epoch < min(retained) and epoch not in self._settled]
        # Epochs between kept ones that never became checkpoints are strays too.
        doomed += [
            epoch for epoch in older if min(retained) < epoch < max(retained) and epoch not in retained
        ]
        return self._remove(doomed, retained, check=check) if doomed else []

    def _remove(
        self, doomed: list[int], retained: list[int], *, check: Callable[[], None] = lambda: None
    ) -> list[int]:
        try:
            in_use = self._paths_in_use(retained)
        except (StateError, FileNotFoundError):
            return []  # what a damaged checkpoint needs is not known, so nothing may go yet
        is_first = not self._settled
        removed = [epoch for epoch in doomed if self._was_checkpoint(epoch)]
        dead = set().union(*(self._paths_of(epoch) for epoch in doomed)) - in_use
        # All commit points first: until it is none, a checkpoint needs files of the epochs before it.
        paths = sorted(dead, key=lambda path: (_removal_order(path), path))
        check()
        for path in paths:
            self.storage.delete(path)
        drop_cached(self.storage.url, paths, cache_dir=self._cache_dir)
        for epoch in doomed:
            self._generations.pop(epoch, None)
            self._written.pop(epoch, None)
            self._settled.add(epoch)
        referred = {saved for metadata in self._written.values() for saved in metadata.saved_operators()}
        self._files = {saved: files for saved, files in self._files.items() if saved in referred}
        if is_first:
            evict_cache(self.storage.url, in_use, cache_dir=self._cache_dir)
        return removed

    def _paths_in_use(self, retained: list[int]) -> set[str]:
        self._needs = {
            epoch: self._needs[epoch] if epoch in self._needs else self._needed_by(epoch)
            for epoch in retained
        }
        return set().union(*self._needs.values())

    def _needed_by(self, epoch: int) -> set[str]:
        metadata = self._written.get(epoch) or self.load_checkpoint_metadata("", epoch)
        paths = {_metadata_path(epoch, metadata.generation), _committed_path(epoch)}
        for saved in metadata.saved_operators():
            paths.add(_operator_path(saved))
            if saved in self._files:
                paths |= self._files[saved]
            else:
                paths |= {file.file for file in self._referred("", saved).files()}
        return paths

    def _paths_of(self, epoch: int) -> set[str]:
        """Return the paths that an epoch wrote and refers to."""
        paths = set(self.storage.list(checkpoint_directory(epoch)))
        try:
            metadata = self._written.get(epoch) or self.load_checkpoint_metadata("", epoch)
        except StateError:
            operators = set()
        else:
            operators = set(metadata.saved_operators())
            # Also where the listing is behind: without what it refers to, a checkpoint must not stay.
            paths.add(_metadata_path(epoch, metadata.generation))
        operators |= {saved for path in paths if (saved := _saved_in(path, epoch)) is not None}
        for saved in sorted(operators):
            if saved in self._files:
                paths |= {_operator_path(saved), *self._files[saved]}
                continue
            try:
                operator = self.load_operator_metadata("", saved)
            except StateError:
                continue
            if operator is not None:
                paths.add(_operator_path(saved))
                paths |= {file.file for file in operator.files()}
        return paths


def _metadata_path(epoch: int, generation: int) -> str:
    return f"{checkpoint_directory(epoch)}/{_metadata_name(generation)}"


def _committed_path(epoch: int) -> str:
    return f"{checkpoint_directory(epoch)}/committed.json"


def _operator_path(saved: SavedOperator) -> str:
    return f"{operator_directory(saved.epoch, saved.operator_id)}/{_metadata_name(saved.generation)}"


def _metadata_name(generation: int) -> str:
    return f"metadata-{generation:07}.json" if generation else "metadata.json"


def is_metadata(path: str) -> bool:
    """Whether a file of a checkpoint is metadata, which is deleted last: it lists the others."""
    return _METADATA.fullmatch(path.rpartition("/")[2]) is not None


def _removal_order(path: str) -> int:
    """Return when a file of a checkpoint is removed: first what makes it one, of every generation.

    The operators' metadata go last: until then a later cleanup can find what is left.
    """
    if not is_metadata(path):
        return 1
    return 0 if path.count("/") == 2 else 2


def _saved(metadata: OperatorCheckpointMetadata) -> SavedOperator:
    return SavedOperator(metadata.operator_id, metadata.epoch, metadata.generation)


def _saved_in(path: str, epoch: int) -> SavedOperator | None:
    """Return the operator whose metadata a file of an epoch holds; None for other files."""
    parts = path.split("/")
    match = _METADATA.fullmatch(parts[-1])
    if len(parts) != 4 or match is None:
        return None
    return SavedOperator(parts[2].removeprefix("operator-"), epoch, int(match[1] or 0))


def content_checksum(content: object) -> str:
    """Return the checksum of the content of a JSON file, however it is laid out."""
    # Keys of mappings are strings: others would be in another order when they are read back.
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _dump(content: Mapping[str, Any]) -> bytes:
    # Not indented: that is encoded in Python, ten times as slowly.
    document = {"format": FORMAT, "checksum": content_checksum(content), "metadata": content}
    return (json.dumps(document, ensure_ascii=False) + "\n").encode()


def _check_job(path: str, expected: str, actual: str) -> None:
    if expected and actual != expected:
        raise IncompatibleStateError(
            f"`{path}` belongs to the job `{actual}`, not to `{expected}`",
            hint="one state directory serves one pipeline; give this one its own",
        )
