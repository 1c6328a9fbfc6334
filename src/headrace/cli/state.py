"""`headrace state`: inspect and maintain the checkpoints of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.base.errors import CorruptStateError, UserError
from headrace.cli.terminal import print_fields, print_json, print_table, stderr, verbose_option

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.state.inspect import CheckpointSummary, OperatorDescription
    from headrace.storage.base import Storage

F = TypeVar("F", bound=Callable[..., Any])

MOST_ROWS = 1000
"""How many rows a printed table has at most; `--json` has no limit."""


def _state_dir(function: F) -> F:
    return click.argument("state_dir", metavar="STATE_DIR")(function)


def _json(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="JSON lines instead of tables.")(function)


def _epoch(function: F) -> F:
    return click.option(
        "-e",
        "--epoch",
        type=click.IntRange(min=0),
        metavar="N",
        help="The epoch of a checkpoint; the latest unless set.",
    )(function)


@click.group
def state() -> None:
    """Inspect and maintain the checkpoints of a pipeline.

    STATE_DIR is the path or URL that was given to `headrace run --state-dir`. Checkpoints can be inspected
    while the pipeline runs; compact, cleanup and repair are refused until it has stopped.
    """


@state.command("list")
@_state_dir
@_json
@verbose_option
def list_(state_dir: str, as_json: bool, verbose: bool) -> None:  # noqa: ARG001
    """List the checkpoints, the oldest first."""
    from headrace.cli.progress import format_bytes
    from headrace.state.inspect import list_checkpoints

    checkpoints = list_checkpoints(_open(state_dir))
    if as_json:
        for checkpoint in checkpoints:
            print_json(asdict(checkpoint))
        return
    rows = [
        (
            checkpoint.epoch,
            *(
                (_time(checkpoint.finish_time), _took(checkpoint.start_time, checkpoint.finish_time))
                if checkpoint.problem is None
                else ("", "")
            ),
            _status(checkpoint, later=checkpoint is not checkpoints[-1]),
            checkpoint.parallelism or "",
            checkpoint.operators,
            checkpoint.files,
            f"{checkpoint.rows:,}",
            format_bytes(checkpoint.bytes),
        )
        for checkpoint in checkpoints
    ]
    columns = ("epoch", "at (UTC)", "took", "status", "parallelism", "operators", "files", "rows", "size")
    print_table(columns, rows, right=("epoch", "took", "parallelism", "operators", "files", "rows", "size"))


@state.command
@_state_dir
@_epoch
@_json
@verbose_option
def show(state_dir: str, epoch: int | None, as_json: bool, verbose: bool) -> None:  # noqa: ARG001
    """Show what one checkpoint holds."""
    from headrace.cli.progress import format_bytes
    from headrace.state import inspect
    from headrace.state.backend import ParquetBackend

    storage = _open(state_dir)
    checkpoint = inspect.show(storage, epoch)
    if as_json:
        print_json(asdict(checkpoint))
        return
    metadata = checkpoint.metadata
    later = metadata.epoch < (ParquetBackend(storage).latest_epoch() or 0)
    took = _took(metadata.start_time, metadata.finish_time)
    offsets = checkpoint.offsets.get("sources", {})
    print_fields(
        {
            "checkpoint": f"{metadata.epoch} of pipeline `{metadata.pipeline}`, job {metadata.job_id}",
            "status": _state_of(committed=checkpoint.committed or later, finished=metadata.finished),
            "at": f"{_time(metadata.finish_time)} UTC, took {took}",
            "parallelism": metadata.parallelism,
            "its rows": f"{metadata.rows_in:,} in · {metadata.rows_out:,} out",
            **{f"source {name}": f"continues at {_short(offset)}" for name, offset in offsets.items()},
        }
    )
    tables = [
        (
            operator.operator_id,
            _watermark(operator),
            operator.saved,
            table.name,
            f"{table.kind} v{table.version}",
            ", ".join(table.key),
            f"{table.rows:,}",
            len({file.file for file in table.files}),
            format_bytes(table.bytes),
            inspect.query_name(operator.operator_id, table.name),
        )
        for operator in checkpoint.operators
        for table in operator.tables
    ]
    if not tables:
        click.echo("no operator keeps state")
        return
    click.echo()
    columns = ("operator", "watermark", "saved in", "table", "kind", "key", "rows", "files", "size", "in SQL")
    print_table(columns, tables, right=("saved in", "rows", "files", "size"))


@state.command
@_state_dir
@click.argument("sql")
@_epoch
@_json
@verbose_option
def query(state_dir: str, sql: str, epoch: int | None, as_json: bool, verbose: bool) -> None:  # noqa: ARG001
    """Run SQL over the rows of the tables.

    `headrace state show` says what each table is called in SQL.
    """
    from headrace.state import inspect

    rows = inspect.query(_open(state_dir), sql, epoch)
    if as_json:
        from headrace.formats.json.format import encode_json_lines

        click.echo(encode_json_lines(rows), nl=False)
        return
    print_table(rows.column_names, _cells(rows.slice(0, MOST_ROWS)), right=_numbers(rows.schema))
    if rows.num_rows > MOST_ROWS:
        stderr().print(f"… and {rows.num_rows - MOST_ROWS:,} more rows: --json shows all", style="dim")


@state.command
@_state_dir
@_json
@verbose_option
def compact(state_dir: str, as_json: bool, verbose: bool) -> None:  # noqa: ARG001
    """Merge the files of the latest checkpoint.

    Replaced, deleted and expired rows are dropped. The pipeline must not be running.
    """
    from headrace.cli.progress import format_bytes
    from headrace.state.compaction import compact as compact_checkpoint

    report = compact_checkpoint(_open(state_dir))
    if as_json:
        print_json(asdict(report))
        return
    print_table(
        (f"checkpoint {report.epoch}", "files", "rows", "size"),
        [
            ("before", report.files_before, f"{report.rows_before:,}", format_bytes(report.bytes_before)),
            ("after", report.files_after, f"{report.rows_after:,}", format_bytes(report.bytes_after)),
        ],
        right=("files", "rows", "size"),
    )
    for table in report.skipped:
        click.echo(f"{table} was left alone: it waits for a migration to its new version")


@state.command
@_state_dir
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="The number of checkpoints to keep.",
)
@_json
@verbose_option
def cleanup(state_dir: str, keep: int, as_json: bool, verbose: bool) -> None:  # noqa: ARG001
    """Remove all but the last checkpoints.

    Their files go too, if no other checkpoint refers to them. The pipeline must not be running.
    """
    from headrace.state import inspect

    removed = inspect.cleanup(_open(state_dir), keep)
    if as_json:
        print_json({"removed": removed})
    elif removed:
        click.echo(f"removed {len(removed)} checkpoints: {_ranges(removed)}")
    else:
        click.echo("nothing to remove")


@state.command
@_state_dir
@click.option(
    "-e",
    "--epoch",
    type=click.IntRange(min=0),
    metavar="N",
    help="The epoch of a checkpoint; all checkpoints unless set.",
)
@_json
@verbose_option
def verify(state_dir: str, epoch: int | None, as_json: bool, verbose: bool) -> None:  # noqa: ARG001
    """Read and check everything the checkpoints need.

    The size and checksum of every file that a checkpoint refers to: its metadata, state files, what sinks
    have staged, rows that wait for a file, received messages, and listings and snapshots of sources. The exit
    code is 1 if a file is missing or damaged.
    """
    from headrace.cli.progress import format_bytes
    from headrace.state import inspect
    from headrace.state.verify import KINDS

    results = inspect.verify(_open(state_dir), epoch)
    if as_json:
        for result in results:
            print_json(asdict(result))
    else:
        rows = [
            (
                result.epoch,
                *(result.files[kind] for kind in KINDS),
                format_bytes(result.bytes),
                "damaged" if result.problems else "whole",
            )
            for result in results
        ]
        print_table(("epoch", *KINDS, "size", "status"), rows, right=("epoch", *KINDS, "size"))
        for problem in dict.fromkeys(problem for result in results for problem in result.problems):
            click.echo(problem)
        unchecked = max((result.unchecked for result in results), default=0)
        if unchecked:
            click.echo(f"{unchecked} files have no checksum: an earlier version wrote them")
    damaged = [result.epoch for result in results if result.problems]
    if damaged:
        whole = [result.epoch for result in results if not result.problems]
        raise CorruptStateError(
            f"{len(damaged)} of {len(results)} checkpoints are damaged: {_ranges(damaged)}",
            where=state_dir,
            hint=f"the last whole checkpoint is epoch {whole[-1]}"
            if whole
            else "restore the files that are named above from a copy",
        )


@state.command
@_state_dir
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@_json
@verbose_option
def repair(state_dir: str, dry_run: bool, as_json: bool, verbose: bool) -> None:  # noqa: ARG001
    """Remove the files that no checkpoint refers to.

    They are of unfinished epochs, failed attempts and interrupted writes. What a checkpoint refers to and
    received messages stay. The pipeline must not be running. On an object store files of the last day stay.
    """
    from headrace.cli.progress import format_bytes
    from headrace.state import inspect

    report = inspect.repair(_open(state_dir), dry_run=dry_run)
    if as_json:
        print_json(asdict(report))
        return
    for path in report.removed:
        click.echo(path)
    if not report.removed:
        click.echo("nothing to remove")
        return
    done = "would be removed" if dry_run else "removed"
    click.echo(f"{len(report.removed)} files, {format_bytes(report.bytes)}: {done}")


@state.command
@_state_dir
@click.argument("directory")
@_epoch
@_json
@verbose_option
def export(state_dir: str, directory: str, epoch: int | None, as_json: bool, verbose: bool) -> None:  # noqa: ARG001
    """Write every table as a Parquet file into DIRECTORY."""
    from headrace.state import inspect

    for path in inspect.export(_open(state_dir), directory, epoch):
        if as_json:
            print_json({"file": path})
        else:
            click.echo(path)


def _open(state_dir: str) -> Storage:
    """The storage of a state directory that has checkpoints in it; nothing is created."""
    from headrace.state.backend import ParquetBackend
    from headrace.storage.open import open_storage

    storage = open_storage(state_dir)
    if not ParquetBackend(storage).epochs():
        raise UserError(
            f"there is no checkpoint in `{storage.url}`",
            hint="is this the state directory of a pipeline that has run?",
        )
    return storage


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _took(start: float, finish: float) -> str:
    from headrace.base.durations import format_duration

    return format_duration(timedelta(seconds=max(finish - start, 0.0)))


def _status(checkpoint: CheckpointSummary, *, later: bool) -> str:
    if checkpoint.problem is not None:
        return f"cannot be read: {checkpoint.problem}"
    return _state_of(committed=checkpoint.committed or later, finished=checkpoint.finished)


def _state_of(*, committed: bool, finished: bool) -> str:
    """The status of a checkpoint; a saved one is durable, and its sinks commit it on resume."""
    status = "committed" if committed else "saved"
    return f"{status}, end of data" if finished else status


def _watermark(operator: OperatorDescription) -> str:
    from headrace.base.watermarks import Watermark, merge

    values = operator.watermarks.values()
    merged = merge(None if value is None else Watermark.from_json(value) for value in values)
    return "none yet" if merged is None else str(merged)


def _short(offset: Any, most: int = 120) -> str:
    import json

    text = json.dumps(offset, ensure_ascii=False)
    return text if len(text) <= most else text[: most - 1] + "…"


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers as `1–4, 7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("–".join(map(str, run)) for run in runs)


def _numbers(schema: pa.Schema) -> list[str]:
    import pyarrow as pa

    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return [field.name for field in schema if any(kind(field.type) for kind in kinds)]


def _cells(rows: pa.Table) -> list[tuple[str, ...]]:
    from headrace.formats.json.format import encode_json_values

    columns = []
    for column in rows.combine_chunks().columns:
        chunk = column.combine_chunks()
        texts = encode_json_values(chunk).to_pylist()
        valid = chunk.is_valid().to_pylist()
        columns.append([text.strip('"') if ok else "" for text, ok in zip(texts, valid, strict=True)])
    return list(zip(*columns, strict=True))
