"""The nodes of a document and of the modules it uses, and which of them can be named where.

A module is not copied into the document as text. Each use of it is a scope of its own, so that names are
looked up where they were written, and a mistake is shown in the file it stands in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.base.errors import suggest
from headrace.base.spans import Source
from headrace.dataflow.document.blocks import InputBlock, ModuleBlock, ModuleHeader, NodeBlock, OperatorBlock
from headrace.dataflow.document.env import check_params, expand_env, param_variable, put_params
from headrace.dataflow.document.files import Files
from headrace.dataflow.document.findings import Findings
from headrace.dataflow.document.validation import listed, validate
from headrace.dataflow.document.yaml_text import Fields, Scalar, parse_yaml

OUTPUT = "rows"
"""The output of a source or SQL step that names none."""


@dataclass(frozen=True)
class ReadContext:
    """The state shared by all parts of reading a document."""

    findings: Findings
    environ: Mapping[str, str]
    check_files: bool


@dataclass(eq=False)
class NodeScope:
    """The nodes that see each other: those of the document, or those of one use of a module."""

    source: Source
    directory: Path
    members: dict[str, DocumentNode | ModuleUse] = field(default_factory=dict)
    complete: bool = True
    """Whether the id of every node could be read, so that a node that is not found is not there."""
    use: ModuleUse | None = None
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

    def files(self, context: ReadContext) -> Files:
        return Files(self.directory, context.findings, context.check_files, context.environ.get("PATH"))


@dataclass(eq=False)
class DeclaredUnit:
    """A node, or one of its operators, from which a unit is made."""

    node: DocumentNode
    block: NodeBlock | OperatorBlock
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
class DocumentNode:
    """A node that runs something."""

    id: str
    local_id: str
    block: NodeBlock
    scope: NodeScope
    units: list[DeclaredUnit] = field(default_factory=list)

    @property
    def kind(self) -> str | None:
        return self.block.kind

    @property
    def is_sink(self) -> bool:
        return self.kind == "connector" and bool(self.block.inputs)


@dataclass(eq=False)
class ModuleUse:
    """A node with `module`: the module's nodes, and the outputs that it exposes."""

    id: str
    local_id: str
    block: NodeBlock
    scope: NodeScope
    """Where it stands, and where its inputs are looked up."""
    inner: NodeScope | None = None
    header: ModuleHeader | None = None

    @property
    def inputs(self) -> Mapping[str, Scalar | InputBlock]:
        """What its ports are connected to."""
        return self.block.inputs or {}

    @property
    def ports(self) -> list[str]:
        """The names of the module's inputs."""
        return [] if self.header is None else texts(self.header.inputs) + self.optional

    @property
    def optional(self) -> list[str]:
        return [] if self.header is None else texts(self.header.inputs_optional)

    @property
    def outputs(self) -> list[str]:
        return [] if self.header is None else texts(self.header.outputs)


def collect(
    blocks: Sequence[NodeBlock], scope: NodeScope, context: ReadContext, *, trail: tuple[Path, ...] = ()
) -> Iterator[DocumentNode]:
    """Every node that runs something, with those of modules; `scope` gets to know its own.

    `trail` are the files of the modules that this one is used in.
    """
    for number, block in enumerate(blocks, start=1):
        local_id = _id_of(block, scope, context.findings) or f"node {number}"
        full_id = scope.prefix + local_id
        if block.kind == "module":
            use = ModuleUse(full_id, local_id, block, scope)
            scope.members.setdefault(local_id, use)
            yield from _expand(use, context, trail)
        else:
            node = DocumentNode(full_id, local_id, block, scope)
            scope.members.setdefault(local_id, node)
            node.units.extend(_units(node, context.findings))
            yield node


def _id_of(block: NodeBlock, scope: NodeScope, findings: Findings) -> str | None:
    if "id" in block.broken:
        scope.complete = False
        return None
    local_id = block.id.text
    if local_id in scope.members:
        line, _ = scope.source.position(scope.members[local_id].block.id.span.start)
        findings.refuse(
            f"there are two nodes `{local_id}`",
            block.id.span,
            f"the other one is on line {line}: give each an id of its own",
        )
    return local_id


def _units(node: DocumentNode, findings: Findings) -> Iterator[DeclaredUnit]:
    block = node.block
    if node.kind == "operator":
        if block.operator is not None:
            operator = block.operator.id
            yield _unit(node, block.operator, operator="op" if operator is None else operator.text)
    elif node.kind == "operators":
        seen: dict[str, Scalar] = {}
        for listed_block in block.operators or []:
            if "id" in listed_block.broken:
                continue
            operator = listed_block.id
            if operator.text in seen:
                line, _ = node.scope.source.position(seen[operator.text].span.start)
                findings.refuse(
                    f"node `{node.local_id}` has two operators `{operator.text}`",
                    operator.span,
                    f"the other one is on line {line}: give each an id of its own",
                )
                continue
            seen[operator.text] = operator
            yield _unit(node, listed_block, operator=operator.text, listed=True)
    elif node.kind is not None and node.kind not in block.broken:
        yield _unit(node, block)


