"""The contract of the REST API, against a real server with real pipelines, as Arroyo's clients use it."""

import itertools
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

from headrace.cli.main import main
from tests.serving import PATIENCE, AnswerError, Numbers, Server

pytestmark = pytest.mark.spark

COUNTS = "SELECT counter % 3 AS k, count(*) AS n FROM numbers GROUP BY counter % 3"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


def test_the_life_of_a_pipeline_goes_as_arroyos_clients_know_it(server: Server) -> None:
    schema = {"fields": [{"name": "counter", "type": "int64", "required": True}]}
    body = {"name": "numbers", "connector": "impulse", "config": {"event_rate": 50}, "schema": schema}
    table = server.post("/connection_tables", body)
    shown = {**schema["fields"][0], "sql_name": "BIGINT", "metadata_key": None}
    assert (table["table_type"], table["schema"]["fields"]) == ("source", [shown])
    validated = server.post("/pipelines/validate_query", {"query": COUNTS, "udfs": []})
    assert validated["errors"] == []
    pipeline = server.create("life", COUNTS, parallelism=1, checkpoint_interval_micros=1_000_000)
    (consumed,) = server.get("/connection_tables")["data"]
    assert consumed["consumers"] == 1
    job = server.await_state(pipeline, "Running")
    assert (job["run_id"], job["running_desired"], job["failure_reason"]) == (1, True, None)
    shown = server.get(f"/pipelines/{pipeline}")
    assert (shown["action"], shown["action_text"], shown["action_in_progress"]) == (
        "checkpoint",
        "Stop",
        False,
    )

    rows = []
    for event in server.events(f"{server.path(pipeline)}/output"):
        assert event["operator_id"] == "preview"
        rows += json.loads(event["batch"])
        if len(rows) > 10:
            break
    assert {row["k"] for row in rows if row.get("k") is not None} <= {0, 1, 2}

    checkpoint = server.await_checkpoint(pipeline)
    assert {event["event"] for event in checkpoint["events"]} >= {"Checkpointing", "Committing"}
    groups = server.get(
        f"{server.path(pipeline)}/checkpoints/{checkpoint['epoch']}/operator_checkpoint_groups"
    )
    assert "query.aggregate" in [group["operator_id"] for group in groups["data"]]
    metrics = server.get(f"{server.path(pipeline)}/operator_metric_groups")["data"]
    assert [node["node_id"] for node in metrics] == [node["node_id"] for node in shown["graph"]["nodes"]]
    for node in metrics:
        groups = {group["name"]: group["subtasks"][0]["metrics"] for group in node["metric_groups"]}
        assert list(groups) == [
            "messages_recv", "messages_sent", "bytes_recv", "bytes_sent", "backpressure", "tx_queue_size",
            "tx_queue_rem",
        ]  # fmt: skip
        assert [point["value"] >= 0 for point in groups["backpressure"]] == [True]
        (size,), (left,) = groups["tx_queue_size"], groups["tx_queue_rem"]
        assert 1 - left["value"] / size["value"] == pytest.approx(groups["backpressure"][0]["value"])
    exposed = server.ask("GET", "/../metrics").splitlines()
    assert f'headrace_job_state{{job="{job["id"]}",pipeline="life",state="Running"}} 1.0' in exposed
    (rows_in,) = (line for line in exposed if line.startswith("headrace_pipeline_rows_in_total"))
    assert rows_in.startswith('headrace_pipeline_rows_in_total{pipeline="life"} ')
    assert float(rows_in.split()[-1]) > 0

    with pytest.raises(AnswerError, match="not stopped"):
        server.delete(f"/pipelines/{pipeline}")
    server.patch(f"/pipelines/{pipeline}", {"stop": "checkpoint"})
    assert server.await_state(pipeline, "Stopped")["running_desired"] is False
    last = server.get(f"{server.path(pipeline)}/checkpoints")["data"][-1]
    assert last["checkpoint_type"] == "stopping"
    tables = server.get(f"{server.path(pipeline)}/state")["data"]
    assert [table["sql_name"] for table in tables] == ["query_aggregate_groups"]
    groups = server.post(
        f"{server.path(pipeline)}/state/query", {"query": "SELECT count(*) AS n FROM query_aggregate_groups"}
    )
    assert groups["rows"] == [{"n": 3}]

    server.patch(f"/pipelines/{pipeline}", {"stop": "none"})
    assert server.await_state(pipeline, "Running")["run_id"] == 2
    server.await_checkpoint(pipeline, after=last["epoch"])
    server.patch(f"/pipelines/{pipeline}", {"parallelism": 2})
    job = server.await_state(pipeline, "Running", run=3)
    nodes = server.get(f"/pipelines/{pipeline}")["graph"]["nodes"]
    assert (job["tasks"], {node["parallelism"] for node in nodes}) == (2 * len(nodes), {2})
    server.post(f"/pipelines/{pipeline}/restart", {})
    server.await_state(pipeline, "Running", run=4)
    server.patch(f"/pipelines/{pipeline}", {"stop": "immediate"})
    server.await_state(pipeline, "Stopped")
    server.delete(f"/pipelines/{pipeline}")
    with pytest.raises(AnswerError) as error:
        server.get(f"/pipelines/{pipeline}")
    assert (error.value.status, error.value.body) == (404, {"error": f"there is no pipeline `{pipeline}`"})
    server.delete(f"/connection_tables/{table['id']}")
    assert server.get("/connection_tables") == {"data": [], "hasMore": False}


