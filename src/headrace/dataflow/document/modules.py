"""Nodes and who sees whom: the nodes of a document, and those of the modules it uses.

A module is not copied into the document as text. Each use of it is a scope of its own, so that names are
looked up where they were written, and a mistake is shown in the file it stands in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.base.errors import suggest
from headrace.base.spans import Source
from headrace.dataflow.document.env import check_params, expand_env, param_variable, put_params
from headrace.dataflow.document.files import Files
from headrace.dataflow.document.findings import Findings
from headrace.dataflow.document.grammar import MODULE
from headrace.dataflow.document.shapes import Record, Value, listed
from headrace.dataflow.document.yaml_text import Fields, parse_yaml

OUTPUT = "rows"
"""The output of a source or SQL step that names none."""


@dataclass(frozen=True)
class Reading:
    """What the reading of a whole document shares."""

    findings: Findings
    environ: Mapping[str, str]
    check_files: bool


@dataclass(eq=False)
class Scope:
    """The nodes that see each other: those of the document, or those of one use of a module."""

    source: Source
    directory: Path
    members: dict[str, Node | Use] = field(default_factory=dict)
    complete: bool = True
    """Whether the id of every node could be read, so that a node that is not found is not there."""
    use: Use | None = None
    """The use of the module whose nodes these are."""
    env: Mapping[str, str] = field(default_factory=dict)
    """What the environment of all its nodes has."""
    params: Mapping[str, str] = field(default_factory=dict)
    """By variable: what the module was given. The nodes of a module have them in their environment."""
    build: str | None = None

    @property
    def prefix(self) -> str:
        """What stands in front of the ids of its nodes in the whole dataflow."""
        return "" if self.use is None else f"{self.use.id}."

    def files(self, reading: Reading) -> Files:
        return Files(self.directory, reading.findings, reading.check_files, reading.environ.get("PATH"))


@dataclass(eq=False)
class Part:
    """What becomes a unit: a node, or one of its operators."""

    node: Node
    record: Record
    """The block of the operator, or of the node if that is all there is."""
    outputs: tuple[str, ...]
    outputs_known: bool
    """Whether all its outputs could be read, so that an output that is not found is not there."""
    operator: str | None = None
    listed: bool = False

    @property
    def address(self) -> str:
        return f"{self.node.id}/{self.operator}" if self.listed else self.node.id


@dataclass(eq=False)
class Node:
    """A node that runs something."""

    id: str
    local_id: str
    record: Record
    scope: Scope
    parts: list[Part] = field(default_factory=list)

    @property
    def kind(self) -> str | None:
        return self.record.variant

    @property
    def is_sink(self) -> bool:
        return self.kind == "connector" and bool(self.record.get("inputs"))


@dataclass(eq=False)
class Use:
    """A node with `module`: the module's nodes, and what it shows of them."""

    id: str
    local_id: str
    record: Record
    scope: Scope
    """Where it stands, and where its inputs are looked up."""
    inner: Scope | None = None
    header: Record | None = None

    @property
    def inputs(self) -> Mapping[str, Value]:
        """What its ports are connected to."""
        inputs: Mapping[str, Value] = self.record.get("inputs", {})
        return inputs

    @property
    def ports(self) -> list[str]:
        """The names of the module's inputs."""
        return [] if self.header is None else self.header.texts("inputs") + self.optional

    @property
    def optional(self) -> list[str]:
        return [] if self.header is None else self.header.texts("inputs_optional")

    @property
    def outputs(self) -> list[str]:
        return [] if self.header is None else self.header.texts("outputs")


def collect(
    records: Sequence[Value], scope: Scope, reading: Reading, *, trail: tuple[Path, ...] = ()
) -> Iterator[Node]:
    """Every node that runs something, with those of modules; `scope` gets to know its own.

    `trail` are the files of the modules that this one is used in.
    """
    for number, value in enumerate(records, start=1):
        record: Record = value.value
        local_id = _id_of(record, scope, reading.findings) or f"node {number}"
        full_id = scope.prefix + local_id
        if record.variant == "module":
            use = Use(full_id, local_id, record, scope)
            scope.members.setdefault(local_id, use)
            yield from _expand(use, reading, trail)
        else:
            node = Node(full_id, local_id, record, scope)
            scope.members.setdefault(local_id, node)
            node.parts.extend(_parts(node, reading.findings))
            yield node


def _id_of(record: Record, scope: Scope, findings: Findings) -> str | None:
    if "id" not in record:
        scope.complete = False
        return None
    local_id: str = record.get("id")
    if local_id in scope.members:
        line, _ = scope.source.position(scope.members[local_id].record.at("id").start)
        findings.refuse(
            f"there are two nodes `{local_id}`",
            record.at("id"),
            f"the other one is on line {line}: give each an id of its own",
        )
    return local_id


def _parts(node: Node, findings: Findings) -> Iterator[Part]:
    record = node.record
    if node.kind == "operator":
        block: Record | None = record.get("operator")
        if block is not None:
            yield _part(node, block, operator=block.get("id", "op"))
    elif node.kind == "operators":
        seen: dict[str, Record] = {}
        for value in record.get("operators", []):
            operator = value.value.get("id")
            if operator is None:
                continue
            if operator in seen:
                line, _ = node.scope.source.position(seen[operator].at("id").start)
                findings.refuse(
                    f"node `{node.local_id}` has two operators `{operator}`",
                    value.value.at("id"),
                    f"the other one is on line {line}: give each an id of its own",
                )
                continue
            seen[operator] = value.value
            yield _part(node, value.value, operator=operator, listed=True)
    elif node.kind is not None and node.kind not in record.broken:
        yield _part(node, record)


