"""The layers of the package: imports go down only. ARCHITECTURE.md says what each layer is."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.base import columns

PACKAGE = Path(__file__).parents[2] / "src" / "headrace"

LAYERS = (
    "base",
    "storage",
    "formats | state | functions",
    "model",
    "connectors | operators",
    "sql",
    "dataflow",
    "engine",
    "exchanges",
    "jobs",
    "api",
    "testing",
    "server",
    "cli",
    "__main__",
)
"""From the bottom up. Names with a space between them may see each other, names with `|` may not.

The cli stands one step above the api: `headrace run` loads and runs a pipeline the way a user's own
script does, and a second way to do that would be a second thing to keep right. It stands above testing too:
`headrace test` is the kit that tests the product, for users, and nothing else of the product may lean on it.
"""

FENCES = {
    "pyspark": ("exchanges/spark", "connectors/spark.py"),
    "py4j": ("exchanges/spark", "connectors/spark.py"),
    "sqlglot": ("sql",),
    "yaml": ("dataflow",),
    "click": ("cli",),
    "rich": ("cli",),
    "fastapi": ("server",),
    "starlette": ("server",),
    "uvicorn": ("server",),
    "prometheus_client": ("server",),
}
"""Outside libraries, and the only parts of the package that may import them."""

RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer.replace("|", " ").split()}
STRANGERS = {name for layer in LAYERS if "|" in layer for name in layer.replace("|", " ").split()}


@dataclass(frozen=True)
class Import:
    """One import: the file and line it stands in and the full name of what it imports."""

    file: Path
    line: int
    target: str

    @property
    def place(self) -> str:
        return f"src/headrace/{self.file.relative_to(PACKAGE)}:{self.line}"

    @property
    def importer(self) -> str:
        return part_of(self.file)


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(file: Path) -> str:
    """The module or package right below `headrace` that a file belongs to; empty for headrace/__init__.py."""
    first = file.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imports(file: Path) -> Iterator[Import]:
    """Every import of a file, wherever it stands: at the top, in a function, under TYPE_CHECKING."""
    package = ("headrace", *file.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            for alias in node.names:
                yield Import(file, node.lineno, f"{module}.{alias.name}")


def all_imports() -> list[Import]:
    return [item for file in files() for item in imports(file)]


def complaint(item: Import) -> str | None:
    """Why an import of one part of headrace by another is against the layers, or None."""
    parts = item.target.split(".")
    if parts[0] != "headrace":
        return None
    target = parts[1] if len(parts) > 1 and parts[1] in RANK else ""
    if item.importer == "":
        return f"{item.place}: headrace/__init__.py imports cli" if target == "cli" else None
    if item.importer == target:
        return None
    if target == "":
        if item.importer in {"cli", "testing"}:
            return None
        return f"{item.place}: {item.importer} imports from headrace/__init__.py; name the module itself"
    if RANK[target] > RANK[item.importer]:
        return f"{item.place}: {item.importer} imports {target}, which stands above it"
    if RANK[target] == RANK[item.importer] and target in STRANGERS:
        return f"{item.place}: {item.importer} imports {target}, its sibling"
    return None


def test_every_module_has_a_layer_and_every_layer_a_module() -> None:
    assert sorted({part_of(file) for file in files()} - {""}) == sorted(RANK)


def test_a_module_does_not_repeat_the_name_of_its_folder() -> None:
    repeated = [
        str(file.relative_to(PACKAGE))
        for file in files()
        if file.stem == file.parent.name or file.stem.startswith(f"{file.parent.name}_")
    ]
    assert repeated == []


def test_a_private_folder_is_used_by_its_own_package_only() -> None:
    strays = [
        item.place
        for item in all_imports()
        for private in ("connectors._shared", "formats._shared")
        if f"headrace.{private}." in f"{item.target}." and item.importer != private.partition(".")[0]
    ]
    assert strays == []


def test_imports_go_down_only() -> None:
    assert [
        text for item in all_imports() if item.importer in {"", *RANK} and (text := complaint(item))
    ] == []


@pytest.mark.parametrize(("library", "owners"), FENCES.items())
def test_a_fenced_library_is_imported_by_its_owners_only(library: str, owners: tuple[str, ...]) -> None:
    strays = [
        item.place
        for item in all_imports()
        if item.target.split(".")[0] == library
        and not any(item.file.is_relative_to(PACKAGE / owner) for owner in owners)
    ]
    assert strays == []


def test_the_registry_names_connectors_by_strings_only() -> None:
    below = {"connectors", "operators", "formats"}
    named = [
        i.place
        for i in imports(PACKAGE / "model" / "registry.py")
        if i.target.split(".")[1:2] and i.target.split(".")[1] in below
    ]
    assert named == []


def test_no_two_public_classes_share_a_name() -> None:
    homes: dict[str, list[str]] = {}
    for file in files():
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(file.relative_to(PACKAGE)))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_a_variable_says_what_it_holds() -> None:
    vague = {"one", "found", "place", "made", "known", "given", "kept"}
    named = [
        f"{file.relative_to(PACKAGE)}:{node.lineno}"
        for file in files()
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if (isinstance(node, ast.arg) and node.arg in vague)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in vague)
    ]
    assert named == []


def test_reserved_columns_are_named_in_one_place() -> None:
    reserved = {columns.TIMESTAMP, columns.RETRACT, columns.KEY_HASH}
    named = [
        f"{file.relative_to(PACKAGE)}:{node.lineno}"
        for file in files()
        if file != PACKAGE / "base" / "columns.py"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in reserved
    ]
    assert named == []


def test_only_the_cli_prints() -> None:
    prints = [
        f"{file.relative_to(PACKAGE)}:{node.lineno}"
        for file in files()
        if part_of(file) != "cli"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert prints == []


def test_packages_keep_their_init_free_of_code() -> None:
    """A docstring at most; headrace/__init__.py alone also says which names are public."""
    busy = [
        str(file.relative_to(PACKAGE))
        for file in files()
        if file.name == "__init__.py"
        and part_of(file) != ""
        and any(not isinstance(node, ast.Expr) for node in ast.parse(file.read_text(encoding="utf-8")).body)
    ]
    assert busy == []


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("base/durations.py", "from headrace.base.errors import UserError", None),
        ("base/errors.py", "from headrace.state.config import TableConfig", "stands above it"),
        ("state/tables.py", "from headrace.state import config", None),
        ("state/tables.py", "from . import config", None),
        ("state/tables.py", "from ..model.plan import PlanNode", "stands above it"),
        ("state/tables.py", "import headrace.formats.json.read", "its sibling"),
        ("connectors/stdout.py", "def f():\n    from headrace.engine.chain import Chain", "stands above it"),
        ("connectors/stdout.py", "import headrace.operators.watermark", "its sibling"),
        ("engine/chain.py", "import headrace", "name the module itself"),
        (
            "engine/chain.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import headrace.jobs",
            "above",
        ),
        ("engine/loop.py", "from headrace.exchanges.local import LocalExchange", "stands above it"),
        ("cli/run.py", "from headrace.api.loading import load_pipeline", None),
        ("cli/test.py", "from headrace.testing.sql_cases import find_cases", None),
        ("api/loading.py", "from headrace.testing.in_process import run_in_process", "stands above it"),
        ("testing/sql_cases.py", "from headrace.cli.terminal import print_error", "stands above it"),
        ("api/pipeline.py", "from headrace.cli import main", "stands above it"),
        ("__init__.py", "from headrace.jobs import progress", None),
        ("__init__.py", "from headrace.cli.main import main", "imports cli"),
    ],
)
def test_the_rules_see_what_they_should(
    path: str, source: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)
    found = [text for item in imports(file) if (text := complaint(item))]
    assert (not found) if expected is None else (len(found) == 1 and expected in found[0])
