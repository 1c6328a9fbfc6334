"""How Java and the workers are started."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.exchanges.spark.launch import _java_options, _local_directory, _unix_sockets

VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_garbage_collector_is_chosen_where_nobody_has_chosen_one() -> None:
    assert "-XX:+UseParallelGC" in _java_options({})


@pytest.mark.parametrize("name", VARIABLES)
def test_the_environment_chooses_the_garbage_collector(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "-Dx=y -XX:+UseG1GC")
    assert "GC" not in _java_options({})


def test_the_settings_choose_the_garbage_collector() -> None:
    assert "GC" not in _java_options({"spark.driver.defaultJavaOptions": "-XX:+UseZGC"})


def test_java_keeps_little_garbage_unless_its_memory_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "-XX:MaxNewSize=128m" in _java_options({})
    assert "NewSize" not in _java_options({"spark.driver.memory": "4g"})
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Xmn1g")
    assert "NewSize" not in _java_options({})


def test_spark_keeps_its_files_and_sockets_where_only_this_user_can_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TMPDIR", raising=False)
    local = Path(_local_directory()["spark.local.dir"])
    sockets = Path(_unix_sockets()["spark.python.unix.domain.socket.dir"])
    assert local.is_relative_to(tmp_path / "headrace" / "run")
    for directory in (local, local.parent, sockets):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert f"-{os.getpid()}-" in str(directory)
    assert f"-Djava.io.tmpdir={local.parent}" in _java_options({})
    assert "java.io.tmpdir" not in _java_options({"spark.driver.defaultJavaOptions": "-Djava.io.tmpdir=/x"})


FORKS = """
import os
from headrace.exchanges.spark import daemon
daemon._load()
import numpy as np
for _ in range(2):
    if os.fork() == 0:
        print(np.random.random(), flush=True)
        os._exit(0)
    os.wait()
"""


def test_workers_draw_different_random_numbers() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    first, second = done.stdout.split()
    assert first != second
