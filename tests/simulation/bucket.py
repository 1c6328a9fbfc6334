"""An object store in memory, behind the calls of obstore that the storage of object stores makes.

The storage is the real one (`headrace.storage.object_store`). Puts are atomic, `mode="create"` is a
conditional put. A client that gets no answer asks again, as obstore does: a conditional put that was done
the first time is then refused as already there. With `stale_listing` a listing may leave out the last
changes, as those of S3 did before 2020 and those of some caches in front of a store do; whatever is asked for
by its name is up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from obstore.exceptions import AlreadyExistsError, GenericError

from tests.simulation.disk import perhaps_damaged
from tests.simulation.world import World

_STALE = 12
"""The most changes that a stale listing leaves out."""


@dataclass
class Bucket:
    """The objects of a store by their key."""

    world: World
    objects: dict[str, bytes] = field(default_factory=dict)
    earlier: list[dict[str, bytes]] = field(default_factory=list)
    """What the objects were before the last changes."""

    def change(self, key: str, data: bytes | None) -> None:
        """Put or remove an object."""
        if self.world.rates.stale_listing:
            self.earlier = [*self.earlier[-_STALE + 1 :], dict(self.objects)]
        if data is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = data

    def listed(self) -> dict[str, bytes]:
        """The objects as a listing shows them."""
        if self.earlier and self.world.chance(self.world.rates.stale_listing):
            self.world.tell("STALE listing")
            return self.world.random.choice(self.earlier)
        return self.objects


class SimulatedObstore:
    """The functions of the module `obstore`, over buckets in memory."""

    def __init__(self, world: World) -> None:
        self._world = world

    def get(self, bucket: Bucket, key: str) -> Any:
        def effect() -> bytes:
            return perhaps_damaged(self._world, key, _object(bucket, key))

        data = self._call(f"GET {key}", effect)
        return SimpleNamespace(bytes=lambda: data)

    def get_range(self, bucket: Bucket, key: str, *, start: int, end: int) -> bytes:
        data: bytes = self._call(f"GET {key} {start}-{end}", lambda: _object(bucket, key))
        return data[start:end]

    def head(self, bucket: Bucket, key: str) -> dict[str, Any]:
        data = self._call(f"HEAD {key}", lambda: _object(bucket, key))
        return self._described(key, data)

    def put(
        self,
        bucket: Bucket,
        key: str,
        content: bytes | Path,
        *,
        mode: str = "overwrite",
        chunk_size: int | None = None,
    ) -> None:
        data = content.read_bytes() if isinstance(content, Path) else bytes(content)
        done_before = False

        def effect() -> None:
            nonlocal done_before
            if mode == "create" and key in bucket.objects:
                raise AlreadyExistsError(key)
            bucket.change(key, data)
            if mode == "create" and self._world.chance(self._world.rates.unheard):
                done_before = True

        self._call(f"PUT {key}{' if absent' if mode == 'create' else ''}", effect)
        if done_before:
            self._world.tell(f"UNHEARD PUT {key}: done, asked again and refused as already there")
            raise AlreadyExistsError(key)

    def copy(self, bucket: Bucket, source: str, target: str) -> None:
        self._call(f"COPY {source} to {target}", lambda: bucket.change(target, _object(bucket, source)))

    def delete(self, bucket: Bucket, keys: str | Sequence[str]) -> None:
        for key in [keys] if isinstance(keys, str) else keys:
            self._call(f"DELETE {key}", partial(bucket.change, key, None))

    def list(self, bucket: Bucket, prefix: str | None = None) -> Iterator[list[dict[str, Any]]]:
        objects = self._call(f"LIST {prefix or ''}", bucket.listed)
        yield [self._described(key, data) for key, data in objects.items() if key.startswith(prefix or "")]

    def list_with_delimiter(self, bucket: Bucket, prefix: str | None = None) -> dict[str, Any]:
        start = prefix or ""
        objects = self._call(f"LIST {start}", bucket.listed)
        below = {key: data for key, data in objects.items() if key.startswith(start)}
        directories = {
            start + key[len(start) :].partition("/")[0] for key in below if "/" in key[len(start) :]
        }
        return {
            "common_prefixes": sorted(directories),
            "objects": [
                self._described(key, data) for key, data in below.items() if "/" not in key[len(start) :]
            ],
        }

    def _described(self, key: str, data: bytes) -> dict[str, Any]:
        return {
            "path": key,
            "size": len(data),
            "last_modified": datetime.fromtimestamp(self._world.time, UTC),
        }

    def _call(self, what: str, effect: Callable[[], Any]) -> Any:
        return self._world.call("storage", what, effect, GenericError)


def _object(bucket: Bucket, key: str) -> bytes:
    try:
        return bucket.objects[key]
    except KeyError:
        raise FileNotFoundError(key) from None