def _part(node: Node, record: Record, *, operator: str | None = None, listed: bool = False) -> Part:
    outputs = tuple(dict.fromkeys(record.texts("outputs")))
    written = "outputs" in record or "outputs" in record.broken
    if not written and (node.kind == "sql" or (node.kind == "connector" and not node.is_sink)):
        outputs = (OUTPUT,)
    known = "outputs" not in record.broken
    if "outputs" in record:
        known = len(record.get("outputs")) == len(getattr(record["outputs"].tree, "items", ()))
    return Part(node, record, outputs, known, operator, listed)


def _expand(use: Use, reading: Reading, trail: tuple[Path, ...]) -> Iterator[Node]:
    """The nodes of a module, in the place of the node that uses it."""
    path = use.record.values.get("module")
    file = None if path is None else use.scope.files(reading).module(path)
    if path is None or file is None:
        return
    if file in trail:
        reading.findings.refuse(
            f"the module `{path.value}` uses itself",
            path.span,
            "modules may use others, and not each other in a circle",
        )
        return
    name = str(Path(use.scope.source.name).parent / path.value)
    try:
        source = Source(name, file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reading.findings.refuse(f"the module `{path.value}` cannot be read: {error}", path.span)
        return
    tree = parse_yaml(source, reading.findings)
    if isinstance(tree, Fields) and "module" not in {key.text for key, _ in tree.entries}:
        reading.findings.refuse(
            f"`{path.value}` is not a module",
            path.span,
            "the file of a module begins with `module: {name: …}`",
        )
        return
    module = None if tree is None else MODULE.read(tree, "the module", reading.findings)
    if module is None or "module" not in module:
        return
    use.header = module.get("module")
    known = {**reading.environ, **use.scope.params}
    use.inner = Scope(
        source,
        file.parent,
        use=use,
        env={**use.scope.env, **expand_env(use.record.get("env", {}), known, reading.findings)},
        params=_params(use, reading.findings),
        build="\n".join(filter(None, (use.scope.build, module.get("build")))) or None,
    )
    yield from collect(module.get("nodes", []), use.inner, reading, trail=(*trail, file))
    _check_ports(use, reading.findings)


def _params(use: Use, findings: Findings) -> dict[str, str]:
    """What a module is given, by variable; params that a module hands on may name its own."""
    given: Mapping[str, Value] = use.record.get("params", {})
    if use.scope.use is not None:
        for value in given.values():
            check_params(value.scalar, use.scope.params, findings)
    return {param_variable(name): put_params(value.value, use.scope.params) for name, value in given.items()}


def _check_ports(use: Use, findings: Findings) -> None:
    """What a module is connected to, and what it shows, must be there."""
    assert use.header is not None
    assert use.inner is not None
    written = use.record.get("module")
    for name, value in use.inputs.items():
        if name not in use.ports and "inputs" not in use.header.broken:
            hint = suggest(name, use.ports) or f"its inputs are {listed(use.ports)}"
            findings.refuse(f"the module `{written}` has no input `{name}`", value.key, hint)
    if "inputs" not in use.record.broken:
        for port in use.header.texts("inputs"):
            if port not in use.inputs:
                findings.refuse(
                    f"the input `{port}` of the module `{written}` is not connected",
                    use.record["module"].span,
                    f"write `inputs: {{{port}: node/output}}` beside `module:`",
                )
    inside = [output for member in use.inner.members.values() for output in shown(member)]
    for value in use.header.get("outputs", []):
        found = producers(use, value.value)
        if len(found) > 1:
            names = listed([member.id if isinstance(member, Use) else member.address for member in found])
            findings.refuse(
                f"the output `{value.value}` of the module comes from {names}",
                value.span,
                "a module shows an output of one of its nodes: rename the others",
            )
        elif not found and all_known(use.inner):
            findings.refuse(
                f"no node of the module has an output `{value.value}`",
                value.span,
                suggest(value.value, inside) or f"the outputs of its nodes are {listed(inside)}",
            )


def all_known(scope: Scope) -> bool:
    """Whether everything that its nodes put out could be read."""
    return scope.complete and all(
        member.header is not None
        if isinstance(member, Use)
        else bool(member.parts) and all(part.outputs_known for part in member.parts)
        for member in scope.members.values()
    )


def shown(member: Node | Use) -> list[str]:
    """The outputs of a node, as its neighbours write them behind its id."""
    if isinstance(member, Use):
        return member.outputs
    return [
        f"{part.operator}/{output}" if part.listed else output
        for part in member.parts
        for output in part.outputs
    ]


def producers(use: Use, output: str) -> list[Part | Use]:
    """The parts and nested modules, right inside a module, that have an output of this name."""
    if use.inner is None:
        return []
    found: list[Part | Use] = []
    for member in use.inner.members.values():
        if isinstance(member, Use):
            found += [member] if output in member.outputs else []
        else:
            found += [part for part in member.parts if output in part.outputs]
    return found
