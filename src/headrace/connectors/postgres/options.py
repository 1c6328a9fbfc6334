"""What can be said about the table that `postgres` reads."""

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
        description="`all`: rows are added and taken back as the table changes; `inserts`: only added.",
    )
    source_snapshot: bool = Field(
        default=True,
        alias="source.snapshot",
        description="Whether the rows that are there when the pipeline first starts come first.",
    )
    source_bounded: bool = Field(
        default=False,
        alias="source.bounded",
        description="Whether to finish with the rows that are there when the pipeline first starts.",
    )
    source_slot: str | None = Field(
        None,
        alias="source.slot",
        pattern="^[a-z0-9_]{1,63}$",
        description="The replication slot that is created; by default one named after the pipeline.",
    )
    source_publication: str | None = Field(
        None,
        min_length=1,
        alias="source.publication",
        description="The publication that holds the table; created if it is missing.",
    )
    source_truncate: Literal["fail", "ignore"] = Field(
        "fail",
        alias="source.truncate",
        description="What to do when the table is truncated: end the run, or keep the rows as they were.",
    )
    bad_data: Literal["fail", "drop", "dead_letter"] = Field(
        "fail",
        description=(
            "What to do with rows that have a value which its column cannot hold, such as the timestamp "
            "`infinity`: end the run, drop and count them, or send them to the output `dead_letter` (in "
            "SQL: `dead_letter_table`)."
        ),
    )
    idle_timeout: Duration | None = Field(
        None, description="After this long without changes the source holds the watermark back no more."
    )

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        if self.source_bounded and not self.source_snapshot:
            raise ValueError("`source.bounded` without `source.snapshot` would read nothing")
        return self
