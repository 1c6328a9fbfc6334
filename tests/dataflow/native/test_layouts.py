"""How a Rust compiler laid out the parts of inputs and outputs is found out, and none is guessed."""

import pytest

from headrace.base.errors import ConfigurationError
from tests.dataflow.native.conftest import Compile
from tests.dataflow.native.drive import SOURCES, Driver, run_apart

EVERY_ORDER = """
import itertools, os, sys
from pathlib import Path
import pyarrow as pa
from tests.dataflow.native.drive import Driver, message

orders = ["".join(order) for order in itertools.permutations("aics")]
for inputs, outputs in zip(orders, reversed(orders)):
    os.environ["INPUT_ORDER"], os.environ["OUTPUT_ORDER"] = inputs, outputs
    print(inputs, outputs, flush=True)
    driver = Driver(Path(sys.argv[1]))
    driver.handle(message("said", pa.array([1, 2, 3], pa.uint8())), message("out", pa.array([4], pa.uint8())))
    assert [name for name, _, _ in driver.sent] == ["said", "out"], driver.sent
    assert driver.values == [[1, 2, 3], [4]], driver.values
    driver.operator.close()
"""


def test_every_order_of_the_parts_is_found_without_following_a_wrong_pointer(
    compile_library: Compile,
) -> None:
    result = run_apart(EVERY_ORDER, compile_library(SOURCES / "shuffled.c"))
    assert result.returncode == 0, (result.stdout[-10:], result.stderr)
    assert len(result.stdout.splitlines()) == 24


@pytest.mark.parametrize(("inputs", "outputs", "what"), [("?", "icas", "inputs"), ("aics", "?", "outputs")])
def test_a_layout_that_is_not_understood_is_refused(
    compile_library: Compile, monkeypatch: pytest.MonkeyPatch, inputs: str, outputs: str, what: str
) -> None:
    monkeypatch.setenv("INPUT_ORDER", inputs)
    monkeypatch.setenv("OUTPUT_ORDER", outputs)
    with pytest.raises(ConfigurationError, match=f"lays out {what} as no known release of dora") as raised:
        Driver(compile_library(SOURCES / "shuffled.c"))
    assert raised.value.where == "operator camera"
    assert raised.value.hint is not None
