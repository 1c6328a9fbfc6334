"""The console in a real Chromium, against a real server with real pipelines; and the wheel that contains it.

The steps in the browser are in `console/browser`. `HEADRACE_PICTURES=docs/how-to/console` has them save the
pictures of the docs.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import Server

ROOT = Path(__file__).parents[2]
CONSOLE = ROOT / "console"
BUILT = ROOT / "src/headrace/server/console/index.html"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str:
    """The browser; skips the test without it, and without what drives it."""
    if shutil.which("npx") is None:
        pytest.skip("the console's tests run in Node, which is not installed")
    if not BUILT.is_file() or not (CONSOLE / "node_modules/playwright-core").is_dir():
        pytest.skip("the console is not built: run `make console`")
    browser = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if browser is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    return browser


@contextlib.contextmanager
def run_server(folder: Path, *options: str, token: str | None = None) -> Iterator[str]:
    """`headrace serve` until the block ends; gives its address."""
    server = Server(folder, *options)
    server.token = token
    try:
        yield server.address
    finally:
        server.close()


def browse(address: str, *files: str, **environment: str) -> None:
    """Run files of `console/browser` against a server; fails with what they print."""
    command = ["npx", "vitest", "run", "--config", "vitest.browser.config.ts", *files]
    known = {"HEADRACE_URL": address, "HEADRACE_CHROMIUM": find_chromium(), "NO_COLOR": "1"}
    if pictures := os.environ.get("HEADRACE_PICTURES"):
        folder = ROOT / pictures
        folder.mkdir(parents=True, exist_ok=True)
        known["HEADRACE_PICTURES"] = str(folder)
    done = subprocess.run(
        command,
        cwd=CONSOLE,
        env={**os.environ, **known, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_every_page_is_accessible_and_the_editor_and_the_forms_work(tmp_path: Path) -> None:
    find_chromium()
    with run_server(tmp_path) as address:
        browse(address, "browser/pages.test.ts")


@pytest.mark.slow
def test_a_server_with_a_token_asks_for_it(tmp_path: Path) -> None:
    find_chromium()
    token = secrets.token_urlsafe(24)
    file = tmp_path / "token"
    file.write_text(token)
    file.chmod(0o600)
    with run_server(tmp_path, "--token-file", str(file), token=token) as address:
        browse(address, "browser/sign_in.test.ts", HEADRACE_TOKEN=token)


@pytest.mark.spark
@pytest.mark.slow
def test_a_pipeline_lives_by_clicks_and_one_that_fails_says_why(tmp_path: Path) -> None:
    find_chromium()
    with run_server(tmp_path, "--master", "local[2]") as address:
        browse(address, "browser/life.test.ts")


def build_wheel(project: Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if name != "HEADRACE_WITHOUT_CONSOLE"}
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=project,
        env={**known, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_wheel_without_the_console_is_only_built_when_it_is_asked_for(tmp_path: Path) -> None:
    project, dist = tmp_path / "project", tmp_path / "dist"
    (project / "src/headrace").mkdir(parents=True)
    (project / "console").mkdir()
    shutil.copy(ROOT / "src/headrace/__init__.py", project / "src/headrace")
    for name in ("console/build_hook.py", "pyproject.toml", "README.md", "LICENSE", "sbom.cdx.json"):
        shutil.copy(ROOT / name, project / name)
    refused = build_wheel(project, dist)
    assert refused.returncode == 1
    assert "`make console`" in refused.stderr
    assert list(dist.glob("*.whl")) == []
    asked = build_wheel(project, dist, HEADRACE_WITHOUT_CONSOLE="1")
    assert asked.returncode == 0, asked.stderr
    assert len(list(dist.glob("*.whl"))) == 1


@pytest.mark.slow
def test_an_installed_wheel_serves_its_console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not BUILT.is_file():
        pytest.skip("the console is not built: run `make console`")
    built = build_wheel(ROOT, tmp_path)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "headrace/server/console/index.html" in names
    assert not [name for name in names if "node_modules" in name or name.startswith("console/")]
    site = tmp_path / "site"
    install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-compile",
        "--target",
        str(site),
    ]
    subprocess.run([sys.executable, *install, str(wheel)], check=True)
    # The packages that it needs are those of this environment, Headrace itself is the wheel's.
    monkeypatch.setenv("PYTHONPATH", str(site))
    code = "import headrace; print(headrace.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert where.stdout.startswith(str(site))
    monkeypatch.chdir(tmp_path)
    with run_server(tmp_path) as address:
        with urllib.request.urlopen(f"{address}/pipelines", timeout=120) as answer:
            page = answer.read().decode()
        assert '<div id="root">' in page
        script = page.split('src="', 1)[1].split('"', 1)[0]
        with urllib.request.urlopen(address + script, timeout=120) as answer:
            assert "javascript" in answer.headers["content-type"]
            assert len(answer.read()) > 10_000
