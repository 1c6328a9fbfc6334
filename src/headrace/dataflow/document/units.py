"""Nodes and operators of a document → units: every key with its meaning."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.base.errors import suggest
from headrace.dataflow.document.blocks import InputBlock, NodeBlock, OperatorBlock, PythonBlock
from headrace.dataflow.document.env import check_params, expand_env, put_params
from headrace.dataflow.document.files import ENVIRONMENTS, calls_python
from headrace.dataflow.document.findings import Findings
from headrace.dataflow.document.model import (
    DYNAMIC,
    QUEUE_SIZE,
    Input,
    Logs,
    Output,
    Restart,
    Timer,
    Unit,
    UnitKind,
)
from headrace.dataflow.document.modules import DeclaredUnit, DocumentNode, ReadContext
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
    """Makes units. What is wrong goes to the findings, and the unit is made as far as it can be."""

    context: ReadContext
    env: Mapping[str, str]
    """The environment of the whole document."""

    @property
    def findings(self) -> Findings:
        return self.context.findings

    def unit(self, declared: DeclaredUnit) -> Unit:
        """The unit that a node or an operator declares."""
        block, node = declared.block, declared.node
        build = "\n".join(filter(None, (node.scope.build, block.build.text if block.build else None))) or None
        common: dict[str, Any] = {
            "node": node.id,
            "operator": declared.operator,
            "listed": declared.listed,
            "inputs": self._inputs(declared),
            "outputs": declared.outputs,
            "env": self.node_env(node),
            "restart": _restart(node.block),
            "build": build,
            "send_stdout_as": self._output(declared, "send_stdout_as"),
            "send_logs_as": self._output(declared, "send_logs_as"),
            "min_log_level": block.min_log_level,
            "finish_grace": node.block.finish_grace_secs,
            "health_timeout": node.block.health_check_timeout,
            "startup_timeout": node.block.startup_timeout,
            **self._parallelism(node.block),
            "span": (node.block if block.id is None else block).value_span("id"),
        }
        self._warn_twice(declared)
        self._warn_of_timeouts(node.block)
        kind = block.kind
        if kind == "path":
            common |= self._process(declared, built=build is not None)
        elif isinstance(block, OperatorBlock):
            common["file"] = self._operator_file(declared, block, built=build is not None)
        elif kind == "connector":
            common |= self._connector(declared)
        elif kind == "sql":
            common |= self._sql(declared)
        return Unit(kind=_KINDS[kind or "path"], **common)

    def node_env(self, node: DocumentNode) -> dict[str, str]:
        """The environment of a node: the document's, its modules', its own, and what its module was given."""
        scope = node.scope
        environ = {**self.context.environ, **scope.params}
        own = expand_env(node.block.env or {}, environ, self.findings)
        return {**self.env, **scope.env, **own, **scope.params}

    # ----------------------------------------------------------------------------------- inputs

    def _inputs(self, declared: DeclaredUnit) -> tuple[Input, ...]:
        inputs = []
        for name, written in (declared.block.inputs or {}).items():
            connection = connect(written, declared.node.scope, self.findings)
            if connection is None:
                continue
            options = connection.options
            if declared.node.kind in {"sql", "connector"} and isinstance(connection.source, Timer):
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
                    columns=self._input_columns(declared, written),
                    span=connection.span,
                )
            )
        return tuple(inputs)

    def _input_columns(
        self, declared: DeclaredUnit, written: Scalar | InputBlock
    ) -> Mapping[str, str] | None:
        if not isinstance(written, InputBlock) or written.columns is None:
            return None
        if declared.node.kind != "sql":
            self.findings.refuse(
                "`schema` of an input is for SQL steps",
                written.key_span("schema"),
                "operators get the messages as they are: leave it out",
            )
            return None
        return self._columns(written)

    def _columns(self, block: InputBlock | NodeBlock) -> Mapping[str, str] | None:
        if block.columns is None:
            return None
        from headrace.dataflow.document.columns import read_columns

        return read_columns(block.columns, block.value_span("schema"), self.findings)

    # ----------------------------------------------------------------------------------- outputs

    def _output(self, declared: DeclaredUnit, key: str) -> str | None:
        """An output that another key names."""
        output: Scalar | None = getattr(declared.block, key)
        if output is None:
            return None
        if output.text not in declared.outputs and declared.outputs_known:
            names = ", ".join([*declared.outputs, output.text])
            self.findings.refuse(
                f"`{key}` names `{output.text}`, which is not in `outputs`",
                output.span,
                suggest(output.text, declared.outputs) or f"add it: `outputs: [{names}]`",
            )
        return output.text

    def _warn_of_timeouts(self, block: NodeBlock) -> None:
        """A node without inputs has no events that it could take too long for."""
        for key in ("health_check_timeout", "startup_timeout"):
            if getattr(block, key) is not None and not block.inputs:
                message = f"`{key}` has no effect here: a node without inputs has no events to handle"
                self.findings.warn(message, block.key_span(key))

    def _warn_twice(self, declared: DeclaredUnit) -> None:
        seen = set()
        for output in declared.block.outputs or []:
            if output.text in seen:
                self.findings.warn(f"the output `{output.text}` is written twice", output.span)
            seen.add(output.text)

    def _one_output(self, declared: DeclaredUnit, what: str) -> None:
        outputs = declared.block.outputs
        if outputs is not None and len(outputs) != 1 and declared.outputs_known:
            self.findings.refuse(
                f"{what} has one output, not {len(outputs)}",
                outputs[1].span if outputs else declared.block.value_span("outputs"),
                "leave `outputs` out to call it `rows`",
            )

    # ----------------------------------------------------------------------------------- kinds

    def _process(self, declared: DeclaredUnit, *, built: bool) -> dict[str, Any]:
        block = declared.node.block
        if block.params is not None:
            self.findings.warn(
                "`params` has no effect here: only modules take params", block.key_span("params")
            )
        assert block.path is not None
        scope = declared.node.scope
        python_env = self._python_env(declared)
        program = scope.files(self.context).program(block.path, built=built, python_env=python_env)
        if program is None:
            return {}
        file, first = program
        if first == DYNAMIC:
            self._warn_of_start(block)
            return {"command": (DYNAMIC,), "python_env": python_env}
        script = (str(file),) if first == "python" and file is not None else ()
        command = (first, *script, *self._args(declared))
        return {"file": file, "command": command, "python_env": python_env}

    def _warn_of_start(self, block: NodeBlock) -> None:
        """A process that is started by hand is started with what its starter gives it."""
        for key in ("args", "env", "startup_timeout", "send_stdout_as"):
            if getattr(block, key) is not None:
                message = f"`{key}` has no effect here: the process of a dynamic node is started by hand"
                self.findings.warn(message, block.key_span(key))

    def _python_env(self, declared: DeclaredUnit) -> Path | None:
        """The virtual environment of a process: the one it names, or its own if its build calls Python."""
        block, directory = declared.node.block, declared.node.scope.directory / ENVIRONMENTS
        if block.venv is None:
            needs_python = block.build is not None and calls_python(block.build.text)
            return directory / declared.node.id if needs_python else None
        own = directory / block.venv.text
        if self.context.check_files and not (own / "bin" / "python").exists():
            self.findings.refuse(
                f"there is no virtual environment `{block.venv.text}` yet",
                block.venv.span,
                "make it, with what the nodes' `build` installs: `headrace build FILE.yml`",
            )
        return own

    def _args(self, declared: DeclaredUnit) -> list[str]:
        args = declared.node.block.args
        if args is None:
            return []
        scope = declared.node.scope
        scalars = [args] if isinstance(args, Scalar) else args
        if scope.use is not None:
            for scalar in scalars:
                check_params(scalar, scope.params, self.findings)
        if not isinstance(args, Scalar):
            return [put_params(scalar.text, scope.params) for scalar in scalars]
        try:
            words = shlex.split(args.text)
        except ValueError:
            self.findings.refuse(
                "a quote in `args` is not closed", args.span, "close it, or write `args` as a list: `[a, b]`"
            )
            return []
        # Put in after the split: a value with a space in it is one argument.
        return [put_params(word, scope.params) for word in words]

    def _operator_file(self, declared: DeclaredUnit, block: OperatorBlock, *, built: bool) -> Path | None:
        files = declared.node.scope.files(self.context)
        if block.kind == "shared-library":
            return None if block.library is None else files.library(block.library, built=built)
        python = block.python.source if isinstance(block.python, PythonBlock) else block.python
        return None if python is None else files.python(python, built=built)

    def _connector(self, declared: DeclaredUnit) -> dict[str, Any]:
        block = declared.node.block
        assert block.connector is not None
        role: Role = "sink" if declared.node.is_sink else "source"
        if block.connector.text not in registry.names(role) and "inputs" not in block.broken:
            self._refuse_connector(block.connector, role)
        if role == "source":
            self._one_output(declared, "a source")
        elif block.outputs:
            self.findings.refuse(
                "a sink has no outputs",
                block.key_span("outputs"),
                "a connector with inputs is a sink: leave `outputs` out, or leave out `inputs`",
            )
        return {
            "connector": block.connector.text,
            "options": block.options or {},
            "columns": self._columns(block),
        }

    def _refuse_connector(self, name: Scalar, role: Role) -> None:
        other: Role = "source" if role == "sink" else "sink"
        hint = suggest(name.text, registry.names(role), listing=f"the {role}s are")
        if name.text in registry.names(other):
            change = "leave out its `inputs`" if other == "source" else "give it `inputs`"
            hint = f"it is a {other}: {change}"
        self.findings.refuse(f"there is no {role} called `{name.text}`", name.span, hint)

    def _sql(self, declared: DeclaredUnit) -> dict[str, Any]:
        block = declared.node.block
        assert block.sql is not None
        if not block.inputs and "inputs" not in block.broken:
            self.findings.refuse(
                "a SQL step needs inputs",
                block.key_span("sql"),
                "write `inputs: {name: node/output}`; the SELECT reads `FROM name`",
            )
        self._one_output(declared, "a SQL step")
        return {"sql": block.sql.text, "sql_span": block.sql.span, "sql_offsets": block.sql.offsets}

    # ----------------------------------------------------------------------------------- copies

    def _parallelism(self, block: NodeBlock) -> dict[str, Any]:
        copies, by = block.parallelism, block.partition_by
        if copies is not None and copies > 1 and by is None and "partition_by" not in block.broken:
            self.findings.refuse(
                f"`parallelism: {copies}` needs `partition_by`",
                block.key_span("parallelism"),
                "write `partition_by: NAME`, whose value says which copy gets a message",
            )
        elif by is not None and copies is None and "parallelism" not in block.broken:
            self.findings.warn(
                "`partition_by` has no effect without `parallelism`", block.key_span("partition_by")
            )
        return {"parallelism": copies, "partition_by": by and by.text}


def _restart(block: NodeBlock) -> Restart:
    return Restart(
        policy=block.restart_policy or "never",
        most=block.max_restarts or 0,
        delay=block.restart_delay or 0.0,
        most_delay=block.max_restart_delay,
        window=block.restart_window,
    )


def source_text(source: Timer | Output | Logs) -> str:
    """A source as the whole dataflow writes it."""
    if isinstance(source, Timer):
        return source.text
    if isinstance(source, Output):
        return str(source)
    return "/".join(filter(None, ("dora/logs", source.level, source.node)))
