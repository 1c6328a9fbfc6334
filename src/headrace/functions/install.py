"""Makes Headrace's own functions known to DataFusion."""

from __future__ import annotations

from datafusion import SessionContext


def install_functions(ctx: SessionContext) -> None:
    """Register every function of this package."""
