"""`python -m bench.peers install`: an environment for each peer below `build/peers`, with pinned versions.

A peer that cannot be installed is left out, and it is said why. What is installed already is left as it is.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "peers"
PEERS = ("pyflink", "bytewax", "pathway", "dora")
PYTHON = "3.11"
"""All of them have wheels for it."""
JARS = (
    "org.apache.flink:flink-sql-parquet:2.3.0",
    "org.apache.hadoop:hadoop-client-api:3.4.1",
    "org.apache.hadoop:hadoop-client-runtime:3.4.1",
    "commons-logging:commons-logging:1.3.5",
    "com.github.luben:zstd-jni:1.5.6-6",
)
"""The jars that Flink needs to read Parquet; PyFlink does not include them."""


class InstallError(Exception):
    """An installer failed, or does not exist."""


def main(argv: list[str] | None = None) -> int:
    """Install what can be installed; fails only if nothing can be."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("command", choices=["install"])
    parser.add_argument("--peer", choices=PEERS, action="append", help="only this one; repeatable")
    peers = parser.parse_args(argv).peer or PEERS
    missing = 0
    for peer in peers:
        try:
            print(f"{peer}: {_install(peer)}")
        except InstallError as error:
            missing += 1
            shutil.rmtree(BUILD / peer, ignore_errors=True)
            print(f"{peer}: not installed, {error}", file=sys.stderr)
    return 1 if missing == len(peers) else 0


def _install(peer: str) -> str:
    requirements = Path(__file__).with_name(f"{peer}.txt")
    pinned = requirements.read_text(encoding="utf-8") + ("\n".join(JARS) if peer == "pyflink" else "")
    stamp = BUILD / peer / "installed.txt"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == pinned:
        return "is installed"
    uv = str(Path(sys.executable).with_name("uv"))
    python = BUILD / peer / "bin" / "python"
    _run(uv, "venv", "--quiet", "--clear", "--python", PYTHON, str(BUILD / peer))
    _run(uv, "pip", "install", "--quiet", "--python", str(python), "-r", str(requirements))
    if peer == "pyflink":
        _run("java", "-version")
        (libraries,) = (BUILD / peer).glob("lib/python*/site-packages/pyflink/lib")
        for jar in JARS:
            _run("mvn", "-q", "-B", "dependency:copy", f"-Dartifact={jar}", f"-DoutputDirectory={libraries}")
    stamp.write_text(pinned, encoding="utf-8")
    return "installed"


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise InstallError(f"{command[0]} is missing") from None
    if done.returncode:
        output = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise InstallError(
            "\n".join([f"{' '.join(command[:3])} ended with {done.returncode}:", *output[-5:]])
        )


if __name__ == "__main__":
    sys.exit(main())
