"""Documents and what is read from them.

Below `documents/accepted` each `name.yml` has a `name.expected.json` with what was read; below
`documents/refused` a `name.error.txt` with the whole error: `text` holds what is no YAML, `structure` what
the JSON schema refuses as well, `meaning` what only reading can find. All are read as if they stood in
`documents`, where the files are that they name.

python -m tests.dataflow.test_documents writes the expectations anew; read what has changed before you commit
it. The JSON schema and the tables of the reference page are written by python -m docs.generate.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from headrace.base.errors import DataflowError
from headrace.base.spans import Source
from headrace.dataflow.document.blocks import BLOCKS
from headrace.dataflow.document.findings import Findings
from headrace.dataflow.document.json_schema import json_schema
from headrace.dataflow.document.model import Dataflow, Logs, Output, Timer, Unit
from headrace.dataflow.document.read import read_document
from headrace.dataflow.document.yaml_text import Scalar, parse_yaml, plain_value

ROOT = Path(__file__).parents[2]
DOCUMENTS = Path(__file__).parent / "documents"
ACCEPTED = sorted((DOCUMENTS / "accepted").glob("*.yml"))
REFUSED = sorted((DOCUMENTS / "refused").glob("*/*.yml"))
PAGE = ROOT / "docs" / "reference" / "dataflow-yaml.md"
ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/home/ada", "CITY": "Delft"}


def name_of(file: Path) -> str:
    return str(file.relative_to(DOCUMENTS).with_suffix(""))


def read(
    text: str, *, name: str = "flow.yml", directory: Path = DOCUMENTS, check_files: bool = True
) -> Dataflow:
    return read_document(
        Source(name, text), directory=directory, name="flow", environ=ENVIRON, check_files=check_files
    )


def read_file(file: Path) -> Dataflow:
    return read(file.read_text(encoding="utf-8"), name=str(file.relative_to(DOCUMENTS)))


def values_of(text: str) -> Any:
    """A document as JSON has it, by the rules of YAML 1.2."""
    tree = parse_yaml(Source("", text), Findings())
    assert tree is not None
    return plain_value(tree)


def summary(flow: Dataflow) -> dict[str, Any]:
    """What was read, as JSON; what has its default is left out."""
    return {
        "units": {unit.address: shown(unit) for unit in flow.units},
        **({"env": dict(flow.env)} if flow.env else {}),
        **({"exit_when_nodes_finish": True} if flow.exit_when_nodes_finish else {}),
        "descriptor": flow.descriptor,
        **({"warnings": list(flow.warnings)} if flow.warnings else {}),
    }


def shown(unit: Unit) -> dict[str, Any]:
    defaults = Unit("", "python")
    inputs = {
        one.id: {
            "source": source_text(one.source),
            **{
                name: getattr(one, name)
                for name, default in {"queue_size": 10, "queue_policy": "backpressure"}.items()
                if getattr(one, name) != default
            },
            **({"timeout": one.timeout} if one.timeout is not None else {}),
            **({"columns": one.columns} if one.columns is not None else {}),
        }
        for one in unit.inputs
    }
    plain = asdict(unit)
    names = [
        name
        for name in plain
        if name not in {"node", "inputs", "span", "sql_span", "sql_offsets"}
        and plain[name] != asdict(defaults)[name]
    ]
    found: dict[str, Any] = {"kind": unit.kind, **{name: plain[name] for name in names}}
    if unit.inputs:
        found["inputs"] = inputs
    # What is outside of the documents is different on every machine.
    relative = json.dumps(found, default=str).replace(f"{DOCUMENTS}/", "")
    loaded: dict[str, Any] = json.loads(re.sub(r'"/[^" ]*/bin/(\w+)"', r'"…/\1"', relative))
    return loaded


def source_text(source: Timer | Output | Logs) -> str:
    if isinstance(source, Timer):
        return f"{source.text} ({source.period} ns)"
    return str(source) if isinstance(source, Output) else repr(source)


def error_of(file: Path) -> str:
    with pytest.raises(DataflowError) as caught:
        read_file(file)
    return str(caught.value) + "\n"


# --------------------------------------------------------------------------------- the documents


@pytest.mark.parametrize("file", ACCEPTED, ids=name_of)
def test_an_accepted_document_is_read_as_expected(file: Path) -> None:
    expected = json.loads(file.with_suffix(".expected.json").read_text(encoding="utf-8"))
    assert summary(read_file(file)) == expected


@pytest.mark.parametrize("file", REFUSED, ids=name_of)
def test_a_refused_document_says_what_is_wrong_and_where(file: Path) -> None:
    assert error_of(file) == file.with_suffix(".error.txt").read_text(encoding="utf-8")


def test_there_are_as_many_expectations_as_documents() -> None:
    expected = {*DOCUMENTS.rglob("*.expected.json"), *DOCUMENTS.rglob("*.error.txt")}
    assert len(expected) == len(ACCEPTED) + len(REFUSED)
    assert len(ACCEPTED) >= 30
    assert len(REFUSED) >= 40


def test_every_error_has_a_place_in_its_file() -> None:
    for file in REFUSED:
        with pytest.raises(DataflowError) as caught:
            read_file(file)
        for error in (caught.value, *caught.value.more):
            assert re.fullmatch(r".+\.yml:\d+:\d+", error.where or ""), (name_of(file), error.message)
            assert "^" in error.excerpt, (name_of(file), error.message)


# --------------------------------------------------------------------------------- the schema


def validator() -> Any:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    return jsonschema.Draft202012Validator(json_schema())


def dataflows() -> Iterator[Path]:
    """Every document that can be read: here, and among the examples."""
    yield from ACCEPTED
    yield from (DOCUMENTS / "modules" / name for name in ("transform.yml", "outer.yml", "circle.yml"))
    yield from sorted((ROOT / "examples").rglob("*.yml"))


@pytest.mark.parametrize("file", list(dataflows()), ids=lambda file: str(file.relative_to(ROOT)))
def test_the_schema_accepts_what_is_accepted(file: Path) -> None:
    errors = [error.message for error in validator().iter_errors(values_of(file.read_text(encoding="utf-8")))]
    assert errors == []


@pytest.mark.parametrize("file", [file for file in REFUSED if file.parent.name == "structure"], ids=name_of)
def test_the_schema_refuses_what_has_the_wrong_structure(file: Path) -> None:
    assert not validator().is_valid(values_of(file.read_text(encoding="utf-8")))


def test_the_schema_refuses_names_and_empty_kinds_that_are_refused() -> None:
    for node in ("{id: a, path: x.py, inputs: {a b: b/x}}", "{id: a, path: }", "{id: a, path: x.py, sql: y}"):
        text = f"nodes: [{node}]"
        assert not validator().is_valid(values_of(text)), node
        with pytest.raises(DataflowError):
            read(text, check_files=False)


def test_every_block_has_a_table_in_the_docs() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [block.__name__ for block in BLOCKS if f"<!-- keys: {block.__name__} -->" not in page] == []


def test_the_documents_in_the_docs_can_be_read() -> None:
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```text (dataflow|module)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert {kind for kind, _ in blocks} == {"dataflow", "module"}
    for kind, text in blocks:
        assert validator().is_valid(values_of(text))
        if kind == "dataflow":
            assert read(text, check_files=False).units


# --------------------------------------------------------------------------------- one by one


def test_a_timer_knows_its_period_exactly() -> None:
    flow = read("nodes: [{id: a, operator: {python: op.py, inputs: {t: dora/timer/hz/30}}}]")
    timer = flow.units[0].inputs[0].source
    assert timer == Timer(Fraction(1_000_000_000, 30), "dora/timer/hz/30")


@pytest.mark.parametrize(
    "written",
    [
        "|\n      SELECT a\n        FROM t\n      WHERE bad",
        "|2-\n      SELECT a\n\n      WHERE bad",
        ">\n      SELECT a\n      FROM t\n\n      WHERE bad",
        "SELECT a\n      FROM t\n      WHERE bad",
        "SELECT a FROM t WHERE bad",
        "'SELECT ''x'' WHERE bad'",
        '"SELECT \\"x\\" \\u0041\\t WHERE\\n bad"',
        "&query |\n      SELECT a\n      WHERE bad",
    ],
)
def test_a_place_in_the_sql_of_a_step_is_a_place_in_the_document(written: str) -> None:
    text = (
        "nodes:\n  - {id: s, path: sender.py, outputs: [x]}\n"
        f"  - id: q\n    inputs: {{t: s/x}}\n    sql: {written}\n"
    )
    unit = read(text).by_address["q"]
    assert unit.sql is not None
    at = unit.sql.index("bad")
    place = unit.sql_span_of(at, at + 3)
    assert place is not None
    assert place.source.text[place.start : place.end] == "bad"


def test_files_are_not_looked_for_when_that_is_not_asked_for() -> None:
    text = """
