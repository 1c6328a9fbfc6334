import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from click.testing import CliRunner

from headrace.cli.main import main
from headrace.cli.progress import Display
from headrace.cli.run import RunFlags, in_background, run, stop_on_signals
from headrace.exchanges.spark.session import SparkRequest

RUNNING = """
import sys, threading, time
from headrace.cli.progress import Lines
from headrace.cli.run import in_background, stop_on_signals

stop = threading.Event()

def work():
    print("running", flush=True)
    stop.wait()
    time.sleep({epoch})
    return "committed"

shown = Lines(sys.stderr)
with stop_on_signals(stop, shown):
    print(in_background(work, tick=shown.tick), flush=True)
"""


def start(epoch: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNING.format(epoch=epoch)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    return process


def test_work_in_the_background_returns_and_the_display_ticks() -> None:
    ticks: list[float] = []

    def work() -> int:
        deadline = time.monotonic() + 30
        while len(ticks) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        return 7

    assert in_background(work, tick=lambda: ticks.append(time.monotonic())) == 7
    assert len(ticks) >= 2


def test_work_is_not_done_in_the_main_thread_where_spark_would_take_sigint() -> None:
    assert in_background(threading.current_thread, tick=lambda: None) is not threading.main_thread()


def test_a_raise_in_the_background_reaches_the_caller() -> None:
    def work() -> None:
        raise ValueError("from the run")

    with pytest.raises(ValueError, match="from the run"):
        in_background(work, tick=lambda: None)


def test_the_handlers_of_before_come_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stop_on_signals(threading.Event(), Display()):
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_epoch_finish(number: signal.Signals) -> None:
    process = start(epoch=0.2)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "committed\n")
    assert "stopping after this epoch" in err


def test_a_second_ctrl_c_ends_at_once_with_130() -> None:
    process = start(epoch=60)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "stopping" in process.stderr.readline()
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130


def test_a_second_sigterm_still_lets_the_epoch_finish() -> None:
    process = start(epoch=1)
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    assert "stopping" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "committed\n")


def test_a_file_for_the_workers_that_is_not_there_is_told_before_spark_starts(
    started: list[SparkRequest],
) -> None:
    result = CliRunner().invoke(main, ["run", "-e", "SELECT 1", "--py-files", "nowhere.py,other.zip"])
    assert result.exit_code == 2
    assert "--py-files: there is no file nowhere.py" in result.stderr
    assert not started


def test_the_next_run_is_told_every_argument_that_is_not_about_this_run_alone() -> None:
    arguments = [
        *("--udf", "f.py", "--master", "spark://h:7077", "--parallelism", "3", "--epoch-rows", "10"),
        *("--epoch-target", "2s", "--start-timeout", "9s", "--config", "my.toml", "--log-dir", "logs"),
        *(
            "--py-files",
            "a.py,b.py",
            "--py-files",
            "c.zip",
            "--conf",
            "spark.x=1",
            "--conf",
            "my.password=no",
        ),
        *("--watch",),
    ]
    of_this_run = ["--max-epochs", "1", "--stop-after", "1s", "--from-epoch", "2", "--allow-drop"]
    with run.make_context("run", ["q.sql", *arguments, *of_this_run]) as context:
        flags = RunFlags(**{n: v for n, v in context.params.items() if n not in {"files", "texts"}})
    assert flags.repeated() == [a.replace("=no", "=***") for a in arguments]
