"""Open a storage by its URL."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from headrace.base.errors import ConfigurationError
from headrace.storage.base import STATE_RETRY, RequestRetry, Storage, StorageSettings, settings_from
from headrace.storage.hdfs import HdfsStorage
from headrace.storage.local import LocalStorage
from headrace.storage.object_store import ObjectStorage
from headrace.storage.urls import HADOOP, OBJECT_STORES, SCHEMES, canonical_url, scheme_of


def open_storage(
    url: str,
    options: Mapping[str, str] | None = None,
    *,
    part_size: int | None = None,
    retry: RequestRetry = STATE_RETRY,
    private: bool = True,
) -> Storage:
    """Open the storage at `url`: a path, `file:`, `s3://`, `gs://`, `az://`, `abfs://`, `r2://`, `hdfs://`.

    `options` are the settings of an object store, `part_size` is that of multipart uploads, and `retry` is
    how long a request is retried. New local files are for their owner only if `private`.
    """
    return reopen_storage(canonical_url(url), settings_from(options, part_size, retry, private=private))


@functools.lru_cache(maxsize=64)
def reopen_storage(url: str, settings: StorageSettings) -> Storage:
    """Open the storage of a canonical URL; the same URL and settings give the same object."""
    scheme = scheme_of(url)
    if scheme == "":
        return LocalStorage(url, settings)
    if scheme in HADOOP:
        return HdfsStorage(url, settings)
    if scheme in OBJECT_STORES:
        return ObjectStorage(url, settings)
    raise ConfigurationError(
        f"`{url}` cannot be opened: no storage serves the scheme `{scheme}`",
        hint=f"use a path or one of {', '.join(f'{name}://' for name in SCHEMES)}",
    )
