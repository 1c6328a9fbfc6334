"""The `redis` sink: write rows as strings, list entries or hash fields."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from headrace.base.columns import RETRACT
from headrace.base.errors import ConfigurationError, ExternalError, PlanError
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors._shared.message_sink import StagingSink
from headrace.connectors.base import (
    Delivery,
    Refusal,
    check_column,
    excerpt,
    longer_than,
    staged_batches,
    unify_schemas,
    without_event_time,
)
from headrace.connectors.redis.client import RedisServer, RedisServerOptions, load_client
from headrace.formats.base import is_binary
from headrace.formats.options import DropOptions, FormatOptions
from headrace.model.operator import OperatorContext

BATCH_ROWS = 5_000
"""The number of rows in one pipeline, and for lists in one transaction."""
LARGEST_BYTES = 512 * 1024 * 1024
"""The most bytes of a string in Redis, by default of `proto-max-bulk-len`."""
_REMEMBERED, _MARK_SECONDS = 64, 30 * 24 * 3600
_WRITE = pa.schema(
    {"key": pa.binary(), "field": pa.binary(), "value": pa.large_binary(), "deleted": pa.bool_()}
)

Write = tuple[bytes, bytes | None, bytes, bool]


class RedisSink(StagingSink):
    """Writes rows to Redis, when their epoch is committed: as strings, in lists, or as fields of hashes.

    The key is the prefix and the value of the key column, if there is one. Of the rows of an epoch with one
    key (and, in hashes, one field) the last is written. Strings and hashes accept updating results: the key
    of a row that is retracted and not replaced is deleted. Writing them is idempotent, so each row counts
    once. Rows are written in transactions that also store the generation of the run and the progress of the
    epoch in the key `headrace:<job>:<operator>`: a retried commit continues from there, and a run that was
    replaced writes nothing. On a cluster a transaction cannot span two keys: rows of an interrupted commit
    are added to lists again, and whether the run was replaced is checked before every 5,000 rows.
    """

    class Options(RedisServerOptions, DropOptions, FormatOptions):
        """The options of the redis sink."""

        target: Literal["string", "list", "hash"] = Field(
            description=(
                "The data type to write: a `string` for each row, entries of a `list`, or fields of a `hash`."
            )
        )
        key_prefix: str = Field(
            "", alias="target.key_prefix", description="Prefix of the keys; without a key column, the key."
        )
        key_column: str | None = Field(
            None, alias="target.key_column", description="The column whose value is appended to the prefix."
        )
        ttl: int | None = Field(
            None, ge=1, alias="target.ttl_secs", description="Seconds after which a written key expires."
        )
        field_column: str | None = Field(
            None, alias="target.field_column", description="With `hash`: the column with the field name."
        )
        operation: Literal["append", "prepend"] = Field(
            "append", alias="target.operation", description="With `list`: where new rows are added."
        )
        max_length: int | None = Field(
            None, ge=1, alias="target.max_length", description="With `list`: the most entries to keep."
        )

        @model_validator(mode="after")
        def _can_be_written(self) -> Self:
            if not self.key_prefix and self.key_column is None:
                raise ValueError("it takes `target.key_prefix`, `target.key_column`, or both")
            if (self.target == "hash") != (self.field_column is not None):
                raise ValueError("`target.field_column` goes with `target` = 'hash', and is needed there")
            if self.target != "list" and not {"operation", "max_length"}.isdisjoint(self.model_fields_set):
                raise ValueError("`target.operation` and `target.max_length` go with `target` = 'list'")
            if self.format == "debezium_json" and (self.target != "list" or self.key_column is not None):
                raise ValueError(
                    "debezium_json goes with `target` = 'list' without `target.key_column`; strings and "
                    "hashes take updating results as they are: leave out `format`"
                )
            for name in (self.key_column, self.field_column):
                if name is not None and self.columns is not None:
                    try:
                        check_column(name, self.columns.names, what="redis sink")
                    except ConfigurationError as error:
                        raise ValueError(f"{error.message}; {error.hint}") from None
            return self

    options: Options
    STAGED = "writes"
    deliveries = (
        Delivery(
            "exactly once",
            "a retried commit writes the same values to the same keys",
            when="`target` = 'string' or 'hash'",
        ),
        Delivery(
            "exactly once",
            "rows are added in transactions that also store the progress of the epoch",
            when="`target` = 'list' and `address`",
        ),
        Delivery(
            "at least once",
            "rows of an interrupted commit are added again",
            when="`target` = 'list' and `cluster.addresses`",
        ),
    )

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        self.server = RedisServer(self.options)

    @property
    def accepts_updates(self) -> bool:  # type: ignore[override]
        """Whether keys can be updated and deleted, or the format can express retractions."""
        return self.options.target != "list" or self._format.updating

    def load_package(self) -> None:
        """Import the client's package."""
        load_client()

    def validate(self) -> None:
        """Raise an error if the client's package is missing or the address is not valid."""
        self.server.check_settings()

    def reach(self) -> str:
        """Return a line about the server."""
        return self.server.reach()

    def display(self) -> str:
        """Return the data type and the servers, without the password."""
        return f"{type(self).__name__}({self.options.target} at {self.server.addresses})"

    def check(self, schema: pa.Schema) -> None:
        """Raise an error unless the format, and the columns of keys and fields, can be written."""
        if RETRACT in schema.names and self.accepts_updates and not self._format.updating:
            schema = schema.remove(schema.get_field_index(RETRACT))
        super().check(schema)
        for name in (self.options.key_column, self.options.field_column):
            if name is not None:
                check_column(name, schema.names, what="redis sink")

    def write(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """Return the writes for the rows of the epoch."""
        writes = self._writes(without_event_time(pa.Table.from_batches(unify_schemas(batches))))
        return writes.combine_chunks().to_batches() if writes.num_rows else []

    def refusals(self, staged: pa.RecordBatch) -> Sequence[Refusal]:
        """Return which keys, fields and values are larger than a string of Redis may be."""
        return [
            Refusal(
                longer_than(staged.column(name), LARGEST_BYTES),
                lambda row, name=name: (  # type: ignore[misc]
                    f"the {name} of `{excerpt(staged.column('key')[row].as_py())}` has more than "
                    f"{LARGEST_BYTES} bytes"
                ),
                "leave such rows out, or divide the value",
            )
            for name in ("key", "field", "value")
        ]

    def _writes(self, rows: pa.Table) -> pa.Table:
        retracted = None
        if RETRACT in rows.column_names and not self._format.updating:
            retracted = rows.column(RETRACT).fill_null(fill_value=False)
            rows = rows.drop_columns([RETRACT])
        values = pa.array(self._format.messages(rows), pa.large_binary())
        count, options = len(values), self.options
        key = pa.scalar(options.key_prefix.encode(), pa.binary())
        if options.key_column is None:
            keys = pa.repeat(key, count)
        else:
            named = _as_bytes(rows.column(options.key_column), options.key_column)
            keys = pc.binary_join_element_wise(key, named, pa.scalar(b"", pa.binary()))
        if options.field_column is None:
            fields = pa.nulls(count, pa.binary())
        else:
            fields = _as_bytes(rows.column(options.field_column), options.field_column)
        table = pa.table([keys, fields, values, pa.repeat(pa.scalar(value=False), count)], schema=_WRITE)
        if options.target == "list":
            return table
        return _last(table) if retracted is None else _left(table, retracted)

    def handle_commit(
        self, epoch: int, data: Mapping[str, Mapping[int, bytes]], ctx: OperatorContext
    ) -> None:
        """Apply the staged writes, in the order of subtasks.

        A key that one subtask deletes and another sets is set: a row that moved is retracted in one subtask
        only.
        """
        batches, attempts = staged_batches(data, self.STAGED, ctx)
        if not batches:
            return
        table = pa.Table.from_batches(batches)
        staged: list[Write] = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        written = [write for write in staged if not write[3]]
        set_again = {write[:2] for write in written} if len(written) < len(staged) else set()
        writes = [write for write in staged if write[3] and write[:2] not in set_again] + written
        batch = hashlib.sha256("-".join(attempts).encode()).hexdigest()[:24]
        with contextlib.closing(self.server.with_retry(self._connect)) as client:
            if self.options.target == "list" and self.options.address:
                while self.server.with_retry(lambda: self._add(client, writes, batch, ctx)):
                    pass
                return
            write = self._write if self.options.address else self._write_to_cluster
            parts = iter(writes)
            while part := list(itertools.islice(parts, BATCH_ROWS)):
                self.server.with_retry(functools.partial(write, client, part, ctx))

    def _connect(self) -> Any:
        # A transaction must not be sent again by the client: whether it was done is in the mark.
        return self.server.connect(tries=not self.options.address)

    def _write(self, client: Any, writes: Sequence[Write], ctx: OperatorContext) -> None:
        """Write to strings or hashes in one transaction; this is idempotent."""
        with client.pipeline(transaction=True) as pipe:
            progress = _Progress.read(pipe, ctx)
            pipe.multi()
            self._queue(pipe, writes)
            progress.write(pipe)
            pipe.execute()

    def _write_to_cluster(self, client: Any, writes: Sequence[Write], ctx: OperatorContext) -> None:
        """Write in several steps; for all but lists this is idempotent."""
        ctx.check_generation()
        with client.pipeline(transaction=False) as pipe:
            self._queue(pipe, writes)
            pipe.execute()

    def _add(self, client: Any, writes: Sequence[Write], batch: str, ctx: OperatorContext) -> bool:
        """Add the next rows to lists in one transaction; return whether more rows follow.

        A retry reads the progress again, and continues from there.
        """
        with client.pipeline(transaction=True) as pipe:
            progress = _Progress.read(pipe, ctx)
            done = progress.batches.pop(batch, 0)
            part = writes[done : done + BATCH_ROWS]
            if not part:
                return False
            self._check_lists(client, {key for key, *_ in part})
            pipe.multi()
            self._queue(pipe, part)
            progress.batches[batch] = done + len(part)
            progress.write(pipe)
            pipe.execute()
        return done + len(part) < len(writes)

    def _check_lists(self, client: Any, keys: Iterable[bytes]) -> None:
        """Raise an error if a key does not hold a list: the transaction would continue without it."""
        with client.pipeline(transaction=False) as pipe:
            listed = list(keys)
            for key in listed:
                pipe.type(key)
            for key, kind in zip(listed, pipe.execute(), strict=True):
                if kind not in {b"list", b"none", "list", "none"}:
                    raise ExternalError(
                        f"the key `{key.decode('utf-8', 'replace')}` in redis is no list but a {_text(kind)}",
                        hint="delete it, or change `target.key_prefix`",
                        where=self.server.addresses,
                    )

    def _queue_strings(self, pipe: Any, writes: Sequence[Write]) -> None:
        if self.options.address and self.options.ttl is None:  # one command, which a cluster does not take
            deleted = [key for key, _, _, is_deleted in writes if is_deleted]
            written = {key: value for key, _, value, is_deleted in writes if not is_deleted}
            if deleted:
                pipe.delete(*deleted)
            if written:
                pipe.mset(written)
            return
        for key, _, value, is_deleted in writes:
            pipe.delete(key) if is_deleted else pipe.set(key, value, ex=self.options.ttl)

    def _queue(self, pipe: Any, writes: Sequence[Write]) -> None:
        """Queue the commands for some writes."""
        options = self.options
        if options.target == "string":
            self._queue_strings(pipe, writes)
            return
        for key, deleted, group in _by_key(writes):
            if options.target == "hash":
                fields = [field for _, field, _, _ in group]
                if deleted:
                    pipe.hdel(key, *fields)
                    continue
                pairs = zip(fields, (value for _, _, value, _ in group), strict=True)
                pipe.hset(key, items=list(itertools.chain.from_iterable(pairs)))
            else:
                push = pipe.rpush if options.operation == "append" else pipe.lpush
                push(key, *(value for _, _, value, _ in group))
                if options.max_length is not None and options.operation == "append":
                    pipe.ltrim(key, -options.max_length, -1)
                elif options.max_length is not None:
                    pipe.ltrim(key, 0, options.max_length - 1)
            if options.ttl is not None:
                pipe.expire(key, options.ttl)


@dataclass
class _Progress:
    """What the key of a sink holds: the generation of the run, and how many rows of each batch are written.

    It is watched while it is read, and written in the transaction of the rows: of two runs that write at the
    same time one has to read it again, and a replaced one finds the greater generation.
    """

    key: str
    generation: int
    batches: dict[str, int]
    """The last ones, in the order in which they were written."""

    @classmethod
    def read(cls, pipe: Any, ctx: OperatorContext) -> _Progress:
        """Watch and read the key; a greater generation raises a ReplacedError.

        If this run is the newest all the same, its state directory was restored from a copy.
        """
        key = f"headrace:{ctx.task_info.job_id}:{ctx.task_info.operator_id}"
        pipe.watch(key)
        saved = json.loads(pipe.get(key) or b"{}")
        if isinstance(saved, list):  # of an earlier version
            saved = {"batches": saved}
        if saved.get("generation", 0) > ctx.generation:
            ctx.check_generation()
        return cls(key, ctx.generation, dict(saved.get("batches", [])))

    def write(self, pipe: Any) -> None:
        """Queue the command that stores it."""
        batches = list(self.batches.items())[-_REMEMBERED:]
        pipe.set(self.key, json.dumps({"generation": self.generation, "batches": batches}), ex=_MARK_SECONDS)


def _by_key(writes: Sequence[Write]) -> Iterator[tuple[bytes, bool, list[Write]]]:
    """Yield the writes of each key, in order; deletions separately, and first."""
    groups: dict[tuple[bytes, bool], list[Write]] = {}
    for write in writes:
        groups.setdefault((write[0], write[3]), []).append(write)
    for (key, deleted), group in sorted(groups.items(), key=lambda item: not item[0][1]):
        yield key, deleted, group


def _last(table: pa.Table) -> pa.Table:
    """Return the last write to each key and field."""
    numbered = table.select(["key", "field"]).append_column("at", pa.array(range(table.num_rows)))
    indices = numbered.group_by(["key", "field"]).aggregate([("at", "max")]).column("at_max")
    return table.take(indices.take(pc.sort_indices(indices)))


def _left(table: pa.Table, retracted: pa.ChunkedArray) -> pa.Table:
    """Return the net write to each key and field after rows were added and retracted, in any order."""
    change = pc.if_else(retracted, pa.scalar(-1), pa.scalar(1))
    numbered = table.append_column("change", change).append_column("at", pa.array(range(table.num_rows)))
    rows = numbered.group_by(["key", "field", "value"]).aggregate([("change", "sum"), ("at", "max")])
    added = rows.filter(pc.greater(rows.column("change_sum"), 0))
    removed = rows.filter(pc.less(rows.column("change_sum"), 0))
    last = added.group_by(["key", "field"]).aggregate([("at_max", "max")]).column("at_max_max")
    removed_at = removed.group_by(["key", "field"]).aggregate([("at_max", "max")]).column("at_max_max")
    written = table.take(last.take(pc.sort_indices(last)))
    deleted = table.take(removed_at).set_column(
        3, _WRITE.field("deleted"), pa.repeat(pa.scalar(value=True), len(removed_at))
    )
    return pa.concat_tables([deleted, written])


def _as_bytes(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Return the bytes of a binary column, the string form of any other."""
    if column.null_count:
        raise ExternalError(
            f"column `{name}` is null in a row: without it there is no key to write to",
            hint=f"leave such rows out: WHERE {name} IS NOT NULL",
            where="redis",
        )
    try:
        return (
            column.cast(pa.binary()) if is_binary(column.type) else column.cast(pa.string()).cast(pa.binary())
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise PlanError(
            f"column `{name}` has the type {column.type} and cannot be a key",
            hint="a key is a string, bytes, a number or a time",
        ) from None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
