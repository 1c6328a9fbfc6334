"""The documentation is true: generated pages are fresh, links lead somewhere, and blocks run.

A page is followed from top to bottom in an empty directory. `python` blocks run in one namespace, `console`
blocks are typed, and blocks of any language with `file=NAME` are saved. `sql` blocks are planned, each with
the tables and views of the blocks above it; `sql udf=NAME` with the functions of a saved file, and `sql
refused` must fail. `yaml` blocks are dataflows, or some of the nodes of one, and are read. `headrace run`
runs in this process here, without Spark; the tests marked `spark` run the first pipelines and the examples
for real.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.base import errors
from headrace.base.secrets import SECRET
from headrace.base.spans import Source
from headrace.cli.main import main
from headrace.dataflow.document.read import read_document
from headrace.functions.user import Function, load_udfs
from headrace.testing.in_process import run_in_process

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / name for name in ("README.md", "SECURITY.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
] + sorted((ROOT / "docs").rglob("*.md"))
LANGUAGES = {"python", "sql", "yaml", "jsonl", "console", "text", "toml", "mermaid"}

DEFINITION = re.compile(r"^CREATE (?:TEMPORARY )?(?:TABLE|VIEW) (\w+)", re.MULTILINE | re.IGNORECASE)
IN_MEMORY = re.compile(r"\A(?!.*(\bWITH \(|\bAS\s+SELECT\b))", re.DOTALL | re.IGNORECASE)
"""A definition that means something only with its INSERTs."""

DATAFLOW = re.compile(r"\.yml\b")
"""A command about a dataflow: each line that a page shows must come out."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what else stands behind the fence, its text and its line."""

    language: str
    info: str
    text: str
    line: int

    def word(self, name: str) -> str | None:
        """The VALUE of `name=VALUE` behind the fence."""
        found = re.search(rf"(?:^| ){name}=(\S+)", self.info)
        return None if found is None else found[1]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        language, _, info = match[1].partition(" ")
        yield Block(language, info, match[2], text.count("\n", 0, match.start()) + 2)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def headings(page: Path) -> list[str]:
    without_blocks = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.*)$", without_blocks, flags=re.MULTILINE)


