"""How a pipeline is run, beyond what most runs need to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.api.call_site import call_site
from headrace.jobs.settings import Settings, load_settings


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Settings of a run that are seldom needed, for the `options` of `pipeline.run` and `pipeline.start`.

    What is None here comes from the environment, from `headrace.toml`, or is the default:
    docs/reference/settings.md lists them.

    >>> import headrace as hr
    >>> hr.RunOptions(restarts=5, epoch_target="2s").restarts
    5
    """

    available_now: bool | None = None
    """Whether the run ends when what is there at its start is read; the next one reads what came since."""
    epoch_target: str | timedelta | None = None
    """How long an epoch should take; its size adapts to it."""
    restarts: int | None = None
    """How often an epoch is tried again after an error that may pass."""
    start_timeout: str | timedelta | None = None
    """How long to wait, before the first epoch, for servers that do not answer yet."""
    keep_checkpoints: int | None = None
    """How many checkpoints are kept."""
    compact_after: int | None = None
    """Files of one table and subtask that are merged into one."""
    memory: str | None = None
    """The memory of Spark's driver, as `4g`."""
    spark_conf: Mapping[str, str] | None = None
    """Settings of Spark."""
    py_files: Sequence[str] = ()
    """Files and folders of Python code that the workers need."""
    log_dir: str | Path | None = None
    """Where Spark's log goes."""
    config: str | Path | None = None
    """A settings file in the place of `headrace.toml`."""
    verbose: bool = False
    """Whether Spark's log is printed."""

    def _settings(
        self, *, state_dir: str | Path | None, master: str | None, run: Mapping[str, Any]
    ) -> Settings:
        return load_settings(
            flags={
                "run": {
                    **run,
                    "available_now": self.available_now,
                    "epoch_target": self.epoch_target,
                    "restarts": self.restarts,
                    "start_timeout": self.start_timeout,
                },
                "state": {
                    "dir": None if state_dir is None else str(state_dir),
                    "keep_checkpoints": self.keep_checkpoints,
                    "compact_after": self.compact_after,
                },
                "spark": {"master": master, "memory": self.memory, "conf": self.spark_conf},
                "log": {"dir": None if self.log_dir is None else str(self.log_dir)},
            },
            flags_at=call_site(),
            config=None if self.config is None else Path(self.config),
        )
