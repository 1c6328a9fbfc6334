"""The metrics of a running job as the REST API shows them, from what its process has told."""

import itertools
from pathlib import Path
from typing import Any

from headrace.server.database import ServerDatabase
from headrace.server.history import History, RunSample, Samples
from headrace.server.metrics import operator_metrics, operators_of, progress_of
from headrace.server.models import SubtaskMetricsView
from headrace.server.pipelines import Pipelines

PIPELINE: dict[str, Any] = {
    "name": "p", "kind": "sql", "query": "", "files": {}, "udfs": [], "parallelism": 1, "graph": {},
    "checkpoint_interval_micros": 1_000_000, "tags": {}, "env_vars": {}, "scheduler_config": {},
    "preview": 0, "enable_sinks": 1,
}  # fmt: skip
GRAPH = {"nodes": [{"node_id": 0, "id": "numbers"}]}


def sample(seconds: float, rows: float) -> RunSample:
    metrics = {"numbers": {"rows_in": rows, "rows_out": rows, "bytes_in": 0.0, "bytes_out": 0.0}}
    return RunSample(int(seconds * 1e6), {"progress": None, "metrics": metrics})


def snapshot(subtasks: dict[str, list[float]], times: list[float]) -> dict[str, Any]:
    names = ("rows_in", "rows_out", "bytes_in", "bytes_out")
    series = {index: dict.fromkeys(names, rows) for index, rows in subtasks.items()}
    history = {"times": times, "run": {}, "operators": {"numbers": series}}
    return {"time": times[-1], "operators": {"numbers": {"backpressure": 0.25}}, "history": history}


def groups(samples: list[RunSample], told: dict[str, Any] | None) -> dict[str, list[SubtaskMetricsView]]:
    (node,) = operator_metrics(GRAPH, samples, told)
    return {group.name: group.subtasks for group in node.metric_groups}


def test_the_rates_of_one_subtask_go_on_over_a_restart_of_its_process() -> None:
    samples = [sample(1.0, 10), sample(2.0, 30), sample(3.0, 5), sample(4.0, 10)]
    (subtask,) = groups(samples, snapshot({"0": [0, 5]}, [3.0, 4.0]))["messages_recv"]
    assert [(point.time, point.value) for point in subtask.metrics] == [(2_000_000, 20.0), (4_000_000, 5.0)]


def test_several_subtasks_have_rates_of_their_own_in_the_order_of_their_numbers() -> None:
    told = snapshot({"0": [0, 10, 10], "10": [0, 0, 40], "2": [0, 20, 20]}, [100.0, 105.0, 110.0])
    found = groups([sample(1.0, 10)], told)["messages_sent"]
    assert [subtask.index for subtask in found] == [0, 2, 10]
    assert [[point.value for point in subtask.metrics] for subtask in found] == [[2, 0], [4, 0], [0, 8]]
    assert [point.time for point in found[0].metrics] == [105_000_000, 110_000_000]


def test_only_the_last_five_minutes_of_the_subtasks_are_shown() -> None:
    told = snapshot({"0": [0, 1, 2], "1": [0, 1, 2]}, [0.0, 100.0, 400.0])
    found = groups([], told)["messages_sent"]
    assert [[point.time for point in subtask.metrics] for subtask in found] == [[400_000_000]] * 2


def test_the_queue_that_clients_expect_is_as_full_as_the_backpressure_says() -> None:
    found = groups([], snapshot({"0": [0, 1]}, [1.0, 2.0]))
    (size,), (left,) = found["tx_queue_size"][0].metrics, found["tx_queue_rem"][0].metrics
    assert 1 - left.value / size.value == found["backpressure"][0].metrics[0].value == 0.25


def test_a_job_that_tells_nothing_has_every_metric_without_values() -> None:
    found = groups([], None)
    assert list(found) == [
        "messages_recv", "messages_sent", "bytes_recv", "bytes_sent", "backpressure", "tx_queue_size",
        "tx_queue_rem",
    ]  # fmt: skip
    assert [subtask.metrics for subtasks in found.values() for subtask in subtasks] == [[]] * 7


