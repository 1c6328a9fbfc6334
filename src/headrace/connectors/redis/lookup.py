"""The `redis` lookup table: fetch the values of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import pyarrow as pa
from pydantic import Field, model_validator

from headrace.base.errors import BadLineError, ConfigurationError
from headrace.base.options import Options as DeclaredOptions
from headrace.connectors._shared.lookup import FormatLookup, LookupOptions, report_bad
from headrace.connectors.redis.client import RedisServer, RedisServerOptions, load_client
from headrace.formats.base import Format
from headrace.model.operator import OperatorContext

KEY = "key"


class RedisLookup(FormatLookup):
    """Looks rows up in Redis: the key is a Redis key, its value a record in the format.

    The primary key is the column declared METADATA FROM 'key'; it is converted to a string. Each worker looks
    up all keys of a batch with one MGET (on a cluster, one for each slot). A missing key, or one that does
    not hold a string, has no row. A record that cannot be read ends the run with its key, or is dropped and
    counted in the metric `bad_rows`.
    """

    class Options(RedisServerOptions, LookupOptions):
        """The options of the redis lookup."""

        metadata: Mapping[str, str] = Field(
            default={}, description="Column → `key`, for the column with the Redis key."
        )

        @model_validator(mode="after")
        def _has_a_key(self) -> Self:
            for column, what in self.metadata.items():
                if what != KEY:
                    raise ValueError(f"column `{column}`: redis has the metadata `{KEY}`, and no `{what}`")
            return self

        def format_for(self, schema: pa.Schema | None) -> Format:
            """Return the format of the values, without the key column."""
            if schema is not None:
                schema = pa.schema([field for field in schema if field.name not in self.metadata])
            return super().format_for(schema)

    options: Options

    def __init__(self, options: DeclaredOptions | None = None, /, **values: Any) -> None:
        super().__init__(options, **values)
        if list(self.options.metadata) != [self.key]:
            raise ConfigurationError(
                f"the primary key `{self.key}` is not the key in Redis",
                hint=f"declare it, and no other column, METADATA FROM '{KEY}'",
            )
        self.server = RedisServer(self.options)
        # Bad records are found here, where their key is known.
        self._format = self.options.model_copy(update={"bad_data": "fail"}).format_for(self.columns)

    def load_package(self) -> None:
        """Import the client's package."""
        load_client()

    def validate(self) -> None:
        """Raise an error if the client's package is missing or the address is not valid."""
        self.server.check_settings()

    def reach(self) -> str:
        """Return a line about the server."""
        return self.server.reach()

    def lookup(self, keys: pa.Array, ctx: OperatorContext) -> pa.Table:
        """Return the rows of these keys."""
        is_binary = pa.types.is_binary(keys.type) or pa.types.is_fixed_size_binary(keys.type)
        names = (keys if is_binary else keys.cast(pa.string())).to_pylist()
        values = self.server.with_retry(lambda: self._get(names, ctx))
        filled = [index for index, value in enumerate(values) if value is not None]
        rows, good = self._decode(filled, names, values, ctx)
        good_keys = keys.take(pa.array(good, pa.int64()))
        return pa.table({self.key: good_keys, **dict(zip(rows.column_names, rows.columns, strict=True))})

    def _get(self, names: Sequence[Any], ctx: OperatorContext) -> Sequence[Any]:
        client = ctx.resource("lookup.redis", lambda: self.server.connect(tries=not self.options.address))
        ask = client.mget if self.options.address else client.mget_nonatomic
        values: Sequence[Any] = ask(names)
        return values

    def _decode(
        self, filled: Sequence[int], names: Sequence[Any], values: Sequence[Any], ctx: OperatorContext
    ) -> tuple[pa.Table, Sequence[int]]:
        """Return the rows of the records at these indices, and the indices of those that can be read."""
        if len(self.columns) == 1:
            return pa.table({}), filled
        try:
            rows = self._format.decode([values[index] for index in filled]).rows
            if rows.num_rows == len(filled):
                return rows, filled
        except BadLineError:
            pass  # it is found below, with its key
        tables, good, bad = [self._format.decode([]).rows], [], []
        for index in filled:
            try:
                tables.append(self._decode_record(names[index], values[index]))
                good.append(index)
            except BadLineError as error:
                if self.options.bad_data == "fail":
                    raise
                bad.append(error)
        report_bad(ctx, bad)
        return pa.concat_tables(tables), good

    def _decode_record(self, name: Any, value: bytes) -> pa.Table:
        reason, column = "it is empty", None
        try:
            rows = self._format.decode([value]).rows
            if rows.num_rows == 1:
                return rows
        except BadLineError as error:
            reason, column = error.message, error.column
        content = value.decode("utf-8", "replace")
        message = f"the record of key `{name}` cannot be read: {reason}"
        raise BadLineError(message, line=1, content=content, column=column, where="redis")

    def display(self) -> str:
        """Return the servers, without the password."""
        return f"{type(self).__name__}({self.server.addresses})"
