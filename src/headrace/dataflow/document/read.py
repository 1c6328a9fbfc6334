"""Parses a YAML document into a `Dataflow`, or raises one error with every mistake."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.base.spans import Source
from headrace.dataflow.document.blocks import DocumentBlock, InputBlock, NodeBlock
from headrace.dataflow.document.env import expand_env, put_params
from headrace.dataflow.document.findings import Findings
from headrace.dataflow.document.model import QUEUE_SIZE, Dataflow, Input, Unit
from headrace.dataflow.document.modules import DeclaredUnit, DocumentNode, NodeScope, ReadContext, collect
from headrace.dataflow.document.port_types import check_types
from headrace.dataflow.document.starts import warn_of_idle_cycles
from headrace.dataflow.document.units import UnitReader, source_text
from headrace.dataflow.document.validation import YamlBlock, validate
from headrace.dataflow.document.yaml_text import Scalar, parse_yaml, plain_value


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
    document = None if tree is None else validate(DocumentBlock, tree, "the document", findings)
    if document is None or "module" in document.broken:
        findings.raise_all()
    assert document is not None
    context = ReadContext(findings, environ, check_files)
    env = expand_env(document.env or {}, environ, findings)
    nodes = list(collect(document.nodes or [], NodeScope(source, directory), context))
    _check_ids(nodes, findings)
    reader = UnitReader(context, env)
    units = [(declared, reader.unit(declared)) for node in nodes for declared in node.units]
    check_types(units, document, directory, findings)
    findings.raise_all()
    warn_of_idle_cycles([unit for _, unit in units], findings)
    return Dataflow(
        name=name,
        source=source,
        directory=directory,
        units=tuple(unit for _, unit in units),
        env=env,
        exit_when_nodes_finish=bool(document.exit_when_nodes_finish),
        execution=document.execution or "auto",
        descriptor=_descriptor(document, nodes, units, directory, env),
        warnings=findings.warnings,
    )


def _check_ids(nodes: Sequence[DocumentNode], findings: Findings) -> None:
    """Nodes of modules get the module's id in front, which may be the id of another node then."""
    seen: dict[str, DocumentNode] = {}
    for node in nodes:
        other = seen.setdefault(node.id, node)
        if other is not node and other.scope is not node.scope:
            findings.refuse(
                f"there are two nodes `{node.id}`: one of them is in a module",
                node.block.id.span,
                "the nodes of a module are called `module.node`: give one of the two another id",
            )


# --------------------------------------------------------------------------------- the descriptor


def _descriptor(
    document: DocumentBlock,
    nodes: Sequence[DocumentNode],
    declared_units: Sequence[tuple[DeclaredUnit, Unit]],
    directory: Path,
    env: Mapping[str, str],
) -> dict[str, Any]:
    """The document as plain values, as dora gives it to operators: modules put in, `env` expanded."""
    units = {declared.address: unit for declared, unit in declared_units}
    whole = {
        **_plain(document),
        "nodes": [_node(node, units, directory) for node in nodes],
        "env": _plain_env(document, env),
    }
    debug = document.debug
    whole["debug"] = {"enable_debug_inspection": bool(debug and debug.enable_debug_inspection)}
    return {"deploy": None, "health_check_interval": None, **whole}


def _node(node: DocumentNode, units: Mapping[str, Unit], directory: Path) -> dict[str, Any]:
    described = {
        "id": node.id,
        "name": None,
        "description": None,
        "outputs": [],
        "inputs": {},
        "restart_policy": "never",
        "max_restarts": 0,
        "deploy": None,
        **{name: value for name, value in _plain(node.block).items() if name != "id"},
        "env": None,
    }
    if node.block.env or node.scope.env or node.scope.params:
        env = units[node.units[0].address].env
        described["env"] = {
            **node.scope.env,
            **(_plain_env(node.block, env) or {}),
            **node.scope.params,
        }
    blocks = [_unit(declared, units[declared.address], directory) for declared in node.units]
    if node.kind == "operators":
        described["operators"] = blocks
    elif node.kind == "operator":
        described["operator"] = blocks[0]
    else:
        described |= blocks[0]
    return described


def _unit(declared: DeclaredUnit, unit: Unit, directory: Path) -> dict[str, Any]:
    described: dict[str, Any] = {}
    plain = _plain(declared.block)
    if declared.operator is not None:
        described = {"id": None, "name": None, "description": None, **plain}
        described["id"] = declared.block.id and declared.block.id.text
    inputs = declared.block.inputs or {}
    described["inputs"] = {item.id: _input(item, inputs[item.id]) for item in unit.inputs}
    described["outputs"] = list(unit.outputs)
    if unit.build is not None:
        described["build"] = unit.build
    if isinstance(described.get("python"), dict) and set(described["python"]) == {"source"}:
        described["python"] = described["python"]["source"]
    if declared.node.scope.use is not None:
        if isinstance(plain.get("args"), str):
            described["args"] = put_params(plain["args"], declared.node.scope.params)
        # What a module names is relative to the module; here everything is relative to the document.
        for name in ("path", "python", "shared-library"):
            written = plain.get(name)
            if isinstance(written, str) and (name != "path" or unit.file is not None):
                path = os.path.relpath(declared.node.scope.directory / written, directory)
                described[name] = Path(path).as_posix()
    return described


def _input(resolved: Input, written: Scalar | InputBlock) -> Any:
    """An input as it is written, with its source as the whole dataflow calls it."""
    source = source_text(resolved.source)
    options = _plain(written) if isinstance(written, InputBlock) else {}
    # What comes through the port of a module brings the options of the port along.
    passed = {
        "queue_size": resolved.queue_size if resolved.queue_size != QUEUE_SIZE else None,
        "queue_policy": resolved.queue_policy if resolved.queue_policy != "backpressure" else None,
        "input_timeout": resolved.timeout,
    }
    options = {**{name: value for name, value in passed.items() if value is not None}, **options}
    return {**options, "source": source} if options else source


def _plain_env(block: DocumentBlock | NodeBlock, env: Mapping[str, str]) -> dict[str, Any] | None:
    """An `env` block with numbers and flags as they are, and texts expanded."""
    if block.env is None:
        return None
    values = {name: value.value() for name, value in block.env.items()}
    return {name: env[name] if isinstance(value, str) else value for name, value in values.items()}


def _plain(block: YamlBlock) -> dict[str, Any]:
    values = {key.text: plain_value(item) for key, item in block.tree.entries}
    return {name: value for name, value in values.items() if value is not None}
