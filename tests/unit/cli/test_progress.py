import io
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.api.pipeline import Pipeline
from headrace.base.watermarks import END_OF_TIME
from headrace.cli.progress import (
    Lines,
    StatusLine,
    display,
    format_bytes,
    format_count,
    format_watermark,
    progress_line,
    summary,
)
from headrace.jobs.progress import Progress, Reason, RunResult
from headrace.testing.in_process import run_in_process

TEN = 1_794_736_800_000_000_000
"""2026-11-15T10:00:00 UTC."""


def progress(epoch: int = 12, *, late: int = 0) -> Progress:
    return Progress(
        epoch=epoch,
        rows_in=1000,
        rows_out=10,
        total_in=1_234_567,
        total_out=5400,
        rows_per_second=350_000.4,
        watermark=TEN + 5,
        state_bytes=3_400_000,
        state_rows=7,
        bytes_written=100,
        seconds=0.5,
        late_rows=late,
    )


def result(reason: Reason = "stopped", *, epochs: int = 3, errors: tuple[str, ...] = ()) -> RunResult:
    return RunResult(
        job_id="j",
        epochs=epochs,
        first_epoch=4,
        last_epoch=3 + epochs,
        rows_in=3_000_000,
        rows_out=12,
        reason=reason,
        seconds=2.0,
        busy_seconds=2.0,
        watermark=TEN,
        state_bytes=812,
        log_file="/runs/spark.log",
        errors=errors,
    )


