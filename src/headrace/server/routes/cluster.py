"""The machine, the server and the processes of its pipelines."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from headrace.exchanges.spark.masters import shown_master
from headrace.jobs.usage import resident_memory
from headrace.server.database import Row
from headrace.server.models import ClusterView, ProcessView
from headrace.server.routes.dependencies import UseService
from headrace.server.service import Service

router = APIRouter(tags=["cluster"])
_ASKING_AT_ONCE = 8
_STARTED = int(time.time() * 1e6)


@router.get("/cluster")
def get_cluster(service: UseService) -> ClusterView:
    """What the server runs on, and what runs beside it."""
    memory = _memory()
    return ClusterView(
        version=version("headrace"),
        cores=os.cpu_count() or 1,
        memory=memory.get("MemTotal"),
        memory_available=memory.get("MemAvailable"),
        server_pid=os.getpid(),
        server_memory=resident_memory(os.getpid()),
        server_cpu_seconds=time.process_time(),
        started=_STARTED,
        master=_master(service, {}),
        processes=_processes(service),
    )


def _processes(service: Service) -> list[ProcessView]:
    running = [job for job in service.pipelines.jobs() if not job["process_over"]]
    with ThreadPoolExecutor(_ASKING_AT_ONCE) as pool:
        told = pool.map(lambda job: service.monitor.ask(job["id"], "metrics", False), running)
        return [_process(service, job, answer or {}) for job, answer in zip(running, told, strict=True)]


def _process(service: Service, job: Row, told: Mapping[str, Any]) -> ProcessView:
    pipeline = service.pipelines.pipeline(job["pipeline_id"])
    spark = told.get("spark") or {}
    return ProcessView(
        pipeline_id=pipeline["id"],
        pipeline=pipeline["name"],
        job_id=job["id"],
        run_id=job["run_id"],
        state=job["state"],
        pid=service.children.pid(job["id"], job["process_run"]),
        master=_master(service, pipeline["scheduler_config"]),
        **{name: spark.get(name) for name in ("cores", "active_tasks", "failed_tasks", "idle_ratio")},
        spark_url=told.get("spark_url"),
        memory=told.get("memory") or {},
    )


def _master(service: Service, scheduler: Mapping[str, Any]) -> str:
    return shown_master(scheduler.get("master") or service.options.master or "local[*]")


def _memory() -> dict[str, int]:
    """The memory of the machine, in bytes: empty without `/proc`."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    sizes = (line.partition(":") for line in lines)
    return {name: int(size.split()[0]) * 1024 for name, _, size in sizes if size.endswith(" kB")}
