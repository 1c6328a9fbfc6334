"""Runs suspended inside a commit to PostgreSQL: time limits, and an end for sessions of replaced runs.

A commit locks the row that holds the generation. A run that is suspended meanwhile would keep that lock. The
server takes it away from a session that is idle in its transaction, but it has no limit for one that waits
for the rest of a COPY. So a session has a name while it commits, by which its successor finds and ends it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from headrace.connectors._shared.sql_table import Epoch

SUSPENDED_SECONDS = 60
"""How long a commit may be suspended between two statements before the server rolls it back."""
FIRST_WAIT_SECONDS = 1
"""How long a commit waits for the lock before it ends the sessions of replaced runs."""
LAST_WAIT_SECONDS = SUSPENDED_SECONDS + 10
LOCKED = "55P03"
"""The SQLSTATE of a lock that was not had in time."""
RESET_LOCK_TIMEOUT = "SET LOCAL lock_timeout TO DEFAULT"


def limit_session(epoch: Epoch, wait_seconds: float) -> str:
    """Return the statement that names the session and sets its limits, until the transaction ends."""
    settings = {
        "application_name": _session_name(epoch),
        "idle_in_transaction_session_timeout": f"{SUSPENDED_SECONDS * 1000}",
        "lock_timeout": f"{int(wait_seconds * 1000)}",
    }
    calls = (f"set_config('{name}', '{value}', true)" for name, value in settings.items())
    return f"SELECT {', '.join(calls)}"


def end_replaced(epoch: Epoch) -> Sequence[str]:
    """Return the statements that end the sessions in which earlier generations commit to the same sink.

    They are for a transaction of their own. The user of a login may end its sessions, also where the login
    sets another role. A session of another user is left to the limits.
    """
    name = _session_name(epoch)
    same_sink = f"starts_with(application_name, '{name.rpartition(' ')[0]} ')"
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "  # noqa: S608 - the name is digits and a hash
        f"WHERE datname = current_database() AND usename = session_user AND {same_sink} "
        f"AND application_name COLLATE \"C\" < '{name}'"
    )
    return "SET LOCAL ROLE NONE", end


def _session_name(epoch: Epoch) -> str:
    """Return the name: those of a sink are in the order of the generations, and fit into 63 bytes."""
    sink = hashlib.sha256(f"{epoch.job}\0{epoch.sink}".encode()).hexdigest()[:16]
    return f"headrace commit {sink} {epoch.generation:020}"