@pytest.fixture(scope="module")
def counting(server: Server) -> str:
    """A running pipeline that counts by key; its source has the column `counter`."""
    numbers = "CREATE TABLE naturals WITH (connector = 'impulse', event_rate = '100');"
    query = COUNTS.replace("numbers", "naturals")
    pipeline = server.create("counting", f"{numbers}\n{query}", checkpoint_interval_micros=1_000_000)
    server.await_state(pipeline, "Running")
    server.await_checkpoint(pipeline)
    return pipeline


def test_rows_on_an_edge_are_looked_at_while_the_pipeline_runs(server: Server, counting: str) -> None:
    graph = server.get(f"/pipelines/{counting}")["graph"]
    names = {node["node_id"]: node["id"] for node in graph["nodes"]}
    edge = {
        "operator_id": names[graph["edges"][0]["src_id"]],
        "target_id": names[graph["edges"][0]["dest_id"]],
    }
    tap = f"{server.path(counting)}/tap"
    shown = list(itertools.islice(server.events(f"{tap}?{urlencode(edge)}"), 2))
    assert shown[0]["epoch"] < shown[1]["epoch"]
    for epoch in shown:
        rows = json.loads(epoch["batch"])
        assert 0 < len(rows) == len(epoch["timestamps"]) <= epoch["seen"] == epoch["matched"]
        assert all(set(row) >= {"counter"} for row in rows)
    filtered = next(server.events(f"{tap}?{urlencode({**edge, 'where': 'counter % 10 = 3'})}"))
    assert 0 < filtered["matched"] < filtered["seen"]
    assert {row["counter"] % 10 for row in json.loads(filtered["batch"])} == {3}
    wrong = next(server.events(f"{tap}?{urlencode({**edge, 'where': 'contour > 3'})}"))
    assert (wrong["batch"], "no column `contour`" in wrong["problem"]) == ("[]", True)
    for query, message in (
        ({**edge, "where": "counter >"}, "something is missing after `>`"),
        ({**edge, "where": "count(*) > 1"}, "not a condition on one row"),
        ({"operator_id": "nobody"}, "no operator `nobody`"),
        ({**edge, "target_id": "nobody"}, "sends nothing to `nobody`"),
    ):
        with pytest.raises(AnswerError, match=message) as error:
            server.get(f"{tap}?{urlencode(query)}")
        assert error.value.status == 400