def _unit(
    node: DocumentNode, block: NodeBlock | OperatorBlock, *, operator: str | None = None, listed: bool = False
) -> DeclaredUnit:
    outputs = tuple(dict.fromkeys(texts(block.outputs)))
    written = block.outputs is not None or "outputs" in block.broken
    if not written and (node.kind == "sql" or (node.kind == "connector" and not node.is_sink)):
        outputs = (OUTPUT,)
    return DeclaredUnit(node, block, outputs, block.is_whole("outputs"), operator, listed)


def _expand(use: ModuleUse, context: ReadContext, trail: tuple[Path, ...]) -> Iterator[DocumentNode]:
    """The nodes of a module, in the place of the node that uses it."""
    path = use.block.module
    file = None if path is None else use.scope.files(context).module(path)
    if path is None or file is None:
        return
    if file in trail:
        context.findings.refuse(
            f"the module `{path.text}` uses itself",
            path.span,
            "modules may use others, and not each other in a cycle",
        )
        return
    name = str(Path(use.scope.source.name).parent / path.text)
    try:
        source = Source(name, file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        context.findings.refuse(f"the module `{path.text}` cannot be read: {error}", path.span)
        return
    tree = parse_yaml(source, context.findings)
    if isinstance(tree, Fields) and "module" not in {key.text for key, _ in tree.entries}:
        context.findings.refuse(
            f"`{path.text}` is not a module",
            path.span,
            "the file of a module begins with `module: {name: …}`",
        )
        return
    module = None if tree is None else validate(ModuleBlock, tree, "the module", context.findings)
    if module is None or "module" in module.broken:
        return
    use.header = module.module
    environ = {**context.environ, **use.scope.params}
    use.inner = NodeScope(
        source,
        file.parent,
        use=use,
        env={**use.scope.env, **expand_env(use.block.env or {}, environ, context.findings)},
        params=_params(use, context.findings),
        build="\n".join(filter(None, (use.scope.build, module.build.text if module.build else None))) or None,
    )
    yield from collect(module.nodes or [], use.inner, context, trail=(*trail, file))
    _check_ports(use, context.findings)


def _params(use: ModuleUse, findings: Findings) -> dict[str, str]:
    """What a module is given, by variable; params that a module hands on may name its own."""
    params = use.block.params or {}
    if use.scope.use is not None:
        for value in params.values():
            check_params(value, use.scope.params, findings)
    return {param_variable(name): put_params(value.text, use.scope.params) for name, value in params.items()}


def _check_ports(use: ModuleUse, findings: Findings) -> None:
    """Check that the inputs and outputs of a module exist."""
    assert use.header is not None
    assert use.inner is not None
    assert use.block.module is not None
    written = use.block.module.text
    for name in use.inputs:
        if name not in use.ports and use.header.is_whole("inputs"):
            hint = suggest(name, use.ports, listing="its inputs are") or "it has no inputs"
            span = use.block.key_span("inputs", name)
            findings.refuse(f"the module `{written}` has no input `{name}`", span, hint)
    if "inputs" not in use.block.broken:
        for port in texts(use.header.inputs):
            if port not in use.inputs:
                findings.refuse(
                    f"the input `{port}` of the module `{written}` is not connected",
                    use.block.module.span,
                    f"write `inputs: {{{port}: node/output}}` beside `module:`",
                )
    inside = [output for member in use.inner.members.values() for output in shown(member)]
    for output in use.header.outputs or []:
        candidates = producers(use, output.text)
        if len(candidates) > 1:
            names = listed(
                [member.id if isinstance(member, ModuleUse) else member.address for member in candidates]
            )
            findings.refuse(
                f"the output `{output.text}` of the module comes from {names}",
                output.span,
                "a module shows an output of one of its nodes: rename the others",
            )
        elif not candidates and all_known(use.inner):
            findings.refuse(
                f"no node of the module has an output `{output.text}`",
                output.span,
                suggest(output.text, inside, listing="the outputs of its nodes are"),
            )


def texts(scalars: Sequence[Scalar] | None) -> list[str]:
    """The strings of an optional list."""
    return [scalar.text for scalar in scalars or []]


def all_known(scope: NodeScope) -> bool:
    """Whether the outputs of all its nodes could be read."""
    return scope.complete and all(
        member.header is not None
        if isinstance(member, ModuleUse)
        else bool(member.units) and all(unit.outputs_known for unit in member.units)
        for member in scope.members.values()
    )


def shown(member: DocumentNode | ModuleUse) -> list[str]:
    """The outputs of a node, as its neighbours write them behind its id."""
    if isinstance(member, ModuleUse):
        return member.outputs
    return [
        f"{unit.operator}/{output}" if unit.listed else output
        for unit in member.units
        for output in unit.outputs
    ]


def producers(use: ModuleUse, output: str) -> list[DeclaredUnit | ModuleUse]:
    """The parts and nested modules, right inside a module, that have an output of this name."""
    if use.inner is None:
        return []
    matches: list[DeclaredUnit | ModuleUse] = []
    for member in use.inner.members.values():
        if isinstance(member, ModuleUse):
            matches += [member] if output in member.outputs else []
        else:
            matches += [unit for unit in member.units if output in unit.outputs]
    return matches
