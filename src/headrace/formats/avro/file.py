"""Avro object container files: a header with the schema, and blocks of records."""

from __future__ import annotations

import json
import secrets
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import pyarrow as pa

from headrace.formats._shared.wire import content, read_varint, zigzag
from headrace.formats.avro.records import read_bytes, read_long
from headrace.formats.avro.schema import AvroType, to_json
from headrace.formats.base import LineError

MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_BLOCK_ROWS = 10_000
_LARGEST_BLOCK = 1 << 30

AvroCompression = Literal["uncompressed", "deflate", "snappy", "zstd"]
CODECS: dict[str, AvroCompression] = {
    "null": "uncompressed",
    "deflate": "deflate",
    "snappy": "snappy",
    "zstandard": "zstd",
}
_NAMES = {compression: codec for codec, compression in CODECS.items()}


@dataclass(frozen=True)
class Header:
    """The header of a file."""

    schema: str
    codec: str
    sync: bytes
    end: int
    """The offset of the first block."""


class AvroBlock(NamedTuple):
    """The position of the records of a block, and their number."""

    rows: int
    begin: int
    end: int


class BlockRecords(NamedTuple):
    """The records of a block, as an Avro array, with their schema."""

    array: bytes
    schema: str
    rows: int


class Damage(NamedTuple):
    """A part of a file that cannot be read, and how many records it has, as far as that is known."""

    error: LineError
    rows: int = 0


def read_header(data: bytes) -> Header:
    """Read the header of a file; raises a LineError if it has none."""
    if not data.startswith(MAGIC):
        raise LineError(
            "it is not an Avro file",
            hint="without a header: set `avro.raw_datums`, or `avro.confluent_schema_registry`",
        )
    at, metadata = len(MAGIC), {}
    while True:
        count, at = read_long(data, at)
        if count < 0:
            count = -count
            _, at = read_long(data, at)
        if not count:
            break
        for _ in range(count):
            key, at = read_bytes(data, at)
            metadata[key], at = read_bytes(data, at)
    if b"avro.schema" not in metadata or at + _SYNC_BYTES > len(data):
        raise LineError("the header of the Avro file is not complete")
    codec = metadata.get(b"avro.codec", b"null").decode("utf-8", "replace")
    if codec not in CODECS:
        raise LineError(f"the Avro file is compressed with {codec}", hint=f"known are {', '.join(CODECS)}")
    schema = metadata[b"avro.schema"].decode("utf-8", "replace")
    return Header(schema, codec, data[at : at + _SYNC_BYTES], at + _SYNC_BYTES)


def read_all_blocks(files: Iterable[bytes]) -> Iterator[Iterator[BlockRecords | Damage]]:
    """Yield the blocks of each file, each as an Avro array of its records, and the damage between them."""
    beginning, header = b"", None
    for data in files:
        if header is not None and data.startswith(beginning):
            # Small files are mostly alike, but for the mark between their blocks.
            sync = data[header.end - _SYNC_BYTES : header.end]
            yield _blocks(replace(header, sync=sync), data)
            continue
        try:
            header = read_header(data)
        except LineError as error:
            header = None
            yield iter([Damage(error)])
            continue
        beginning = data[: header.end - _SYNC_BYTES]
        yield _blocks(header, data)


def _blocks(header: Header, data: bytes) -> Iterator[BlockRecords | Damage]:
    for block in find_blocks(header, data):
        if isinstance(block, Damage):
            yield block
            continue
        try:
            records = _decompress(data[block.begin : block.end], header.codec)
        except LineError as error:
            yield Damage(error, block.rows)
            continue
        array = zigzag(block.rows) + records + b"\0" if block.rows else b"\0"
        yield BlockRecords(array, header.schema, block.rows)


def find_blocks(header: Header, data: bytes) -> Iterator[AvroBlock | Damage]:
    """Yield the blocks of a file, and damage for what is none; it goes on behind the next sync marker."""
    at = header.end
    while at < len(data):
        try:
            rows, begin = read_long(data, at)
            size, begin = read_long(data, begin)
        except LineError:
            rows, size, begin = -1, -1, at
        end = begin + size
        if rows >= 0 and size >= 0 and data[end : end + _SYNC_BYTES] == header.sync:
            yield AvroBlock(rows, begin, end)
            at = end + _SYNC_BYTES
            continue
        marker = data.find(header.sync, at)
        if marker < 0:
            yield Damage(LineError("a block of the Avro file is cut off"))
            return
        yield Damage(LineError("a block of the Avro file is damaged"))
        at = marker + _SYNC_BYTES


def _decompress(data: bytes, codec: str) -> bytes:
    try:
        if codec == "deflate":
            return zlib.decompress(data, wbits=-15)
        if codec == "snappy":
            # The four bytes at the end are a checksum, and the length is at the beginning.
            size = min(read_varint(data)[0], _LARGEST_BLOCK)
            return bytes(pa.decompress(data[:-4], size, codec="snappy", asbytes=True))
        if codec == "zstandard":
            with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
                return bytes(stream.read())
    except (zlib.error, OSError, ValueError) as error:
        raise LineError(f"a block of the Avro file cannot be decompressed: {error}") from None
    return data


def _compress(data: memoryview, compression: AvroCompression) -> bytes | memoryview:
    if compression == "deflate":
        deflate = zlib.compressobj(wbits=-15)
        return deflate.compress(data) + deflate.flush()
    if compression == "snappy":
        return bytes(pa.compress(data, codec="snappy", asbytes=True)) + zlib.crc32(data).to_bytes(4, "big")
    if compression == "zstd":
        return bytes(pa.compress(data, codec="zstd", asbytes=True))
    return data


def write_header(node: AvroType, compression: AvroCompression = "uncompressed") -> tuple[bytes, bytes]:
    """Return the header of a file, and the sync marker of its blocks."""
    sync = secrets.token_bytes(_SYNC_BYTES)
    return file_header(json.dumps(to_json(node)).encode(), sync, _NAMES[compression]), sync


def file_header(schema: bytes, sync: bytes, codec: str = "null") -> bytes:
    """Return a header with this schema."""
    metadata = {b"avro.schema": schema, b"avro.codec": codec.encode()}
    entries = [zigzag(len(text)) + text for entry in metadata.items() for text in entry]
    return MAGIC + zigzag(len(metadata)) + b"".join(entries) + b"\0" + sync


def write_file(node: AvroType, records: pa.Array, compression: AvroCompression) -> bytes:
    """Write records as a complete file."""
    header, sync = write_header(node, compression)
    parts: list[bytes | memoryview] = [header]
    for begin in range(0, len(records), _BLOCK_ROWS):
        piece = records.slice(begin, _BLOCK_ROWS)
        data = _compress(content(piece), compression)
        parts += [zigzag(len(piece)), zigzag(len(data)), data, sync]
    return b"".join(parts)
