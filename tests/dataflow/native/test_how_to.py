"""What the how-to about native operators shows can be compiled, and does what it says."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from tests.dataflow.native.conftest import Compile
from tests.dataflow.native.drive import HERE, ROOT, Driver, message

PAGE = (ROOT / "docs" / "how-to" / "native-operators.md").read_text(encoding="utf-8")
SHOWN = dict(re.findall(r"^```text file=(\S+)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize(("file", "remembers"), [("smooth.c", False), ("smooth_state.c", True)])
def test_the_operator_in_c_smooths_and_remembers_if_it_has_the_functions(
    tmp_path: Path, compile_library: Compile, file: str, remembers: bool
) -> None:
    for name, text in SHOWN.items():
        (tmp_path / name).write_text(text)
    driver = Driver(compile_library(tmp_path / file))
    driver.handle(message("numbers", pa.array([4.0, 4.0])))
    snapshot = driver.operator.snapshot()
    assert driver.values == [[3.0]]
    assert (snapshot is not None) == remembers
    resumed = Driver(compile_library(tmp_path / file), snapshot)
    resumed.give("numbers", pa.array([5.0]))
    assert resumed.values == [[4.0 if remembers else 2.5]]
    with pytest.raises(RuntimeError, match="expected numbers of type float64"):
        driver.give("numbers", pa.array(["4"]))


def test_the_functions_in_rust_are_those_of_the_operator_that_is_tested() -> None:
    assert SHOWN["lib.rs"] in (HERE / "rust" / "operator" / "src" / "lib.rs").read_text(encoding="utf-8")
