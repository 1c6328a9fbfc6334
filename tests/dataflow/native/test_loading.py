"""What a file has to be to be loaded as an operator, and what is said if it is not."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError
from tests.dataflow.native.conftest import Compile
from tests.dataflow.native.drive import SOURCES, Driver

OPERATOR = """
#include "headrace_operator.h"
DoraInitResult_t dora_init_operator(void) { DoraInitResult_t made = {{NULL}, NULL}; return made; }
DoraResult_t dora_drop_operator(void *context) { (void)context; DoraResult_t done = {NULL}; return done; }
OnEventResult_t dora_on_event(RawEvent_t *event, const SendOutput_t *send, void *context) {
    (void)event, (void)send, (void)context;
    OnEventResult_t done = {{NULL}, DORA_STATUS_CONTINUE};
    return done;
}
"""


def refused(library: Path) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as raised:
        Driver(library)
    assert raised.value.where == "operator camera"
    assert str(library) in raised.value.message
    return raised.value


def test_the_smallest_operator_has_neither_memory_nor_a_context(compile_library: Compile) -> None:
    driver = Driver(compile_library(OPERATOR))
    assert driver.give("anything") == 0
    assert driver.operator.snapshot() is None
    driver.operator.close()


@pytest.mark.parametrize("name", ["libnothing.so", "."])
def test_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    error = refused(tmp_path / name)
    assert error.message.startswith("there is no shared library at ")
    assert error.hint is not None
    assert "build it first" in error.hint


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF" + bytes(100)])
def test_a_file_that_is_no_library(tmp_path: Path, content: bytes) -> None:
    library = tmp_path / "libscript.so"
    library.write_bytes(content)
    error = refused(library)
    assert re.search(r"cannot be loaded: |is built for ", error.message)
    assert error.hint is not None


def test_a_program_is_no_library(tmp_path: Path, compile_library: Compile) -> None:
    compile_library(OPERATOR)
    source, program = tmp_path / "program.c", tmp_path / "libprogram.so"
    source.write_text("int main(void) { return 0; }")
    subprocess.run(["cc", source, "-o", program], check=True)
    error = refused(program)
    assert "cannot be loaded" in error.message
    assert error.hint is not None
    assert "cc -shared -fPIC" in error.hint


@pytest.mark.parametrize(
    ("offset", "value", "name"),
    [
        (18, 183, "AArch64 (64 bits)"),
        (18, 243, "RISC-V (64 bits)"),
        (4, 1, "(32 bits)"),
        (18, 9, "processor 9 (64 bits)"),
    ],
)
def test_a_library_for_another_machine(
    tmp_path: Path, compile_library: Compile, offset: int, value: int, name: str
) -> None:
    library = tmp_path / "libother.so"
    content = bytearray(compile_library(OPERATOR).read_bytes())
    if content[offset] == value:
        pytest.skip("this machine is the other one")
    content[offset] = value
    library.write_bytes(content)
    error = refused(library)
    assert name in error.message.partition(" and this is ")[0]
    assert error.hint == "build it for the machine that the dataflow runs on"


def test_a_library_that_needs_one_that_is_missing(tmp_path: Path, compile_library: Compile) -> None:
    other = compile_library("int other(void) { return 1; }")
    needed = tmp_path / "libneeded.so"
    shutil.copy(other, needed)
    library = compile_library(OPERATOR, f"-L{tmp_path}", "-Wl,--no-as-needed", "-lneeded")
    needed.unlink()
    error = refused(library)
    assert re.search(r"needs \S*libsource\.so|needs \S*libneeded\.so", error.message)
    assert error.hint is not None
    assert f"`ldd {library}`" in error.hint


def test_a_library_that_was_not_linked_with_doras_functions(compile_library: Compile) -> None:
    error = refused(compile_library(SOURCES / "linked.c"))
    assert re.search(r"uses `dora_\w+`, which no library that it links has", error.message)
    assert error.hint is not None
    assert "libdora_operator_api_c.a" in error.hint
    assert "headrace_operator.h" in error.hint


def test_a_library_that_was_not_linked_with_another(compile_library: Compile) -> None:
    source = OPERATOR + "int grab(void); int use(void) { return grab(); }"
    error = refused(compile_library(source))
    assert "uses `grab`" in error.message
    assert error.hint == "link the library that has `grab`"


def test_a_library_that_is_no_operator_says_which_functions_it_lacks(compile_library: Compile) -> None:
    error = refused(compile_library("int dora_on_event(void) { return 0; }"))
    assert error.message.endswith(
        "is not an operator: it does not export `dora_init_operator`, `dora_drop_operator`"
    )
    assert error.hint is not None
    assert 'extern "C"' in error.hint


@pytest.mark.parametrize(
    ("present", "absent"),
    [
        ("headrace_snapshot_operator", "headrace_restore_operator"),
        ("headrace_restore_operator", "headrace_snapshot_operator"),
    ],
)
def test_saving_without_restoring_is_refused(compile_library: Compile, present: str, absent: str) -> None:
    functions = {
        "headrace_snapshot_operator": "DoraResult_t headrace_snapshot_operator(void *context, void *sink, "
        "headrace_write_t write) { (void)context, (void)sink, (void)write; "
        "DoraResult_t done = {NULL}; return done; }",
        "headrace_restore_operator": "DoraInitResult_t headrace_restore_operator(const uint8_t *bytes, "
        "size_t length) { (void)bytes, (void)length; return dora_init_operator(); }",
    }
    error = refused(compile_library(OPERATOR + functions[present]))
    assert f"exports `{present}` and not `{absent}`" in error.message
