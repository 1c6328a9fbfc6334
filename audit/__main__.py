"""`python -m audit`: check the packages of requirements.lock; `python -m audit sbom` writes sbom.cdx.json.

Exit codes: 0 nothing was found · 1 a vulnerability, a licence or a stale bill of materials · 3 the list of
vulnerabilities could not be asked, and nothing else was found.
"""

from __future__ import annotations

import os
import sys

from audit import licences, sbom
from audit.packages import LOCK, Package, read_lock
from audit.vulnerabilities import SERVICE, ServiceError, known_vulnerabilities

UNREACHABLE = 3


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    if arguments == ["sbom"]:
        sbom.FILE.write_text(sbom.as_text(), encoding="utf-8")
        print(f"wrote {sbom.FILE.name}")
        return 0
    packages = read_lock(LOCK.read_text(encoding="utf-8"))
    found = _check_licences(packages) + _check_bill()
    try:
        vulnerable = known_vulnerabilities(packages, os.environ.get("OSV_URL", SERVICE))
    except ServiceError as error:
        print(f"vulnerabilities: NOT CHECKED, {error}")
        return 1 if found else UNREACHABLE
    for package, ids in vulnerable.items():
        print(f"vulnerable: {package.name} {package.version}: {', '.join(ids)}")
    print(f"vulnerabilities: {len(vulnerable)} of {len(packages)} packages")
    return 1 if found or vulnerable else 0


def _check_licences(packages: list[Package]) -> int:
    for package in sorted(packages, key=lambda one: one.name):
        print(f"  {package.name} {package.version}: {package.licence() or 'not for this platform'}")
    problems = licences.problems(packages)
    for problem in problems:
        print(f"licence: {problem}: unknown, or does not go with Apache-2.0")
    print(f"licences: {len(problems)} of {len(packages)} packages cannot be used")
    return len(problems)


def _check_bill() -> int:
    stale = not sbom.FILE.exists() or sbom.is_stale(sbom.FILE.read_text(encoding="utf-8"))
    print(f"bill of materials: {'stale, run `make lock`' if stale else 'as the lock file has it'}")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
