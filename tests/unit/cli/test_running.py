"""`headrace list`, `top`, `stop` and `rescale` through the socket of a run."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.base.errors import UserError
from headrace.base.private import socket_address, socket_addresses
from headrace.cli.main import main
from headrace.engine.rescaling import Rescaling
from headrace.jobs.control import ControlSocket, running_pipelines


@pytest.fixture(autouse=True)
def own_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs of others on this machine are not seen."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="h") as short:  # sockets need short paths
        monkeypatch.setenv("XDG_CACHE_HOME", short)
        monkeypatch.setenv("TMPDIR", short)
        yield


def headrace(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def status(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "job": f"{name}-5f3a9c",
        "pid": os.getpid(),
        "started": 1_700_000_000.0,
        "state": "running",
        "message": "epoch 7: 10 rows/s",
        "state_dir": None,
        "progress": {"epoch": 7, "total_in": 1200, "total_out": 30},
        "metrics": {"runtime": {"rows_in": 1200.0, "events": 2400.0, "dropped": 3.0}},
        **more,
    }


def test_a_run_is_listed_shown_and_stopped_by_its_name() -> None:
    told = threading.Event()
    with (
        ControlSocket(lambda: status("clicks"), told.set),
        ControlSocket(lambda: status("maps", started=1_700_000_001.0), print),
    ):
        listed = headrace("list")
        assert listed.exit_code == 0
        assert [line.split()[0] for line in listed.output.splitlines()] == ["NAME", "clicks", "maps"]
        assert "1,200" in listed.output
        assert json.loads(headrace("list", "--json").output.splitlines()[0])["job"] == "clicks-5f3a9c"
        shown = headrace("top", "clicks", "--once").output
        assert shown.splitlines()[1].split() == [
            "OPERATOR",
            "ROWS",
            "IN",
            "EVENTS",
            "DROPPED",
            "PER",
            "SECOND",
        ]
        assert shown.splitlines()[2].split() == ["runtime", "1,200", "2,400", "3", "-"]
        stopped = headrace("stop", "clicks", "--no-wait")
        assert (stopped.exit_code, told.is_set()) == (0, True), stopped.output
    assert headrace("list").output == "nothing runs\n"


def test_stop_waits_until_the_run_is_over() -> None:
    over = threading.Event()

    def run() -> None:
        with ControlSocket(lambda: status("clicks"), over.set):
            over.wait()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while not running_pipelines():
        time.sleep(0.01)
    assert headrace("stop").exit_code == 0
    thread.join()
    assert running_pipelines() == []


def test_a_run_is_rescaled_by_its_name_and_the_command_waits_until_it_is_in_effect() -> None:
    rescaling = Rescaling(2)
    answers = iter([2, 2, 3])

    def described() -> dict[str, Any]:
        parallelism = next(answers, 3)
        if parallelism == 3:
            rescaling.settle(3)
        return status("clicks", parallelism=parallelism)

    with ControlSocket(described, print, dict, rescaling.request):
        told = headrace("rescale", "clicks", 3)
        assert told.exit_code == 0, told.output
        assert told.output == f"clicks (process {os.getpid()}) has gone from 2 subtasks to 3\n"
        assert rescaling.take() is None
        told = headrace("rescale", "clicks", 5, "--no-wait")
        assert told.output == f"clicks (process {os.getpid()}) is told to go from 3 subtasks to 5\n"
        assert rescaling.take() == 5
        assert headrace("rescale", "clicks", 0).exit_code == 2
        with pytest.raises(UserError, match="whole number"):
            running_pipelines()[0].rescale(0)


def test_a_run_of_a_version_that_cannot_be_rescaled_says_so() -> None:
    with ControlSocket(lambda: status("clicks"), print):
        refused = headrace("rescale", "clicks", 3)
        assert refused.exit_code == 1
        assert "another version" in refused.output


def test_a_name_that_does_not_run_and_one_that_is_not_enough_are_said() -> None:
    assert "no pipeline of this user runs" in headrace("stop").output
    with ControlSocket(lambda: status("clicks"), print), ControlSocket(lambda: status("maps"), print):
        for arguments, message in [
            (("stop", "click"), "did you mean `clicks`"),
            (("top", "--once"), "2 pipelines run"),
            (("stop", "maps", "--all"), "one too many"),
        ]:
            refused = headrace(*arguments)
            assert refused.exit_code == 2, refused.output
            assert message in refused.output


def test_the_socket_of_a_run_is_private_and_that_of_a_killed_one_is_removed() -> None:
    with ControlSocket(lambda: status("clicks"), print):
        (address,) = socket_addresses("-control")
        assert stat.S_IMODE(address.stat().st_mode) == 0o600
        assert stat.S_IMODE(address.parent.stat().st_mode) == 0o700
    stale = socket_address(os.getpid(), "dead-control")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))
    assert running_pipelines() == []
    assert not stale.exists()


def test_a_pipeline_that_was_killed_is_not_listed() -> None:
    script = (
        "import os, signal\nfrom headrace.jobs.control import ControlSocket\n"
        "with ControlSocket(dict, print):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=False)
    assert headrace("list").output == "nothing runs\n"


def test_a_run_of_a_server_is_left_to_its_server() -> None:
    told = threading.Event()
    served = {"served": lambda: True}
    with ControlSocket(lambda: status("clicks"), told.set, questions=served):
        for command in (("stop", "clicks"), ("rescale", "clicks", 2)):
            refused = headrace(*command)
            assert refused.exit_code == 2
            assert "belongs to a server" in refused.stderr
        skipped = headrace("stop", "--all", "--no-wait")
        assert skipped.exit_code == 0
        assert "belongs to a server" in skipped.output
    assert not told.is_set()
