"""What `make audit` finds, and the bill of materials in the wheel."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from audit import licences
from audit.__main__ import UNREACHABLE, main
from audit.packages import LOCK, ROOT, Package, Project, closure, read_lock
from audit.sbom import FILE, is_stale
from audit.vulnerabilities import ServiceError, known_vulnerabilities
from tests.servers.http import Answer, Request, run_http
from tests.servers.processes import free_port

PACKAGES = read_lock(LOCK.read_text(encoding="utf-8"))


def test_every_pin_of_the_lock_file_is_read_with_its_hashes() -> None:
    lines = [line for line in LOCK.read_text(encoding="utf-8").splitlines() if "==" in line]
    assert len(PACKAGES) == len(lines)
    hashes = re.findall(r"sha256:[0-9a-f]{64}", LOCK.read_text(encoding="utf-8"))
    assert sum(len(package.hashes) for package in PACKAGES) == len(hashes)


def test_no_package_has_a_licence_that_is_unknown_or_does_not_go_with_ours() -> None:
    assert licences.problems(PACKAGES) == []


@pytest.mark.parametrize(
    "stated", ["GPL-3.0-only", "AGPL-3.0-or-later", "MIT AND GPL-2.0-only", "Proprietary", "not stated", ""]
)
def test_a_licence_that_does_not_go_with_ours_is_refused(stated: str) -> None:
    assert not licences.is_allowed(stated)


@pytest.mark.parametrize("stated", ["MIT", "Apache 2 License", "EPL-2.0 OR BSD-3-Clause", "MIT AND 0BSD"])
def test_a_licence_that_goes_with_ours_is_allowed(stated: str) -> None:
    assert licences.is_allowed(stated)


def test_an_exception_is_for_the_licence_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    package = next(package for package in PACKAGES if package.name == "psycopg")
    assert licences.problems([package]) == []
    monkeypatch.setattr(Package, "licence", lambda _: "GPL-3.0-only")
    assert licences.problems([package]) == [f"psycopg {package.version}: GPL-3.0-only"]


def answer(request: Request, vulnerable: str) -> Answer:
    queries = json.loads(request.body)["queries"]
    results: Sequence[dict[str, object]] = [
        {"vulns": [{"id": "PYSEC-2099-1"}]} if query["package"]["name"] == vulnerable else {}
        for query in queries
    ]
    return Answer(body=json.dumps({"results": results}).encode())


def serving(body: bytes) -> Callable[[Request], Answer]:
    return lambda _: Answer(body=body)


def test_a_known_vulnerability_is_reported_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_http(lambda request: answer(request, "pyarrow")) as server:
        monkeypatch.setenv("OSV_URL", server.url)
        assert main([]) == 1
    assert "vulnerable: pyarrow " in capsys.readouterr().out
    with run_http(lambda request: answer(request, "none")) as server:
        assert known_vulnerabilities(PACKAGES, server.url) == {}
        monkeypatch.setenv("OSV_URL", server.url)
        assert main([]) == 0


def test_a_list_that_cannot_be_asked_is_said_and_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OSV_URL", f"http://127.0.0.1:{free_port()}")
    assert main([]) == UNREACHABLE
    assert "vulnerabilities: NOT CHECKED" in capsys.readouterr().out
    for body in (b"<html>", b"{}", b'{"results": []}', b'{"results": [1]}'):
        with run_http(serving(body)) as server, pytest.raises(ServiceError):
            known_vulnerabilities(PACKAGES[:2], server.url)


def test_the_bill_of_materials_is_that_of_the_lock_file() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert not is_stale(text), "run `make lock`"
    assert is_stale(text.replace(PACKAGES[0].version, "0.0.0"))
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    names = {component["name"]: component for component in bill["components"]}
    assert names["pyarrow"]["scope"] == "required"
    assert names["psycopg"]["scope"] == "optional"
    assert "pytest" not in names
    refs = {component["bom-ref"] for component in bill["components"]}
    assert {ref for one in bill["dependencies"] for ref in one["dependsOn"]} <= refs
    pinned = {package.name for package in PACKAGES}
    assert set(closure(Project.read().required)) & pinned <= names.keys()
    assert set(closure([Requirement("pyspark")])) >= {"pyspark", "py4j"}


def test_a_built_wheel_has_the_bill_of_materials(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environment = {**os.environ, "HEADRACE_WITHOUT_CONSOLE": "1"}  # the bill does not need it
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env=environment)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if "/sboms/" in name]
        assert re.fullmatch(r"headrace-[^/]+\.dist-info/sboms/sbom\.cdx\.json", name)
        assert archive.read(name) == FILE.read_bytes()
