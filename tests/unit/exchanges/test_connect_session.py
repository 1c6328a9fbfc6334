"""What the client of Spark Connect raises, as an error that says what happened and what to do."""

from __future__ import annotations

import pytest

from headrace.base.errors import ConfigurationError, ExternalError, RefusedError, WorkerError
from headrace.exchanges.spark.connect_session import failure, is_lost

grpc = pytest.importorskip("grpc", reason="pip install 'headrace[connect]'")
errors = pytest.importorskip("pyspark.errors.exceptions.connect")

ADDRESS = "sc://host:15002"


def told(message: str, code: str = "UNKNOWN") -> Exception:
    error: Exception = errors.SparkConnectGrpcException(
        message=message, grpc_status_code=getattr(grpc.StatusCode, code)
    )
    return error


def test_a_server_that_cannot_be_reached_is_tried_again_and_named() -> None:
    error = told(
        "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n"
        '\tdetails = "failed to connect to all addresses"\n>',
        "UNAVAILABLE",
    )
    assert is_lost(error)
    failed = failure(error, ADDRESS)
    assert isinstance(failed, WorkerError)
    assert failed.retry
    assert failed.message == (
        f"the Spark Connect server at `{ADDRESS}` cannot be reached any more: "
        "failed to connect to all addresses"
    )
    assert "--state-dir" in str(failed.hint)


@pytest.mark.parametrize("reason", ["SESSION_CLOSED", "SESSION_NOT_FOUND", "SESSION_CHANGED"])
def test_a_session_that_is_gone_is_replaced(reason: str) -> None:
    error = told(f"[INVALID_HANDLE.{reason}] The handle abc is invalid. SQLSTATE: HY000")
    assert is_lost(error)
    failed = failure(error, ADDRESS)
    assert isinstance(failed, WorkerError)
    assert "has closed the session" in failed.message


def test_a_server_that_was_started_again_knows_no_session_of_the_one_before() -> None:
    """The client finds it out, closes itself, and says so at the first call and differently at later ones."""
    assertion = pytest.importorskip("pyspark.errors").PySparkAssertionError
    assert is_lost(assertion("Received incorrect server side session identifier for request. (a != b)"))
    closed = errors.SparkConnectException(errorClass="NO_ACTIVE_SESSION", messageParameters={})
    assert is_lost(closed)
    assert isinstance(failure(closed, ADDRESS), WorkerError)
    assert not is_lost(told("raised by an operator: [NO_ACTIVE_SESSION]"))


def test_a_client_that_is_not_let_in_is_not_tried_again() -> None:
    failed = failure(told('details = "no such token"', "UNAUTHENTICATED"), ADDRESS)
    assert isinstance(failed, RefusedError)
    assert not failed.retry
    assert "no such token" in failed.message
    assert "token" in str(failed.hint)


def test_what_a_worker_lacks_is_no_matter_of_the_session() -> None:
    error = told("ModuleNotFoundError: No module named 'pyarrow'")
    assert not is_lost(error)
    assert isinstance(failure(error, ADDRESS), ConfigurationError)


def test_any_other_failure_of_spark_is_tried_again_in_the_same_session() -> None:
    error = told("[TASK_FAILED] Job aborted due to stage failure")
    assert not is_lost(error)
    failed = failure(error, ADDRESS)
    assert isinstance(failed, ExternalError)
    assert "[TASK_FAILED]" in failed.message
    assert ADDRESS in str(failed.hint)
