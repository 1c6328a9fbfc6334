"""The list of files that a source reads, in order, stored in append-only pages."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from headrace.state.references import FileReference

PAGE = 1000
"""The number of files in a page; only the last page is part of the offset itself."""

File = dict[str, Any]
Page = Any
"""The files themselves, or the name and size of the page in the state storage and the number of its files."""


class Listing:
    """The files of a source position, numbered from the first that was ever listed.

    A position holds its pages (`pages`) and the number of their first file (`first`). Full pages are stored
    in the state storage, under the hash of their content, so that an offset stays small; without a storage
    they are part of the offset.
    """

    def __init__(self, position: Mapping[str, Any], storage: Any, folder: str) -> None:
        self._pages: Sequence[Page] = position["pages"]
        self._first: int = position["first"]
        self._storage = storage
        self._folder = folder

    @property
    def end(self) -> int:
        """Return the number that the next file gets."""
        return self._first + sum(_count(page) for page in self._pages)

    def get(self, number: int) -> File | None:
        """Return a file by its number; None after the last."""
        before = self._first
        for page in self._pages:
            if number < before + _count(page):
                return self._files(page)[number - before]
            before += _count(page)
        return None

    def between(self, first: int, last: int) -> Iterator[tuple[int, File]]:
        """Yield the files from `first` to `last`, both included, with their numbers."""
        before = self._first
        for page in self._pages:
            after = before + _count(page)
            for number in range(max(first, before), min(last + 1, after)):
                yield number, self._files(page)[number - before]
            before = after

    def paths(self) -> set[str]:
        """Return the path of every file."""
        return {file["path"] for page in self._pages for file in self._files(page)}

    def add(self, files: Sequence[File]) -> dict[str, Any]:
        """Return the changed fields of a position after files are added."""
        pages, rest = list(self._pages), list(files)
        if pages and isinstance(pages[-1], list):
            rest = [*pages.pop(), *rest]
        while rest:
            page, rest = rest[:PAGE], rest[PAGE:]
            pages.append(page if rest == [] and len(page) < PAGE else self._keep(page))
        return {"pages": pages}

    def without_before(self, number: int) -> dict[str, Any]:
        """Return the changed fields of a position without files before one; stored pages stay complete."""
        pages, first = list(self._pages), self._first
        while pages and first + _count(pages[0]) <= number:
            first += _count(pages.pop(0))
        if pages and isinstance(pages[0], list) and number > first:
            pages[0], first = pages[0][number - first :], number
        return {"pages": pages, "first": first}

    def _keep(self, page: list[File]) -> Page:
        if self._storage is None:
            return page
        data = json.dumps(page, separators=(",", ":")).encode()
        name = f"{self._folder}/{hashlib.sha256(data).hexdigest()[:32]}.json"
        if not self._storage.exists(name):
            self._storage.write(name, data)
        return {"name": name, "files": len(page), "bytes": len(data)}

    def _files(self, page: Page) -> Sequence[File]:
        return page if isinstance(page, list) else _load(self._storage, page_reference(page))


def _count(page: Page) -> int:
    return len(page) if isinstance(page, list) else int(page["files"])


def page_reference(page: Mapping[str, Any]) -> FileReference:
    """Return the file of a stored page; its name is the first half of its checksum."""
    # A full reference would double the offset, which has an entry for each page.
    name = str(page["name"])
    return FileReference(name, page.get("bytes"), PurePosixPath(name).stem)


@functools.lru_cache(maxsize=64)
def _load(storage: Any, file: FileReference) -> Sequence[File]:
    files: Sequence[File] = json.loads(file.read(storage, what="list of files to read"))
    return files
