"""The bill of materials in the wheel: CycloneDX, made from the lock file."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name

from audit.packages import LOCK, ROOT, Package, Project, closure, needs_of, read_lock

FILE = ROOT / "sbom.cdx.json"


def bill_of_materials(project: Project, packages: Sequence[Package]) -> dict[str, Any]:
    """The bill: what is always installed is `required`, what only extras need is `optional`.

    It has no date: the same lock file gives the same bill.
    """
    required = set(closure(project.required))
    wanted = required | set(closure(project.optional))
    chosen = sorted((one for one in packages if one.name in wanted), key=lambda one: (one.name, one.version))
    by_name = {one.name: one for one in chosen}
    own = f"pkg:pypi/{project.name}@{project.version}"
    direct = [canonicalize_name(one.name) for one in (*project.required, *project.optional)]
    content: dict[str, Any] = {
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": project.name,
                "version": project.version,
                "purl": own,
                "licenses": [{"expression": "Apache-2.0"}],
            }
        },
        "components": [_component(one, required=one.name in required) for one in chosen],
        "dependencies": [
            {"ref": own, "dependsOn": _refs(direct, by_name)},
            *(
                {"ref": one.purl, "dependsOn": _refs([need.name for need in needs_of(one.name)], by_name)}
                for one in chosen
            ),
        ],
    }
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    head = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
    }
    return {**head, **content}


def _component(package: Package, *, required: bool) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
        "scope": "required" if required else "optional",
        **_licences(package.licence()),
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"https://pypi.org/project/{package.name}/{package.version}/",
                "hashes": [{"alg": "SHA-256", "content": digest} for digest in package.hashes],
            }
        ],
    }


def _licences(stated: str | None) -> dict[str, Any]:
    if stated is None:
        return {}
    try:
        return {"licenses": [{"expression": str(canonicalize_license_expression(stated))}]}
    except InvalidLicenseExpression:
        return {"licenses": [{"license": {"name": stated}}]}


def _refs(names: Sequence[str], by_name: Mapping[str, Package]) -> list[str]:
    found = {by_name[name].purl for name in map(canonicalize_name, names) if name in by_name}
    return sorted(found)


def as_text() -> str:
    """The bill for the lock file as it is."""
    bill = bill_of_materials(Project.read(), read_lock(LOCK.read_text(encoding="utf-8")))
    return json.dumps(bill, indent=1) + "\n"


def is_stale(text: str) -> bool:
    """Whether a bill lists other packages, versions or hashes than the lock file.

    Licences are those that installed packages state, and not all are installed on every platform.
    """
    keys = ("purl", "scope", "externalReferences")
    kept, new = (json.loads(one)["components"] for one in (text, as_text()))
    return [[one[key] for key in keys] for one in kept] != [[one[key] for key in keys] for one in new]
