"""Known vulnerabilities of the packages, as https://osv.dev lists them (PyPI's advisories are there)."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence

from audit.packages import Package

SERVICE = "https://api.osv.dev"


class ServiceError(Exception):
    """The list of vulnerabilities could not be asked."""


def known_vulnerabilities(packages: Sequence[Package], service: str = SERVICE) -> dict[Package, list[str]]:
    """The ids of the vulnerabilities that are known of the packages."""
    queries = [
        {"package": {"name": one.name, "ecosystem": "PyPI"}, "version": one.version} for one in packages
    ]
    request = urllib.request.Request(  # noqa: S310 - an address of ours
        f"{service}/v1/querybatch",
        data=json.dumps({"queries": queries}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
            answers = json.load(response)["results"]
        found = {
            one: [item["id"] for item in answer.get("vulns", ())] for one, answer in _pairs(packages, answers)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ServiceError(f"{service} could not be asked: {error}") from error
    return {one: ids for one, ids in found.items() if ids}


def _pairs(
    packages: Sequence[Package], answers: object
) -> Sequence[tuple[Package, dict[str, list[dict[str, str]]]]]:
    if not isinstance(answers, list) or len(answers) != len(packages):
        raise ValueError(f"it gave no answer for each of {len(packages)} packages")
    return list(zip(packages, answers, strict=True))
