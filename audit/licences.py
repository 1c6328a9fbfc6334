"""Whether the licences of dependencies go with Apache-2.0."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from audit.packages import Package

ALLOWED = frozenset(
    {
        *("Apache-2.0", "MIT", "MIT-0", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "ISC", "Zlib", "PSF-2.0"),
        *("CC0-1.0", "Unlicense", "Python-2.0"),
        "MPL-2.0",  # of its own files only: they are used unchanged
    }
)
SPELLINGS: Mapping[str, str] = {
    "Apache 2": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2 License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "ISC license": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
EXCEPTIONS: Mapping[str, tuple[str, str]] = {
    "psycopg": ("LGPL-3.0-only", "an extra: it is imported as a library, and not part of the wheel"),
    "psycopg-binary": ("LGPL-3.0-only", "as psycopg"),
}
"""Packages whose licence is allowed for the reason that stands beside it."""


def is_allowed(stated: str) -> bool:
    """Whether a licence goes with Apache-2.0: one of several that are joined by OR, all joined by AND.

    >>> is_allowed("EPL-2.0 OR BSD-3-Clause"), is_allowed("MIT AND GPL-3.0-only"), is_allowed("not stated")
    (True, False, False)
    """
    stated = SPELLINGS.get(stated, stated)
    return any(
        all(SPELLINGS.get(one, one) in ALLOWED for one in re.split(r"\s+AND\s+", choice.strip("() ")))
        for choice in re.split(r"\s+OR\s+", stated)
    )


def problems(packages: Iterable[Package]) -> list[str]:
    """The packages whose licence is unknown or does not go with Apache-2.0; None if not installed here."""
    found = []
    for package in packages:
        stated = package.licence()
        excepted = EXCEPTIONS.get(package.name)
        if stated is not None and not is_allowed(stated) and (excepted is None or excepted[0] != stated):
            found.append(f"{package.name} {package.version}: {stated}")
    return found
