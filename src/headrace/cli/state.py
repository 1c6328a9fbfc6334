"""`headrace state`: look into the checkpoints of a pipeline, running or stopped."""

from __future__ import annotations

import click


@click.group
def state() -> None:
    """Look into the checkpoints of a pipeline."""