def test_two_checkpoints_are_compared_and_a_pipeline_goes_back_to_one(server: Server, counting: str) -> None:
    path = server.path(counting)
    server.await_checkpoint(counting, after=8)
    (table,) = server.get(f"{path}/state")["data"]
    which = {"operator_id": table["operator_id"], "table": table["table"]}
    for _ in range(3):  # also while it runs and removes checkpoints
        compared = server.get(f"{path}/state/compare?{urlencode(which)}")
        assert compared["before"] < compared["after"]
        assert compared["changed"] == 3
    server.patch(f"/pipelines/{counting}", {"stop": "checkpoint"})
    server.await_state(counting, "Stopped")  # a running one removes old checkpoints meanwhile
    *_, first, _, _, later, last = server.get(f"{path}/checkpoints")["data"]
    which |= {"before": first["epoch"], "after": later["epoch"]}
    compared = server.get(f"{path}/state/compare?{urlencode(which)}")
    assert [compared[name] for name in ("rows_before", "rows_after", "added", "removed", "changed")] == [
        3, 3, 0, 0, 3,
    ]  # fmt: skip
    for change in compared["changes"]:
        assert change["change"] == "changed"
        assert change["before"] != change["after"]
        assert {name: change["before"][name] for name in table["key"]} == {
            name: change["after"][name] for name in table["key"]
        }
    same = server.get(f"{path}/state/compare?{urlencode({**which, 'after': which['before']})}")
    assert (same["rows_after"], same["changes"]) == (3, [])
    with pytest.raises(AnswerError, match="no checkpoint of epoch 9999"):
        server.get(f"{path}/state/compare?{urlencode({**which, 'after': 9999})}")
    with pytest.raises(AnswerError, match="`nobody`"):
        server.get(f"{path}/state/compare?{urlencode({**which, 'operator_id': 'nobody'})}")

    with pytest.raises(AnswerError, match="no checkpoint of epoch 9999; there are") as error:
        server.post(f"/pipelines/{counting}/restart", {"from_epoch": 9999})
    assert error.value.status == 404
    target = last["epoch"] - 3
    server.post(f"/pipelines/{counting}/restart", {"from_epoch": target})
    run = server.await_state(counting, "Running")["run_id"]
    server.await_checkpoint(counting, after=target)
    epochs = {each["epoch"]: each["start_time"] for each in server.get(f"{path}/checkpoints")["data"]}
    assert epochs.get(target, 0) < last["start_time"]  # it may have been removed by now
    assert all(start > last["start_time"] for epoch, start in epochs.items() if epoch > target)
    # Once: a process that is started again later goes on where the one before was.
    reached = server.await_checkpoint(counting, after=target + 2)
    server.post(f"/pipelines/{counting}/restart", {"force": True})
    server.await_state(counting, "Running", run=run + 1)
    server.await_checkpoint(counting, after=reached["epoch"])
    listed = {each["epoch"]: each for each in server.get(f"{path}/checkpoints")["data"]}
    assert listed.get(reached["epoch"], reached) == reached


def test_every_mistake_of_a_query_is_told_with_its_place(server: Server) -> None:
    query = "CREATE TABLE numbers (counter BIGINT) WITH (connector = 'impulse');\nSELECT countr FROM numbers"
    validated = server.post("/pipelines/validate_query", {"query": query})
    assert validated["graph"] is None
    (error,) = validated["errors"]
    assert "there is no column `countr`" in error["message"]
    assert error["span"] == {"start": {"line": 2, "column": 8}, "end": {"line": 2, "column": 14}}
    with pytest.raises(AnswerError, match="there is no column `countr`") as refused:
        server.create("wrong", query)
    assert (refused.value.status, list(refused.value.body)) == (400, ["error"])


def test_a_preview_shows_the_rows_of_a_sink_and_writes_nothing(server: Server, tmp_path: Path) -> None:
    written = tmp_path / "rows.json"
    query = (
        "CREATE TABLE numbers (counter BIGINT) WITH (connector = 'impulse', event_rate = 50);"
        f"CREATE TABLE rows (counter BIGINT) WITH (connector = 'single_file', path = '{written}', "
        "type = 'sink');"
        "INSERT INTO rows SELECT counter FROM numbers"
    )
    preview = server.post("/pipelines/preview", {"query": query, "udfs": []})
    assert preview["preview"] is True
    job = server.await_state(preview["id"], "Running")
    for event in server.events(f"/pipelines/{preview['id']}/jobs/{job['id']}/output"):
        assert event["operator_id"] == "sink_rows"
        assert "counter" in json.loads(event["batch"])[0]
        assert len(event["timestamps"]) == len(json.loads(event["batch"]))
        break
    assert not written.exists()
    assert preview["id"] not in [pipeline["id"] for pipeline in server.get("/pipelines")["data"]]
    server.patch(f"/pipelines/{preview['id']}", {"stop": "force"})
    server.await_state(preview["id"], "Stopped")


