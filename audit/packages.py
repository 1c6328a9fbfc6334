"""The packages of the lock file, and which of them Headrace needs when it runs."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)(?P<rest>(?:.*\\\n)*.*)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Package:
    """A pinned package."""

    name: str
    version: str
    hashes: tuple[str, ...]

    @property
    def purl(self) -> str:
        """The address of the package in bills of materials."""
        return f"pkg:pypi/{self.name}@{self.version}"

    def licence(self) -> str | None:
        """What the installed package says of its licence; None if it is not installed here."""
        try:
            stated = metadata(self.name)
        except PackageNotFoundError:
            return None
        classifiers = [text for text in stated.get_all("Classifier") or () if text.startswith("License ::")]
        named = [text.rpartition(" :: ")[2] for text in classifiers]
        expression, written = (
            next(iter(stated.get_all(field) or ()), "").strip().partition("\n")[0]
            for field in ("License-Expression", "License")
        )
        written = "" if written.upper() == "UNKNOWN" else written
        return expression or written or " OR ".join(named) or "not stated"


def read_lock(text: str) -> list[Package]:
    """The packages of a lock file."""
    return [
        Package(canonicalize_name(pin["name"]), pin["version"], tuple(sorted(_HASH.findall(pin["rest"]))))
        for pin in _PIN.finditer(text)
    ]


@dataclass(frozen=True)
class Project:
    """What `pyproject.toml` asks for."""

    name: str
    version: str
    required: tuple[Requirement, ...]
    optional: tuple[Requirement, ...]

    @classmethod
    def read(cls, file: Path = ROOT / "pyproject.toml") -> Project:
        """Read the name, the version and the dependencies; tools of developers are left out."""
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        extras: Iterable[list[str]] = project["optional-dependencies"].values()
        return cls(
            project["name"],
            project["version"],
            tuple(map(Requirement, project["dependencies"])),
            tuple(Requirement(text) for texts in extras for text in texts),
        )


def needs_of(name: str, extras: Iterable[str] = ()) -> list[Requirement]:
    """What an installed package needs, on any platform."""
    chosen = set(extras)
    try:
        listed = [Requirement(text) for text in requires(name) or ()]
    except PackageNotFoundError:
        return []
    return [one for one in listed if _applies(one, chosen)]


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    asked = re.findall(r"extra == ['\"]([^'\"]+)", str(requirement.marker or ""))
    return not asked or bool(extras & set(asked))


def closure(roots: Iterable[Requirement]) -> Iterator[str]:
    """The names of packages and of all that they need."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = list(roots)
    while waiting:
        requirement = waiting.pop()
        key = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if key not in seen:
            seen.add(key)
            yield key[0]
            waiting += needs_of(*key)
