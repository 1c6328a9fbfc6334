"""The REST API has every endpoint, field and word that Arroyo's clients know, as its document says."""

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import pytest

from headrace.server.application import make_application, openapi_of
from headrace.server.models import CheckpointPhaseView, MetricName
from headrace.server.service import Service, ServiceOptions
from headrace.server.states import JobState, StopMode, action_of
from headrace.server.users import Accounts

PROFILE = "id name connector config description"
TABLE = "id name created_at connector connection_profile table_type config schema consumers"
PROGRAM = "name query udfs parallelism checkpoint_interval_micros state_url tags env_vars scheduler_config"
PIPELINE = (
    "id name query udfs checkpoint_interval_micros stop created_at action action_text action_in_progress "
    "graph preview state_url tags"
)
JOB = (
    "id pipeline_id running_desired state run_id start_time finish_time tasks failure_reason created_at "
    "scheduler_config env_vars"
)
UDF = "id prefix name language created_at updated_at definition description dylib_url"
TEST = "error done message"


class Row(NamedTuple):
    """An endpoint: what it is sent, what it answers, and how the answers are packed."""

    method: str
    path: str
    body: str = ""
    answer: str = ""
    packed: str = ""


CONTRACT = [
    Row("get", "/ping", answer="pong"),
    Row("get", "/connectors", "", "id name icon description table_config enabled source sink custom_schemas "
        "testing hidden connection_config", "list"),
    Row("get", "/connection_profiles", "", PROFILE, "list"),
    Row("post", "/connection_profiles", "name connector config", PROFILE),
    Row("delete", "/connection_profiles/{}"),
    Row("post", "/connection_profiles/test", "name connector config", TEST),
    Row("get", "/connection_profiles/{}/autocomplete", "", "values"),
    Row("get", "/connection_tables", "", TABLE, "page"),
    Row("post", "/connection_tables", "name connector connection_profile_id config schema", TABLE),
    Row("delete", "/connection_tables/{}"),
    Row("post", "/connection_tables/test", "name connector connection_profile_id config schema", TEST,
        "events"),
    Row("post", "/connection_tables/schemas/test", "", TEST),
    Row("get", "/udfs", "", UDF, "list"),
    Row("post", "/udfs", "prefix language definition description", UDF),
    Row("delete", "/udfs/{}"),
    Row("post", "/udfs/validate", "definition language", "udf_name errors"),
    Row("post", "/pipelines/validate_query", "query udfs", "graph errors"),
    Row("post", "/pipelines/preview", "query udfs enable_sinks", PIPELINE),
    Row("get", "/pipelines", "", PIPELINE, "page"),
    Row("post", "/pipelines", PROGRAM, PIPELINE),
    Row("get", "/pipelines/{}", "", PIPELINE),
    Row("put", "/pipelines/{}", PROGRAM, PIPELINE),
    Row("patch", "/pipelines/{}", "stop parallelism checkpoint_interval_micros env_vars scheduler_config",
        PIPELINE),
    Row("delete", "/pipelines/{}"),
    Row("post", "/pipelines/{}/restart", "force ignore_state", PIPELINE),
    Row("get", "/pipelines/{}/jobs", "", JOB, "list"),
    Row("get", "/jobs", "", JOB, "list"),
    Row("get", "/pipelines/{}/jobs/{}/errors", "", "id created_at operator_id task_index level message "
        "details error_domain", "page"),
    Row("get", "/pipelines/{}/jobs/{}/checkpoints", "", "epoch backend checkpoint_type start_time "
        "finish_time events", "list"),
    Row("get", "/pipelines/{}/jobs/{}/checkpoints/{}/operator_checkpoint_groups", "", "operator_id bytes "
        "started_metadata_write finish_time subtasks", "list"),
    Row("get", "/pipelines/{}/jobs/{}/output", "", "operator_id subtask_idx timestamps start_id batch",
        "events"),
    Row("get", "/pipelines/{}/jobs/{}/operator_metric_groups", "", "node_id metric_groups", "list"),
]  # fmt: skip
PARTS = {
    "GraphNodeView": "node_id operator description parallelism",
    "GraphEdgeView": "src_id dest_id key_type value_type edge_type",
    "QueryErrorView": "message span",
    "SpanView": "start end",
    "PositionView": "line column",
    "FailureReason": "error domain",
    "CheckpointPhaseView": "start_time finish_time event description",
    "SubtaskCheckpointView": "index bytes event_spans",
    "MetricGroupView": "name subtasks",
    "SubtaskMetricsView": "index metrics",
    "MetricView": "time value",
    "UdfText": "definition language",
}
"""What is inside of answers: their names in the document are ours, their fields are not."""


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    service = Service(ServiceOptions(tmp_path_factory.mktemp("contract")))
    yield openapi_of(make_application(service, Accounts(), hosts=None))
    service.database.close()


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    named: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return named


