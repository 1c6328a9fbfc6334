"""A client of the server's REST API: its address, its token, and errors that say what to do."""

from __future__ import annotations

import json
from http.client import HTTPException, RemoteDisconnected
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from headrace.base.errors import ConfigurationError, ExternalError, UserError, suggest

DEFAULT = "http://127.0.0.1:5115"
TOKEN = "HEADRACE_TOKEN"  # noqa: S105 - the name of a variable
_SECONDS = 120.0
"""A program that is planned may build functions in Rust."""
_PAGE = 1000


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirects, because the token must not reach another server."""

    def redirect_request(self, *_: Any) -> None:
        """Take the redirect as the answer."""


_OPENER = build_opener(_NoRedirects)


class ServerClient:
    """A server, and the token for its requests."""

    def __init__(self, address: str, token: str | None = None) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                f"`{address}` is not the address of a server", hint=f"it is written like {DEFAULT}"
            )
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ConfigurationError("the token has characters that no token has", hint="it is one line")
        self.address = address.rstrip("/").removesuffix("/api/v1")
        self._token = token

    def get(self, path: str) -> Any:
        """The answer to a GET."""
        return self._ask("GET", path)

    def post(self, path: str, body: Any) -> Any:
        """The answer to a POST."""
        return self._ask("POST", path, body)

    def put(self, path: str, body: Any) -> Any:
        """The answer to a PUT."""
        return self._ask("PUT", path, body)

    def patch(self, path: str, body: Any) -> Any:
        """The answer to a PATCH."""
        return self._ask("PATCH", path, body)

    def text(self, path: str) -> str:
        """The answer to a GET of a text."""
        return self._send("GET", path, None).decode("utf-8", "replace")

    def pipelines(self) -> list[dict[str, Any]]:
        """Every pipeline, the oldest first."""
        pipelines: list[dict[str, Any]] = []
        after = ""
        while True:
            page = self.get(f"/pipelines?limit={_PAGE}{after}")
            if not isinstance(page, dict) or not {"data", "hasMore"} <= page.keys():
                raise self._stranger()
            pipelines += page["data"]
            if not page["hasMore"]:
                return pipelines[::-1]
            after = f"&starting_after={quote(pipelines[-1]['id'])}"

    def find(self, name: str) -> dict[str, Any] | None:
        """The pipeline of a name or an id; None if there is none."""
        matching = [each for each in self.pipelines() if name in (each["name"], each["id"])]
        if len(matching) > 1:
            ids = ", ".join(each["id"] for each in matching)
            raise UserError(f"{len(matching)} pipelines are called `{name}`", hint=f"name an id: {ids}")
        return matching[0] if matching else None

    def pipeline(self, name: str) -> dict[str, Any]:
        """The pipeline of a name or an id; raises a UserError if there is none."""
        pipeline = self.find(name)
        if pipeline is None:
            names = [each["name"] for each in self.pipelines()]
            hint = suggest(name, names, listing="there are") if names else "`headrace up FILE` creates one"
            raise UserError(f"the server at {self.address} has no pipeline `{name}`", hint=hint)
        return pipeline

    def job(self, pipeline_id: str) -> dict[str, Any]:
        """The job of a pipeline."""
        jobs: list[dict[str, Any]] = self.get(f"/pipelines/{pipeline_id}/jobs")["data"]
        return jobs[0]

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._send(method, path, body)
        try:
            return json.loads(answer) if answer else None
        except ValueError:
            raise self._stranger() from None

    def _send(self, method: str, path: str, body: Any) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.address}/api/v1{path}", data, method=method)  # noqa: S310 - http or https
        if data is not None:
            request.add_header("content-type", "application/json")
        if self._token is not None:
            request.add_header("authorization", f"Bearer {self._token}")
        try:
            with _OPENER.open(request, timeout=_SECONDS) as answer:
                content: bytes = answer.read()
        except HTTPError as error:
            with error:
                raise self._refused(error.code, error.read()) from None
        except (OSError, ValueError, HTTPException) as error:
            if isinstance(error, HTTPException) and not isinstance(error, RemoteDisconnected):
                raise self._stranger() from None
            reason = error.reason if isinstance(error, URLError) else error
            raise ExternalError(
                f"no server answers at {self.address}: {reason}",
                hint="start one, `headrace serve`, or name another with --server URL or HEADRACE_SERVER",
            ) from None
        return content

    def _refused(self, status: int, content: bytes) -> Exception:
        try:
            message = str(json.loads(content)["error"])
        except (ValueError, KeyError, TypeError):
            return self._stranger()
        if status == 401:
            hint = f"put the token into {TOKEN}, or name a file that holds it: --token-file FILE"
            return UserError(f"the server at {self.address} does not know you: {message}", hint=hint)
        return ExternalError(message) if status >= 500 else UserError(message)

    def _stranger(self) -> Exception:
        return ExternalError(
            f"what answers at {self.address} is no Headrace server",
            hint="name the server with --server URL or HEADRACE_SERVER",
        )


def read_token(token_file: Path | None, token: str | None) -> str | None:
    """The token of the file, or else the one of the environment."""
    if token_file is None:
        return token.strip() if token else None
    try:
        return token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the token file {token_file} cannot be read: {error}") from None
