"""What goes round for ever, what nobody reads, what ends behind SQL: dataflows at their edges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.api.pipeline import Pipeline
from headrace.base.errors import DataflowError
from headrace.dataflow.document.load import load_dataflow
from headrace.testing.dataflows import run_dataflow
from tests.dataflow.writing import COUNTER, LOG, write_dataflow

ECHO = """
    from dora import DoraStatus

    class Operator:
        def __init__(self):
            self.n = 0

        def on_event(self, dora_event, send_output):
            if dora_event["type"] == "INPUT":
                self.n += 1
                for _ in range(TIMES):
                    send_output("o", [self.n])
            return DoraStatus.CONTINUE

    TIMES = 1
"""

ONE = """
    nodes:
      - id: a
        operator: {python: a.py, inputs: {tick: dora/timer/secs/1}, outputs: [o]}
"""


def test_messages_that_go_round_for_ever_wait_for_the_next_epoch(tmp_path: Path) -> None:
    file = write_dataflow(
        tmp_path / "flow",
        dataflow="""
        nodes:
          - id: a
            operator: {python: a.py, inputs: {tick: dora/timer/millis/100, back: b/o}, outputs: [o]}
          - id: b
            operator: {python: b.py, inputs: {x: a/o}, outputs: [o]}
        """,
        a=ECHO,
        b=ECHO,
    )
    for _ in range(2):
        outcome = run_dataflow(file, state_dir=tmp_path / "state", max_epochs=2)
        assert (outcome.exit_code, outcome.reason) == (0, "max_epochs"), outcome.error
        assert outcome.result is not None
        assert outcome.result.metrics["runtime"]["events"] > 10


def test_a_unit_that_sends_itself_more_than_it_gets_is_interrupted(tmp_path: Path) -> None:
    file = write_dataflow(
        tmp_path,
        dataflow="""
        nodes:
          - id: a
            operator: {python: a.py, inputs: {tick: dora/timer/secs/1, back: a/o}, outputs: [o]}
        """,
        a=ECHO.replace("TIMES = 1", "TIMES = 2"),
    )
    assert run_dataflow(file, max_epochs=1).reason == "max_epochs"


@pytest.mark.parametrize(("size", "kept"), [(1, [29]), (3, [27, 28, 29])])
def test_the_end_of_an_input_takes_no_room_in_its_queue(tmp_path: Path, size: int, kept: list[int]) -> None:
    file = write_dataflow(
        tmp_path,
        dataflow=f"""
        nodes:
          - id: a
            operator: {{python: a.py, inputs: {{tick: dora/timer/millis/10}}, outputs: [o]}}
          - id: log
            operator:
              python: log.py
              inputs: {{o: {{source: a/o, queue_policy: drop_oldest, queue_size: {size}}}}}
        """,
        a="""
        from dora import DoraStatus

        class Operator:
            def on_event(self, dora_event, send_output):
                for n in range(30):
                    send_output("o", [n])
                return DoraStatus.STOP
        """,
        log=LOG,
    )
    outcome = run_dataflow(file)
    assert outcome.reason == "finished"
    found = [json.loads(line)[1] for line in outcome.logs["log"]]
    assert found == [*([n] for n in kept), "INPUT_CLOSED"]
    assert outcome.result is not None
    assert outcome.result.metrics["runtime"]["dropped"] == 30 - size


@pytest.mark.parametrize("columns", ["", ", schema: {value: BIGINT}"])
def test_what_ends_before_a_step_ends_behind_it(tmp_path: Path, columns: str) -> None:
    file = write_dataflow(
        tmp_path,
        dataflow=f"""
        nodes:
          - id: counter
            operator: {{python: counter.py, inputs: {{tick: dora/timer/millis/10}}, outputs: [count]}}
          - id: step
            sql: SELECT value * 2 AS twice FROM x
            inputs: {{x: {{source: counter/count{columns}}}}}
          - id: log
            operator: {{python: log.py, inputs: {{rows: step/rows}}}}
        """,
        counter=COUNTER,
        log=LOG,
    )
    outcome = run_dataflow(file)
    assert outcome.reason == "finished"
    found = [json.loads(line)[1] for line in outcome.logs["log"]]
    assert [row["twice"] for rows in found[:-1] for row in rows] == [2 * n for n in range(1, 21)]
    assert found[-1] == "INPUT_CLOSED"


def test_a_process_may_send_what_nobody_reads(tmp_path: Path) -> None:
    file = write_dataflow(
        tmp_path,
        dataflow="nodes: [{id: a, path: a.py, outputs: [o]}]",
        a="""
        from dora import Node

        node = Node()
        node.send_output("o", [1])
        print("sent")
        """,
    )
    outcome = run_dataflow(file)
    assert (outcome.exit_code, outcome.reason) == (0, "finished"), outcome.error
    assert outcome.logs == {"a": ["sent"]}


def test_a_process_that_sends_for_ever_can_be_stopped(tmp_path: Path) -> None:
    file = write_dataflow(
        tmp_path,
        dataflow="""
        nodes:
          - {id: a, path: a.py, outputs: [o], finish_grace_secs: 0.5}
          - {id: log, operator: {python: log.py, inputs: {o: a/o}}}
        """,
        a="""
        from dora import Node

        node = Node()
        while True:
            node.send_output("o", [1])
        """,
        log=LOG,
    )
    outcome = run_dataflow(file, stop_after=1)
    assert (outcome.exit_code, outcome.reason) == (0, "stopped"), outcome.error


def test_a_process_that_is_always_to_run_is_started_again_when_it_ends(tmp_path: Path) -> None:
    file = write_dataflow(
        tmp_path,
        dataflow="""
        nodes:
          - id: counter
            operator: {python: counter.py, inputs: {tick: dora/timer/millis/10}, outputs: [count]}
          - {id: a, path: a.py, inputs: {n: counter/count}, restart_policy: always}
        """,
        counter=COUNTER,
        a="""
        from dora import Node

        for event in Node():
            if event["type"] == "INPUT":
                print(event["value"][0].as_py())
                if event["value"][0].as_py() % 7 == 0:
                    break
        """,
    )
    outcome = run_dataflow(file, real_time=True)
    assert (outcome.exit_code, outcome.reason) == (0, "finished"), outcome.error
    assert [int(line) for line in outcome.logs["a"]] == list(range(1, 21))


def test_mistakes_in_operators_sql_and_options_are_told_together(tmp_path: Path) -> None:
    file = write_dataflow(
        tmp_path,
        dataflow="""
        nodes:
          - {id: a, operator: {python: a.py, inputs: {tick: dora/timer/secs/1}}}
          - {id: g, connector: impulse, options: {mesage_count: 5}}
          - {id: h, connector: impulse}
          - {id: s, sql: SELECT nope FROM t, inputs: {t: h/rows}}
          - {id: log, operator: {python: log.py, inputs: {s: s/rows, g: g/rows}}}
        """,
        a="class Operator(:\n    pass\n",
        log=LOG,
    )
    with pytest.raises(DataflowError) as refused:
        Pipeline.from_dataflow(file)
    for part in ("invalid syntax", "mesage_count", "nope"):
        assert part in str(refused.value)


@pytest.mark.parametrize("ends", ["sys.exit(7)", "raise ValueError('no more')"])
def test_what_a_process_sent_before_it_failed_arrives(tmp_path: Path, ends: str) -> None:
    file = write_dataflow(
        tmp_path,
        dataflow="""
        nodes:
          - id: counter
            operator: {python: counter.py, inputs: {tick: dora/timer/millis/10}, outputs: [count]}
          - id: pass_on
            path: pass_on.py
            inputs: {n: counter/count}
            outputs: [n]
            restart_policy: on-failure
          - id: log
            operator: {python: log.py, inputs: {n: pass_on/n}}
        """,
        counter=COUNTER,
        pass_on=f"""
        import sys

        from dora import Node

        node = Node()
        for event in node:
            if event["type"] == "INPUT":
                node.send_output("n", event["value"], event["metadata"])
                if event["value"][0].as_py() % 7 == 3:
                    {ends}
        """,
        log=LOG,
    )
    outcome = run_dataflow(file)
    assert outcome.reason == "finished", outcome.error
    found = [json.loads(line)[1] for line in outcome.logs["log"]]
    assert found == [*([n] for n in range(1, 21)), "INPUT_CLOSED"]


@pytest.mark.parametrize(
    ("level", "expected"),
    [(None, ["printed", "told", "warned"]), ("info", ["told", "warned"]), ("warn", ["warned"])],
)
def test_what_is_below_the_lowest_level_is_neither_shown_nor_sent(
    tmp_path: Path, level: str | None, expected: list[str]
) -> None:
    file = write_dataflow(
        tmp_path,
        dataflow=f"""
        nodes:
          - id: talk
            path: talk.py
            {"" if level is None else f"min_log_level: {level}"}
            inputs: {{tick: dora/timer/millis/10}}
        """,
        talk="""
        from dora import Node

        node = Node()
        next(iter(node))
        print("printed")
        node.log("info", "told")
        node.log("warn", "warned")
        """,
    )
    outcome = run_dataflow(file)
    assert outcome.reason == "finished", outcome.error
    assert sorted(line.text for line in outcome.lines if line.unit == "talk") == expected


def test_a_time_in_metadata_is_a_datetime(tmp_path: Path) -> None:
    file = write_dataflow(
        tmp_path,
        dataflow=ONE,
        a=ECHO.replace('send_output("o", [self.n])', 'send_output("o", [1], {"timestamp": "noon"})'),
    )
    outcome = run_dataflow(file)
    assert outcome.exit_code == 1
    assert "the metadata `timestamp` must be a datetime, got str" in str(outcome.error)


def test_a_snapshot_that_fails_names_its_operator(tmp_path: Path) -> None:
    file = write_dataflow(
        tmp_path,
        dataflow=ONE,
        a="""
        from dora import DoraStatus

        class Operator:
            def on_event(self, dora_event, send_output):
                return DoraStatus.CONTINUE

            def snapshot(self):
                raise ValueError("not now")

            def restore(self, state): ...
        """,
    )
    outcome = run_dataflow(file, max_epochs=1)
    assert outcome.exit_code == 1
    assert "`a` cannot be saved: ValueError: not now" in str(outcome.error)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def on_input(self, a, b): ...", "has no method `on_event`"),
        ("\f\n    def on_event(self, event): ...", "must take an event and `send_output`"),
        ("async def on_event(self, event, send): ...", "must not be async"),
        ("def __init__(self, x): ...\n    def on_event(self, e, s): ...", "is made without arguments"),
    ],
)
def test_an_operator_that_cannot_be_called_is_found_before_it_runs(
    tmp_path: Path, body: str, message: str
) -> None:
    file = write_dataflow(
        tmp_path,
        dataflow=ONE,
        a=f"class Operator:\n    {body}\n",
    )
    with pytest.raises(DataflowError, match=message) as raised:
        Pipeline.from_dataflow(file)
    assert "a.py:" in str(raised.value)


def test_an_operator_that_can_be_called_passes(tmp_path: Path) -> None:
    for number, text in enumerate(
        (
            "class Base: ...\nclass Operator(Base): ...",
            "class Operator:\n    def on_event(self, *args): ...",
            "class Operator:\n    def on_event(self, a, b, c=1): ...\n    def __init__(self, *, x=1): ...",
            "class Operator:\n    on_event = print",
            "class Operator:\n    if True:\n        def on_event(self, a, b): ...",
            "class Operator:\n    def on_event(self): ...\nOperator = print",
            "# \f\nclass Operator:\n    @staticmethod\n    def on_event(a, b): ...",
        )
    ):
        file = write_dataflow(
            tmp_path / str(number),
            dataflow=ONE,
            a=text,
        )
        Pipeline.from_dataflow(file)


def test_a_cycle_that_nothing_can_start_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "op.py").write_text("class Operator:\n    def on_event(self, dora_event, send_output): ...\n")

    def warnings(*, timer: bool) -> tuple[str, ...]:
        tick = "tick: dora/timer/secs/1, " if timer else ""
        file = tmp_path / "dataflow.yml"
        file.write_text(
            f"""
