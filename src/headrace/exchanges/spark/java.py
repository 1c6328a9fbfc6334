"""The Java that Spark runs in: whether there is one, and whether it is new enough."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from headrace.base.errors import ConfigurationError

_OLDEST = 17


def check_java() -> None:
    """Raise an error for a missing or unsuitable Java, which Spark would report as a gateway error."""
    _check_version(java_home())


def java_home() -> Path:
    """The directory of the Java that Spark starts; raises a ConfigurationError if there is none."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return Path(home)
    if home:
        raise ConfigurationError(
            f"JAVA_HOME is {home}, and there is no bin/java in it",
            hint="point JAVA_HOME at a Java 17 or newer, or unset it; `headrace doctor` says more",
        )
    java = shutil.which("java")
    if java is None:
        raise ConfigurationError(
            "Java was not found: Spark needs Java 17 or newer",
            hint="install it (Debian/Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install "
            "openjdk@17), or set JAVA_HOME; `headrace doctor` says more",
        )
    return Path(java).resolve().parent.parent


def _check_version(home: Path) -> None:
    """Read the version from the file that a Java installation has about itself, if it has it."""
    try:
        release = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return
    version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    if version and int(version[1]) < _OLDEST:
        raise ConfigurationError(
            f"the Java in {home} is version {version[1]}: Spark needs {_OLDEST} or newer",
            hint="install a newer one and point JAVA_HOME at it; `headrace doctor` says more",
        )
