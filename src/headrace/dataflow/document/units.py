"""Parts of a document → units: every key of a node or operator with its meaning."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.base.errors import suggest
from headrace.dataflow.document.env import check_params, expand_env, put_params
from headrace.dataflow.document.findings import Findings
from headrace.dataflow.document.model import QUEUE_SIZE, Input, Logs, Output, Restart, Timer, Unit, UnitKind
from headrace.dataflow.document.modules import Node, Part, Reading
from headrace.dataflow.document.shapes import Record, Value, listed
from headrace.dataflow.document.wiring import connect
from headrace.dataflow.document.yaml_text import Scalar
from headrace.model.registry import Role, registry

_KINDS: Mapping[str, UnitKind] = {
    "path": "process",
    "python": "python",
    "shared-library": "native",
    "connector": "connector",
    "sql": "sql",
}


@dataclass(frozen=True)
class UnitReader:
    """Makes units of parts. What is wrong goes to the findings, and the unit is made as far as it can be."""

    reading: Reading
    env: Mapping[str, str]
    """The environment of the whole document."""

    @property
    def findings(self) -> Findings:
        return self.reading.findings

    def unit(self, part: Part) -> Unit:
        """The unit of a part."""
        record, node = part.record, part.node
        built = bool(node.scope.build or record.get("build"))
        common: dict[str, Any] = {
            "node": node.id,
            "operator": part.operator,
            "listed": part.listed,
            "inputs": self._inputs(part),
            "outputs": part.outputs,
            "env": self.node_env(node),
            "restart": _restart(node.record),
            "build": "\n".join(filter(None, (node.scope.build, record.get("build")))) or None,
            "send_stdout_as": self._output(part, "send_stdout_as"),
            "send_logs_as": self._output(part, "send_logs_as"),
            "min_log_level": record.get("min_log_level"),
            "finish_grace": record.get("finish_grace_secs"),
            "span": record.at("id") if "id" in record else node.record.at("id"),
        }
        self._warn_twice(part)
        self._parallelism(node, common)
        kind = record.variant
        if kind == "path":
            common |= self._process(part, built=built)
        elif kind in {"python", "shared-library"}:
            common |= self._operator(part, built=built)
        elif kind == "connector":
            common |= self._connector(part)
        elif kind == "sql":
            common |= self._sql(part)
        return Unit(kind=_KINDS[kind or "path"], **common)

    def node_env(self, node: Node) -> dict[str, str]:
        """The environment of a node: the document's, its modules', its own, and what its module was given."""
        scope = node.scope
        known = {**self.reading.environ, **scope.params}
        own = expand_env(node.record.get("env", {}), known, self.findings)
        return {**self.env, **scope.env, **own, **scope.params}

    # ----------------------------------------------------------------------------------- inputs

    def _inputs(self, part: Part) -> tuple[Input, ...]:
        inputs = []
        for name, value in part.record.get("inputs", {}).items():
            connection = connect(value, part.node.scope, self.findings)
            if connection is None:
                continue
            options = {key: option.value for key, option in connection.options.items()}
            if part.node.kind in {"sql", "connector"} and isinstance(connection.source, Timer):
                self.findings.refuse(
                    "a timer has no rows", connection.span, "connect an output of an operator or a source"
                )
            inputs.append(
                Input(
                    name,
                    connection.source,
                    queue_size=max(1, options.get("queue_size", QUEUE_SIZE)),
                    queue_policy=options.get("queue_policy", "backpressure"),
                    timeout=options.get("input_timeout"),
                    columns=self._input_columns(part, value),
                    span=connection.span,
                )
            )
        return tuple(inputs)

    def _input_columns(self, part: Part, value: Value) -> Mapping[str, str] | None:
        record = value.value
        if not isinstance(record, Record) or "schema" not in record:
            return None
        if part.node.kind != "sql":
            self.findings.refuse(
                "`schema` of an input is for SQL steps",
                record["schema"].key,
                "operators get the messages as they are: leave it out",
            )
            return None
        return self._columns(record)

    def _columns(self, record: Record) -> Mapping[str, str] | None:
        if "schema" not in record:
            return None
        from headrace.dataflow.document.columns import read_columns

        return read_columns(record["schema"], self.findings)

    # ----------------------------------------------------------------------------------- outputs

    def _output(self, part: Part, name: str) -> str | None:
        """An output that another key names."""
        output: str | None = part.record.get(name)
        if output is not None and output not in part.outputs and part.outputs_known:
            self.findings.refuse(
                f"`{name}` names `{output}`, which is not in `outputs`",
                part.record.at(name),
                suggest(output, part.outputs) or f"add it: `outputs: [{', '.join([*part.outputs, output])}]`",
            )
        return output

    def _warn_twice(self, part: Part) -> None:
        seen = set()
        for output in part.record.get("outputs", []):
            if output.value in seen:
                self.findings.warn(f"the output `{output.value}` is written twice", output.span)
            seen.add(output.value)

    def _one_output(self, part: Part, what: str) -> None:
        outputs = part.record.get("outputs", [])
        if "outputs" in part.record and len(outputs) != 1 and part.outputs_known:
            self.findings.refuse(
                f"{what} has one output, not {len(outputs)}",
                outputs[1].span if outputs else part.record.at("outputs"),
                "leave `outputs` out to call it `rows`",
            )

    # ----------------------------------------------------------------------------------- kinds

    def _process(self, part: Part, *, built: bool) -> dict[str, Any]:
        record = part.record
        if "params" in record:
            self.findings.warn(
                "`params` has no effect here: only modules take params", record["params"].key or record.span
            )
        found = part.node.scope.files(self.reading).program(record["path"], built=built)
        if found is None:
            return {}
        file, first = found
        script = (str(file),) if first == "python" and file is not None else ()
        return {"file": file, "command": (first, *script, *self._args(part))}

    def _args(self, part: Part) -> list[str]:
        args = part.record.values.get("args")
        if args is None:
            return []
        scope = part.node.scope
        scalars = [args.scalar] if isinstance(args.tree, Scalar) else [item.scalar for item in args.value]
        if scope.use is not None:
            for scalar in scalars:
                check_params(scalar, scope.params, self.findings)
        if not isinstance(args.tree, Scalar):
            return [put_params(scalar.text, scope.params) for scalar in scalars]
        try:
            words = shlex.split(args.value)
        except ValueError:
            self.findings.refuse(
                "a quote in `args` is not closed", args.span, "close it, or write `args` as a list: `[a, b]`"
            )
            return []
        # Put in after the split: a value with a space in it is one argument.
        return [put_params(word, scope.params) for word in words]

    def _operator(self, part: Part, *, built: bool) -> dict[str, Any]:
        record, files = part.record, part.node.scope.files(self.reading)
        if record.variant == "python" and "python" in record:
            python = record["python"]
            inner = python.value
            if isinstance(inner, Record):
                return {"file": files.python(inner["source"], built=built) if "source" in inner else None}
            return {"file": files.python(python, built=built)}
        if "shared-library" in record:
            return {"file": files.library(record["shared-library"], built=built)}
        return {}

    def _connector(self, part: Part) -> dict[str, Any]:
        record = part.record
        name: str = record.get("connector", "")
        role: Role = "sink" if part.node.is_sink else "source"
        if name not in registry.names(role) and "inputs" not in record.broken:
            self._refuse_connector(part, name, role)
        if role == "source":
            self._one_output(part, "a source")
        elif record.get("outputs"):
            self.findings.refuse(
                "a sink has no outputs",
                record["outputs"].key,
                "a connector with inputs is a sink: leave `outputs` out, or leave out `inputs`",
            )
        return {
            "connector": name,
            "options": {key: value.value for key, value in record.get("options", {}).items()},
            "columns": self._columns(record),
        }

    def _refuse_connector(self, part: Part, name: str, role: Role) -> None:
        other: Role = "source" if role == "sink" else "sink"
        if name in registry.names(other):
            hint = f"it is a {other}: " + (
                "leave out its `inputs`" if other == "source" else "give it `inputs`"
            )
        else:
            hint = suggest(name, registry.names(role)) or f"the {role}s are {listed(registry.names(role))}"
        self.findings.refuse(f"there is no {role} called `{name}`", part.record.at("connector"), hint)

    def _sql(self, part: Part) -> dict[str, Any]:
        record = part.record
        if not record.get("inputs") and "inputs" not in record.broken:
            self.findings.refuse(
                "a SQL step needs inputs",
                record["sql"].key,
                "write `inputs: {name: node/output}`; the SELECT reads `FROM name`",
            )
        self._one_output(part, "a SQL step")
        text = record["sql"].scalar
        return {"sql": text.text, "sql_span": text.span, "sql_offsets": text.offsets}

    # ----------------------------------------------------------------------------------- copies

    def _parallelism(self, node: Node, common: dict[str, Any]) -> None:
        copies, by = node.record.get("parallelism"), node.record.get("partition_by")
        common |= {"parallelism": copies, "partition_by": by}
        if copies is not None and copies > 1 and by is None and "partition_by" not in node.record.broken:
            self.findings.refuse(
                f"`parallelism: {copies}` needs `partition_by`",
                node.record["parallelism"].key,
                "write `partition_by: NAME`, whose value says which copy gets a message",
            )
        elif by is not None and copies is None and "parallelism" not in node.record.broken:
            self.findings.warn(
                "`partition_by` has no effect without `parallelism`",
                node.record["partition_by"].key or node.record.span,
            )


def _restart(record: Record) -> Restart:
    return Restart(
        policy=record.get("restart_policy", "never"),
        most=record.get("max_restarts", 0),
        delay=record.get("restart_delay", 0.0),
        most_delay=record.get("max_restart_delay"),
        window=record.get("restart_window"),
    )


def source_text(source: Timer | Output | Logs) -> str:
    """A source as the whole dataflow writes it."""
    if isinstance(source, Timer):
        return source.text
    if isinstance(source, Output):
        return str(source)
    return "/".join(filter(None, ("dora/logs", source.level, source.node)))
