"""Settings of a run that most runs leave at their defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.api.arguments import check_argument
from headrace.base.call_site import call_site, located
from headrace.base.execution import EngineName, ExecutionMode
from headrace.jobs.settings import Settings, check_values, load_settings


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Less common settings of a run, for the argument `options` of `pipeline.run` and `pipeline.start`.

    A setting that is None is taken from the environment, from `headrace.toml`, or has its default: see
    docs/reference/settings.md.

    Raises:
        ConfigurationError: a value is wrong.

    >>> import headrace as hr
    >>> hr.RunOptions(restarts=5, epoch_target="2s").restarts
    5
    """

    available_now: bool | None = None
    """Whether to process the data available at the start, then stop; a later run reads newer data."""
    epoch_target: str | timedelta | None = None
    """The target duration of an epoch; the size of epochs adapts to it."""
    execution: ExecutionMode | None = None
    """`resident`: a long-running task processes messages of a dataflow as they arrive; `epochs`; `auto`."""
    engine: EngineName | None = None
    """`spark`, or `local`: tasks run in this process, without Spark and Java, for development."""
    restarts: int | None = None
    """How often an epoch is retried after a transient error."""
    start_timeout: str | timedelta | None = None
    """How long to wait before the first epoch for servers that do not answer."""
    keep_checkpoints: int | None = None
    """The number of checkpoints that are kept."""
    compact_after: int | None = None
    """The number of files of one table and subtask that are merged into one."""
    memory: str | None = None
    """The memory of Spark's driver, such as `4g`."""
    spark_conf: Mapping[str, str] | None = None
    """Settings of Spark."""
    py_files: Sequence[str] = ()
    """Python files and directories that the workers need."""
    log_dir: str | Path | None = None
    """The directory of log files."""
    metrics_port: int | None = None
    """The port of `/metrics` for Prometheus, `/healthz` and `/readyz`."""
    metrics_host: str | None = None
    """The address to listen on; the loopback address by default."""
    config: str | Path | None = None
    """A settings file instead of `headrace.toml`."""
    verbose: bool = False
    """Whether Spark's log is printed."""

    @located
    def __post_init__(self) -> None:
        for name in ("log_dir", "config"):
            if getattr(self, name) is not None:
                check_argument(getattr(self, name), name, (str, Path), "a path", example=f"{name}='logs'")
        check_argument(self.verbose, "verbose", (bool,), "True or False", example="verbose=True")
        check_argument(self.py_files, "py_files", (list, tuple), "a list", example="py_files=['lib']")
        check_values(self._flags(), flags_at=call_site())

    def _flags(self) -> dict[str, dict[str, Any]]:
        """The settings by section and key; None where they are not given."""
        return {
            "run": {
                "available_now": self.available_now,
                "epoch_target": self.epoch_target,
                "execution": self.execution,
                "engine": self.engine,
                "restarts": self.restarts,
                "start_timeout": self.start_timeout,
            },
            "state": {"keep_checkpoints": self.keep_checkpoints, "compact_after": self.compact_after},
            "spark": {"memory": self.memory, "conf": self.spark_conf},
            "log": {"dir": None if self.log_dir is None else str(self.log_dir)},
            "metrics": {"port": self.metrics_port, "host": self.metrics_host},
        }

    def _settings(
        self, *, state_dir: str | Path | None, master: str | None, run: Mapping[str, Any]
    ) -> Settings:
        flags = self._flags()
        flags["run"] |= run
        flags["state"]["dir"] = None if state_dir is None else str(state_dir)
        flags["spark"]["master"] = master
        return load_settings(
            flags=flags,
            flags_at=call_site(),
            config=None if self.config is None else Path(self.config),
        )


RunOptions.__init__ = located(RunOptions.__init__)  # type: ignore[method-assign]