class Clicks:
    """A folder that a pipeline watches, with rows that come in thousands, and a folder that it may write."""

    totals = "CREATE VIEW totals AS SELECT n % 10 AS k, count(*) AS n FROM clicks GROUP BY n % 10;"
    shown = "SELECT * FROM totals;"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._source, self._sink = folder / "in", folder / "out"
        self._source.mkdir(parents=True)
        self._given = 0
        self.table = f"""CREATE TABLE clicks (n BIGINT) WITH (connector = 'filesystem', type = 'source',
            format = 'json', path = '{self._source}', 'source.watch_interval' = '1s');"""
        self.kept = f"""CREATE TABLE kept (n BIGINT) WITH (connector = 'filesystem', type = 'sink',
            format = 'json', path = '{self._sink}'); INSERT INTO kept SELECT n FROM clicks;"""

    def give(self) -> None:
        """Put the next thousand rows into the folder, all at once."""
        rows = "".join(f'{{"n": {n}}}\n' for n in range(self._given, self._given + 1000))
        staged = self.folder / "staged.json"
        staged.write_text(rows)
        staged.rename(self._source / f"{self._given:06}.json")
        self._given += 1000

    def written(self) -> list[int]:
        """The rows in the other folder."""
        lines = [line for file in self._sink.rglob("*.json") for line in file.read_text().splitlines()]
        return sorted(json.loads(line)["n"] for line in lines)


def counted(server: Server, pipeline: str) -> int:
    """How many rows the state of the totals has seen."""
    query = {"query": "SELECT sum(agg0) AS n FROM totals_aggregate_groups"}
    (row,) = server.post(f"{server.path(pipeline)}/state/query", query)["rows"]
    return int(row["n"])


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.2)


def test_another_query_goes_on_with_the_state_of_the_one_before(server: Server, tmp_path: Path) -> None:
    clicks = Clicks(tmp_path / "clicks")
    clicks.give()
    query = clicks.table + clicks.totals + clicks.shown
    pipeline = server.create("clicks", query, env_vars={"REGION": "north"})
    path = f"/pipelines/{pipeline}"
    server.await_state(pipeline, "Running")
    server.await_checkpoint(pipeline)
    until(lambda: server.get(f"{server.path(pipeline)}/progress")["rows_in"] == 1000)
    until(lambda: [t["rows"] for t in server.get(f"{server.path(pipeline)}/state")["data"]] == [10])

    without = {"query": clicks.table + clicks.kept}
    plan = server.post(f"{path}/plan", without)
    assert (plan["outcome"], plan["refused"], len(plan["dropped"])) == ("drops_state", [], 1)
    other = {"query": query.replace("count(*)", "max(n)")}
    assert server.post(f"{path}/plan", other)["outcome"] == "refused"
    for body in (without, other):
        with pytest.raises(AnswerError, match="does not fit the state") as error:
            server.ask("PUT", path, body)
        assert error.value.status == 409
    with pytest.raises(AnswerError, match="there is no column `m`") as error:
        server.ask("PUT", path, {"query": f"{clicks.table} SELECT m FROM clicks"})
    assert error.value.status == 400
    assert (server.get(path)["version"], server.job(pipeline)["run_id"]) == (1, 1)

    more = {"query": query + clicks.kept, "env_vars": {"REGION": "***"}, "version": 1}
    plan = server.post(f"{path}/plan", more)
    assert plan["outcome"] == "applies"
    kinds = [(each["operator_id"], each["kind"]) for each in plan["kept"]]
    assert kinds == [("source_clicks", "position"), ("totals.aggregate", "state")]
    assert server.ask("PUT", path, more)["version"] == 2
    server.await_state(pipeline, "Running", run=2)
    with pytest.raises(AnswerError, match="has version 2 by now"):
        server.ask("PUT", path, more)
    clicks.give()
    until(lambda: len(clicks.written()) == 1000)
    assert clicks.written() == list(range(1000, 2000))
    assert counted(server, pipeline) == 2000
    assert server.post(f"{path}/plan", {"query": more["query"]})["outcome"] == "unchanged"
    versions = server.get(f"{path}/versions")["data"]
    assert [(each["version"], each["query"]) for each in versions] == [(2, more["query"]), (1, query)]

    server.ask("PUT", path, {**without, "allow_drop": True})
    server.await_state(pipeline, "Running", run=3)
    clicks.give()
    until(lambda: len(clicks.written()) == 2000)
    tables = server.get(f"{server.path(pipeline)}/state")["data"]
    assert "totals.aggregate" not in [table["operator_id"] for table in tables]
    server.patch(path, {"stop": "checkpoint"})
    server.await_state(pipeline, "Stopped")
    assert clicks.written() == list(range(1000, 3000))

    server.post(f"{path}/restart", {"force": True, "ignore_state": True})
    server.await_state(pipeline, "Running", run=4)
    until(lambda: server.get(f"{server.path(pipeline)}/progress")["rows_in"] == 3000)
    server.patch(path, {"stop": "immediate"})
    server.await_state(pipeline, "Stopped")


