"""The modules of headrace.sql: imports go one way, from parsing to the plan."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

SQL = Path(__file__).parents[3] / "src" / "headrace" / "sql"
MODULES = {
    ".".join(file.relative_to(SQL).with_suffix("").parts): file
    for file in SQL.rglob("*.py")
    if file.name != "__init__.py"
}

ORDER = (
    {"connection_profiles", "problems", "types"},
    {"parse"},
    {"state_ttl"},
    {"bind"},
    {"lower"},
    {"compile", "condition", "embed", "streams", "table_connectors"},
)
"""From the bottom up: the passes, what all of them use, and what runs them one after the other."""

RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}


def imports(file: Path) -> set[str]:
    """The modules of headrace.sql that a file imports, also in functions and under TYPE_CHECKING."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports in sql name the whole module"
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name.removeprefix("headrace.sql.") for name in names} & set(MODULES)


def test_modules_of_sql_import_each_other_without_a_cycle() -> None:
    graph = {name: imports(file) for name, file in MODULES.items()}
    assert sum(map(len, graph.values())) > len(graph)
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph)


def test_imports_of_sql_go_from_compile_to_lower_to_bind_to_parse() -> None:
    assert {name.split(".")[0] for name in MODULES} == set(RANK)
    upwards = [
        f"{name} imports {target}"
        for name, file in MODULES.items()
        for target in imports(file)
        if RANK[target.split(".")[0]] > RANK[name.split(".")[0]]
    ]
    assert upwards == []
