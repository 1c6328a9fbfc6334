"""dora's own examples by name: the case that has their shape, or the reason why there is none.

The cases are written anew. Each runs in both ways of execution, and in dora itself where it is installed; see
`test_conformance`. Tests of other files are named by their file and function.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.dataflow.conformance.cases import HERE

TESTS = Path(__file__).parent
HEARD = "test_resident.py::test_a_process_is_heard_at_once_and_its_killed_task_gives_it_every_message_again"
DRAINED = "test_resident.py::test_a_process_that_asks_late_is_given_all_that_others_have_sent_meanwhile"

SHOWN = {
    "benchmark": HEARD,
    "c-dataflow, the operator": "native/test_native.py",
    "c++-dataflow, the operators": "native/test_native.py",
    "cross-language": "native/test_rust.py",
    "echo": "node-service",
    "error-propagation": "node-failed",
    "log-aggregator": "logs-as-input",
    "module-dataflow": "module",
    "multiple inputs with queue sizes": "node-drain-newest",
    "action-example": "node-action",
    "service-example": "node-service",
    "streaming-example": "node-stream",
    "typed-dataflow": "types",
    "validated-pipeline": "node-between-operators",
    "python-async": "node-recv-async",
    "python-concurrent-rw": "node-two-threads",
    "python-dataflow": "node-sink",
    "python-dataflow, dynamic": "test_dynamic_nodes.py",
    "python-drain": DRAINED,
    "python-echo": "node-between-operators",
    "python-log": "logs-levels",
    "python-logging": "logs-as-output",
    "python-multiple-arrays": "node-arrays",
    "python-operator-dataflow": "chain",
    "python-recv-async": "node-recv-async",
    "python-zero-copy-send": "node-sample",
    "queue_size_latest_data_python": "queue-drop-oldest",
    "rust-dataflow, as operators": "native/test_rust.py",
    "several copies of a node": "node-copies",
}

SKIPPED = {
    "c-dataflow, the nodes": "linked with dora's node library, whose protocol is made of Rust's types",
    "c++-dataflow, the nodes": "linked with dora's node library",
    "c++-ros2-dataflow, python-ros2-dataflow, rust-ros2-dataflow": "no bridge to ROS 2",
    "camera, av1-encoding, keyboard, lebai, alexk-lcr, aloha": "need a camera, a keyboard or a robot",
    "cuda-benchmark, c++-memory-pool": "share memory of a GPU or a pool between nodes",
    "dynamic-add-remove, dynamic-agent-tools": "change the graph while it runs (`dora node add`)",
    "franka-mujoco-control, isaacsim-sim": "need a simulator that is not on the package registry",
    "hub-dataflow": "`hub:` is refused; the package is installed with `build`",
    "llm, gemma3, argostranslate, speech": "need models of gigabytes",
    "log-sink-file, log-sink-alert, log-sink-tcp": "their sinks are linked with dora's node library",
    "multiple-daemons": "`deploy` on several machines: Spark places tasks",
    "rust-dataflow-url": "URLs as paths are refused: nothing is downloaded",
    "wasm operators": "not supported in dora either",
}


@pytest.mark.parametrize("example", SHOWN)
def test_an_example_of_dora_has_a_case_of_its_shape(example: str) -> None:
    file, _, function = SHOWN[example].partition("::")
    if not file.endswith(".py"):
        assert (HERE / file / "dataflow.yml").is_file()
        return
    text = (TESTS / file).read_text(encoding="utf-8")
    assert re.search(rf"^def {function or 'test_'}", text, re.MULTILINE), SHOWN[example]


def test_an_example_is_shown_or_skipped_for_a_reason() -> None:
    assert not SHOWN.keys() & SKIPPED.keys()
    assert all(SKIPPED.values())
