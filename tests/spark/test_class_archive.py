"""The archive of Spark's classes is made behind the first process, and used by the next one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="what a process has mapped is asked of Linux"),
]

OPEN = """
from pathlib import Path
from headrace.exchanges.spark.session import SparkRequest, open_spark
runtime = open_spark(SparkRequest("local[1]", "512m", {}))
assert runtime.spark.parallelize(range(4), 2).sum() == 6
print(".jsa" in Path(f"/proc/{runtime.java.pid}/maps").read_text().replace("classes.jsa", ""))
"""
"""Says whether Java has mapped an archive besides the one of its own classes."""


def test_java_starts_from_an_archive_that_was_made_behind_the_first_process(tmp_path: Path) -> None:
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    for name in ("TMPDIR", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        environ.pop(name, None)

    def has_mapped() -> str:
        command = [sys.executable, "-c", OPEN]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert has_mapped() == "False"
    folder = tmp_path / "headrace" / "java"
    until = time.monotonic() + 420
    while not list(folder.glob("*.jsa")):
        failed = [file.read_text() for file in folder.glob("*.failed")]
        assert not failed
        assert time.monotonic() < until, "nobody has made it"
        time.sleep(0.2)
    assert has_mapped() == "True"
