"""The `webhook` sink: send rows in HTTP requests."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Literal, Self

import pyarrow as pa
from pydantic import Field, model_validator

from headrace.base.errors import ExternalError
from headrace.base.retry import is_retryable, with_retry
from headrace.connectors._shared.message_sink import RECHECK_SECONDS, VALUE, MessageSink
from headrace.connectors.base import Delivery
from headrace.connectors.http import client as http_client
from headrace.connectors.http.client import (
    EndpointConnector,
    EndpointOptions,
    ask,
    ask_options,
    check_answer,
    connect,
    drain,
    retry_after,
)
from headrace.formats.options import DropOptions, FormatOptions
from headrace.model.operator import OperatorContext

LONGEST_SECONDS = 3600.0
"""The longest time to retry a request, however long the server asks to wait."""
_BYTES = {"raw_bytes", "avro", "protobuf"}
_CONTENT_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "raw_string": "text/plain; charset=utf-8",
    **dict.fromkeys(_BYTES, "application/octet-stream"),
}


class WebhookSink(EndpointConnector, MessageSink):
    """Sends rows to an address with POST, after the commit point of their epoch.

    Each request has the header `Idempotency-Key`: a request that is retried, after a lost connection or a
    crash, has the same key and the same content, so that the receiver can drop it. After 429, 5xx or a lost
    connection a request is retried for a minute, with growing pauses. Waiting for the time in Retry-After
    does not count, up to an hour in all. Any other answer than 2xx ends the run with the beginning of the
    answer. Requests of one epoch are sent in parallel, unless `max_in_flight` is 1.
    """

    label = "webhook"
    deliveries = (
        Delivery(
            "at least once", "a retried request has the same Idempotency-Key, so the receiver can drop it"
        ),
    )

    class Options(EndpointOptions, DropOptions, FormatOptions):
        """The options of the webhook sink."""

        batch_size: int = Field(1, ge=1, description="The most rows in one request.")
        batch_format: Literal["lines", "array"] = Field(
            "lines", description="With several rows: one in each line, or all in a JSON array."
        )
        max_in_flight: int = Field(
            8, ge=1, le=256, description="The most requests in flight; 1 keeps the order of rows."
        )

        @model_validator(mode="after")
        def _rows_go_together(self) -> Self:
            if self.batch_size > 1 and self.batch_format == "array" and "json" not in self.format:
                raise ValueError(f"`batch_format` = 'array' does not go with the format {self.format}")
            if self.batch_size > 1 and self.format in _BYTES:
                raise ValueError(f"`batch_size` > 1 does not go with the format {self.format}")
            return self

    options: Options

    def deliver(self, messages: pa.Table, batch_id: str, ctx: OperatorContext) -> None:
        """Send the requests of an epoch."""
        key = hashlib.sha256(batch_id.encode()).hexdigest()[:32]
        requests = enumerate(self._bodies(messages))
        workers = min(self.options.max_in_flight, messages.num_rows)
        with (
            connect(self.options, "webhook", connections=workers) as client,
            ThreadPoolExecutor(workers, "webhook") as pool,
        ):
            work = _Work(self.options, client, key, requests, ctx)
            try:
                for done in [pool.submit(copy_context().run, work.run) for _ in range(workers)]:
                    done.result()
            finally:
                work.stop()

    def _bodies(self, messages: pa.Table) -> Iterator[bytes]:
        size = self.options.batch_size
        for start in range(0, messages.num_rows, size):
            values = messages.column(VALUE).slice(start, size).to_pylist()
            yield values[0] if size == 1 else _together(values, self.options.batch_format)

    def reach(self) -> str:
        """Send OPTIONS to the endpoint, and return a line about the response."""
        return ask_options(self.options, "webhook")


def _together(values: Sequence[bytes], how: str) -> bytes:
    if how == "array":
        return b"[" + b",".join(values) + b"]"
    return b"".join(value + b"\n" for value in values)


class _Work:
    """The requests of an epoch, sent by threads; the first failure stops all."""

    def __init__(
        self,
        options: WebhookSink.Options,
        client: Any,
        key: str,
        requests: Iterator[tuple[int, bytes]],
        ctx: OperatorContext,
    ) -> None:
        self._options, self._client, self._key, self._requests = options, client, key, requests
        self._ctx = ctx
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        kind = _CONTENT_TYPES.get(options.format, "application/json")
        if options.batch_size > 1 and options.batch_format == "lines" and "json" in options.format:
            kind = "application/x-ndjson"
        own = {"content-type", "idempotency-key"} & {name.lower() for name in options.headers}
        self._kind = {} if "content-type" in own else {"Content-Type": kind}
        self._keyed = "idempotency-key" not in own

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                with self._lock:
                    index, body = next(self._requests, (-1, b""))
                if index < 0:
                    return
                self._send(index, body)
        except BaseException:
            self._stopped.set()
            raise

    def _send(self, index: int, body: bytes) -> None:
        headers = dict(self._kind)
        if self._keyed:
            headers["Idempotency-Key"] = f"{self._key}-{index}"
        latest, requested = time.monotonic() + LONGEST_SECONDS, 0.0

        def attempt() -> None:
            nonlocal requested
            requested = 0.0
            self._ctx.check_generation(every=RECHECK_SECONDS)
            with ask(
                self._client,
                self._options,
                "webhook",
                "POST",
                content=body,
                headers=headers,
                follow=False,
            ) as response:
                requested = retry_after(response)
                check_answer(response, self._options, "webhook")
                drain(response)

        try:
            with_retry(
                attempt,
                is_transient=lambda error: is_retryable(error) and time.monotonic() + requested <= latest,
                backoff=http_client.BACKOFF,
                deadline=http_client.PATIENCE_SECONDS,
                stop=self._stopped,
                requested_pause=lambda _error: requested,
                waits_for=f"webhook {self._options.address}",
            )
        except ExternalError as error:
            # The error that has stopped the other senders is the one to be told.
            if not (error.retry and self._stopped.is_set()):
                raise
