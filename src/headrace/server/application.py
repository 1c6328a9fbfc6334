"""The application: the endpoints under /api/v1, the console's files, health and metrics."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response

from headrace.base.errors import HeadraceError
from headrace.server.apart import warm_up
from headrace.server.errors import RequestError, method_problem, request_problems, sentence, status_of
from headrace.server.exposition import CONTENT_TYPE, exposition
from headrace.server.guard import BASE, Guard
from headrace.server.models import Failure
from headrace.server.peers import LocalUser
from headrace.server.reference_page import reference_page
from headrace.server.routes import cluster, connections, functions, jobs, pipelines, users
from headrace.server.service import Service
from headrace.server.users import Accounts

_log = logging.getLogger("headrace.server")

CONSOLE = Path(__file__).parent / "console"
_NOT_BUILT = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Headrace</title></head>
<body><h1>Headrace</h1><p>The server runs; its console is not part of this installation.</p>
<p>The REST API is at <a href="/api/v1/swagger-ui">/api/v1</a>.</p>
</body></html>"""
_FAILURES: dict[int | str, dict[str, Any]] = {
    400: {"model": Failure, "description": "What was sent has to change."},
    401: {"model": Failure, "description": "Nobody is signed in."},
    403: {"model": Failure, "description": "This user may not do that."},
    404: {"model": Failure, "description": "There is nothing of this id."},
    409: {"model": Failure, "description": "Not in this state, or there is one of this name."},
    413: {"model": Failure, "description": "Too much was sent."},
    429: {"model": Failure, "description": "Too many wrong tokens."},
    500: {"model": Failure, "description": "A bug in Headrace."},
    502: {"model": Failure, "description": "Another system did not answer."},
}


def make_application(
    service: Service,
    accounts: Accounts,
    *,
    hosts: frozenset[str] | None,
    is_secure: bool = False,
    local_user: LocalUser | None = None,
) -> FastAPI:
    """The ASGI application of a service."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        threading.Thread(target=warm_up, name="headrace-warm-up", daemon=True).start()
        yield
        await run_in_threadpool(service.close)

    app = FastAPI(
        title="Headrace",
        version=version("headrace"),
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        responses=_FAILURES,
        redirect_slashes=False,
    )
    app.state.service, app.state.accounts, app.state.is_secure = service, accounts, is_secure
    guard = Guard(
        app,
        accounts=accounts,
        database=service.database,
        hosts=hosts,
        is_secure=is_secure,
        local_user=local_user,
    )
    app.state.sign_in = guard.sign_in
    app.state.guard = guard
    for module in (users, pipelines, jobs, connections, functions, cluster):
        app.include_router(module.router, prefix=BASE)
    _add_documents(app)
    _add_health(app, service)
    _add_console(app)
    _add_errors(app)
    return app


def openapi_of(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document; requests that do not validate are answered like any other mistake."""
    if app.openapi_schema is None:
        document = FastAPI.openapi(app)
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return app.openapi_schema or {}


def _add_documents(app: FastAPI) -> None:
    @app.get(f"{BASE}/api-docs/openapi.json", include_in_schema=False)
    def document() -> JSONResponse:
        return JSONResponse(openapi_of(app))

    @app.get(f"{BASE}/swagger-ui", include_in_schema=False)
    def page() -> HTMLResponse:
        return HTMLResponse(reference_page(openapi_of(app)))


def _add_health(app: FastAPI, service: Service) -> None:
    methods = ["GET", "HEAD"]  # load balancers ask with HEAD

    @app.api_route("/healthz", methods=methods, include_in_schema=False)
    def healthy() -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    @app.api_route("/readyz", methods=methods, include_in_schema=False)
    def ready() -> PlainTextResponse:
        is_ready = service.is_ready()
        return PlainTextResponse("ok\n" if is_ready else "not ready\n", 200 if is_ready else 503)

    @app.api_route("/metrics", methods=methods, include_in_schema=False)
    def metrics() -> Response:
        return Response(exposition(service), media_type=CONTENT_TYPE)


def _add_console(app: FastAPI) -> None:
    @app.api_route("/{path:path}", methods=["GET", "HEAD"], include_in_schema=False)
    def console(path: str) -> Response:
        """A file of the console; its own pages, which have no file, are its index."""
        if path.startswith("api/"):
            raise HTTPException(405)  # it is there for other methods, or not at all
        if "\0" in path:
            raise HTTPException(404)
        root = CONSOLE.resolve()
        file = (root / path).resolve()
        if path and file.is_relative_to(root) and file.is_file():
            is_hashed = path.startswith("assets/")
            caching = "public, max-age=31536000, immutable" if is_hashed else "no-cache"
            return FileResponse(file, headers={"cache-control": caching})
        if Path(path).suffix and not path.startswith(("pipelines/", "connections/")):
            raise HTTPException(404)
        if (index := root / "index.html").is_file():
            return FileResponse(index, headers={"cache-control": "no-cache"})
        return HTMLResponse(_NOT_BUILT, 200 if not path else 404)


def _add_errors(app: FastAPI) -> None:
    def answer(status: int, text: str, headers: Any = None) -> JSONResponse:
        return JSONResponse({"error": text}, status, headers=headers)

    @app.exception_handler(RequestError)
    def refused(_: Request, error: RequestError) -> JSONResponse:
        return answer(error.status, error.message)

    @app.exception_handler(HeadraceError)
    def failed(_: Request, error: HeadraceError) -> JSONResponse:
        return answer(status_of(error), sentence(error))

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return answer(400, request_problems(error, _keys_of(request)))

    @app.exception_handler(HTTPException)
    def missing(request: Request, error: HTTPException) -> JSONResponse:
        path, status, text = request.url.path, error.status_code, error.detail
        if status == 405:
            methods = _methods_at(app, path)
            if methods:
                text = method_problem(request.method, path, methods)
                return answer(405, text, {"allow": ", ".join(sorted(methods))})
            status = 404
        if status == 404:
            text = f"there is nothing at {path}"
        elif status == 400:
            text = "the body cannot be read: it is a JSON object in UTF-8, nested some levels deep at most"
        return answer(status, text, error.headers)

    @app.exception_handler(Exception)
    def broken(_: Request, error: Exception) -> JSONResponse:
        _log.error("a request failed", exc_info=error)
        return answer(500, f"a bug in Headrace, please report it: {type(error).__name__}; the log has more")


def _keys_of(request: Request) -> list[str]:
    """The keys that the body of a request may have."""
    field = getattr(request.scope.get("route"), "body_field", None)
    model = getattr(getattr(field, "field_info", None), "annotation", None)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return []
    return [field.alias or name for name, field in model.model_fields.items()]


def _methods_at(app: FastAPI, path: str) -> set[str]:
    """The methods that can be asked for at a path of the API, or of health and metrics."""
    document = openapi_of(app)["paths"]
    for template, operations in document.items():
        if re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), path):
            return {method.upper() for method in operations}
    return set() if path.startswith("/api/") else {"GET", "HEAD"}