def operation_of(document: dict[str, Any], row: Row) -> dict[str, Any]:
    for path, operations in document["paths"].items():
        parts = path.removeprefix("/api/v1").split("/")
        if "/".join("{}" if part.startswith("{") else part for part in parts) == row.path:
            operation: dict[str, Any] = operations[row.method]
            return operation
    raise AssertionError(f"there is no {row.path}")


@pytest.mark.parametrize("row", CONTRACT, ids=lambda row: f"{row.method} {row.path}")
def test_an_endpoint_takes_and_answers_what_clients_know(document: dict[str, Any], row: Row) -> None:
    operation = operation_of(document, row)
    if row.body:
        sent = operation["requestBody"]["content"]["application/json"]["schema"]
        assert set(row.body.split()) <= resolved(document, sent)["properties"].keys()
    success = operation["responses"]["200"]
    assert {"400", "401", "404", "409"} <= operation["responses"].keys()
    if not row.answer:
        return
    kind = "text/event-stream" if row.packed == "events" else "application/json"
    answer = resolved(document, success["content"][kind]["schema"])
    if row.packed in ("list", "page"):
        packed = {"data", "hasMore"} if row.packed == "page" else {"data"}
        assert set(answer["properties"]) == packed
        answer = resolved(document, answer["properties"]["data"]["items"])
    if row.packed == "page":
        limits = {each["name"]: each for each in operation["parameters"] if each["in"] == "query"}
        assert set(limits) == {"starting_after", "limit"}
        assert limits["limit"]["schema"]["default"] == 10
    assert set(row.answer.split()) <= answer["properties"].keys()


@pytest.mark.parametrize(("name", "fields"), PARTS.items())
def test_the_parts_of_answers_have_the_fields_that_clients_read(
    document: dict[str, Any], name: str, fields: str
) -> None:
    assert set(fields.split()) <= document["components"]["schemas"][name]["properties"].keys()


def test_an_error_is_one_text(document: dict[str, Any]) -> None:
    assert document["components"]["schemas"]["Failure"]["properties"].keys() == {"error"}


def test_states_and_other_words_are_those_that_clients_compare_with() -> None:
    assert get_args(JobState) == (
        "Created", "Compiling", "Scheduling", "Running", "Rescaling", "Recovering", "Restarting",
        "CheckpointStopping", "Stopping", "Stopped", "Finishing", "Finished", "Failing", "Failed",
    )  # fmt: skip
    assert get_args(StopMode) == ("none", "checkpoint", "graceful", "immediate", "force")
    assert set(get_args(MetricName)) == {
        "bytes_recv", "bytes_sent", "messages_recv", "messages_sent", "backpressure", "tx_queue_size",
        "tx_queue_rem",
    }  # fmt: skip
    assert get_args(CheckpointPhaseView.model_fields["event"].annotation) == (
        "Checkpointing", "CheckpointingOperators", "WritingMetadata", "Compacting", "Committing",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "stop", "text", "in_progress"),
    [
        ("Running", "checkpoint", "Stop", False),
        ("CheckpointStopping", "immediate", "Force Stop", True),
        ("Stopped", "none", "Start", False),
        ("Failed", "none", "Start", False),
        ("Rescaling", "checkpoint", "Stop", True),
    ],
)
def test_each_state_offers_the_action_that_consoles_show(
    state: str, stop: str, text: str, in_progress: bool
) -> None:
    assert action_of(state) == (stop, text, in_progress)
