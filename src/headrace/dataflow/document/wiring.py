"""Resolves the source of an input: a timer, the logs, or an output of a unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from headrace.base.errors import suggest
from headrace.base.spans import Span
from headrace.dataflow.document.blocks import LOG_LEVELS, MODULE_PORTS, TIMER_UNITS, InputBlock
from headrace.dataflow.document.findings import Findings
from headrace.dataflow.document.model import Logs, Output, Timer
from headrace.dataflow.document.modules import DocumentNode, ModuleUse, NodeScope, producers, shown
from headrace.dataflow.document.validation import listed
from headrace.dataflow.document.yaml_text import Scalar

_DECIMAL = re.compile(r"[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]{1,3})?|\.[0-9]+([eE][-+]?[0-9]{1,3})?")
_SECOND = 1_000_000_000


@dataclass(frozen=True)
class Connection:
    """An input with its source, and the options of the input and of the module ports it goes through."""

    source: Timer | Output | Logs
    span: Span
    options: Mapping[str, Any]


def connect(written: Scalar | InputBlock, scope: NodeScope, findings: Findings) -> Connection | None:
    """Resolve the source of an input.

    None if that cannot be found out, which is then among the findings; or if the input comes from an
    optional input of a module that is not connected, so that there is no such input.
    """
    options: dict[str, Any] = {}
    if isinstance(written, InputBlock):
        if "source" in written.broken:
            return None
        names = ("queue_size", "queue_policy", "input_timeout")
        options = {name: getattr(written, name) for name in names if getattr(written, name) is not None}
        written = written.source
    port = _port(written, scope, findings)
    if port is not None:
        outer, used = port
        connection = connect(outer, used, findings)
        if connection is None:
            return None
        return Connection(connection.source, written.span, {**connection.options, **options})
    if written.text.partition("/")[0] == MODULE_PORTS:
        return None
    source = _resolve(written, scope, findings)
    return None if source is None else Connection(source, written.span, options)


def _port(
    written: Scalar, scope: NodeScope, findings: Findings
) -> tuple[Scalar | InputBlock, NodeScope] | None:
    """The source that the port of a module is connected to, and where that was written."""
    first, _, name = written.text.partition("/")
    if first != MODULE_PORTS:
        return None
    if scope.use is None:
        findings.refuse(
            f"`{MODULE_PORTS}/…` is an input of a module, and this is none",
            written.span,
            "name a node and its output: `node/output`",
        )
        return None
    if name not in scope.use.ports:
        ports = scope.use.ports
        findings.refuse(
            f"the module has no input `{name}`",
            written.span_of(len(first) + 1, len(written.text)),
            suggest(name, ports) or "add it to `inputs` of `module:`",
        )
        return None
    outer = scope.use.inputs.get(name)
    return None if outer is None else (outer, scope.use.scope)


def _resolve(written: Scalar, scope: NodeScope, findings: Findings) -> Timer | Output | Logs | None:
    first, _, rest = written.text.partition("/")
    if first == "dora":
        return _built_in(written, rest, scope, findings)
    member = scope.members.get(first)
    if member is None:
        if scope.complete:
            names = list(scope.members)
            # The name of an output alone, or of an operator and its output, without the node before it.
            having = [name for name in names if written.text in shown(scope.members[name])]
            findings.refuse(
                f"there is no node `{first}`",
                written.span_of(0, len(first)),
                (f"did you mean `{having[0]}/{written.text}`?" if having else None)
                or suggest(first, names)
                or suggest(first, names, listing="the nodes are"),
            )
        return None
    if not rest:
        outputs = shown(member)
        findings.refuse(
            f"`{written.text}` is a node, not an output",
            written.span,
            f"write {listed([f'{first}/{name}' for name in outputs], 'or')}"
            if outputs
            else "write `node/output`; this node has no outputs",
        )
        return None
    span = written.span_of(len(first) + 1, len(written.text))
    return (
        _of_module(member, rest, span, findings)
        if isinstance(member, ModuleUse)
        else _of_node(member, rest, span, findings)
    )


def _of_node(node: DocumentNode, rest: str, span: Span, findings: Findings) -> Output | None:
    for unit in node.units:
        prefix = f"{unit.operator}/"
        if not unit.listed and rest in unit.outputs:
            return Output(unit.address, rest)
        if (
            unit.operator is not None
            and rest.startswith(prefix)
            and rest.removeprefix(prefix) in unit.outputs
        ):
            return Output(unit.address, rest.removeprefix(prefix))
    if node.is_sink:
        findings.refuse(
            f"node `{node.local_id}` is a sink: nothing comes out of it",
            span,
            "a connector with inputs is a sink; without inputs it is a source",
        )
    elif node.kind == "operators":
        _refuse_listed(node, rest, span, findings)
    elif node.units and all(unit.outputs_known for unit in node.units):
        _refuse_output(node, rest, span, findings)
    return None


def _refuse_listed(node: DocumentNode, rest: str, span: Span, findings: Findings) -> None:
    operator, slash, output = rest.partition("/")
    unit = next((unit for unit in node.units if unit.operator == operator), None)
    if unit is not None and slash:
        if unit.outputs_known:
            findings.refuse(
                f"operator `{operator}` of node `{node.local_id}` has no output `{output}`",
                span,
                _advice(output, list(unit.outputs)),
            )
        return
    if not node.units or "operators" in node.block.broken:
        return
    outputs = shown(node)
    having = [f"{node.local_id}/{name}" for name in outputs if name.endswith(f"/{rest}")]
    own = [f"{node.local_id}/{name}" for name in outputs if unit and name.startswith(f"{operator}/")]
    if having:
        message = f"an output of node `{node.local_id}` is named with its operator"
    elif unit is not None:
        message = f"`{node.local_id}/{rest}` is an operator, not an output"
    elif slash:
        message = f"node `{node.local_id}` has no operator `{operator}`"
    else:
        message = f"node `{node.local_id}` has no output `{rest}`"
    hint = f"write {listed(having or own, 'or')}" if having or own else None
    operators = [unit.operator or "" for unit in node.units]
    findings.refuse(
        message, span, hint or (suggest(operator, operators) if slash else _advice(rest, outputs))
    )


def _refuse_output(node: DocumentNode, rest: str, span: Span, findings: Findings) -> None:
    outputs = shown(node)
    findings.refuse(f"node `{node.local_id}` has no output `{rest}`", span, _advice(rest, outputs))


def _advice(name: str, outputs: list[str]) -> str | None:
    if not outputs:
        return f"it has no outputs: add `outputs: [{name}]` there"
    return suggest(name, outputs, listing="its outputs are")


def _of_module(use: ModuleUse, rest: str, span: Span, findings: Findings) -> Output | None:
    if use.inner is None:
        return None
    if rest not in use.outputs:
        inside = producers(use, rest)
        findings.refuse(
            f"the module `{use.local_id}` has no output `{rest}`",
            span,
            "it is an output inside the module: add it to `outputs` of `module:` there"
            if inside
            else (_advice(rest, use.outputs) or "").replace("there", "of `module:` there"),
        )
        return None
    candidates = producers(use, rest)
    if len(candidates) != 1:
        return None
    producer = candidates[0]
    if isinstance(producer, ModuleUse):
        return _of_module(producer, rest, span, findings)
    return Output(producer.address, rest)


# --------------------------------------------------------------------------------------- built in


def _built_in(written: Scalar, rest: str, scope: NodeScope, findings: Findings) -> Timer | Logs | None:
    name, _, more = rest.partition("/")
    if name == "timer":
        return _timer(written, more, findings)
    if name == "logs":
        return _logs(written, more, scope, findings)
    findings.refuse(
        f"there is no source `{written.text}`",
        written.span,
        suggest(name, ("timer", "logs")) or "`dora/timer/…` and `dora/logs` are there",
    )
    return None


def _timer(written: Scalar, rest: str, findings: Findings) -> Timer | None:
    unit, _, amount = rest.partition("/")
    at = len(written.text) - len(rest)
    if unit != "hz" and unit not in TIMER_UNITS:
        units = [*TIMER_UNITS, "hz"]
        findings.refuse(
            f"`{unit}` is not a unit of timers" if unit else "the timer has no unit",
            written.span_of(at, at + len(unit)) if unit else written.span,
            suggest(unit, units, listing="write `dora/timer/millis/100`; the units are"),
        )
        return None
    span = written.span_of(at + len(unit) + 1, len(written.text)) if amount else written.span
    if not _DECIMAL.fullmatch(amount):
        findings.refuse(
            f"`{amount}` cannot be the number of a timer" if amount else "the timer has no number",
            span,
            f"write `dora/timer/{unit}/10`, for example",
        )
        return None
    number = Fraction(amount)
    if number == 0:
        findings.refuse(
            "a timer cannot tick every 0 " + unit if unit != "hz" else "a timer cannot tick 0 times a second",
            span,
            "write a number above 0",
        )
        return None
    period = _SECOND / number if unit == "hz" else number * TIMER_UNITS[unit]
    if unit != "hz" and not amount.isdigit():
        findings.refuse(
            f"`{amount}` is not a whole number",
            span,
            f"write `{_timer_text(period, '')}`" if period.denominator == 1 else "write a smaller unit",
        )
        return None
    if period < 1:
        findings.refuse("a timer cannot tick more than once a nanosecond", span)
        return None
    hertz = number.numerator if number.denominator == 1 else amount
    return Timer(period, _timer_text(period, f"dora/timer/hz/{hertz}"))


def _timer_text(period: Fraction, otherwise: str) -> str:
    """The name of a timer in its coarsest exact unit.

    >>> _timer_text(Fraction(2_000_000_000), "")
    'dora/timer/secs/2'
    """
    for unit, nanoseconds in TIMER_UNITS.items():
        if period % nanoseconds == 0:
            return f"dora/timer/{unit}/{period // nanoseconds}"
    return otherwise


def _logs(written: Scalar, rest: str, scope: NodeScope, findings: Findings) -> Logs | None:
    level, _, node = rest.partition("/")
    at = len(written.text) - len(rest)
    if level and level not in LOG_LEVELS:
        findings.refuse(
            f"`{level}` is not a level of logs",
            written.span_of(at, at + len(level)),
            suggest(level, LOG_LEVELS, listing="the levels are"),
        )
        return None
    member = scope.members.get(node)
    if node and not isinstance(member, DocumentNode):
        if scope.complete:
            names = [name for name, member in scope.members.items() if isinstance(member, DocumentNode)]
            findings.refuse(
                f"there is no node `{node}`",
                written.span_of(len(written.text) - len(node), len(written.text)),
                suggest(node, names, listing="the nodes are"),
            )
        return None
    return Logs(level or None, member.id if isinstance(member, DocumentNode) else None)
