"""Which answers of Redis are waited for, by the errors that the client makes of them."""

from __future__ import annotations

import pytest

from headrace.connectors.redis.client import is_transient

errors = pytest.importorskip("redis.exceptions")

PIPELINE = "Command # 1 (RPUSH k BUSY v) of pipeline caused error: "
ABORTED = "Transaction discarded because of: "


@pytest.mark.parametrize(
    "error",
    [
        errors.ResponseError("NOREPLICAS Not enough good replicas to write."),
        errors.ResponseError(
            "MISCONF Redis is configured to save RDB snapshots, but it's unable to persist."
        ),
        errors.ResponseError("BUSY Redis is busy running a script."),
        errors.ResponseError(f"{PIPELINE}NOREPLICAS Not enough good replicas to write."),
        errors.ExecAbortError(f"{ABORTED}READONLY You can't write against a read only replica."),
        errors.ClusterError("TTL exhausted."),
        errors.ClusterDownError("The cluster is down"),
        errors.WatchError("A ConnectionError occurred while watching one or more keys"),
        errors.BusyLoadingError("Redis is loading the dataset in memory"),
    ],
    ids=str,
)
def test_what_passes_by_itself_is_waited_for(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        errors.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
        errors.ResponseError(f"{PIPELINE}WRONGTYPE Operation against a key holding the wrong kind of value"),
        errors.ExecAbortError(f"{ABORTED}NOPERM this user has no permissions to run the 'exec' command"),
        errors.AuthenticationError("invalid username-password pair or user is disabled."),
        errors.NoPermissionError("this user has no permissions to access one of the keys"),
    ],
    ids=str,
)
def test_what_somebody_has_to_correct_is_not_waited_for(error: Exception) -> None:
    assert not is_transient(error)
