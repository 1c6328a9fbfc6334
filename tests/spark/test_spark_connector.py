"""What only Spark can reach: any of its streaming sources and sinks, by the name of the format."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import headrace as hr

pytestmark = pytest.mark.versions


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def test_rows_of_spark_are_read_once_over_two_runs_and_written_by_spark(tmp_path: Path) -> None:
    sql = f"""
        CREATE TABLE rates (value BIGINT) WITH (
          connector = 'spark', type = 'source', format = 'rate-micro-batch',
          options = 'rowsPerBatch=100,numPartitions=2');
        CREATE TABLE lines (n BIGINT) WITH (
          connector = 'single_file', type = 'sink', format = 'json', path = '{tmp_path / "out.json"}');
        CREATE TABLE files (n BIGINT) WITH (
          connector = 'spark', type = 'sink', format = 'parquet', path = '{tmp_path / "files"}');
        INSERT INTO lines SELECT value FROM rates;
        INSERT INTO files SELECT value FROM rates;
    """
    for epochs in (2, 2):
        hr.Pipeline.from_sql(sql).run(tmp_path / "state", parallelism=2, epoch_rows=200, max_epochs=epochs)
    found = numbers(tmp_path / "out.json")
    assert found
    assert sorted(found) == list(range(len(found)))
    written = pq.read_table(tmp_path / "files").column("n").to_pylist()
    assert sorted(written) == sorted(found)


def test_files_that_spark_reads_are_told_their_columns_and_end(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for file in range(3):
        (folder / f"{file}.json").write_text("".join(f'{{"n": {file * 10 + n}}}\n' for n in range(10)))
    sql = f"""
        CREATE TABLE rows (n BIGINT) WITH (
          connector = 'spark', type = 'source', format = 'json', path = '{folder}', bounded = true,
          options = 'maxFilesPerTrigger=1');
        CREATE TABLE lines (n BIGINT) WITH (
          connector = 'single_file', type = 'sink', format = 'json', path = '{tmp_path / "out.json"}');
        INSERT INTO lines SELECT n FROM rows;
    """
    result = hr.Pipeline.from_sql(sql).run(tmp_path / "state", parallelism=2)
    assert result.reason == "finished"
    assert sorted(numbers(tmp_path / "out.json")) == list(range(30))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("format = 'no_such_format'", "Spark cannot read the format `no_such_format`"),
        ("format = 'rate', options = 'rowsPerSecond=-1'", "rowsPerSecond"),
    ],
)
def test_what_spark_refuses_is_told_without_a_stack_trace(tmp_path: Path, options: str, message: str) -> None:
    sql = f"""
        CREATE TABLE rows (value BIGINT) WITH (connector = 'spark', type = 'source', {options});
        CREATE TABLE out (n BIGINT) WITH (connector = 'blackhole');
        INSERT INTO out SELECT value FROM rows;
    """
    with pytest.raises(hr.HeadraceError, match=message):
        hr.Pipeline.from_sql(sql).run(tmp_path / "state", max_epochs=1)
