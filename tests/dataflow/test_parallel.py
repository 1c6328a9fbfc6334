"""A unit that asks for parallelism has several instances, each with the messages of its keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.testing.dataflows import DataflowResult, run_dataflow
from tests.dataflow.writing import LOG, write_dataflow

SOURCE = """
    import pyarrow as pa
    from dora import DoraStatus

    class Operator:
        def __init__(self):
            self.n = 0

        def on_event(self, dora_event, send_output):
            if dora_event["type"] != "INPUT":
                return DoraStatus.CONTINUE
            for _ in range(10):
                send_output("word", pa.array([self.n]), {"key": f"k{self.n % 7}"})
                batch = {"key": [f"k{(self.n + i) % 7}" for i in range(4)], "n": [self.n] * 4}
                send_output("rows", pa.RecordBatch.from_pydict(batch))
                self.n += 1
            return DoraStatus.STOP if self.n == 100 else DoraStatus.CONTINUE
"""

COUNT = """
    import json

    import pyarrow as pa
    from dora import DoraStatus

    class Operator:
        def __init__(self):
            self.words, self.rows, self.ticks = {}, {}, 0

        def on_event(self, dora_event, send_output):
            if dora_event["id"] == "tick":
                self.ticks += 1
            elif dora_event["type"] == "INPUT" and dora_event["id"] == "word":
                key = dora_event["metadata"]["key"]
                self.words[key] = self.words.get(key, 0) + 1
                send_output("seen", pa.array([self.words[key]]), {"key": key})
            elif dora_event["type"] == "INPUT":
                for row in dora_event["value"].to_pylist():
                    self.rows[row["key"]] = self.rows.get(row["key"], 0) + 1
            elif dora_event["type"] == "INPUT_CLOSED" and dora_event["id"] == "rows":
                send_output("total", json.dumps({"words": self.words, "rows": self.rows}))
            return DoraStatus.CONTINUE
"""

DATAFLOW = """
    nodes:
      - id: source
        operator:
          python: source.py
          inputs: {tick: dora/timer/millis/50}
          outputs: [word, rows]
      - id: count
        parallelism: 3
        partition_by: key
        operator:
          python: count.py
          inputs: {word: source/word, rows: source/rows}
          outputs: [seen, total]
      - id: log
        operator:
          python: log.py
          inputs: {total: count/total, seen: count/seen}
