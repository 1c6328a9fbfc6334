"""`python -m bench.server_load`: what a server with many pipelines costs while many clients poll it.

Some of the pipelines run. Clients ask what the console asks, as often as it does: the progress of all every
two seconds, the list every fifteen, and half of them a page of one pipeline. It prints how long answers took,
and the CPU time and memory of the server's process alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

from tests.serving import Server

QUERY = """CREATE TABLE numbers (counter BIGINT) WITH (connector = 'impulse', event_rate = 100);
SELECT counter % 10 AS k, count(*) AS n FROM numbers GROUP BY counter % 10, tumble(INTERVAL '1 second')"""
EVERY_SECONDS = 2.0
LIST_EVERY = 7
"""The list is asked for once in so many rounds."""


def main() -> int:
    """Create pipelines, poll them, and print what it cost."""
    parser = argparse.ArgumentParser(prog="python -m bench.server_load", description=__doc__)
    parser.add_argument("--pipelines", type=int, default=50, metavar="N")
    parser.add_argument("--running", type=int, default=3, metavar="N")
    parser.add_argument("--clients", type=int, default=20, metavar="N")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="N")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-load-") as folder:
        server = Server(Path(folder), "--master", "local[1]")
        try:
            _measure(server, asked)
        finally:
            server.close()
    return 0


def _measure(server: Server, asked: argparse.Namespace) -> None:
    for number in range(asked.pipelines - asked.running):
        pipeline = server.create(f"at_rest_{number:03}", QUERY)
        server.patch(f"/pipelines/{pipeline}", {"stop": "force"})
    running = [server.create(f"running_{number}", QUERY) for number in range(asked.running)]
    for pipeline in running:
        server.await_state(pipeline, "Running")
        server.await_checkpoint(pipeline)
    paths = [server.path(pipeline) for pipeline in running]
    seconds: dict[str, list[float]] = defaultdict(list)
    over = threading.Event()
    clients = [
        threading.Thread(target=_poll, args=(server, paths[number % len(paths)], number, seconds, over))
        for number in range(asked.clients)
    ]
    before, began = _cpu_seconds(server.process.pid), time.monotonic()
    for client in clients:
        client.start()
    time.sleep(asked.seconds)
    over.set()
    for client in clients:
        client.join()
    lasted = time.monotonic() - began
    used = _cpu_seconds(server.process.pid) - before
    requests = sum(map(len, seconds.values()))
    write = sys.stdout.write
    write(f"{asked.pipelines} pipelines, {asked.running} of them running, {asked.clients} clients\n")
    memory = _memory(server.process.pid) / 2**20
    write(f"{requests} requests in {lasted:.0f} s; the server used {used / lasted:.2f} of a core, ")
    write(f"{used / requests * 1e3:.1f} ms for a request, and has {memory:.0f} MiB\n")
    for what, times in sorted(seconds.items()):
        times.sort()
        write(
            f"  {what}: {len(times)}, {times[len(times) // 2] * 1e3:.0f} ms in the middle, "
            f"{times[int(len(times) * 0.95)] * 1e3:.0f} ms for 95 of 100, {times[-1] * 1e3:.0f} ms at most\n"
        )


def _poll(
    server: Server, path: str, number: int, seconds: dict[str, list[float]], over: threading.Event
) -> None:
    """Ask as a page of the console does."""
    turn = number
    while not over.wait(EVERY_SECONDS):
        turn += 1
        asked = {"progress of all": "/progress"}
        if turn % LIST_EVERY == 0:
            asked["list"] = "/pipelines?limit=500"
        if number % 2:
            asked |= {"metrics": f"{path}/operator_metric_groups", "operators": f"{path}/operators"}
        for what, question in asked.items():
            began = time.monotonic()
            server.get(question)
            seconds[what].append(time.monotonic() - began)


def _cpu_seconds(pid: int) -> float:
    """The CPU time that a process has used, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
