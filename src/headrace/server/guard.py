"""A middleware for every request: authentication, rights, limits and the audit log."""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.server.database import ServerDatabase
from headrace.server.errors import RequestError
from headrace.server.identifiers import now_micros
from headrace.server.peers import LocalUser
from headrace.server.users import EVERYBODY, Account, Accounts, FailureLimit, UserRole

_log = logging.getLogger("headrace.server")

SESSION_COOKIE: Final = "headrace_session"
CSRF_COOKIE: Final = "headrace_csrf"
CSRF_HEADER: Final = "x-headrace-csrf"
BASE: Final = "/api/v1"
LARGEST_BODY: Final = 10_000_000
_KEPT_AUDIT = 100_000
_SAFE = {"GET", "HEAD", "OPTIONS"}
_OPEN = {f"{BASE}/ping", f"{BASE}/session", "/healthz", "/readyz"}
"""Answered without asking who it is: the session says whether one has to sign in."""
_NOBODY: Final = Account("nobody", "viewer", "")
_READING = {
    f"{BASE}/pipelines/validate_query",
    f"{BASE}/udfs/validate",
    f"{BASE}/connection_tables/schemas/test",
}
"""Requests that change nothing although they are POSTs."""
_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; object-src 'none'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """An ASGI middleware around the whole application.

    `hosts` are the names that this server is asked under; None for any. A page of another site that has the
    browser ask this server is refused by them, by its Origin, and by the CSRF token that goes with a cookie.
    Without accounts only `local_user` is answered; None for everybody who can connect.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        accounts: Accounts,
        database: ServerDatabase,
        hosts: frozenset[str] | None,
        is_secure: bool,
        local_user: LocalUser | None = None,
    ) -> None:
        self._app = app
        self._local_user = local_user
        self._accounts = accounts
        self._database = database
        self._hosts = hosts
        self._limit = FailureLimit()
        headers = dict(_HEADERS) | ({"strict-transport-security": "max-age=31536000"} if is_secure else {})
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        address = (scope.get("client") or ("-", 0))[0]
        account, status = EVERYBODY, 500
        path, method = scope["path"], scope["method"]

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [*self._headers]
                if path.startswith("/api/"):
                    extra.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        try:
            self._check_origin(headers, method)
            if not self._accounts.required:
                account = await run_in_threadpool(self._local_account, scope, path)
            else:
                account = self._authenticate(headers, path, method, address)
            self._check_role(account, path, method)
            _check_length(headers)
            scope.setdefault("state", {})["account"] = account
            await self._app(scope, _Limited(receive), send_on)
        except RequestError as error:
            await _refuse(error, send_on)
        finally:
            changes = method not in _SAFE and not _only_reads(path) and path.startswith(BASE)
            if changes or status in (401, 403, 429):
                await run_in_threadpool(self._write_down, account, address, method, path, status)

    def _check_origin(self, headers: Mapping[str, str], method: str) -> None:
        host = headers.get("host", "")
        if self._hosts is not None and _name_of(host) not in self._hosts:
            raise RequestError(
                403,
                f"this server does not answer to the name `{_name_of(host)}`; --allow-host NAME allows it",
            )
        origin = headers.get("origin")
        if method in _SAFE or origin is None:
            return
        if urlsplit(origin).netloc.lower() != host.lower():
            raise RequestError(403, "a page of another site may not change anything here")

    def _local_account(self, scope: Scope, path: str) -> Account:
        """The account of a request to a server without users, which listens on the loopback address."""
        user = self._local_user
        if user is None or user.has_opened(scope["client"], scope["server"]):
            return EVERYBODY
        if _is_open(path):
            return _NOBODY
        raise RequestError(
            403,
            "this server has no users and answers the one who started it only; for others start it with "
            "`--token-file FILE` or `--users FILE`",
        )

    def _authenticate(self, headers: Mapping[str, str], path: str, method: str, address: str) -> Account:
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and token:
            if wait := self._limit.wait_of(address):
                raise RequestError(429, f"too many wrong tokens; try again in {wait:.0f} seconds")
            account = self._accounts.of_token(token.strip())
            if account is None:
                self._limit.note(address)
                raise RequestError(401, "this token is not valid")
            return account
        cookies = SimpleCookie(headers.get("cookie", ""))
        session = None
        if SESSION_COOKIE in cookies:
            session = self._accounts.session(cookies[SESSION_COOKIE].value)
        if session is not None:
            told = headers.get(CSRF_HEADER, "")
            if method not in _SAFE and not hmac.compare_digest(told.encode(), session.csrf.encode()):
                raise RequestError(403, f"the header {CSRF_HEADER} is not that of this session")
            return session.account
        if _is_open(path):
            return _NOBODY
        raise RequestError(401, "say who you are: `Authorization: Bearer TOKEN`")

    def _check_role(self, account: Account, path: str, method: str) -> None:
        is_reading = method in _SAFE or _only_reads(path) or path in _OPEN
        needed: UserRole = "viewer" if is_reading else "operator"
        if path == f"{BASE}/audit":
            needed = "author"
        if not account.may(needed):
            raise RequestError(
                403, f"this needs the role `{needed}`, and `{account.name}` is a {account.role}"
            )

    def sign_in(self, token: str, address: str) -> Account:
        """Whose token it is; raises a RequestError, and counts wrong ones."""
        if wait := self._limit.wait_of(address):
            raise RequestError(429, f"too many wrong tokens; try again in {wait:.0f} seconds")
        account = self._accounts.of_token(token)
        if account is None:
            self._limit.note(address)
            raise RequestError(401, "this token is not valid")
        return account

    def _write_down(self, account: Account, address: str, method: str, path: str, status: int) -> None:
        row = {
            "time": now_micros(),
            "user": account.name,
            "address": address,
            "method": method,
            "path": path[:1000],
            "status": status,
        }
        with self._database.transaction():
            self._database.insert("audit", row)
            self._database.change(
                "DELETE FROM audit WHERE number <= (SELECT max(number) FROM audit) - ?", _KEPT_AUDIT
            )
        _log.info("audit: %s from %s: %s %s -> %d", account.name, address, method, row["path"], status)


class _Limited:
    """The body of a request, up to a limit."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._bytes = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._bytes += len(message.get("body", b""))
        if self._bytes > LARGEST_BODY:
            raise RequestError(413, f"a request has {LARGEST_BODY:,} bytes at most")
        return message


def _only_reads(path: str) -> bool:
    """Whether a request to a path changes nothing although it is a POST."""
    return path in _READING or path.endswith("/state/query")


def _is_open(path: str) -> bool:
    """Whether a path is answered to anybody; what is outside the API are the console's files."""
    return path in _OPEN or not path.startswith(("/api/", "/metrics"))


def _check_length(headers: Mapping[str, str]) -> None:
    length = headers.get("content-length", "0")
    if length.isdigit() and int(length) > LARGEST_BODY:
        raise RequestError(413, f"a request has {LARGEST_BODY:,} bytes at most")


def _name_of(host: str) -> str:
    """`localhost` of `localhost:5115`, `[::1]` of `[::1]:5115`."""
    name, _, port = host.rpartition(":")
    return (name if port.isdigit() and name else host).lower()


async def _refuse(error: RequestError, send: Any) -> None:
    body = json.dumps({"error": error.message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="headrace"'))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