"""


def check(lines: list[str]) -> None:
    entries = [json.loads(line) for line in lines]
    seen = [value[0] for name, value in entries if name == "seen" and isinstance(value, list)]
    assert len(seen) == 100
    totals = [json.loads(value[0]) for name, value in entries if name == "total" and isinstance(value, list)]
    assert len(totals) == 3  # one from each instance
    words = [pair for total in totals for pair in total["words"].items()]
    rows = [pair for total in totals for pair in total["rows"].items()]
    expected = {f"k{i}": len(range(i, 100, 7)) for i in range(7)}
    assert sorted(words) == sorted(expected.items())  # each key in one instance
    assert dict(rows) == {
        f"k{i}": sum((n + j) % 7 == i for n in range(100) for j in range(4)) for i in range(7)
    }
    assert len(rows) == 7
    assert sorted(name for name, value in entries if value == "INPUT_CLOSED") == ["seen", "total"]


def test_each_instance_gets_the_messages_of_its_keys(tmp_path: Path) -> None:
    file = write_dataflow(tmp_path, dataflow=DATAFLOW, source=SOURCE, count=COUNT, log=LOG)
    outcome = run_dataflow(file, parallelism=2)
    assert outcome.exit_code == 0, outcome.error
    check(outcome.logs["log"])


def test_instances_move_between_any_number_of_subtasks_with_what_they_remember(tmp_path: Path) -> None:
    file = write_dataflow(tmp_path / "flow", dataflow=DATAFLOW, source=SOURCE, count=COUNT, log=LOG)
    lines: list[str] = []
    outcome = DataflowResult()
    for parallelism in (1, 3, 2, 4, 1, 2, 3):
        outcome = run_dataflow(
            file, state_dir=tmp_path / "state", parallelism=parallelism, stop_after=0.11, epoch_rows=1
        )
        assert outcome.exit_code == 0, outcome.error
        lines += [line for line in outcome.logs.get("log", []) if '"STOP"' not in line]
    outcome = run_dataflow(file, state_dir=tmp_path / "state")
    assert (outcome.reason, outcome.exit_code) == ("finished", 0), outcome.error
    check(lines + outcome.logs.get("log", []))


def test_instances_move_with_what_they_remember_while_the_dataflow_runs(tmp_path: Path) -> None:
    file = write_dataflow(tmp_path, dataflow=DATAFLOW, source=SOURCE, count=COUNT, log=LOG)
    outcome = run_dataflow(file, epoch_rows=1, rescale=lambda epoch: (3, 1, 4, 2, 5)[epoch % 5])
    assert (outcome.reason, outcome.exit_code) == ("finished", 0), outcome.error
    check(outcome.logs["log"])


def test_another_number_of_instances_cannot_take_over_what_they_remember(tmp_path: Path) -> None:
    file = write_dataflow(tmp_path / "flow", dataflow=DATAFLOW, source=SOURCE, count=COUNT, log=LOG)
    run_dataflow(file, state_dir=tmp_path / "state", stop_after=0.1)
    file.write_text(file.read_text().replace("parallelism: 3", "parallelism: 4"))
    outcome = run_dataflow(file, state_dir=tmp_path / "state")
    assert outcome.exit_code == 2
    assert "count" in str(outcome.error)


def test_a_message_without_the_key_is_an_error_that_says_what_it_has(tmp_path: Path) -> None:
    file = write_dataflow(
        tmp_path,
        dataflow=DATAFLOW.replace("partition_by: key", "partition_by: kye"),
        source=SOURCE,
        count=COUNT,
        log=LOG,
    )
    outcome = run_dataflow(file)
    assert outcome.exit_code != 0
    assert "neither a column nor metadata called `kye`" in str(outcome.error)
    assert "`key`" in str(outcome.error)


@pytest.mark.parametrize("source", ["dora/timer/millis/50", "numbers/rows"])
def test_a_timer_ticks_in_every_instance_and_a_connector_is_divided_by_a_column(
    tmp_path: Path, source: str
) -> None:
    file = write_dataflow(
        tmp_path,
        dataflow=f"""
        nodes:
          - id: numbers
            connector: impulse
            options: {{message_count: 40, event_rate: 100}}
          - id: each
            parallelism: 4
            partition_by: counter
            operator:
              python: each.py
              inputs: {{"in": {source}, rows: numbers/rows}}
              outputs: [out]
          - id: log
            operator: {{python: log.py, inputs: {{out: each/out}}}}
        """,
        each="""
        import pyarrow as pa
        from dora import DoraStatus

        class Operator:
            def __init__(self):
                self.events, self.rows = 0, 0

            def on_event(self, dora_event, send_output):
                if dora_event["id"] == "in" and dora_event["type"] == "INPUT":
                    self.events += 1
                if dora_event["id"] == "rows" and dora_event["type"] == "INPUT":
                    self.rows += len(dora_event["value"])
                if dora_event["id"] == "rows" and dora_event["type"] == "INPUT_CLOSED":
                    send_output("out", pa.array([[self.events, self.rows]]))
                    return DoraStatus.STOP
                return DoraStatus.CONTINUE
        """,
        log=LOG,
    )
    outcome = run_dataflow(file)
    assert outcome.exit_code == 0, outcome.error
    entries = [json.loads(line)[1] for line in outcome.logs["log"]]
    totals = [value[0] for value in entries if isinstance(value, list)]
    assert len(totals) == 4
    assert sum(rows for _, rows in totals) == 40
    if source.startswith("dora/"):
        assert len({events for events, _ in totals}) == 1
        assert totals[0][0] > 1
