"""The ways in which a pipeline can run."""

from __future__ import annotations

from typing import Literal

ExecutionMode = Literal["auto", "resident", "epochs"]
"""How a pipeline runs: its task stays and handles inputs as they come, or each epoch is a job of its own."""

EngineName = Literal["spark", "local"]
"""Where the tasks of a pipeline run: on Spark, or one after the other in its own process."""
