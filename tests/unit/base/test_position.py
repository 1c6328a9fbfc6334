"""Where a process is, in a file that is still there when it has died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from headrace.base.position import NOWHERE, WIDTH, move_to, position_label

PROGRAM = """
import os, sys
from pathlib import Path
from headrace.base.position import keep_position, move_to, position_label

move_to(position_label("operator a, subtask 0, epoch 1"))
keep_position(Path(sys.argv[1]))
before = move_to(position_label("operator b, subtask 0, epoch 1"))
if sys.argv[2] == "back":
    move_to(before)
os.kill(os.getpid(), 9)
"""


def test_the_position_of_a_killed_process_is_in_its_file(tmp_path: Path) -> None:
    for word, operator in (("in", "b"), ("back", "a")):
        file = tmp_path / word
        file.touch()
        died = subprocess.run([sys.executable, "-c", PROGRAM, str(file), word], timeout=60, check=False)
        assert died.returncode == -signal.SIGKILL
        assert file.read_text().split("\n")[0].rstrip() == f"operator {operator}, subtask 0, epoch 1"


def test_every_label_is_one_line_of_the_same_width_and_whole_letters() -> None:
    for text in ("", "a", "two\nlines", "é" * WIDTH, "x" + "é" * WIDTH, os.sep * 1000):
        label = position_label(text)
        assert len(label) == WIDTH
        assert b"\n" not in label
        label.decode()


def test_without_a_file_a_position_is_only_remembered() -> None:
    label = position_label("operator a")
    before = move_to(label)
    assert move_to(before) == label
    assert len(NOWHERE) == WIDTH