def test_the_generated_pages_are_what_the_code_says() -> None:
    # As a person generates them: in a process that has run nothing else.
    command = [sys.executable, "-m", "docs.generate", "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_to_a_file_or_a_heading(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings(found)}
            assert anchor in anchors, f"{name_of(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_test_that_a_page_names_is_there_and_linked(page: Path) -> None:
    for path, name, target in re.findall(r"`(tests/[\w/.]+\.py)::(\w+)`(?:\]\(([^)]+)\))?", page.read_text()):
        assert re.search(rf"^ *def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{name}"
        assert (page.parent / target).resolve() == ROOT / path, f"{path}::{name} links to {target}"


def test_every_row_of_the_tables_of_promises_names_a_test() -> None:
    text = (ROOT / "docs/concepts/guarantees.md").read_text()
    section = text.partition("## Which test shows it")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "test |" not in line]
    assert len(rows) > 30
    assert [row for row in rows if "::test_" not in row] == []


def test_the_tables_of_promises_name_every_connector_that_promises_a_delivery() -> None:
    text = (ROOT / "docs/concepts/guarantees.md").read_text()
    faults = text.partition("## Which test shows it")[2].partition("Promises of other pages")[0]
    named = set(re.findall(r"`(\w+)`", faults))
    promised = set(
        re.findall(r"^\| `(\w+)`", (ROOT / "docs/reference/delivery.md").read_text(), re.MULTILINE)
    )
    assert len(promised) > 15
    same_as_another = {"confluent"}  # Kafka under another name
    shows_nothing = {"blackhole"}
    assert promised - named == same_as_another | shows_nothing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_fenced_block_says_what_it_is(page: Path) -> None:
    odd = [
        f"line {block.line}: {block.language!r}" for block in blocks(page) if block.language not in LANGUAGES
    ]
    assert odd == []


def test_every_error_code_has_its_heading() -> None:
    def codes(kind: type[errors.HeadraceError]) -> Iterator[str]:
        yield kind.code
        for child in kind.__subclasses__():
            yield from codes(child)

    assert set(codes(errors.HeadraceError)) <= set(headings(ROOT / "docs/reference/errors.md"))


def test_the_plan_in_the_readme_is_the_plan_of_the_demo() -> None:
    plan = hr.load_pipeline(str(ROOT / "examples/demo.sql")).explain("mermaid")
    assert plan in [block.text.rstrip() for block in blocks(ROOT / "README.md")]


RUNNABLE = [
    page
    for page in PAGES
    if any(block.language in {"python", "sql", "yaml", "console"} for block in blocks(page))
]


@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_what_a_page_shows_can_be_done(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hr.Pipeline, "run", _run_here)
    for name in SECRET.findall(page.read_text(encoding="utf-8")):
        monkeypatch.setenv(name, f"the value of {name}")
    namespace: dict[str, Any] = {"__name__": "page"}
    definitions: dict[str, str] = {}
    for block in blocks(page):
        if name := block.word("file"):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(block.text)
        if block.language == "sql":
            _plan(block, definitions)
        elif block.language == "yaml":
            _read(block)
        elif block.language == "python" and not block.word("file"):
            # Blank lines in front, so that a failure names the line of the page.
            source = "\n" * (block.line - 1) + block.text
            exec(compile(source, str(page), "exec", dont_inherit=True), namespace)
        elif block.language == "console":
            _type(block)


def _plan(block: Block, definitions: dict[str, str]) -> None:
    """Plan the SQL of a block with the tables and views defined above it, which it may define anew."""
    own = {}
    for statement in re.split(r";[ \t]*$", block.text, flags=re.MULTILINE):
        if (found := DEFINITION.search(statement)) and not IN_MEMORY.search(statement):
            own[found[1].lower()] = statement
    text = ";\n".join([*(text for name, text in definitions.items() if name not in own), block.text])
    functions = load_udfs(block.word("udf") or "") if block.word("udf") else []
    where = f"line {block.line}"
    problem = _problem([Source(where, text)], functions)
    assert (problem is not None) is ("refused" in block.info), f"{where}: {problem}"
    if problem is None:
        definitions.update(own)


def _read(block: Block) -> None:
    """Read a dataflow; a page may show some of its nodes, without those that they read."""
    nodes = block.text if "nodes:" in block.text else f"nodes:\n{block.text}"
    problems: list[str] = []
    try:
        read_document(Source(f"line {block.line}", nodes), directory=Path(), name="page", check_files=False)
    except hr.HeadraceError as error:
        problems = [one.message for one in (error, *getattr(error, "more", ()))]
    if nodes != block.text:
        problems = [text for text in problems if not text.startswith("there is no node")]
    assert problems == [], f"line {block.line}"


def _problem(sources: list[Source], functions: Sequence[Function]) -> hr.SqlError | None:
    """What is wrong with SQL; that nothing uses its definitions is not."""
    try:
        hr.Pipeline.from_sql(sources, udfs=functions).plan()
    except hr.SqlError as error:
        return None if error.message == "nothing is selected or inserted" else error
    return None


def _run_here(pipeline: hr.Pipeline, state_dir: str | None = None, **options: Any) -> hr.RunResult:
    """`Pipeline.run` over the exchange of the test kit."""
    known = ("parallelism", "max_epochs", "epoch_rows", "from_epoch", "allow_drop")
    chosen = {name: options[name] for name in known if options.get(name) is not None}
    if any(node.operator == "process" for node in pipeline.plan().nodes):
        chosen |= {"clock": time.time, "idle_epochs": 100_000}  # processes live in real time
    return run_in_process(pipeline, state_dir or tempfile.mkdtemp(dir="."), **chosen)


def _type(block: Block) -> None:
    """Type the commands of a block; JSON lines it shows must come out, and errors it shows must be errors."""
    for session in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = session.partition("\n")
        program, *arguments = shlex.split(command)
        assert program == "headrace", f"line {block.line}: {command}"
        result = CliRunner().invoke(main, arguments)
        fails = shown.startswith("error[")
        assert (result.exit_code != 0) is fails, f"line {block.line}: {command}\n{result.output}"
        if fails:
            assert shown.splitlines()[0] in result.output
        for line in shown.splitlines():
            if line.startswith("{"):
                assert json.loads(line) in [json.loads(o) for o in result.stdout.splitlines() if o[:1] == "{"]
            elif DATAFLOW.search(command) and line != "…":
                assert line in result.output.splitlines(), f"line {block.line}: {command}\n{result.output}"