def test_a_terminal_starts_changes_rescales_and_stops_the_pipelines_of_a_server(
    server: Server, tmp_path: Path
) -> None:
    def headrace(*args: object, code: int = 0) -> str:
        environ = {"HEADRACE_SERVER": server.address}
        done = CliRunner().invoke(main, [str(arg) for arg in args], env=environ)
        assert done.exit_code == code, done.output
        return done.output

    clicks = Clicks(tmp_path / "clicks")
    clicks.give()
    file = tmp_path / "shop.sql"
    file.write_text(clicks.table + clicks.totals + clicks.shown)
    output = headrace("up", file)
    assert "is created" in output
    assert "shop: Running" in output
    pipeline = next(each for each in server.get("/pipelines")["data"] if each["name"] == "shop")["id"]
    server.await_checkpoint(pipeline)
    until(lambda: server.get(f"{server.path(pipeline)}/progress")["rows_in"] == 1000)
    until(lambda: [t["rows"] for t in server.get(f"{server.path(pipeline)}/state")["data"]] == [10])
    assert "shop has this program already" in headrace("up", file)
    listed = headrace("ps")
    assert ("shop" in listed, "Running" in listed, "1,000" in listed) == (True, True, True)
    assert pipeline in [json.loads(line)["id"] for line in headrace("ps", "--json").splitlines()]

    file.write_text(clicks.table + clicks.kept)
    refused = headrace("up", file, code=2)
    assert "drops    operator `totals.aggregate`" in refused
    assert "--allow-drop" in refused
    assert "drops    operator `totals.aggregate`" in headrace("up", file, "--allow-drop", "--dry-run")
    assert server.get(f"/pipelines/{pipeline}")["version"] == 1
    file.write_text(clicks.table + clicks.totals + clicks.shown + clicks.kept)
    assert "shop has version 2" in headrace("up", file)
    assert server.logs(pipeline).startswith(headrace("logs", "shop")[:200])
    assert "has gone from 1 subtasks to 2" in headrace("rescale", "shop", 2)
    assert "shop: Running" in headrace("restart", pipeline)
    assert "belongs to a server" in CliRunner().invoke(main, ["stop", "shop"]).output
    assert "stops" in headrace("stop", "shop")
    assert server.job(pipeline)["state"] == "Stopped"
    assert "shop is Stopped" in headrace("stop", "shop")
    assert "shop: Running" in headrace("up", file)
    assert server.job(pipeline)["run_id"] == 5
    headrace("stop", "--all")
    assert server.job(pipeline)["state"] == "Stopped"


def await_samples(server: Server) -> None:
    """Wait until a piece of the charts is in the database: a rate is between two samples."""
    ends = time.monotonic() + PATIENCE
    with closing(sqlite3.connect(server.data / "headrace.db")) as database:
        while database.execute("SELECT count(*) FROM samples").fetchone() < (2,):
            assert time.monotonic() < ends
            time.sleep(0.5)


def test_whatever_is_killed_the_pipeline_goes_on_and_every_row_is_there_once(tmp_path: Path) -> None:
    server = Server(tmp_path)
    try:
        numbers = Numbers(server, tmp_path)
        server.await_state(numbers.pipeline, "Running")
        numbers.await_all()

        numbers.give()
        os.kill(numbers.process, signal.SIGKILL)
        assert server.await_state(numbers.pipeline, "Running", run=2)["run_id"] == 2
        numbers.await_all()
        (message, *_) = server.get(f"{server.path(numbers.pipeline)}/errors")["data"]
        assert (message["level"], message["error_domain"]) == ("error", "internal")
        assert "was killed" in message["message"]

        adopted = numbers.process
        await_samples(server)
        killed = time.time_ns() // 1000
        server.kill()
        numbers.give()
        server.start()
        numbers.await_all()
        assert server.await_state(numbers.pipeline, "Running")["run_id"] == 2
        assert numbers.process == adopted
        path = f"{server.path(numbers.pipeline)}/operator_metric_groups?seconds=3600"
        for node in server.get(path)["data"]:
            (subtask,) = node["metric_groups"][0]["subtasks"]
            assert subtask["metrics"][0]["time"] < killed  # what the server before was told

        server.kill()
        numbers.give()
        os.kill(adopted, signal.SIGKILL)
        server.start()
        assert server.await_state(numbers.pipeline, "Running", run=3)["run_id"] == 3
        numbers.await_all()
        server.patch(f"/pipelines/{numbers.pipeline}", {"stop": "checkpoint"})
        server.await_state(numbers.pipeline, "Stopped")
        numbers.await_all()
    finally:
        server.close()