class Clock:
    """A clock moved by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A terminal of one screen: what a person sees after all carriage returns and erasures."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        lines = [""]
        text = re.sub(r"\x1b\[[0-9;]*m", "", self.getvalue())
        for part in re.split(r"(\n|\r\x1b\[2K)", text):
            if part == "\n":
                lines.append("")
            elif part == "\r\x1b[2K":
                lines[-1] = ""
            else:
                lines[-1] += part
        return lines


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (5400, "5,400"),
        (99_999, "99,999"),
        (350_000, "350k"),
        (999_400, "999k"),
        (999_600, "1.0M"),
        (1_234_567, "1.2M"),
        (99_960_000, "100M"),
        (2_500_000_000, "2.5G"),
        (5_000_000_000_000, "5000G"),
    ],
)
def test_counts_are_exact_when_small_and_short_when_large(number: float, text: str) -> None:
    assert format_count(number) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (812, "812 B"),
        (1000, "1.0 kB"),
        (3_400_000, "3.4 MB"),
        (123e9, "123 GB"),
        (5e15, "5000 TB"),
    ],
)
def test_sizes_are_short(size: float, text: str) -> None:
    assert format_bytes(size) == text


def test_a_watermark_is_shown_to_the_second() -> None:
    assert format_watermark(None) == "none yet"
    assert format_watermark(TEN + 5) == "2026-11-15T10:00:00"
    assert format_watermark(END_OF_TIME.time) == "end of data"


def test_the_line_tells_epoch_rows_rate_watermark_and_state() -> None:
    assert progress_line(progress()) == (
        "epoch 12 · in 1.2M (350k/s) · out 5,400 · watermark 2026-11-15T10:00:00 · state 3.4 MB"
    )
    assert progress_line(progress(late=3)).endswith(" · late 3")


def test_late_rows_are_told_by_operator() -> None:
    one = replace(progress(late=3), late_by={"query.tumble": 3})
    assert progress_line(one).endswith(" · late 3 at query.tumble")
    two = replace(progress(late=5), late_by={"a.tumble": 3, "b.hop": 2})
    assert progress_line(two).endswith(" · late 5 (a.tumble 3, b.hop 2)")


def test_a_window_of_sql_tells_its_late_rows(tmp_path: Path) -> None:
    times = [0, 60, 1, 61, 2]
    (tmp_path / "in.json").write_text(
        "".join(f'{{"at": "2024-01-01T00:{t // 60:02d}:{t % 60:02d}"}}\n' for t in times)
    )
    pipeline = Pipeline.from_sql(
        f"""create table e (at TIMESTAMP, watermark for at as at) with (
            connector = 'single_file', path = '{tmp_path}/in.json', format = 'json');
        select count(*) as n from e group by tumble(interval '10 seconds')""",
        preview=lambda _: ("memory", {}),
    )
    seen: list[Progress] = []
    late = run_in_process(pipeline, tmp_path / "state", parallelism=1, epoch_rows=1, on_progress=seen.append)
    assert list(late.late_by.values()) == [2]
    assert seen[-1].late_by == late.late_by
    (node,) = late.late_by
    assert f"  2 rows came too late at {node}" in summary(late, program=["q.sql"], state_dir=None)


def test_the_summary_tells_what_was_done() -> None:
    assert summary(result("finished"), program=["p.py"], state_dir=None).splitlines() == [
        "finished: every source has come to its end",
        "  3 epochs (4–6) in 2s",
        "  3,000,000 rows in · 12 rows out · 1.5M rows/s",
        "  watermark 2026-11-15T10:00:00 · state 812 B",
    ]
    assert "  1 epoch (4) in" in summary(result(epochs=1), program=["p.py"], state_dir=None)
    assert "  no epochs in" in summary(result(epochs=0), program=["p.py"], state_dir=None)


def test_the_summary_tells_how_to_go_on_when_there_is_more() -> None:
    command = "headrace run 'my file.py' --state-dir s3://b/x"
    assert command in summary(result("stopped"), program=["my file.py"], state_dir="s3://b/x")
    assert command not in summary(result("finished"), program=["my file.py"], state_dir="s3://b/x")


def test_the_summary_counts_what_operators_reported() -> None:
    errors = ("bad row", "odd row", "bad row", *"abcdef")
    text = summary(result(errors=errors), program=["p.py"], state_dir=None)
    assert "  ! bad row (2 times)\n  ! odd row\n" in text
    assert "  ! and 3 other kinds, in /runs/spark.log" in text


def test_without_a_terminal_a_line_is_written_every_five_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    lines = Lines(stream, clock=clock)
    lines.say("starting Spark …")
    for epoch in range(1, 12):
        lines.update(progress(epoch))
        lines.tick()
        clock.now += 1
    written = [line.split(" ·")[0] for line in stream.getvalue().splitlines()]
    assert written == ["starting Spark …", "epoch 1", "epoch 6", "epoch 11"]


def test_without_news_no_line_is_written() -> None:
    stream, clock = io.StringIO(), Clock()
    lines = Lines(stream, clock=clock)
    lines.update(progress(1))
    for _ in range(20):
        lines.tick()
        clock.now += 1
    assert len(stream.getvalue().splitlines()) == 1


def test_rows_scroll_above_the_status_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, clock = Terminal(), Clock()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    with StatusLine(terminal, clock=clock).active() as line:
        line.say("starting Spark …")
        assert terminal.screen() == ["starting Spark …"]
        clock.now += 3
        line.tick()
        assert terminal.screen() == ["starting Spark … 3s"]
        line.update(progress(1))
        sys.stdout.write("row 1\nrow 2\n")
        assert terminal.screen() == ["row 1", "row 2", progress_line(progress(1))]
        sys.stderr.write("a warning\n")
        line.update(progress(2))
        line.tick()
        assert terminal.screen()[2:] == ["a warning", progress_line(progress(2))]
        sys.stdout.write("half ")
        line.tick()
        assert terminal.screen()[3:] == ["half "]
        sys.stdout.write("a row\n")
        assert terminal.screen()[3:] == ["half a row", progress_line(progress(2))]
    assert terminal.screen() == ["row 1", "row 2", "a warning", "half a row", ""]
    assert sys.stdout is terminal


def test_a_status_line_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    line = StatusLine(terminal, clock=Clock())
    line.update(progress())
    line.tick()
    assert terminal.screen() == ["epoch 12 · in 1.2M (350k/s) · out 5,40…"]


def test_rows_in_a_pipe_are_left_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, pipe = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    monkeypatch.setattr(sys, "stderr", terminal)
    with StatusLine(terminal, clock=Clock()).active() as line:
        line.update(progress())
        assert sys.stdout is pipe
        sys.stdout.write('{"a": 1}\n')
        line.tick()
    assert pipe.getvalue() == '{"a": 1}\n'


def test_progress_is_seen_while_stderr_is_turned_into_a_log_file(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", os.fdopen(os.dup(2), "w"))
    with display(progress=True, verbose=False) as shown, (tmp_path / "log").open("w") as log:
        saved = os.dup(sys.stderr.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
        shown.say("starting Spark …")
        os.dup2(saved, sys.stderr.fileno())
        os.close(saved)
    sys.stderr.close()
    assert capfd.readouterr().err == "starting Spark …\n"
    assert (tmp_path / "log").read_text() == ""


def test_a_quiet_run_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with display(progress=False, verbose=False) as shown:
        shown.say("starting Spark …")
        shown.update(progress())
        shown.tick()
    assert capfd.readouterr().err == ""
