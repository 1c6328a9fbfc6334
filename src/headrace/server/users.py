"""Who may do what: users with tokens and roles, sessions of browsers, and a limit for guessing."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
import tomllib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from headrace.base.errors import ConfigurationError, suggest

UserRole: TypeAlias = Literal["viewer", "operator", "author"]

RANKS: Final[Mapping[str, int]] = {"viewer": 0, "operator": 1, "author": 2}
"""A viewer looks; an operator creates, starts and stops as well; an author may also let code run here."""
SHORTEST_TOKEN: Final = 16
_SESSION_SECONDS = 12 * 3600
_MOST_SESSIONS = 10_000
_WINDOW_SECONDS, _MOST_FAILURES = 60.0, 10
_DIGEST = "sha256:"


@dataclass(frozen=True)
class Account:
    """A user: the name, the role and the SHA-256 of the token."""

    name: str
    role: UserRole
    digest: str

    def may(self, role: UserRole) -> bool:
        """Whether the user has this role, or one that includes it."""
        return RANKS[self.role] >= RANKS[role]


EVERYBODY: Final = Account("local", "author", "")
"""Who may ask a server that listens on the loopback address and has no users."""


@dataclass(frozen=True)
class BrowserSession:
    """A browser that has signed in."""

    account: Account
    csrf: str
    ends: float


class Accounts:
    """The users of a server; without any, everybody is an author."""

    def __init__(self, accounts: tuple[Account, ...] = ()) -> None:
        self._accounts = accounts
        self._lock = threading.Lock()
        self._sessions: dict[str, BrowserSession] = {}

    @property
    def required(self) -> bool:
        """Whether a request needs a token."""
        return bool(self._accounts)

    def of_token(self, token: str) -> Account | None:
        """The account of a token; every user's is compared, in constant time."""
        digest = digest_of(token)
        match = None
        for account in self._accounts:
            if hmac.compare_digest(digest, account.digest):
                match = account
        return match

    def sign_in(self, account: Account) -> tuple[str, BrowserSession]:
        """Begin a session; returns its secret name."""
        name, now = secrets.token_urlsafe(32), time.monotonic()
        session = BrowserSession(account, secrets.token_urlsafe(32), now + _SESSION_SECONDS)
        with self._lock:
            self._sessions = {key: other for key, other in self._sessions.items() if other.ends > now}
            if len(self._sessions) >= _MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[_key(name)] = session
        return name, session

    def session(self, name: str) -> BrowserSession | None:
        """The session of this secret name, if it has not ended."""
        session = self._sessions.get(_key(name))
        return session if session is not None and session.ends > time.monotonic() else None

    def sign_out(self, name: str) -> None:
        """End a session."""
        with self._lock:
            self._sessions.pop(_key(name), None)


class FailureLimit:
    """Limits guessing of tokens: ten failures of an address in a minute, then it has to wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: dict[str, deque[float]] = {}

    def wait_of(self, address: str) -> float:
        """How many seconds an address has to wait; 0 if it may try."""
        now = time.monotonic()
        with self._lock:
            failures = self._failures.get(address)
            while failures and now - failures[0] > _WINDOW_SECONDS:
                failures.popleft()
            if not failures:
                self._failures.pop(address, None)
                return 0.0
            return _WINDOW_SECONDS - (now - failures[0]) if len(failures) >= _MOST_FAILURES else 0.0

    def note(self, address: str) -> None:
        """Take note of a failure."""
        with self._lock:
            self._failures.setdefault(address, deque(maxlen=_MOST_FAILURES)).append(time.monotonic())


def digest_of(token: str) -> str:
    """The hash of a token that is stored."""
    return hashlib.sha256(token.encode()).hexdigest()


def _key(name: str) -> str:
    return digest_of(name)


def load_accounts(token_file: Path | None, users_file: Path | None) -> Accounts:
    """The users of a file with one token, and of a users file."""
    accounts: list[Account] = []
    if token_file is not None:
        accounts.append(
            Account("token", "author", _digest(_read(token_file).strip(), "the token", str(token_file)))
        )
    if users_file is not None:
        accounts += _users(users_file)
    digests = [account.digest for account in accounts]
    if len(set(digests)) < len(digests):
        raise ConfigurationError(
            "two users have the same token", where=str(users_file), hint="give each their own"
        )
    return Accounts(tuple(accounts))


def _read(file: Path) -> str:
    try:
        if file.stat().st_mode & 0o077:
            raise ConfigurationError(
                f"{file} can be read by other users of this machine", hint=f"chmod 600 {file}"
            )
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"{file} cannot be read: {reason}") from None


def _users(file: Path) -> list[Account]:
    try:
        tables = tomllib.loads(_read(file))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"the users file is not valid TOML: {error}", where=str(file)) from None
    users = tables.pop("users", None)
    if tables or not isinstance(users, Mapping) or not users:
        raise ConfigurationError(
            "the users file has no users",
            where=str(file),
            hint='write [users.ada], and below it role = "operator" and token = "…" or "sha256:…"',
        )
    return [_user(name, values, file) for name, values in users.items()]


def _user(name: str, values: Any, file: Path) -> Account:
    where = f"{file}, [users.{name}]"
    if not isinstance(values, Mapping) or set(values) != {"role", "token"}:
        raise ConfigurationError("a user has a `role` and a `token`, nothing else", where=where)
    role, token = values["role"], values["token"]
    if role not in RANKS:
        raise ConfigurationError(
            f"`{role}` is not a role", where=where, hint=suggest(str(role), RANKS, listing="the roles are")
        )
    return Account(name, role, _digest(token, "the token", where))


def _digest(token: Any, what: str, where: str) -> str:
    if isinstance(token, str) and token.startswith(_DIGEST):
        digest = token.removeprefix(_DIGEST).lower()
        if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise ConfigurationError(
                f"{what} is not the SHA-256 of one", where=where, hint="printf %s TOKEN | sha256sum"
            )
        return digest
    if not isinstance(token, str) or len(token) < SHORTEST_TOKEN:
        raise ConfigurationError(
            f"{what} is too short to be a secret",
            where=where,
            hint=f"it has {SHORTEST_TOKEN} characters at least: `openssl rand -hex 32` makes one",
        )
    return digest_of(token)
