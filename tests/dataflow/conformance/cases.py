"""The dataflows of this folder and what each of them must show.

A case is a directory with `dataflow.yml`, its operators and `expected.json`:

    shows       the rule of dora's contract that the dataflow shows
    dora        `same`; or `differs: ` and what the released dora does instead; or `may differ: ` where it is
                not the same from run to run
    exit_code   0 for a run that ended well, 1 for one that failed, 2 for a document that is refused
    error       a part of the error's text
    stop_after  the seconds after which the run is stopped, for a dataflow that does not end by itself
    env         variables to set in the environment of the run
    units       by the address of a unit: the JSON objects it prints, in order
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """One dataflow and its `expected.json`."""

    name: str
    shows: str
    dora: str
    exit_code: int
    units: Mapping[str, list[Any]]
    error: str = ""
    stop_after: float | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return HERE / self.name / "dataflow.yml"

    @property
    def same_in_dora(self) -> bool:
        return self.dora == "same"


def find_cases(names: Iterable[str] = ()) -> list[Case]:
    """The cases of these names, or all of them."""
    wanted = set(names)
    found = [
        Case(name=file.parent.name, **json.loads(file.read_text(encoding="utf-8")))
        for file in sorted(HERE.glob("*/expected.json"))
        if not wanted or file.parent.name in wanted
    ]
    if missing := wanted - {case.name for case in found}:
        raise SystemExit(f"no case {', '.join(sorted(missing))} in {HERE}")
    return found


def transcript(logs: Mapping[str, Iterable[str]]) -> dict[str, list[Any]]:
    """What units printed as JSON objects, by unit; units that printed none are left out."""
    read = {
        unit: [json.loads(line) for line in lines if line.startswith("{")] for unit, lines in logs.items()
    }
    return {unit: lines for unit, lines in read.items() if lines}


def differences(expected: Mapping[str, list[Any]], seen: Mapping[str, list[Any]]) -> list[str]:
    """Where a transcript is not the expected one, a sentence for each unit."""
    found = []
    for unit in sorted(expected.keys() | seen.keys()):
        want, got = expected.get(unit, []), seen.get(unit, [])
        if want == got:
            continue
        shorter = min(len(want), len(got))
        at = next((i for i in range(shorter) if want[i] != got[i]), shorter)
        found.append(
            f"{unit}: {len(got)} lines, {len(want)} expected; line {at + 1} is "
            f"{json.dumps(got[at]) if at < len(got) else 'missing'}, "
            f"not {json.dumps(want[at]) if at < len(want) else 'expected'}"
        )
    return found
