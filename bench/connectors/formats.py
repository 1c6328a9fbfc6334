"""Decoding and encoding, beside what pyarrow or the library of a format does with the same rows alone.

The library's figure is for the same task: from the bytes of messages, or of a file, to an Arrow table of the
same columns, and back. `measure_bad` shows what one bad record in a thousand costs, for each kind.
"""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from headrace.formats.avro.format import AvroFormat
from headrace.formats.avro.schema import schema_of, to_json
from headrace.formats.base import JSON_COLUMN, Decoded, Format
from headrace.formats.csv.format import CsvFormat
from headrace.formats.json.debezium import DebeziumFormat
from headrace.formats.json.format import JsonFormat
from headrace.formats.parquet import ParquetFormat, read_rows
from headrace.formats.protobuf.columns import files_for
from headrace.formats.protobuf.format import ProtobufFormat
from headrace.formats.protobuf.text import load_protobuf
from headrace.formats.raw import RawFormat
from headrace.formats.registry.client import SchemaRegistry

ROWS = 50_000
ROUNDS = 5
BAD_EVERY = 1_000
"""One record in this many is bad."""
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.float64()),
        pa.field("at", pa.timestamp("us")),
        pa.field("flag", pa.bool_()),
        pa.field("quantity", pa.int32()),
        pa.field("city", pa.string()),
    ]
)


def rows(count: int) -> pa.Table:
    numbers = range(count)
    return pa.table(
        {
            "id": numbers,
            "name": [f"customer {n % 997}" if n % 5 else None for n in numbers],
            "price": [n / 3 for n in numbers],
            "at": pa.array([1_700_000_000_000_000 + n * 1_000_003 for n in numbers], pa.timestamp("us")),
            "flag": [n % 2 == 0 for n in numbers],
            "quantity": pa.array([n % 100 for n in numbers], pa.int32()),
            "city": ["Berlin" if n % 2 else "San Francisco" for n in numbers],
        },
        schema=COLUMNS,
    )


Pair = tuple[Callable[[], Any], Callable[[], Any]]


def cases(table: pa.Table) -> Iterator[tuple[str, Pair, str, Pair]]:
    """For each format: its name, our reader and writer, the library to compare with, and its functions."""

    def ours(form: Format, *, messages: bool) -> Pair:
        data = form.messages(table) if messages else form.head(COLUMNS) + form.encode(table)
        write = form.messages if messages else form.encode
        return (lambda: form.decode(data).rows), (lambda: write(table))

    yield "json messages", ours(JsonFormat(COLUMNS), messages=True), "json", _json(table)
    yield "json lines", ours(JsonFormat(COLUMNS), messages=False), "pyarrow, json", _json_lines(table)
    yield "csv lines", ours(CsvFormat(COLUMNS), messages=False), "pyarrow", _csv(table)
    yield "avro messages", ours(AvroFormat(COLUMNS, layout="raw"), messages=True), "fastavro", _avro(table)
    yield "avro file", ours(AvroFormat(COLUMNS), messages=False), "fastavro", _avro_file(table)
    yield "protobuf messages", ours(ProtobufFormat(COLUMNS), messages=True), "protobuf", _protobuf(table)
    yield "parquet file", ours(ParquetFormat(COLUMNS), messages=False), "pyarrow", _parquet(table)


def _json(table: pa.Table) -> Pair:
    messages = JsonFormat(COLUMNS).messages(table)

    def write() -> list[bytes]:
        return [json.dumps(row, default=str).encode() for row in table.to_pylist()]

    def read() -> pa.Table:
        texts = pa.schema(
            [column.with_type(pa.string()) if column.name == "at" else column for column in COLUMNS]
        )
        return pa.Table.from_pylist([json.loads(message) for message in messages], texts).cast(COLUMNS)

    return read, write


def _json_lines(table: pa.Table) -> Pair:
    data = JsonFormat(COLUMNS).encode(table)
    options = pa.json.ParseOptions(explicit_schema=COLUMNS)
    single_block = pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    read = lambda: pa.json.read_json(io.BytesIO(data), single_block, options)  # noqa: E731
    return read, lambda: "\n".join(json.dumps(row, default=str) for row in table.to_pylist())


def _csv(table: pa.Table) -> Pair:
    form = CsvFormat(COLUMNS)
    data = form.head(COLUMNS) + form.encode(table)
    kinds = pa.csv.ConvertOptions(column_types=COLUMNS, strings_can_be_null=True)
    single_block = pa.csv.ReadOptions(use_threads=False, block_size=len(data) + 1)
    read = lambda: pa.csv.read_csv(io.BytesIO(data), single_block, None, kinds)  # noqa: E731
    return read, lambda: pa.csv.write_csv(table, io.BytesIO())


