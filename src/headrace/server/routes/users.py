"""Who asks: ping, sessions of browsers, the audit log."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from headrace.server.errors import not_found
from headrace.server.guard import CSRF_COOKIE, SESSION_COOKIE
from headrace.server.models import AuditView, Paged, Pong, SessionPost, SessionView
from headrace.server.routes.dependencies import Limit, UseAccount, UseService
from headrace.server.users import Account

router = APIRouter(tags=["users"])


@router.get("/ping")
def ping() -> Pong:
    """Whether the server answers."""
    return Pong()


@router.get("/session")
def get_session(request: Request, account: UseAccount) -> SessionView:
    """Who asks; `nobody` has to sign in."""
    return _view(request, account)


def _view(request: Request, account: Account) -> SessionView:
    needed = account.name == "nobody" and request.app.state.accounts.required
    return SessionView(user=account.name, role=account.role, sign_in_required=needed)


@router.post("/session")
def sign_in(body: SessionPost, request: Request, response: Response) -> SessionView:
    """Sign in with a token: the session is a cookie, and so is what the CSRF header has to repeat."""
    state = request.app.state
    if not state.accounts.required:
        return _view(request, request.state.account)
    account = state.sign_in(body.token, request.client.host if request.client else "-")
    name, session = state.accounts.sign_in(account)
    for cookie, value, hidden in ((SESSION_COOKIE, name, True), (CSRF_COOKIE, session.csrf, False)):
        response.set_cookie(
            cookie, value, httponly=hidden, samesite="strict", secure=state.is_secure, path="/"
        )
    return _view(request, account)


@router.delete("/session")
def sign_out(request: Request, response: Response) -> None:
    """Sign out."""
    if (name := request.cookies.get(SESSION_COOKIE)) is not None:
        request.app.state.accounts.sign_out(name)
    for cookie in (SESSION_COOKIE, CSRF_COOKIE):
        response.delete_cookie(cookie, path="/")


@router.get("/audit")
def list_audit(
    service: UseService, limit: Limit = 100, starting_after: int | None = None
) -> Paged[AuditView]:
    """Who changed what, and what was refused, the newest first; for authors."""
    before = 2**62
    if starting_after is not None:
        if (
            service.database.one("SELECT number FROM audit WHERE number = ?", min(starting_after, before))
            is None
        ):
            raise not_found("entry", str(starting_after))
        before = starting_after
    rows = service.database.all(
        "SELECT * FROM audit WHERE number < ? ORDER BY number DESC LIMIT ?", before, limit + 1
    )
    views = [
        AuditView(**{"id": row["number"], **{n: row[n] for n in AuditView.model_fields if n != "id"}})
        for row in rows
    ]
    return Paged(data=views[:limit], has_more=len(rows) > limit)
