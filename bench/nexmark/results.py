"""Saves and loads measurements, with the versions and the machine they were made on."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from bench.nexmark.runs import Run

ROOT = Path(__file__).parents[2]
DATA = ROOT / "build" / "bench"
RESULTS = Path(__file__).parent / "results.json"
_PACKAGES = ("headrace", "pyspark", "datafusion", "pyarrow")


@dataclass(frozen=True)
class Part:
    """The runs of one part of the benchmark."""

    runs: Sequence[Run]
    about: Mapping[str, Any]


def about() -> dict[str, Any]:
    """The day, the versions and the machine; and how busy it is before anything begins."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory": psutil.virtual_memory().total,
        "load_average": os.getloadavg()[0],
    }


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text(encoding="utf-8").splitlines() if described.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def save(part: str, runs: Sequence[Run], described: Mapping[str, Any]) -> None:
    """Save the runs of a part; they replace earlier runs of the same queries."""
    saved = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    measured = {run.query for run in runs}
    before = [run for run in saved.get(part, {}).get("runs", []) if run["query"] not in measured]
    saved[part] = {**described, "runs": [*before, *(asdict(run) for run in runs)]}
    RESULTS.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")


def load(part: str, path: Path = RESULTS) -> Part:
    """The runs of a part; none if it was never measured."""
    saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    about = dict(saved.get(part, {}))
    runs = [Run(**{**run, "batches": tuple(map(tuple, run["batches"]))}) for run in about.pop("runs", [])]
    return Part(runs, about)
