"""Connectors and SQL in a dataflow: rows become messages and messages rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.api.pipeline import Pipeline
from headrace.base.errors import DataflowError
from headrace.functions.user import load_udfs
from headrace.testing.dataflows import run_dataflow
from tests.dataflow.writing import LOG, write_dataflow

TWICE = """
    import pyarrow as pa
    import pyarrow.compute as pc
    from dora import DoraStatus

    class Operator:
        def on_event(self, dora_event, send_output):
            if dora_event["type"] == "INPUT":
                rows = pa.RecordBatch.from_struct_array(dora_event["value"])
                send_output("rows", rows.append_column("twice", pc.multiply(rows["counter"], 2)))
            return DoraStatus.CONTINUE
"""

HEAD = """
    nodes:
      - id: numbers
        connector: impulse
        options: {event_rate: 1000, message_count: 500, event_time_interval: 100ms, start_time: "2026-01-01"}
      - id: twice
        operator:
          python: twice.py
          inputs: {rows: numbers/rows}
          outputs: [rows]
      - id: log
        operator:
          python: log.py
          inputs: {rows: step/rows}
"""


def entries(file: Path, tmp_path: Path) -> list[dict[str, int]]:
    outcome = run_dataflow(file, state_dir=tmp_path / "state")
    assert (outcome.exit_code, outcome.reason) == (0, "finished"), outcome.error
    found = [json.loads(line)[1] for line in outcome.logs["log"]]
    assert found[-1] == "INPUT_CLOSED"
    return [row for rows in found[:-1] for row in rows]


def test_a_step_without_columns_chooses_computes_and_filters(tmp_path: Path) -> None:
    step = """
      - id: step
        sql: SELECT counter, twice + 1 AS more FROM doubled WHERE twice % 100 = 0
        inputs: {doubled: twice/rows}
    """
    file = write_dataflow(tmp_path, dataflow=HEAD + step, twice=TWICE, log=LOG)
    rows = entries(file, tmp_path)
    assert [(row["counter"], row["more"]) for row in rows] == [(n, 2 * n + 1) for n in range(0, 500, 50)]


def test_a_step_with_columns_is_streaming_sql_with_windows(tmp_path: Path) -> None:
    step = """
      - id: step
        sql: |
          SELECT counter % 2 AS odd, count(*) AS n, sum(twice) AS total
          FROM doubled GROUP BY 1, tumble(interval '10 seconds')
        inputs:
          doubled: {source: twice/rows, schema: {counter: BIGINT, twice: BIGINT}}
    """
    file = write_dataflow(tmp_path, dataflow=HEAD + step, twice=TWICE, log=LOG)
    rows = entries(file, tmp_path)
    found = sorted((row["odd"], row["n"], row["total"]) for row in rows)
    assert found == sorted(
        (odd, 50, sum(2 * n for n in range(w * 100, (w + 1) * 100) if n % 2 == odd))
        for odd in (0, 1)
        for w in range(5)
    )


def test_a_step_over_a_connector_knows_its_columns_and_its_updates_reach_operators(tmp_path: Path) -> None:
    step = """
      - id: step
        sql: SELECT counter % 3 AS k, count(*) AS n FROM numbers GROUP BY 1
        inputs: {numbers: numbers/rows}
    """
    file = write_dataflow(tmp_path, dataflow=HEAD + step, twice=TWICE, log=LOG)
    rows = entries(file, tmp_path)
    current: dict[int, int] = {}
    for row in rows:
        if not row["_retract"]:
            current[row["k"]] = row["n"]
    assert current == {0: 167, 1: 167, 2: 166}


def test_two_inputs_of_a_step_are_joined_in_windows(tmp_path: Path) -> None:
    step = """
      - id: step
        sql: |
          SELECT l.n AS n, r.total AS total FROM
          (SELECT tumble(interval '10 seconds') AS w, count(*) AS n FROM numbers GROUP BY 1) l
          JOIN (SELECT tumble(interval '10 seconds') AS w, sum(twice) AS total FROM doubled GROUP BY 1) r
          ON l.w = r.w
        inputs:
          numbers: numbers/rows
          doubled: {source: twice/rows, schema: {counter: BIGINT, twice: BIGINT}}
    """
    file = write_dataflow(tmp_path, dataflow=HEAD + step, twice=TWICE, log=LOG)
    rows = entries(file, tmp_path)
    assert sorted((row["n"], row["total"]) for row in rows) == [
        (100, sum(2 * n for n in range(w * 100, (w + 1) * 100))) for w in range(5)
    ]


def test_a_sink_writes_the_declared_columns(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    sink = f"""
      - id: step
        connector: single_file
        options: {{path: {out}, format: json}}
        schema: {{twice: BIGINT}}
        inputs: {{rows: twice/rows}}
    """
    head = HEAD.partition("      - id: log")[0]
    file = write_dataflow(tmp_path, dataflow=head + sink, twice=TWICE)
    outcome = run_dataflow(file)
    assert outcome.exit_code == 0, outcome.error
    assert [json.loads(line)["twice"] for line in out.read_text().splitlines()] == [2 * n for n in range(500)]


def test_plain_values_are_rows_of_one_column(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    file = write_dataflow(
        tmp_path,
        dataflow=f"""
        nodes:
          - id: counter
            operator: {{python: counter.py, inputs: {{tick: dora/timer/millis/10}}, outputs: [n]}}
          - id: file
            connector: single_file
            options: {{path: {out}, format: json}}
            inputs: {{n: counter/n}}
        """,
        counter="""
        import pyarrow as pa
        from dora import DoraStatus

        class Operator:
            n = 0

            def on_event(self, dora_event, send_output):
                self.n += 1
                send_output("n", [self.n, -self.n])
                return DoraStatus.STOP if self.n == 3 else DoraStatus.CONTINUE
        """,
    )
    outcome = run_dataflow(file)
    assert outcome.exit_code == 0, outcome.error
    values = [json.loads(line)["value"] for line in out.read_text().splitlines()]
    assert values == [1, -1, 2, -2, 3, -3]


REFUSED = {
    "a step that needs columns it does not have": (
        "sql: SELECT count(*) FROM doubled\n        inputs: {doubled: twice/rows}",
        "needs to know the columns",
    ),
    "a name that is not a column": (
        "sql: SELECT conter FROM numbers\n        inputs: {numbers: numbers/rows}",
        "conter",
    ),
    "a table that is not an input": (
        "sql: SELECT counter FROM number\n        inputs: {numbers: numbers/rows}",
        "number",
    ),
    "text that is no SQL": ("sql: SELEC 1\n        inputs: {numbers: numbers/rows}", "SELEC"),
    "two statements": ("sql: SELECT 1; SELECT 2\n        inputs: {numbers: numbers/rows}", "one SELECT"),
    "an option that a connector has not": (
        "connector: single_file\n        options: {pth: x}\n        inputs: {rows: twice/rows}",
        "pth",
    ),
    "a secret that is not set": (
        'connector: single_file\n        options: {path: "{{ UNSET }}"}\n        inputs: {rows: twice/rows}',
        "no `UNSET`",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_mistakes_of_steps_are_told_with_their_place(tmp_path: Path, what: str) -> None:
    body, expected = REFUSED[what]
    text = HEAD.partition("      - id: log")[0] + f"      - id: step\n        {body}\n"
    file = write_dataflow(tmp_path, dataflow=text, twice=TWICE)
    with pytest.raises(DataflowError) as refused:
        Pipeline.from_dataflow(file)
    assert expected in str(refused.value)
    assert f"{file}:" in str(refused.value)


def test_a_message_that_lacks_a_declared_column_is_an_error_that_names_those_it_has(tmp_path: Path) -> None:
    step = """
      - id: step
        sql: SELECT count(*) AS n FROM doubled GROUP BY tumble(interval '10 seconds')
        inputs:
          doubled: {source: twice/rows, schema: {counter: BIGINT, thrice: BIGINT}}
    """
    file = write_dataflow(tmp_path, dataflow=HEAD + step, twice=TWICE, log=LOG)
    outcome = run_dataflow(file)
    assert outcome.exit_code == 2
    assert "no column `thrice`" in str(outcome.error)
    assert "`twice`" in str(outcome.error)


def test_a_cycle_through_a_step_is_refused(tmp_path: Path) -> None:
    file = write_dataflow(
        tmp_path,
        dataflow="""
        nodes:
          - id: twice
            operator:
              python: twice.py
              inputs: {tick: dora/timer/millis/10, rows: step/rows}
              outputs: [rows]
          - id: step
            sql: SELECT counter FROM doubled
            inputs: {doubled: twice/rows}
        """,
        twice=TWICE,
    )
    with pytest.raises(DataflowError, match="part of a cycle"):
        Pipeline.from_dataflow(file)


def test_a_step_calls_functions_of_the_user(tmp_path: Path) -> None:
    functions = tmp_path / "functions.py"
    functions.write_text(
        "from headrace import udf, udtf\n"
        "@udf\ndef half(n: int) -> int:\n    return n // 2\n"
        "@udtf\ndef below(n: int) -> list[int]:\n    return list(range(n))\n"
    )
    step = """
      - id: chosen
        sql: |
          CREATE FUNCTION plus(n BIGINT, m BIGINT) RETURNS BIGINT LANGUAGE python AS $$ return n + m $$;
          SELECT plus(twice, half(twice)) AS more FROM doubled WHERE twice < 8
        inputs: {doubled: twice/rows}
      - id: step
        sql: SELECT more, b.below FROM chosen, below(more) AS b WHERE b.below > 7
        inputs: {chosen: {source: chosen/rows, schema: {more: BIGINT}}}
    """
    file = write_dataflow(tmp_path, dataflow=HEAD + step, twice=TWICE, log=LOG)
    outcome = run_dataflow(file, state_dir=tmp_path / "state", udfs=load_udfs(functions))
    assert outcome.reason == "finished", outcome.error
    found = [json.loads(line)[1] for line in outcome.logs["log"]]
    rows = [row for some in found[:-1] for row in some]
    assert [(row["more"], row["below"]) for row in rows] == [(9, 8)]


def test_a_function_that_is_wrong_has_its_place_in_the_document(tmp_path: Path) -> None:
    step = """
      - id: step
        sql: |
          CREATE FUNCTION plus(n BIGINT) RETURNS BIGINT LANGUAGE python AS $$
            return n +
          $$;
          SELECT plus(twice) AS more FROM doubled
        inputs: {doubled: twice/rows}
    """
    file = write_dataflow(tmp_path, dataflow=HEAD + step, twice=TWICE, log=LOG)
    with pytest.raises(DataflowError, match="`step`: function `plus`: invalid syntax") as caught:
        Pipeline.from_dataflow(file)
    assert "return n +" in caught.value.excerpt
