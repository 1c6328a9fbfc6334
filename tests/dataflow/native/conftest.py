"""Operators compiled from the sources here."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.dataflow.native.drive import EXAMPLE, HERE, SOURCES, Driver

Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def compile_library(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compile a C or C++ source, a file or a text, into a shared library; once per set of arguments."""
    made: dict[tuple[Any, ...], Path] = {}

    def compile_source(source: Path | str, *options: str) -> Path:
        compiler = "c++" if isinstance(source, Path) and source.suffix == ".cpp" else "cc"
        if shutil.which(compiler) is None:
            pytest.skip(f"there is no compiler: `{compiler}` is not found")
        if (source, options) not in made:
            folder = tmp_path_factory.mktemp("library")
            if isinstance(source, str):
                file = folder / "source.c"
                file.write_text(source)
            else:
                file = source
            library = folder / f"lib{file.stem}.so"
            strict = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{EXAMPLE}"]
            subprocess.run([compiler, *strict, str(file), *options, "-o", str(library)], check=True)
            made[source, options] = library
        return made[source, options]

    return compile_source


@pytest.fixture
def behaviours(compile_library: Compile) -> Driver:
    return Driver(compile_library(SOURCES / "behaviours.c"))


@pytest.fixture(scope="session")
def rust_libraries() -> Path:
    """A folder with librust_operator.so and liblinked.so, which is linked with dora's C functions.

    They are built with cargo when a source has changed, and kept in the user's cache: a first build compiles
    the hundred crates that dora's operator crate needs.
    """
    sources = sorted(file for file in (HERE / "rust").rglob("*") if file.is_file())
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in [*sources, SOURCES / "linked.c"]))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace-tests" / "rust"
    made = cache / digest.hexdigest()[:16]
    if not made.exists():
        _build_rust(cache / "target", made)
    return made


def _build_rust(target: Path, made: Path) -> None:
    if shutil.which("cargo") is None or shutil.which("cc") is None:
        pytest.skip("there is no Rust compiler: `cargo` or `cc` is not found")
    fetched = _cargo("fetch", "--locked")
    if fetched.returncode:
        pytest.skip(f"the registry of Rust's crates does not answer: {fetched.stderr.strip()[-300:]}")
    built = _cargo("build", "--locked", "--offline", "--jobs", "2", "--target-dir", str(target))
    if "requires rustc" in built.stderr:
        pytest.skip(f"dora's operator crate needs a newer Rust compiler: {built.stderr.strip()[-300:]}")
    assert built.returncode == 0, built.stderr
    folder = made.with_suffix(f".{os.getpid()}")
    folder.mkdir(parents=True)
    shutil.copy(target / "debug" / "librust_operator.so", folder)
    archive = target / "debug" / "libdora_operator_api_c.a"
    linked = [str(SOURCES / "linked.c"), str(archive), "-lm", "-lpthread", "-ldl"]
    subprocess.run(["cc", "-shared", "-fPIC", *linked, "-s", "-o", str(folder / "liblinked.so")], check=True)
    try:
        folder.rename(made)
    except OSError:
        assert made.exists(), "another process has built it at the same time"
        shutil.rmtree(folder)


def _cargo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["nice", "-n", "10", "cargo", *arguments],
        cwd=HERE / "rust",
        capture_output=True,
        text=True,
        check=False,
    )
