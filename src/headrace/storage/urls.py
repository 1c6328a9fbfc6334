"""URLs of storages: their scheme and canonical form."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.base.errors import ConfigurationError

OBJECT_STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "r2")
HADOOP = ("hdfs", "viewfs")
SCHEMES = ("file", *OBJECT_STORES, *HADOOP)


def scheme_of(url: str) -> str:
    """Return the scheme of a URL, lower-cased; empty for a path.

    >>> scheme_of("S3://bucket/x"), scheme_of("file:/x"), scheme_of("ftp://x/y")
    ('s3', 'file', 'ftp')
    >>> scheme_of("data/x"), scheme_of("a:b.json")
    ('', '')
    """
    head, colon, rest = url.partition(":")
    head = head.lower()
    is_scheme = bool(colon) and head.isalnum() and (rest.startswith("//") or head in SCHEMES)
    return head if is_scheme else ""


def is_object_store(url: str) -> bool:
    """Whether a URL names an object store."""
    return scheme_of(url) in OBJECT_STORES


def canonical_url(url: str) -> str:
    """Return the canonical form of a URL: an absolute path if local, no trailing slash."""
    scheme = scheme_of(url)
    if scheme in ("", "file"):
        path = unquote(urlsplit(url).path) if scheme else url
        if not path:
            raise ConfigurationError("the address of the state directory is empty")
        return _absolute(path)
    if scheme == "s3a":
        scheme = "s3"
    return f"{scheme}:{url.partition(':')[2]}".rstrip("/")


def _absolute(path: str) -> str:
    if path.startswith("/") and ".." not in path and os.path.normpath(path) == path:
        return path  # as nearly always: it is asked many times in an epoch
    absolute = str(Path(path).expanduser().absolute())
    normal = os.path.normpath(absolute)
    if ".." not in absolute.split(os.sep):
        return normal
    # `link/..` is the directory above what the link points to, which need not be the one that holds the link.
    return normal if os.path.realpath(normal) == os.path.realpath(absolute) else absolute


def resolve_url(url: str, options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return a URL and options that object store clients support: `r2:` becomes `s3:`.

    >>> resolve_url("r2://account@bucket/data", {})[0]
    's3://bucket/data'
    """
    url, options = canonical_url(url), dict(options)
    if scheme_of(url) == "r2":
        account, _, rest = url.removeprefix("r2://").rpartition("@")
        if not account:
            raise ConfigurationError(f"`{url}` names no account", hint="write it as r2://ACCOUNT@BUCKET/path")
        options.setdefault("aws_endpoint", f"https://{account}.r2.cloudflarestorage.com")
        options.setdefault("aws_region", "auto")
        url = f"s3://{rest}"
    return url, options
