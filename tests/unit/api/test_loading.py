"""Which pipeline the files and texts of a command line are."""

import io
import sys
from pathlib import Path

import pytest

from headrace.api.loading import find_program, load_pipeline
from headrace.base.errors import ConfigurationError, SqlError, UserError

TABLE = "create table numbers with (connector = 'impulse', message_count = '10');\n"
QUERY = "select counter from numbers;\n"


@pytest.fixture
def query(tmp_path: Path) -> Path:
    file = tmp_path / "my query.sql"
    file.write_text(TABLE + QUERY)
    return file


def test_a_sql_file_is_a_pipeline_called_after_it(query: Path) -> None:
    assert load_pipeline(str(query)).plan().name == "my_query"


@pytest.mark.parametrize(
    ("stem", "name"),
    [("a", "a"), ("a b/ü", "ü"), ("...", "query"), ("top-5.v2", "top-5.v2"), ("__", "query")],
)
def test_a_name_that_cannot_be_one_is_made_one(stem: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{stem}.sql"
    file.parent.mkdir(exist_ok=True)
    file.write_text(TABLE + QUERY)
    assert load_pipeline(str(file)).name == name


def test_several_files_and_texts_are_one_program_called_after_the_last_file(tmp_path: Path) -> None:
    (tmp_path / "tables.sql").write_text(TABLE)
    (tmp_path / "view.sql").write_text(
        "create view even as select counter from numbers where counter % 2 = 0;"
    )
    program = find_program([f"{tmp_path}/tables.sql", f"{tmp_path}/view.sql"], texts=["select * from even"])
    assert program.name == "view"
    assert [source.name for source in program.sql][2:] == ["-e"]
    assert {node.role for node in program.load().plan().nodes} == {"source", "operator", "sink"}


def test_the_standard_input_and_a_text_are_called_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(TABLE))
    program = find_program(["-"], texts=[QUERY])
    assert program.name == "query"
    assert program.load().plan().name == "query"


def test_a_mistake_is_placed_in_the_file_it_is_in(tmp_path: Path) -> None:
    (tmp_path / "tables.sql").write_text(TABLE)
    (tmp_path / "query.sql").write_text("\nselect countr from numbers")
    with pytest.raises(SqlError) as caught:
        find_program([f"{tmp_path}/tables.sql", f"{tmp_path}/query.sql"]).load()
    assert caught.value.where == f"{tmp_path}/query.sql:2:8"


@pytest.mark.parametrize(
    "text", [QUERY, "-- a comment\n/* and\nanother */ WITH a AS (SELECT 1) SELECT * FROM a", "CREATE TABLE x"]
)
def test_a_file_of_any_name_is_sql_if_it_begins_like_it(text: str, tmp_path: Path) -> None:
    file = tmp_path / "query.txt"
    file.write_text(text)
    assert find_program([str(file)]).sql[0].text == text


@pytest.mark.parametrize("text", ["", "import headrace", "selection", "-- select"])
def test_a_file_that_is_neither_python_nor_sql_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "query.txt"
    file.write_text(text)
    with pytest.raises(UserError, match="nor SQL"):
        find_program([str(file)])


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "query.sql").write_bytes(b"select '\xff'")
    with pytest.raises(UserError, match="cannot be read"):
        find_program([str(tmp_path / "query.sql")])
    with pytest.raises(UserError, match="is a directory"):
        find_program([str(tmp_path)])
    with pytest.raises(UserError, match="there is no file") as caught:
        find_program([str(tmp_path / "qery.sql")])
    assert caught.value.hint == "did you mean `query.sql`?"


def test_python_and_sql_are_not_taken_together(query: Path) -> None:
    with pytest.raises(UserError, match="of its own"):
        find_program([str(query), "a.py:name"])
    with pytest.raises(UserError, match="of its own"):
        find_program(["a.py"], texts=[QUERY])


def test_the_standard_input_is_read_once() -> None:
    with pytest.raises(UserError, match="once"):
        find_program(["-", "-"])


def test_functions_are_found_in_their_files(query: Path, tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text(
        "from headrace import udf\n\n@udf\ndef twice(x: int) -> int:\n    return 2 * x\n"
    )
    query.write_text(TABLE + "select twice(counter) from numbers")
    find_program([str(query)]).load(udfs=[str(tmp_path / "f.py")]).plan()
    with pytest.raises(SqlError, match="twice"):
        find_program([str(query)]).load()
    with pytest.raises(ConfigurationError, match="no file"):
        find_program([str(query)]).load(udfs=["absent.py"])
    with pytest.raises(UserError, match="for SQL"):
        find_program(["a.py"]).load(udfs=["f.py"])


def test_a_program_knows_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADING_SECRET", "hunter2")
    program = find_program([], texts=["create table t with (path = '{{ LOADING_SECRET }}')"])
    assert program.secrets.hide("hunter2") == "{{ LOADING_SECRET }}"


def test_a_file_that_runs_its_pipeline_when_it_is_loaded_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "eager.py"
    file.write_text(
        "import headrace as hr\n"
        "pipeline = hr.Pipeline('eager')\n"
        "pipeline.source('memory', rows=[{'a': 1}]).sink('blackhole')\n"
        "pipeline.run()\n"
    )
    with pytest.raises(UserError, match=r"eager\.py starts a pipeline while it is loaded") as caught:
        load_pipeline(str(file))
    assert "line 4" in str(caught.value.where)
    assert '__name__ == "__main__"' in str(caught.value.hint)
