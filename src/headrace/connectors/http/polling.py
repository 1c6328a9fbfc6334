"""`polling_http`: what an address answers, asked again and again."""

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
    check_answer,
    check_heard,
    connect,
    read_body,
)
from headrace.connectors.received import Inbox, ReceivedSource


class PollingHttpSource(EndpointConnector, ReceivedSource):
    """Asks an address at an interval; each answer is a message, in the state directory before it is read.

    With `emit_behavior` = 'changed' an answer that is the same as the one before it is left out, also after a
    restart; if the server knows ETag or Last-Modified it is asked only for what is new. Redirects are
    followed on the same host. A server that is busy (429, 5xx) is asked again after a pause that grows, and
    not before the time that it names in Retry-After; after a minute of that the run ends with what it said.
    """

    label = "polling_http"
    deliveries = (
        Delivery(
            "exactly once", "each answer is in a log before it is read; what nobody asked for is not seen"
        ),
    )

    class Options(EndpointOptions, MessageOptions):
        """The options of the polling_http source."""

        method: Literal["GET", "POST", "PUT", "PATCH"] = Field("GET", description="How it is asked.")
        body: Secret | None = Field(None, repr=False, description="What is sent with every request.")
        poll_interval_ms: int = Field(
            1000, ge=1, description="How many milliseconds are between the beginnings of two requests."
        )
        emit_behavior: Literal["all", "changed"] = Field(
            "all", description="Whether every answer is a message, or only one that has changed."
        )
        max_body_size: Size = Field(
            5 * 1024 * 1024, ge=1, description="How large an answer may be, uncompressed."
        )

    options: Options

    def listen(self, inbox: Inbox) -> None:
        """Ask, and wait, until the run ends."""
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
            check_heard(response, options, self.label, inbox)
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
        """Ask once."""
        options = self.options
        content = None if options.body is None else options.body.encode()
        with (
            connect(options, self.label) as client,
            ask(client, options, self.label, options.method, content=content) as response,
        ):
            check_answer(response, options, self.label)
            size = len(read_body(response, options.max_body_size, options, self.label))
        kind = response.headers.get("Content-Type", "unknown type")
        return f"{options.address} answers {response.status_code} with {size} bytes of {kind}"