nodes:
  - {{id: a, operator: {{python: op.py, inputs: {{{tick}x: b/y}}, outputs: [y]}}}}
  - {{id: b, operator: {{python: op.py, inputs: {{x: a/y}}, outputs: [y]}}}}
  - {{id: behind, operator: {{python: op.py, inputs: {{x: b/y}}}}}}
"""
        )
        return load_dataflow(file).warnings

    assert warnings(timer=True) == ()
    [warning] = warnings(timer=False)
    assert "nothing can start `a`, `b`: they wait for each other; give one of them a timer" in warning


def test_a_worker_that_dies_in_an_operator_can_name_it_in_the_middle_of_what_it_sends_too(
    tmp_path: Path,
) -> None:
    operator = """
        from dora import DoraStatus
        from headrace.base.position import NOWHERE, move_to

        class Operator:
            def on_event(self, dora_event, send_output):
                for n in range(200 if dora_event["id"] == "tick" else 0):
                    send_output("n", [n])  # more than a queue takes: its reader runs meanwhile
                position = move_to(NOWHERE)
                move_to(position)
                print(position.decode().rstrip())
                return DoraStatus.STOP if dora_event["id"] == "tick" else DoraStatus.CONTINUE
    """
    dataflow = """
        nodes:
          - id: first
            operator: {python: unit.py, inputs: {tick: dora/timer/millis/100}, outputs: [n]}
          - id: second
            operator: {python: unit.py, inputs: {n: first/n}, outputs: [n]}
    """
    outcome = run_dataflow(write_dataflow(tmp_path, dataflow=dataflow, unit=operator))
    assert outcome.exit_code == 0, outcome.error
    assert set(outcome.logs["first"]) == {"operator first, subtask 0, epoch 1"}
    assert set(outcome.logs["second"]) == {"operator second, subtask 0, epoch 1"}
