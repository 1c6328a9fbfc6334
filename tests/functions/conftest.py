"""Shared libraries with functions, compiled once for all tests."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.functions.user import Function, get_include, load_udfs

SOURCES = Path(__file__).parent / "sources"
EXAMPLE = Path(__file__).parents[2] / "examples" / "functions"

Compile = Callable[[Path], Path]


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compile a C source into a shared library."""
    made: dict[Path, Path] = {}

    def compile_source(source: Path) -> Path:
        if shutil.which("cc") is None:
            pytest.skip("there is no C compiler: `cc` is not found")
        if source not in made:
            library = tmp_path_factory.mktemp("library") / f"lib{source.stem}.so"
            strict = [
                "-shared",
                "-fPIC",
                "-O2",
                "-std=c99",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-D_POSIX_C_SOURCE=1",
            ]
            command = ["cc", *strict, f"-I{get_include()}", str(source), "-o", str(library), "-lm"]
            subprocess.run(command, check=True)
            made[source] = library
        return made[source]

    return compile_source


@pytest.fixture(scope="session")
def needs_cargo() -> None:
    if shutil.which("cargo") is None:
        pytest.skip("there is no `cargo` to build Rust with")


@pytest.fixture(scope="session")
def in_rust(needs_cargo: None) -> dict[str, Function]:  # noqa: ARG001
    """The functions of functions.rs, by name."""
    return {function.name: function for function in load_udfs(SOURCES / "functions.rs")}
