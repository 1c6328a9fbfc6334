"""The text of a YAML document → a `Dataflow`, or every mistake of the document in one error."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.base.spans import Source
from headrace.dataflow.document.env import expand_env, put_params
from headrace.dataflow.document.findings import Findings
from headrace.dataflow.document.grammar import DOCUMENT
from headrace.dataflow.document.model import QUEUE_SIZE, Dataflow, Input, Unit
from headrace.dataflow.document.modules import Node, Part, Reading, Scope, collect
from headrace.dataflow.document.port_types import check_types
from headrace.dataflow.document.shapes import Record, Value
from headrace.dataflow.document.units import UnitReader, source_text
from headrace.dataflow.document.yaml_text import parse_yaml, plain_value


def read_document(
    source: Source,
    *,
    directory: Path,
    name: str,
    environ: Mapping[str, str] = os.environ,
    check_files: bool = True,
) -> Dataflow:
    """The dataflow of a document; raises a `DataflowError` with every mistake in it.

    Files are relative to `directory`. Without `check_files` those that are missing are no mistakes, except
    the files of modules, which have to be read.
    """
    findings = Findings()
    directory = directory.resolve()
    tree = parse_yaml(source, findings)
    document = None if tree is None else DOCUMENT.read(tree, "the document", findings)
    if document is None or "module" in document.broken:
        findings.raise_all()
    assert document is not None
    reading = Reading(findings, environ, check_files)
    env = expand_env(document.get("env", {}), environ, findings)
    nodes = list(collect(document.get("nodes", []), Scope(source, directory), reading))
    _check_ids(nodes, findings)
    reader = UnitReader(reading, env)
    parts = [(part, reader.unit(part)) for node in nodes for part in node.parts]
    check_types(parts, document, directory, findings)
    findings.raise_all()
    return Dataflow(
        name=name,
        source=source,
        directory=directory,
        units=tuple(unit for _, unit in parts),
        env=env,
        exit_when_nodes_finish=document.get("exit_when_nodes_finish", False),
        descriptor=_descriptor(document, nodes, parts, directory, env),
        warnings=findings.warnings,
    )


def _check_ids(nodes: Sequence[Node], findings: Findings) -> None:
    """Nodes of modules get the module's id in front, which may be the id of another node then."""
    seen: dict[str, Node] = {}
    for node in nodes:
        other = seen.setdefault(node.id, node)
        if other is not node and other.scope is not node.scope:
            findings.refuse(
                f"there are two nodes `{node.id}`: one of them is in a module",
                node.record.at("id"),
                "the nodes of a module are called `module.node`: give one of the two another id",
            )


# --------------------------------------------------------------------------------- the descriptor


def _descriptor(
    document: Record,
    nodes: Sequence[Node],
    parts: Sequence[tuple[Part, Unit]],
    directory: Path,
    env: Mapping[str, str],
) -> dict[str, Any]:
    """The document as plain values, as dora gives it to operators: modules put in, `env` expanded."""
    units = {part.address: unit for part, unit in parts}
    whole = {
        **_plain(document),
        "nodes": [_node(node, units, directory) for node in nodes],
        "env": _plain_env(document, env),
    }
    debug = document.get("debug")
    whole["debug"] = {"enable_debug_inspection": bool(debug and debug.get("enable_debug_inspection"))}
    return {"deploy": None, "health_check_interval": None, **whole}


def _node(node: Node, units: Mapping[str, Unit], directory: Path) -> dict[str, Any]:
    described = {
        "id": node.id,
        "name": None,
        "description": None,
        "outputs": [],
        "inputs": {},
        "restart_policy": "never",
        "max_restarts": 0,
        "deploy": None,
        **{name: value for name, value in _plain(node.record).items() if name != "id"},
        "env": None,
    }
    if node.record.get("env") or node.scope.env or node.scope.params:
        env = units[node.parts[0].address].env
        described["env"] = {
            **node.scope.env,
            **(_plain_env(node.record, env) or {}),
            **node.scope.params,
        }
    blocks = [_part(part, units[part.address], directory) for part in node.parts]
    if node.kind == "operators":
        described["operators"] = blocks
    elif node.kind == "operator":
        described["operator"] = blocks[0]
    else:
        described |= blocks[0]
    return described


def _part(part: Part, unit: Unit, directory: Path) -> dict[str, Any]:
    described: dict[str, Any] = {}
    if part.operator is not None:
        described = {"id": None, "name": None, "description": None, **_plain(part.record)}
        described["id"] = part.record.get("id")
    described["inputs"] = {one.id: _input(one, part.record["inputs"].value[one.id]) for one in unit.inputs}
    described["outputs"] = list(unit.outputs)
    if unit.build is not None:
        described["build"] = unit.build
    if isinstance(described.get("python"), dict) and set(described["python"]) == {"source"}:
        described["python"] = described["python"]["source"]
    if part.node.scope.use is not None:
        args = part.record.get("args")
        if isinstance(args, str):
            described["args"] = put_params(args, part.node.scope.params)
        # What a module names is relative to the module; here everything is relative to the document.
        for name in ("path", "python", "shared-library"):
            written = part.record.get(name)
            if isinstance(written, str) and (name != "path" or unit.file is not None):
                path = os.path.relpath(part.node.scope.directory / written, directory)
                described[name] = Path(path).as_posix()
    return described


def _input(one: Input, written: Value) -> Any:
    """An input as it is written, with its source as the whole dataflow calls it."""
    source = source_text(one.source)
    options = _plain(written.value) if isinstance(written.value, Record) else {}
    # What comes through the port of a module brings the options of the port along.
    passed = {
        "queue_size": one.queue_size if one.queue_size != QUEUE_SIZE else None,
        "queue_policy": one.queue_policy if one.queue_policy != "backpressure" else None,
        "input_timeout": one.timeout,
    }
    options = {**{name: value for name, value in passed.items() if value is not None}, **options}
    return {**options, "source": source} if options else source


def _plain_env(record: Record, env: Mapping[str, str]) -> dict[str, Any] | None:
    """An `env` block with numbers and flags as they are, and texts expanded."""
    block: Mapping[str, Value] | None = record.get("env")
    if block is None:
        return None
    values = {name: value.scalar.value() for name, value in block.items()}
    return {name: env[name] if isinstance(value, str) else value for name, value in values.items()}


def _plain(record: Record) -> dict[str, Any]:
    return {name: plain_value(value.tree) for name, value in record.values.items()}
