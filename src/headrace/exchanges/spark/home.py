"""The Spark of SPARK_HOME, which PySpark starts in place of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from headrace.base.errors import ConfigurationError

_HINT = "unset SPARK_HOME to use the Spark that was installed with PySpark"


def check_home(environ: Mapping[str, str], pyspark: str) -> None:
    """Raise an error if SPARK_HOME names no Spark, or another version than that of PySpark.

    Python and Java of different versions do not understand each other: what fails then says nothing about it.
    """
    home = environ.get("SPARK_HOME")
    if not home:
        return
    if not Path(home, "bin", "spark-submit").exists():
        raise ConfigurationError(f"SPARK_HOME is {home}, and there is no bin/spark-submit in it", hint=_HINT)
    version = _version_of(Path(home))
    if version is not None and version != _first_two(pyspark):
        raise ConfigurationError(
            f"SPARK_HOME is {home}, which is Spark {version}, and PySpark is {pyspark}: both must have the "
            "same first two numbers",
            hint=f"{_HINT}, or pip install 'pyspark=={version}.*'",
        )


def _version_of(home: Path) -> str | None:
    """The first two numbers of the version of a Spark, by the name of its largest library."""
    names = (file.name.partition("-")[2].partition("-")[2] for file in home.glob("jars/spark-core_*.jar"))
    return next(map(_first_two, names), None)


def _first_two(version: str) -> str:
    return ".".join(re.findall(r"\d+", version)[:2])
