"""The options of the `postgres` source."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from headrace.base.options import Duration
from headrace.connectors.postgres.client import PostgresOptions


class PostgresSourceOptions(PostgresOptions):
    """The options of the postgres source."""

    source_changes: Literal["all", "inserts"] = Field(
        "all",
        alias="source.changes",
        description="`all`: rows are added and retracted as the table changes; `inserts`: inserts only.",
    )
    source_snapshot: bool = Field(
        default=True,
        alias="source.snapshot",
        description="Read a snapshot of the existing rows first.",
    )
    source_bounded: bool = Field(
        default=False,
        alias="source.bounded",
        description=(
            "End, for good, after the snapshot of the existing rows: a later run reads nothing. For runs "
            "that each read what changed since the last one, use `available_now`."
        ),
    )
    source_slot: str | None = Field(
        None,
        alias="source.slot",
        pattern="^[a-z0-9_]{1,63}$",
        description="The replication slot to create; by default it is named after the pipeline.",
    )
    source_publication: str | None = Field(
        None,
        min_length=1,
        alias="source.publication",
        description="The publication that includes the table; created if it is missing.",
    )
    source_truncate: Literal["fail", "ignore"] = Field(
        "fail",
        alias="source.truncate",
        description="What to do when the table is truncated: end the run, or keep the rows.",
    )
    bad_data: Literal["fail", "drop", "dead_letter"] = Field(
        "fail",
        description=(
            "What to do with rows that have a value out of range for its column, such as the "
            "timestamp `infinity`: end the run, drop and count them, or send them to the output "
            "`dead_letter` (in SQL: `dead_letter_table`)."
        ),
    )
    idle_timeout: Duration | None = Field(
        None, description="After this long without changes the source no longer holds the watermark back."
    )

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        if self.source_bounded and not self.source_snapshot:
            raise ValueError("`source.bounded` without `source.snapshot` would read nothing")
        return self
