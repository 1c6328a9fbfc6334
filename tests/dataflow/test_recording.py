"""Recordings: every epoch once, whatever happens to the run, and a replay that gives the same again."""

from __future__ import annotations

import fcntl
import os
import random
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from headrace.api.pipeline import Pipeline
from headrace.base.errors import CorruptStateError, ExternalError, ReplacedError
from headrace.cli.main import main
from headrace.connectors._shared import file_lock
from headrace.connectors.blackhole import BlackholeSink
from headrace.connectors.recording.files import RecordingReader, RecordingWriter, from_streams, to_streams
from headrace.dataflow.runtime.messages import Message
from headrace.dataflow.runtime.packing import unpack
from headrace.testing.dataflows import run_dataflow
from headrace.testing.in_process import CrashError, run_in_process
from tests.dataflow.test_crashes import COUNT, REPOSITORY
from tests.dataflow.writing import COUNT_AND_LOG, COUNTER, LOG, write_dataflow

STEPS = ["tasks_done", "operators_written", "metadata_written", "sink_committed:recorder", "committed"]


def headrace(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def counts(recording: Path) -> list[int]:
    """What the counter of `COUNT_AND_LOG` has sent, as it was recorded."""
    reader = RecordingReader(recording)
    return [
        message.value[0].as_py()
        for epoch in reader.epochs
        for batch in reader.read("outputs of runtime", epoch)
        for key, message in unpack(batch)
        if key == "counter|count" and isinstance(message, Message)
    ]


def flow(directory: Path, counter: str = COUNTER) -> Path:
    return write_dataflow(directory, dataflow=COUNT_AND_LOG, counter=counter, log=LOG)


def test_a_recording_has_the_ticks_and_what_was_sent_and_its_replay_is_equal(tmp_path: Path) -> None:
    file, recording = flow(tmp_path), tmp_path / "recording"
    assert run_dataflow(file, record=recording).reason == "finished"
    reader = RecordingReader(recording)
    ticks = [
        message.time
        for epoch in reader.epochs
        for batch in reader.read("timer", epoch)
        for _, message in unpack(batch)
    ]
    assert {later - earlier for earlier, later in pairwise(ticks)} == {100_000_000}
    assert counts(recording) == list(range(1, 21))
    replayed = headrace("replay", recording, "--compare")
    assert replayed.exit_code == 0, replayed.output
    assert 'log: ["count", [20]]' in replayed.output
    assert "equal: every message and row is as it was recorded" in replayed.output


def test_a_changed_dataflow_differs_message_by_message_and_exits_1(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    run_dataflow(flow(tmp_path / "before"), record=recording)
    changed = COUNTER.replace("pa.array([self.count])", "pa.array([self.count + (self.count == 7)])")
    replayed = headrace("replay", recording, flow(tmp_path / "after", changed), "--compare", "-q")
    assert replayed.exit_code == 1
    differences = [line for line in replayed.output.splitlines() if "recorded" in line]
    assert differences == ["`counter/count`, message 7: int64 [8], recorded was int64 [7]"]
    shorter = COUNTER.replace("== 20", "== 19")
    replayed = headrace("replay", recording, flow(tmp_path / "after", shorter), "--compare", "-q")
    assert replayed.exit_code == 1
    assert "`counter/count`, message 20: int64 [20], recorded" not in replayed.output
    assert "message 20: the end of the output, recorded was int64 [20]" in replayed.output


@pytest.mark.parametrize("step", STEPS)
def test_after_a_crash_at_any_step_each_epoch_is_recorded_once(tmp_path: Path, step: str) -> None:
    file, recording, state = flow(tmp_path), tmp_path / "recording", tmp_path / "state"
    for at in (2, 4):

        def crash(name: str, epoch: int, at: int = at) -> None:
            if (name, epoch) == (step, at):
                raise CrashError

        with pytest.raises(CrashError):
            run_dataflow(file, state_dir=state, record=recording, on_step=crash, epoch_rows=3)
    assert run_dataflow(file, state_dir=state, record=recording, epoch_rows=3).reason == "finished"
    epochs = [epoch.epoch for epoch in RecordingReader(recording).epochs]
    assert epochs == list(range(1, len(epochs) + 1))
    assert counts(recording) == list(range(1, 21))
    assert headrace("replay", recording, "--compare").exit_code == 0


def test_a_recording_that_is_killed_again_and_again_is_complete_and_its_replay_is_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNT_FILE", str(tmp_path / "out.jsonl"))
    state, recording, chance = tmp_path / "state", tmp_path / "recording", random.Random(7)
    arguments = [sys.executable, "-m", "tests.dataflow.victim", str(COUNT), str(state), str(recording)]
    for _ in range(4):
        victim = subprocess.Popen(arguments, cwd=REPOSITORY, env=dict(os.environ), stdout=subprocess.DEVNULL)
        before = len(RecordingReader(recording).epochs) if (recording / "epochs.jsonl").exists() else 0
        while victim.poll() is None and not (
            (recording / "epochs.jsonl").exists() and len(RecordingReader(recording).epochs) > before + 2
        ):
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.1))
        victim.kill()
        victim.wait()
    last = subprocess.run(
        arguments, cwd=REPOSITORY, env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert last.returncode == 0, last.stdout + last.stderr
    epochs = [epoch.epoch for epoch in RecordingReader(recording).epochs]
    assert epochs == list(range(1, len(epochs) + 1))
    replayed = headrace("replay", recording, "--compare", "-q")
    assert replayed.exit_code == 0, replayed.output


def test_a_pipeline_of_sql_is_recorded_and_replayed_and_other_sinks_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text("".join(f'{{"n": {n}}}\n' for n in range(10)))
    out = tmp_path / "out.json"
    text = f"""
        CREATE TABLE numbers (n BIGINT) WITH (connector = 'single_file', path = '{tmp_path / "in.json"}');
        CREATE TABLE doubled (n BIGINT) WITH (connector = 'single_file', path = '{out}', type = 'sink');
        INSERT INTO doubled SELECT n * 2 AS n FROM numbers WHERE n > 3;
    """
    file = tmp_path / "double.sql"
    file.write_text(text)
    pipeline = Pipeline.from_sql(text)
    pipeline.record(tmp_path / "recording", program={"files": [str(file)]})
    run_in_process(pipeline, tmp_path / "state")
    written = out.read_bytes()
    (tmp_path / "in.json").unlink()  # the recording is enough
    file.write_text(text.replace("n * 2", "n * 3"))
    replayed = headrace("replay", tmp_path / "recording", "--compare")
    assert replayed.exit_code == 1
    assert "`doubled`: n=8" in replayed.output or "n=8, " in replayed.output, replayed.output
    assert "nothing is written to" in replayed.output
    assert out.read_bytes() == written


def test_a_recording_that_is_damaged_is_named_and_not_replayed(tmp_path: Path) -> None:
    file, recording = flow(tmp_path), tmp_path / "recording"
    run_dataflow(file, record=recording)
    rows, lines = recording / "outputs%20of%20runtime" / "000001.arrows", recording / "epochs.jsonl"
    for damaged, at, message in [
        (rows, rows.read_bytes().rindex(b"counter|count"), "the rows of epoch"),
        (lines, lines.read_bytes().index(b'"time"') + 9, "is damaged in line 1: its checksum is another"),
    ]:
        whole = damaged.read_bytes()
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        refused = headrace("replay", recording, "--compare")
        assert refused.exit_code == 2, refused.output
        assert message in refused.output
        assert str(damaged) in refused.output.replace("\n", "")
        damaged.write_bytes(whole)
    rows.unlink()
    refused = headrace("replay", recording, "--compare")
    assert refused.exit_code == 2
    assert "is missing" in refused.output


def test_staged_rows_that_are_lost_end_the_run_and_are_not_left_out(tmp_path: Path) -> None:
    recording, state = tmp_path / "recording", tmp_path / "state"
    rows = [{"text": "x" * 1000, "n": n} for n in range(200)]

    def run(**options: Any) -> None:
        pipeline = Pipeline()
        pipeline.source("memory", rows=rows).sink(BlackholeSink())
        pipeline.record(recording)
        run_in_process(pipeline, state, epoch_rows=100, **options)

    def crash(name: str, epoch: int) -> None:
        if (name, epoch) == ("metadata_written", 1):
            raise CrashError

    with pytest.raises(CrashError):
        run(on_step=crash)
    (staged,) = (file for file in state.rglob("recorded.arrows*") if file.is_file())
    content = staged.read_bytes()
    staged.unlink()
    with pytest.raises(CorruptStateError, match="recorded"):
        run()
    staged.write_bytes(content)
    run()
    recorded = RecordingReader(recording)
    counted = [segment.rows for epoch in recorded.epochs for segment in epoch.segments.values()]
    assert sum(counted) == 2 * len(rows)


def test_a_recording_is_for_its_owner_only(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    run_dataflow(flow(tmp_path), record=recording)
    modes = {path: path.stat().st_mode & 0o777 for path in [recording, *recording.rglob("*")]}
    assert len(modes) > 4
    assert modes == {path: 0o700 if path.is_dir() else 0o600 for path in modes}


def test_a_run_that_was_replaced_does_not_cut_off_what_its_successor_has_recorded(tmp_path: Path) -> None:
    first, second = (to_streams([pa.record_batch({"n": [number]})]) for number in (1, 2))
    replaced, successor = (
        RecordingWriter(tmp_path, header={"ports": ["p"]}, job_id="a"),
        RecordingWriter(tmp_path, header={"ports": ["p"]}, job_id="a"),
    )
    replaced.append(1, 1.0, {"p": (first, 1)})
    # The successor was made when there was no epoch yet.
    successor.append(2, 2.0, {"p": (second, 1)})

    def check() -> None:
        raise ReplacedError("another run has taken over")

    with pytest.raises(ReplacedError):
        replaced.append(2, 2.0, {"p": (first, 1)}, check=check)
    reader = RecordingReader(tmp_path)
    assert [reader.read("p", epoch)[0]["n"].to_pylist() for epoch in reader.epochs] == [[1], [2]]


def test_nobody_appends_while_another_run_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lock, "LOCK_SECONDS", 0.01)
    streams = {"p": (to_streams([pa.record_batch({"n": [1]})]), 1)}
    writer = RecordingWriter(tmp_path, header={"ports": ["p"]}, job_id="a")
    writer.append(1, 1.0, streams)
    before = (tmp_path / "epochs.jsonl").read_bytes()
    with (tmp_path / "epochs.jsonl").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ExternalError, match="is being written by another run"):
            writer.append(2, 2.0, streams)
    assert (tmp_path / "epochs.jsonl").read_bytes() == before
    writer.append(2, 2.0, streams)
    assert [epoch.epoch for epoch in RecordingReader(tmp_path).epochs] == [1, 2]


