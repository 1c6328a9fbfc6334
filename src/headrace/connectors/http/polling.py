"""The `polling_http` source: request an address at an interval."""

from __future__ import annotations

import hashlib
import time
from typing import Any, Literal

from pydantic import Field

from headrace.base.options import Secret, Size
from headrace.connectors._shared.messages import MessageOptions
from headrace.connectors.base import Delivery
from headrace.connectors.http.client import (
    EndpointConnector,
    EndpointOptions,
    ask,
    ask_options,
    check_source_answer,
    connect,
    read_body,
)
from headrace.connectors.received import Inbox, ReceivedSource


class PollingHttpSource(EndpointConnector, ReceivedSource):
    """Requests an address at an interval; each response is a message, logged before it is processed.

    With `emit_behavior` = 'changed' a response that equals the previous one is skipped, also after a restart;
    with ETag or Last-Modified only changed responses are transferred. Redirects are followed within the same
    scheme, host and port, and from http to https. After 429 and 5xx the request is retried with growing
    pauses, and not before the time in Retry-After; after a minute of errors the run ends with the response.
    """

    label = "polling_http"
    deliveries = (
        Delivery(
            "exactly once",
            "each response is logged before it is processed; changes between two polls are not seen",
        ),
    )

    class Options(EndpointOptions, MessageOptions):
        """The options of the polling_http source."""

        method: Literal["GET", "POST", "PUT", "PATCH"] = Field("GET", description="The HTTP method.")
        body: Secret | None = Field(None, repr=False, description="The body of every request.")
        poll_interval_ms: int = Field(
            1000, ge=1, description="Milliseconds between the starts of two requests."
        )
        emit_behavior: Literal["all", "changed"] = Field(
            "all", description="Whether every response is a message, or only a changed one."
        )
        max_body_size: Size = Field(5 * 1024 * 1024, ge=1, description="The largest response, uncompressed.")

    options: Options

    def listen(self, inbox: Inbox) -> None:
        """Send requests at the interval until the run ends."""
        interval, pause = self.options.poll_interval_ms / 1000, 0.0
        validators: dict[str, str] = {}
        with connect(self.options, self.label) as client:
            while not inbox.closed.wait(pause):
                began = time.monotonic()
                self._poll(client, inbox, validators)
                pause = max(0.0, began + interval - time.monotonic())

    def _poll(self, client: Any, inbox: Inbox, validators: dict[str, str]) -> None:
        options = self.options
        changed_only = options.emit_behavior == "changed"
        content = None if options.body is None else options.body.encode()
        with ask(
            client, options, self.label, options.method, content=content, headers=validators
        ) as response:
            if response.status_code == 304 and validators:
                inbox.connected()
                return
            check_source_answer(response, options, self.label, inbox)
            body = read_body(response, options.max_body_size, options, self.label)
        inbox.connected()
        if changed_only and options.method == "GET":
            validators.clear()
            for sent, received in (("If-None-Match", "ETag"), ("If-Modified-Since", "Last-Modified")):
                if received in response.headers:
                    validators[sent] = response.headers[received]
        if response.status_code == 204:
            return
        if not changed_only:
            inbox.put(body)
            return
        digest = hashlib.sha256(body).hexdigest()
        if digest != inbox.resume:
            inbox.put(body, resume=digest)

    def reach(self) -> str:
        """Send OPTIONS to the endpoint, which requests no data, and return a line about the response."""
        return ask_options(self.options, self.label)