nodes:
  - {id: a, operator: {python: gone.py}}
  - {id: b, operator: {shared-library: ./gone}}
  - {id: c, path: gone.py}
  - {id: d, path: ./gone}
  - {id: e, path: gone}
"""
    flow = read(text, check_files=False)
    files = [unit.file and unit.file.name for unit in flow.units]
    assert files == ["gone.py", "libgone.so", "gone.py", "gone", "gone"]
    with pytest.raises(DataflowError) as caught:
        read(text)
    assert len(caught.value.more) == 4


def test_a_script_is_run_by_this_python_and_a_program_by_itself() -> None:
    text = "nodes: [{id: a, path: sender.py, args: [x]}, {id: b, path: ./tool}]"
    a, b = read(text).units
    assert a.command == ("python", str(DOCUMENTS / "sender.py"), "x")
    assert b.command == (str(DOCUMENTS / "tool"),)


def test_the_program_of_the_document_is_taken_before_one_on_the_path(tmp_path: Path) -> None:
    program = tmp_path / "ls"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    flow = read("nodes: [{id: a, path: ls}]", directory=tmp_path)
    assert flow.units[0].file == program


def test_line_ends_of_windows_do_not_move_places() -> None:
    with pytest.raises(DataflowError) as caught:
        read("nodes:\r\n  - id: a\r\n    path: gone.py\r\n")
    assert caught.value.where == "flow.yml:3:11"
    assert caught.value.excerpt == "  3 |     path: gone.py\n    |           ^^^^^^^"


def test_a_byte_order_mark_and_letters_of_other_alphabets_do_not_move_places() -> None:
    with pytest.raises(DataflowError) as caught:
        read("\ufeff# é→\nnodes: [{id: a, name: Zoë, path: gone.py}]\n")
    assert caught.value.where == "flow.yml:2:34"


def test_aliases_that_grow_without_end_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(DataflowError, match="more than 100,000 values"):
        read("\n".join(lines))


@pytest.mark.parametrize(
    "text", ["[" * 900, "a: " + "{a: " * 900, "- " * 900, "nodes: " + "[" * 900 + "]" * 900]
)
def test_a_document_that_is_nested_too_deeply_is_refused(text: str) -> None:
    with pytest.raises(DataflowError):
        read(text)


def test_characters_that_yaml_does_not_know_are_refused() -> None:
    with pytest.raises(DataflowError, match=r"U\+0007"):
        read("nodes: [{id: a\x07}]")


def test_every_prefix_of_a_document_is_read_or_refused() -> None:
    for file in ACCEPTED:
        text = file.read_text(encoding="utf-8")
        for end in range(0, len(text), 17):
            try:
                read(text[:end])
            except DataflowError as error:
                assert error.where  # noqa: PT017 - a prefix may also be a document


def test_a_module_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.yml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataflowError, match="cannot be read"):
        read("nodes: [{id: a, module: m.yml}]", directory=tmp_path)


def test_a_scalar_is_what_yaml_1_2_says() -> None:
    text = (
        "{a: on, b: yes, c: 0o17, d: 0x1F, e: 1e3, f: .5, g: '1', h: ~, i: True, j: 1_000, k: 12:30, l: 017}"
    )
    assert values_of(text) == {
        "a": "on",
        "b": "yes",
        "c": 15,
        "d": 31,
        "e": 1000.0,
        "f": 0.5,
        "g": "1",
        "h": None,
        "i": True,
        "j": "1_000",
        "k": "12:30",
        "l": 17,
    }


def test_a_scalar_knows_where_each_of_its_characters_stands() -> None:
    tree = parse_yaml(Source("", "a: >-\n   one\n   two\n"), Findings())
    assert tree is not None
    scalar = tree.entries[0][1]  # type: ignore[union-attr]
    assert isinstance(scalar, Scalar)
    assert scalar.text == "one two"
    assert scalar.span_of(4, 7).where == ":3:4"


def write() -> None:
    """Write everything that is expected anew."""
    for file in ACCEPTED:
        text = json.dumps(summary(read_file(file)), indent=2, ensure_ascii=False)
        file.with_suffix(".expected.json").write_text(text + "\n", encoding="utf-8")
    for file in REFUSED:
        file.with_suffix(".error.txt").write_text(error_of(file), encoding="utf-8")


if __name__ == "__main__":
    write()