def _avro(table: pa.Table) -> Pair:
    schema = fastavro.parse_schema(to_json(schema_of(list(COLUMNS))))
    messages = AvroFormat(COLUMNS, layout="raw").messages(table)

    def read() -> pa.Table:
        values = [fastavro.schemaless_reader(io.BytesIO(message), schema, None) for message in messages]
        return pa.Table.from_pylist(values, COLUMNS)  # type: ignore[arg-type,unused-ignore]

    def write() -> list[bytes]:
        messages = []
        for row in table.to_pylist():
            out = io.BytesIO()
            fastavro.schemaless_writer(out, schema, row)
            messages.append(out.getvalue())
        return messages

    return read, write


def _avro_file(table: pa.Table) -> Pair:
    schema = fastavro.parse_schema(to_json(schema_of(list(COLUMNS))))
    data = AvroFormat(COLUMNS).encode(table)
    read = lambda: pa.Table.from_pylist(list(fastavro.reader(io.BytesIO(data))), COLUMNS)  # noqa: E731
    return read, lambda: fastavro.writer(io.BytesIO(), schema, table.to_pylist())


def _protobuf(table: pa.Table) -> Pair:
    kind = load_protobuf("message_factory").GetMessageClass(files_for(list(COLUMNS)).descriptor(None))
    messages = ProtobufFormat(COLUMNS).messages(table)
    plain = [name for name in COLUMNS.names if name != "at"]

    def read() -> pa.Table:
        values = [kind.FromString(message) for message in messages]
        columns: dict[str, Any] = {
            name: [
                getattr(message, name) if name == "id" or message.HasField(name) else None
                for message in values
            ]
            for name in plain
        }
        columns["at"] = [
            message.at.ToMicroseconds() if message.HasField("at") else None for message in values
        ]
        return pa.table(columns, schema=COLUMNS)

    def write() -> list[bytes]:
        messages = []
        for row in table.set_column(3, "at", table.column("at").cast(pa.int64())).to_pylist():
            message = kind(**{name: row[name] for name in plain if row[name] is not None})
            message.at.FromMicroseconds(row["at"])
            messages.append(message.SerializeToString())
        return messages

    return read, write


def _parquet(table: pa.Table) -> Pair:
    def write() -> bytes:
        out = io.BytesIO()
        pq.write_table(table, out, compression="zstd")
        return out.getvalue()

    data = write()
    return (lambda: pq.read_table(pa.BufferReader(data), use_threads=False)), write