def test_a_part_of_a_recording_is_replayed_by_time(tmp_path: Path) -> None:
    file, recording = flow(tmp_path), tmp_path / "recording"
    run_dataflow(file, record=recording, epoch_rows=1)
    replayed = headrace("replay", recording, "--to", "0.55s", "-q")
    assert replayed.exit_code == 0, replayed.output
    assert '["count", [5]]' in replayed.output
    assert '["count", [9]]' not in replayed.output


CHAIN = """
    nodes:
      - id: counter
        operator: {python: counter.py, inputs: {tick: dora/timer/millis/100}, outputs: [count]}
      - id: double
        operator: {python: double.py, inputs: {count: counter/count}, outputs: [twice]}
      - id: log
        operator: {python: log.py, inputs: {twice: double/twice, tick: dora/timer/millis/500}}
"""
DOUBLE = """
    import pyarrow.compute as pc
    from dora import DoraStatus

    class Operator:
        def on_event(self, dora_event, send_output):
            if dora_event["type"] == "INPUT":
                send_output("twice", pc.multiply(dora_event["value"], 2))
            return DoraStatus.CONTINUE
"""


def test_one_node_is_replayed_alone_with_what_others_sent_to_it(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    files = {"dataflow": CHAIN, "log": LOG.replace("return DoraStatus.CONTINUE", "return STATUS()")}
    files["log"] += """
    import itertools
    EVENTS = itertools.count(1)
    def STATUS():
        return DoraStatus.STOP if next(EVENTS) == 24 else DoraStatus.CONTINUE
"""
    file = write_dataflow(tmp_path / "flow", **files, counter=COUNTER, double=DOUBLE)
    assert run_dataflow(file, record=recording).reason == "finished"
    # Whoever is not replayed may be broken by now.
    write_dataflow(tmp_path / "flow", counter=COUNTER.replace("self.count = 0", "raise ValueError"))
    alone = headrace("replay", recording, "--only", "double", "--compare")
    assert alone.exit_code == 0, alone.output
    assert "equal: every message and row is as it was recorded" in alone.output
    log = headrace("replay", recording, "--only", "log", "-q")
    assert '["twice", [40]]' in log.output
    assert '["tick", []]' in log.output
    write_dataflow(tmp_path / "flow", double=DOUBLE.replace("2))", "3))"))
    changed = headrace("replay", recording, "--only", "double", "--compare", "-q")
    assert changed.exit_code == 1
    assert "`double/twice`, message 1: int64 [3], recorded was int64 [2]" in changed.output
    assert "counter" not in changed.output
    unknown = headrace("replay", recording, "--only", "doubel")
    assert unknown.exit_code == 2
    assert "`doubel` cannot be replayed alone" in unknown.output
    assert "did you mean `double`?" in unknown.output


def test_what_cannot_be_replayed_or_recorded_is_said(tmp_path: Path) -> None:
    file, recording = flow(tmp_path), tmp_path / "recording"
    run_dataflow(file, record=recording)
    for arguments, message in [
        (["replay", tmp_path], "is not a recording"),
        (["replay", recording, "--speed", "fast"], "`fast` is not a speed"),
        (["replay", recording, "--from", "soon"], "--from: `soon` is neither a time nor a duration"),
        (["replay", recording, "--from", "1h"], "there is no epoch to replay"),
        (["record", file, "--out", recording], "holds a recording already"),
        (["record", file, "--out", tmp_path], "is not empty"),
    ]:
        refused = headrace(*arguments)
        assert refused.exit_code == 2, refused.output
        assert message in refused.output
    other = file.with_name("other.yml")
    other.write_text(file.read_text() + "  - {id: more, path: log.py, outputs: [x]}\n")
    refused = headrace("replay", recording, other)
    assert refused.exit_code == 2
    assert "the recording has nothing of the source `more`" in refused.output


def test_what_a_killed_run_left_behind_the_last_epoch_is_cut_off(tmp_path: Path) -> None:
    first, second = (to_streams([pa.record_batch({"n": [number]})]) for number in (1, 2))
    RecordingWriter(tmp_path, header={"ports": ["p"]}, job_id="a").append(1, 1.0, {"p": (first, 1)})
    with (tmp_path / "p" / "000001.arrows").open("ab") as file:
        file.write(second[:50])
    with (tmp_path / "epochs.jsonl").open("a") as lines:
        lines.write('{"epoch": 2, "ti')
    writer = RecordingWriter(tmp_path, header={}, job_id="a")
    writer.append(2, 2.0, {"p": (second, 1)})
    writer.append(2, 2.0, {"p": (second, 1)})  # a commit that is tried again
    reader = RecordingReader(tmp_path)
    assert [epoch.epoch for epoch in reader.epochs] == [1, 2]
    assert [reader.read("p", epoch)[0]["n"].to_pylist() for epoch in reader.epochs] == [[1], [2]]
    assert (tmp_path / "p" / "000001.arrows").read_bytes() == first + second
    assert len(list(from_streams(first + second))) == 2
