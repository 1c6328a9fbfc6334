"""Objects of a store that is busy, or whose answers break off: reading them again goes well."""

from __future__ import annotations

import gzip
import io
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.base.errors import ExternalError
from headrace.connectors.filesystem.source import FileSystemSource
from headrace.storage import base as storage_base
from headrace.storage.base import RequestRetry
from tests.support import plan, read_range

ROWS = [{"a": n} for n in range(50)]
LINES = b"".join(b'{"a": %d}\n' % row["a"] for row in ROWS)


def parquet() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), out)
    return out.getvalue()


CONTENTS = {"rows.json": LINES, "rows.json.gz": gzip.compress(LINES), "rows.parquet": parquet()}


class Store(ThreadingHTTPServer):
    """A bucket with one object; how its content is sent can go wrong."""

    daemon_threads = True
    content = b""
    trouble = ""

    @property
    def settings(self) -> dict[str, str]:
        return {
            "storage.aws_endpoint": f"http://127.0.0.1:{self.server_address[1]}",
            "storage.aws_access_key_id": "me",
            "storage.aws_secret_access_key": "hunter2",
            "storage.aws_region": "us-east-1",
            "storage.allow_http": "true",
        }


class Answering(BaseHTTPRequestHandler):
    server: Store
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        headers |= {"Content-Length": str(len(body)), "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def do_HEAD(self) -> None:
        self._answer(200, self.server.content)

    def do_GET(self) -> None:
        if "list-type=2" in self.path:
            body = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
            self._answer(200, body)
            self.wfile.write(body)
            return
        if self.server.trouble == "busy":
            self._answer(503, b"")
            return
        begin, end = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        part = self.server.content[begin : end + 1]
        self._answer(206, part, Content_Range=f"bytes {begin}-{end}/{len(self.server.content)}")
        if self.server.trouble == "cut off":
            self.wfile.write(part[: len(part) // 2])
            self.close_connection = True
            return
        self.wfile.write(part)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(storage_base, "FILES_RETRY", RequestRetry(0, timedelta(seconds=1)))
    with Store(("127.0.0.1", 0), Answering) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join(10)


@pytest.mark.parametrize("trouble", ["busy", "cut off"])
@pytest.mark.parametrize("name", CONTENTS)
def test_a_store_that_stumbles_while_an_object_is_read_costs_no_more_than_a_try(
    store: Store, name: str, trouble: str
) -> None:
    store.content = CONTENTS[name]
    options: dict[str, Any] = {"format": "parquet" if name.endswith("parquet") else "json", **store.settings}
    source = FileSystemSource(path=f"s3://bucket/{name}", schema={"a": "int64"}, bad_data="drop", **options)

    def planned() -> Any:
        return plan(source, [10**9], start=100.0, now=101.0)

    def read() -> list[dict[str, Any]]:
        return [row for start, end in pairwise(offsets) for row in read_range(source, start, end)]

    store.trouble = trouble
    with pytest.raises(ExternalError, match=rf"`s3://bucket/{name}` cannot be read: Generic S3 error") as one:
        planned()
    store.trouble = ""
    offsets = planned()
    store.trouble = trouble
    with pytest.raises(ExternalError, match=rf"`s3://bucket/{name}` cannot be read: Generic S3 error") as two:
        read()
    assert one.value.retry
    assert two.value.retry
    store.trouble = ""
    assert [row["a"] for row in read()] == [row["a"] for row in ROWS]