def _speed(work: Callable[[], Any], count: int, rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return count / best


def measure(count: int = ROWS, rounds: int = ROUNDS) -> dict[str, float]:
    """Rows per second of each format, the best of some rounds, one core."""
    table, result = rows(count), {}
    for name, (read, write), other, (other_read, other_write) in cases(table):
        assert read().num_rows == other_read().num_rows == count
        for what, mine, theirs in (("decode", read, other_read), ("encode", write, other_write)):
            result[f"{name} {what} rows/s"] = _speed(mine, count, rounds)
            result[f"{name} {what} {other} rows/s"] = _speed(theirs, count, rounds)
    return result | measure_bad(count, rounds)


# ------------------------------------------------------------------------------------------- bad records

Damage = Callable[[bytes], bytes]


def _replace(old: bytes, new: bytes) -> Damage:
    """Replace the first match of a regular expression, which must be there."""

    def damage(record: bytes) -> bytes:
        damaged, count = re.subn(old, new, record, count=1)
        assert count == 1, record
        return damaged

    return damage


_JSON_BAD: Mapping[str, Damage] = {
    "timestamp": _replace(rb'"at": ?("[^"]*"|\d+)', b'"at": "yesterday"'),
    "number": _replace(rb'"price": ?[^,]*', b'"price": "cheap"'),
    "out of range": _replace(rb'"quantity": ?\d+', b'"quantity": 3000000000'),
    "wrong type": _replace(rb'"city": ?"[^"]*"', b'"city": [1]'),
    "missing not null": _replace(rb'"id":', b'"no":'),
    "malformed": lambda record: record[:-2],
    "two values": lambda record: record + b"{}",
    "half of a pair": _replace(rb'"city": ?"', rb'"city": "\\ud800'),
    "not UTF-8": _replace(rb'"city": ?"', b'"city": "\xff'),
}
_AVRO_BAD: Mapping[str, Damage] = {
    "truncated": lambda record: record[:-3],
    "too long": lambda record: record + b"x",
    "empty": lambda _: b"",
    "unknown branch": lambda record: record[:-14] + b"\x7f" + record[-13:],
    "not UTF-8": _replace(rb"Berlin|San Fr", b"\xff\xff\xff\xff\xff\xff"),
}
_PROTOBUF_BAD: Mapping[str, Damage] = {
    "truncated": lambda record: record[:-3],
    "unknown wire type": lambda record: record + b"\x0f",
    "field 0": lambda record: record + b"\x00\x00",
    "number of 80 bits": lambda record: record + b"\x08" + b"\xff" * 11,
    "not UTF-8": _replace(rb"Berlin|San Fr", b"\xff\xff\xff\xff\xff\xff"),
}
_REGISTRY_BAD: Mapping[str, Damage] = {
    "no schema id": lambda record: b"\x01" + record[1:],
    "unknown schema id": lambda record: b"\x00\x00\x00\x00\x63" + record[5:],
}
_CSV_BAD: Mapping[str, Damage] = {
    "timestamp": _replace(rb"\d{4}-\d\d-\d\d[T ][^,]*", b"yesterday"),
    "number": _replace(rb",[^,]*(,\d{4}-\d\d-\d\d)", rb",cheap\1"),
    "out of range": _replace(rb",\d+,([A-Z])", rb",3000000000,\1"),
    "missing not null": _replace(rb"^\d+", b""),
    "not UTF-8": _replace(rb"Berlin|San Fr", b"\xff"),
    "too few values": _replace(rb",[^,]*$", b""),
    "too many values": lambda record: record + b",1",
}
# In lines, a value with an open quote goes on in the next line.
_CSV_MESSAGES_BAD: Mapping[str, Damage] = {**_CSV_BAD, "open quote": _replace(rb",", b',"')}
_RAW_BAD: Mapping[str, Damage] = {"not UTF-8": lambda record: b"\xff" + record}

WRITTEN = pa.schema(
    [
        {"at": pa.field("at", pa.string()), "quantity": pa.field("quantity", pa.int64())}.get(
            column.name, column.with_nullable(True)
        )
        for column in COLUMNS
    ]
)
"""Columns that may hold what the declared ones cannot."""
_CELLS: Mapping[str, tuple[str, Any]] = {
    "timestamp": ("at", "yesterday"),
    "out of range": ("quantity", 2**40),
    "missing not null": ("id", None),
}
"""Values that fit into the columns of a message, and not into the declared ones."""


def bad_rows(count: int) -> range:
    return range(BAD_EVERY // 2, count, BAD_EVERY)


def with_bad(records: Sequence[bytes], damage: Damage) -> list[bytes]:
    damaged = list(records)
    for index in bad_rows(len(records)):
        damaged[index] = damage(records[index])
    return damaged


def with_bad_cells(table: pa.Table, column: str, value: Any) -> pa.Table:
    values = table.column(column).to_pylist()
    for index in bad_rows(table.num_rows):
        values[index] = value
    place = table.schema.get_field_index(column)
    return table.set_column(place, table.schema.field(place), pa.array(values, table.schema.types[place]))


@dataclass(frozen=True)
class BadCase:
    """A format that drops bad records, what it reads without any, and with a few of each kind."""

    name: str
    form: Format
    inputs: Callable[[pa.Table], dict[str, Any]]

    def decode(self, data: Any) -> Decoded:
        if not isinstance(self.form, ParquetFormat):
            return self.form.decode(data)
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            return next(read_rows(file, 0, file.metadata.num_rows, COLUMNS, where="file", drop_bad=True))


def bad_cases(registry: str) -> Iterator[BadCase]:
    """For each format a case; `registry` is the address of a schema registry, as `registry_server` is one."""

    def case(
        name: str, form: Format, damages: Mapping[str, Damage], *, lines: bool = False, messages: Any = None
    ) -> BadCase:
        def inputs(table: pa.Table) -> dict[str, Any]:
            records = (messages or form.messages)(table)
            kinds = {"good": records}
            kinds |= {kind: with_bad(records, damage) for kind, damage in damages.items()}
            if not lines:
                return kinds
            head = form.head(COLUMNS)
            return {kind: head + b"\n".join([*values, b""]) for kind, values in kinds.items()}

        return BadCase(name, form, inputs)

    def cells(name: str, form: Format, write: Callable[[pa.Table], Any]) -> BadCase:
        def inputs(table: pa.Table) -> dict[str, Any]:
            table = table.cast(WRITTEN)
            damaged = {kind: write(with_bad_cells(table, *cell)) for kind, cell in _CELLS.items()}
            return {"good": write(table), **damaged}

        return BadCase(name, form, inputs)

    subject = SchemaRegistry(registry, subject="rows-value")
    avro = AvroFormat(COLUMNS, layout="registry", registry=subject, drop_bad=True)
    protobuf = ProtobufFormat(COLUMNS, registry=subject, drop_bad=True)
    written, files = schema_of(list(WRITTEN)), files_for(list(WRITTEN))
    json_columns = pa.schema([*COLUMNS, pa.field("more", pa.string(), metadata=JSON_COLUMN)])
    yield case("json messages", JsonFormat(COLUMNS, drop_bad=True), _JSON_BAD)
    yield case("json lines", JsonFormat(COLUMNS, drop_bad=True), _JSON_BAD, lines=True)
    yield case(
        "json lines with a JSON column",
        JsonFormat(json_columns, drop_bad=True),
        _JSON_BAD,
        lines=True,
        messages=JsonFormat(COLUMNS).messages,
    )
    yield case("debezium messages", DebeziumFormat(COLUMNS, drop_bad=True), _JSON_BAD)
    yield case("csv lines", CsvFormat(COLUMNS, drop_bad=True), _CSV_BAD, lines=True)
    yield case("csv messages", CsvFormat(COLUMNS, drop_bad=True), _CSV_MESSAGES_BAD)
    yield case("avro messages", AvroFormat(COLUMNS, layout="raw", drop_bad=True), _AVRO_BAD)
    yield case("avro registry messages", avro, {**_AVRO_BAD, **_REGISTRY_BAD})
    yield cells(
        "avro messages of other columns",
        AvroFormat(COLUMNS, layout="raw", node=written, drop_bad=True),
        AvroFormat(WRITTEN, layout="raw", node=written).messages,
    )
    # A file says that its records are truncated as a whole, and is not read any further.
    yield cells("avro files of other columns", AvroFormat(COLUMNS, drop_bad=True), AvroFormat(WRITTEN).encode)
    yield case("protobuf messages", ProtobufFormat(COLUMNS, drop_bad=True), _PROTOBUF_BAD)
    yield case("protobuf registry messages", protobuf, {**_PROTOBUF_BAD, **_REGISTRY_BAD})
    yield cells(
        "protobuf messages of other columns",
        ProtobufFormat(COLUMNS, files=files, drop_bad=True),
        ProtobufFormat(WRITTEN, files=files).messages,
    )
    yield case(
        "raw_string messages",
        RawFormat(pa.schema({"value": pa.string()}), kind=pa.string(), drop_bad=True),
        _RAW_BAD,
        messages=JsonFormat(COLUMNS).messages,
    )
    yield cells("parquet files of other columns", ParquetFormat(COLUMNS), ParquetFormat(WRITTEN).encode)


@contextlib.contextmanager
def registry_server() -> Iterator[str]:
    """A schema registry that keeps schemas in memory; its address is given."""
    schemas: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            schema = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if schema not in schemas:
                schemas.append(schema)
            self._answer(200, {"id": schemas.index(schema) + 1})

        def do_GET(self) -> None:
            number = int(self.path.rpartition("/")[2])
            known = number <= len(schemas)
            self._answer(*((200, schemas[number - 1]) if known else (404, {"error_code": 40403})))

        def _answer(self, status: int, answer: dict[str, Any]) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def measure_bad(count: int = ROWS, rounds: int = ROUNDS) -> dict[str, float]:
    """Rows per second of processor time of each format, without bad records and with a few of each kind.

    The kinds are measured in turns, and their times are medians.
    """
    result: dict[str, float] = {}
    with registry_server() as registry:
        for case in bad_cases(registry):
            for kind, seconds in _times_of(case, rows(count), 2 * rounds + 1).items():
                result[f"{case.name} decode, 1 in {BAD_EVERY} bad ({kind}) rows/s"] = count / seconds
    return result


def _times_of(case: BadCase, table: pa.Table, rounds: int) -> dict[str, float]:
    """The processor time for each kind of records of a case."""
    inputs = case.inputs(table)
    times: dict[str, list[float]] = {kind: [] for kind in inputs}
    for turn in range(rounds):
        for kind, data in inputs.items():
            case.decode(data)  # readers learn from the batch before, which is mostly like the next
            begin = time.process_time()
            decoded = case.decode(data)
            times[kind].append(time.process_time() - begin)
            bad = 0 if kind == "good" else len(bad_rows(table.num_rows))
            if not turn:
                assert decoded.rows.num_rows == table.num_rows - bad, (case.name, kind, decoded.rows.num_rows)
    return {kind: statistics.median(values) for kind, values in times.items()}


def main() -> None:
    """Print what bad records cost: rows per second, and how many times longer than without."""
    good = 0.0
    for name, speed in measure_bad().items():
        if "(good)" in name:
            good = speed
        print(f"{name:85} {speed:12,.0f}  {good / speed:5.2f}x")


if __name__ == "__main__":
    main()