def test_of_the_last_hour_some_samples_are_kept_and_of_the_last_minutes_all() -> None:
    samples = Samples()
    for second in range(5000):
        samples.add(sample(second, second))
    times = [kept.time // 1_000_000 for kept in samples.since(0)]
    assert times == sorted(times)
    assert len(times) < 600
    assert times[-330:] == list(range(4670, 5000))
    assert {after - before for before, after in itertools.pairwise(times[:-330])} == {15}
    assert times[0] <= 5000 - 3600
    assert [kept.time // 1_000_000 for kept in samples.since(4_990_000_000)] == list(range(4990, 5000))


def test_the_last_hour_has_the_rates_of_the_samples_where_the_run_keeps_less() -> None:
    told = snapshot({"0": [0, 10], "1": [0, 20]}, [3000.0, 3005.0])
    samples = [sample(0.0, 0), sample(3000.0, 6000)]
    (node,) = operator_metrics(GRAPH, samples, told, 3600)
    (subtask,) = next(group.subtasks for group in node.metric_groups if group.name == "messages_sent")
    assert [point.value for point in subtask.metrics] == [2.0]


def test_an_operator_tells_what_it_holds_and_how_that_has_grown() -> None:
    counted = dict.fromkeys(("rows_in", "rows_out", "bytes_in", "bytes_out", "seconds"), 1.0)
    described = {
        **counted, "name": "aggregate", "busy": 0.5, "skew": 2.0, "backpressure": 0.0, "watermark_delay": 3.0,
        "state_rows": 7, "state_bytes": 700, "commits": 0, "commit_seconds": 0.0,
        "counters": {"late_rows": 4, "bad_rows": 3, "bad_rows.malformed": 1, "bad_rows.wrong-value": 2},
    }  # fmt: skip
    held = [
        RunSample(time, {"progress": None, "metrics": {"totals": {"state_bytes": size}}})
        for time, size in ((1, 500), (2, 700))
    ]
    (operator,) = operators_of(held, {"operators": {"totals": described}})
    assert (operator.id, operator.busy, operator.skew, operator.late_rows) == ("totals", 0.5, 2.0, 4)
    assert (operator.bad_rows, operator.bad_by) == (3, {"malformed": 1, "wrong-value": 2})
    assert [(point.time, point.value) for point in operator.state] == [(1, 500.0), (2, 700.0)]
    assert operators_of(held, None) == []


def test_the_progress_of_a_job_has_what_its_sources_have_not_read() -> None:
    job = {"state": "Running", "failures": 0}
    status = {"progress": None, "metrics": {}, "lag": {"rows": 120, "files": 3}}
    progress = progress_of(job, status, [], None)
    assert (progress.lag, progress.lag_bytes, progress.lag_files) == (120, None, 3)
    assert progress_of(job, None, [], None).lag is None


def test_the_last_hour_is_there_for_the_next_server(tmp_path: Path) -> None:
    database = ServerDatabase(tmp_path / "headrace.db")
    pipelines = Pipelines(database)
    made = [pipelines.create(PIPELINE, user="local") for _ in range(2)]
    first, second = (pipelines.job_of(pipeline["id"])["id"] for pipeline in made)
    history = History(database)
    for seconds in (0, 15, 30):
        history.save([(first, sample(seconds, seconds)), ("job_gone", sample(seconds, 1))], now=0)
    history.save([(second, sample(30, 7))], now=0)
    database.close()
    database = ServerDatabase(tmp_path / "headrace.db")
    again = History(database)
    samples = Samples(again.load(first))
    samples.add(sample(31, 31))
    (subtask,) = groups(samples.since(0), None)["messages_recv"]
    assert [(point.time // 1_000_000, point.value) for point in subtask.metrics] == [
        (15, 1),
        (30, 1),
        (31, 1),
    ]
    assert again.load("job_gone") == []
    again.save([], now=int(3620 * 1e6))
    assert [kept.time // 1_000_000 for kept in again.load(first)] == [30]
    assert len(again.load(second)) == 1
    database.close()


def test_the_samples_of_a_pipeline_are_removed_with_it(tmp_path: Path) -> None:
    database = ServerDatabase(tmp_path / "headrace.db")
    pipelines, history = Pipelines(database), History(database)
    pipeline = pipelines.create(PIPELINE, user="local")
    job = pipelines.job_of(pipeline["id"])
    history.save([(job["id"], sample(0, 1))], now=0)
    pipelines.change_job(job["id"], {"state": "Stopped"})
    pipelines.delete(pipeline["id"])
    assert database.all("SELECT * FROM samples") == []
    database.close()
