"""What endpoints take from the request: the service, who asks, and the limits of a page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Query, Request

from headrace.server.errors import RequestError
from headrace.server.service import Service
from headrace.server.users import Account

_CODE_IN_SQL = re.compile(r"\bcreate\s+(?:or\s+replace\s+)?(?:aggregate\s+)?function\b", re.IGNORECASE)
_CODE_VARIABLES = re.compile(
    r"PATH|HOME|SHELL|IFS|TMPDIR|CLASSPATH|LD_.*|DYLD_.*|PYTHON.*|PYSPARK.*|SPARK.*|JAVA.*|JDK.*|_JAVA.*|"
    r"HADOOP.*|HEADRACE.*|CARGO.*|RUST.*|XDG_.*|GIT_.*|SSL_.*|.*_PROXY|.*PRELOAD.*",
    re.IGNORECASE,
)


def get_service(request: Request) -> Service:
    """The service of the application."""
    service: Service = request.app.state.service
    return service


def get_account(request: Request) -> Account:
    """Who asks."""
    account: Account = request.state.account
    return account


UseService = Annotated[Service, Depends(get_service)]
UseAccount = Annotated[Account, Depends(get_account)]
Limit = Annotated[int, Query(ge=1, le=1000)]
StartingAfter = Annotated[str | None, Query(max_length=100)]


def check_code(account: Account, values: Mapping[str, Any]) -> None:
    """Refuse what lets code run on the server, unless the user is an author."""
    if account.may("author"):
        return
    reason = None
    if values.get("kind", "sql") != "sql":
        reason = f"a pipeline of kind `{values['kind']}`"
    elif values.get("udfs") or values.get("files"):
        reason = "a function"
    elif _CODE_IN_SQL.search(re.sub(r"/\*.*?\*/|--[^\n]*", " ", values.get("query") or "", flags=re.DOTALL)):
        reason = "CREATE FUNCTION"
    elif any(_CODE_VARIABLES.fullmatch(name) for name in values.get("env_vars") or ()):
        reason = "this environment variable"
    elif any((values.get("scheduler_config") or {}).values()):
        reason = "another Spark"
    if reason is not None:
        raise RequestError(
            403,
            f"{reason} lets code run on the server: it needs the role `author`, and `{account.name}` is "
            f"a {account.role}",
        )
