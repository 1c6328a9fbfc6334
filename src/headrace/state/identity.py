"""`pipeline.json`: the pipeline that a state directory belongs to, its job, and when it was created."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from headrace.base.errors import CorruptStateError
from headrace.state.backend import content_checksum
from headrace.state.metadata import FORMAT, check_format
from headrace.storage.base import Storage

IDENTITY: Final = "pipeline.json"


class Identity(NamedTuple):
    """Whose state a directory holds."""

    pipeline: str
    job_id: str
    created: float

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        content: dict[str, Any] = {**self._asdict(), "format": FORMAT}
        return json.dumps({**content, "checksum": content_checksum(content)}, indent=2).encode()


def load_identity(storage: Storage) -> Identity | None:
    """Read and verify the file; None if there is none, and a StateError if it cannot be used."""
    try:
        saved = json.loads(storage.read(IDENTITY))
        check_format(saved.get("format", FORMAT), IDENTITY, where=storage.url)
        checksum = saved.pop("checksum", None)  # files of earlier versions have none
        is_damaged = checksum is not None and checksum != content_checksum(saved)
        identity = Identity(saved["pipeline"], str(saved["job_id"]), float(saved["created"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise unknown_pipeline(f"in {storage.url} cannot be read: {error}") from error
    if is_damaged:
        raise unknown_pipeline(f"in {storage.url} is damaged: its checksum does not match")
    return identity


def missing_identity(storage: Storage) -> CorruptStateError:
    """Return the error for checkpoints without the file."""
    return unknown_pipeline(f"is missing in {storage.url}, which has checkpoints")


def unknown_pipeline(problem: str) -> CorruptStateError:
    """Return the error for a file that does not identify its job."""
    return CorruptStateError(
        f"{IDENTITY} {problem}",
        hint="it names the pipeline this state belongs to; restore it or use a new directory",
    )
