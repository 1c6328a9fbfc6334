"""The blocks of dataflow documents: every key, what it takes and what it means here.

The reader, the suggestions of near names, the JSON schema and the tables of the reference page are all made
from these models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from annotated_types import Ge, Gt, MinLen
from pydantic import BeforeValidator, Field, Tag

from headrace.base.execution import ExecutionMode
from headrace.dataflow.document.model import QueuePolicy, RestartPolicy
from headrace.dataflow.document.validation import (
    BLOCK,
    BY_FORM,
    LIST,
    NO_EFFECT,
    TEXT,
    WARNED,
    Choice,
    Expected,
    Flag,
    Name,
    Text,
    Texts,
    YamlBlock,
    plain,
)  # fmt: skip
from headrace.dataflow.document.yaml_text import Scalar

_WORD = r"[A-Za-z0-9_.-]+"
MODULE_PORTS = "_mod"
"""In a module: the name under which its inputs are sources."""
TIMER_UNITS = {"secs": 1_000_000_000, "millis": 1_000_000, "micros": 1_000, "nanos": 1}
"""The units of `dora/timer/UNIT/N` in nanoseconds, from the coarsest."""
LogLevel: TypeAlias = Literal["stdout", "trace", "debug", "info", "warn", "error"]
LOG_LEVELS: tuple[str, ...] = get_args(LogLevel)

# ------------------------------------------------------------------------------------- values

Pattern: TypeAlias = Literal["service-server", "service-client", "action-server", "action-client"]
Distribution: TypeAlias = Literal["local", "scp", "http"]

_ID_ADVICE = "use letters, digits, `_`, `-` and `.`, and not `.` at the beginning"
_DATA_ID = rf"{_WORD}(?:/{_WORD})*"
_DATA_ADVICE = "use letters, digits, `_`, `-` and `.`, with `/` between parts"
_ANY_NAME = Annotated[str, Name()]

AnyText: TypeAlias = Annotated[Scalar, Text()]
NodeId: TypeAlias = Annotated[
    Scalar,
    Text(
        "an id",
        "my-node",
        pattern=rf"(?!dora$|{MODULE_PORTS}$|\.){_WORD}",
        advice=f"{_ID_ADVICE}; `dora` and `{MODULE_PORTS}` are taken",
    ),
]
OperatorId: TypeAlias = Annotated[
    Scalar, Text("an id", "my-operator", pattern=rf"(?!\.){_WORD}", advice=_ID_ADVICE)
]
VenvName: TypeAlias = Annotated[
    Scalar, Text("a name", "vision", pattern=rf"(?!\.){_WORD}", advice=_ID_ADVICE)
]
DataId: TypeAlias = Annotated[Scalar, Text("a name", pattern=_DATA_ID, advice=_DATA_ADVICE)]
Command: TypeAlias = Annotated[Scalar, Text("a command")]
Whole: TypeAlias = Annotated[int, Ge(0), Expected("a whole number", read=Scalar.integer)]
Seconds: TypeAlias = Annotated[float, Ge(0), Expected("a number of seconds", read=Scalar.finite)]
Anything: TypeAlias = Annotated[Any, BeforeValidator(plain)]
"""Any value; scalars are read by the rules of YAML 1.2."""
Outputs: TypeAlias = Annotated[list[DataId], Texts("a list of names", "[name]")]
Types: TypeAlias = Annotated[
    dict[_ANY_NAME, Annotated[Scalar, Text("a type, such as `std/core/v1/Int64`")]],
    Expected("a mapping from names to types"),
]
Env: TypeAlias = Annotated[
    dict[
        Annotated[str, Name(pattern=r"[^=\s]+", advice="names of variables have no `=` and no spaces")],
        Annotated[
            Scalar,
            Text(
                "a string, a number or a flag",
                advice='write `""` for nothing, and `$NAME` for a variable of the environment',
            ),
        ],
    ],
    Expected("a mapping from names to values", "NAME: value"),
]
Columns: TypeAlias = Annotated[
    Annotated[AnyText, Tag(TEXT)]
    | Annotated[dict[_ANY_NAME, Annotated[Scalar, Text("an SQL type, such as `BIGINT`")]], Tag(BLOCK)],
    BY_FORM,
    Expected("a mapping from columns to SQL types, or one text", "{id: BIGINT, name: TEXT}"),
]

_SOURCE_FORMS = (
    rf"dora/timer/(?:{'|'.join(TIMER_UNITS)})/0*[1-9][0-9]*",
    r"dora/timer/hz/[0-9.eE+-]*[1-9][0-9.eE+-]*",
    rf"dora/logs(?:/(?:{'|'.join(LOG_LEVELS)})(?:/{_WORD})?)?",
    rf"(?!dora/){_WORD}(?:/{_WORD})+",
)


class _Source(Text):
    """The source of an input. `wiring.py` resolves it; editors check its form."""

    def __get_pydantic_json_schema__(self, _core: object, _handler: object) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^(?:{'|'.join(_SOURCE_FORMS)})$"}


InputSource: TypeAlias = Annotated[Scalar, _Source("a source", "node/output")]


def _used(says: str, **more: Any) -> Any:
    return Field(default=None, description=says, **more)


def _quiet(says: str) -> Any:
    return Field(default=None, description=NO_EFFECT + says)


def _warned(says: str) -> Any:
    return Field(default=None, description=WARNED + says)


def _required(says: str, **more: Any) -> Any:
    return Field(description=says, **more)


# ------------------------------------------------------------------------------------- small blocks


class DeployBlock(YamlBlock):
    """`deploy:` of a document or a node."""

    title: ClassVar = "a deploy block"

    machine: AnyText | None = _quiet("Spark decides where operators run.")
    working_dir: AnyText | None = _quiet("Operators run in the directory of the document.")
    labels: Annotated[dict[_ANY_NAME, AnyText], Expected("a mapping")] | None = _quiet(
        "Spark decides where operators run."
    )
    distribute: Annotated[Distribution, Choice.of(Distribution)] | None = _quiet(
        "Spark ships what operators need."
    )


class DebugBlock(YamlBlock):
    """`debug:` of a document."""

    title: ClassVar = "a debug block"

    enable_debug_inspection: Annotated[bool, Flag()] | None = _quiet(
        "Messages can always be inspected, with `headrace topic`."
    )


class TypeRule(YamlBlock):
    """One of `type_rules:`."""

    title: ClassVar = "a type rule"

    narrow: Annotated[Scalar, Text("a type")] = _required("The type of an output.", alias="from")
    wide: Annotated[Scalar, Text("a type")] = _required("A type of an input that may take it.", alias="to")


class InputBlock(YamlBlock):
    """An input with options."""

    title: ClassVar = "an input"

    source: InputSource = _required("Where the messages come from.")
    queue_size: Whole | None = _used(
        "How many messages wait before `queue_policy` applies; 10 unless written, and 0 is 1."
    )
    queue_policy: Annotated[QueuePolicy, Choice.of(QueuePolicy)] | None = _used(
        "What happens when the queue is full. `backpressure`, the default here: the sender waits, and "
        "nothing is lost. `drop_oldest`: the oldest message is dropped, and counted."
    )
    input_timeout: Annotated[float, Gt(0), Expected("a number of seconds", read=Scalar.finite)] | None = (
        _used("Seconds without a message after which the input counts as closed.")
    )
    columns: Columns | None = _used(
        "For SQL steps: the columns of the messages with their SQL types, as a mapping or as one text.",
        alias="schema",
    )


Inputs: TypeAlias = Annotated[
    dict[
        Annotated[str, Name(pattern=_DATA_ID, advice=_DATA_ADVICE)],
        Annotated[
            Annotated[InputSource, Tag(TEXT)] | Annotated[InputBlock, Tag(BLOCK)],
            BY_FORM,
            Expected("a source", "node/output"),
        ],
    ],
    Expected("a mapping from names to sources", "name: node/output"),
]

_INPUTS = "Its inputs by name: `name: source`, or a block with options."
_BUILD = "A command that builds the program. With it, a missing file is a warning, not an error."


class PortBlock(YamlBlock):
    """The inputs, outputs and logs of a node with `path`, or of an operator."""

    input_types: Types | None = _used(
        "The types of inputs. They are compared with those of the outputs they are connected to; what does "
        "not fit is a warning, or an error with `strict_types`."
    )
    output_types: Types | None = _used("The types of outputs, for the same check.")
    output_metadata: (
        Annotated[dict[_ANY_NAME, Annotated[list[AnyText], Texts()]], Expected("a mapping")] | None
    ) = _used(
        "The metadata that outputs carry. Names that are no outputs are a warning; the messages are not "
        "looked at."
    )
    pattern: Annotated[Pattern, Choice.of(Pattern)] | None = _quiet(
        "Metadata is passed on for every pattern."
    )
    output_framing: Anything = _quiet("Messages between operators are not encoded.")
    send_stdout_as: DataId | None = _used(
        "The output that gets each printed line as a string, with its line end. It must be in `outputs`."
    )
    send_logs_as: DataId | None = _used(
        "The output that gets each log entry as a string of JSON. It must be in `outputs`."
    )
    min_log_level: Annotated[LogLevel, Choice.of(LogLevel)] | None = _used(
        "Entries below this level are neither shown nor sent."
    )
    max_log_size: AnyText | None = _warned("logs are not rotated by size.")
    max_rotated_files: Whole | None = _warned("logs are not rotated by size.")


# ------------------------------------------------------------------------------------- operators


class PythonBlock(YamlBlock):
    """`python:` of an operator, with options."""

    title: ClassVar = "a python block"

    source: Annotated[Scalar, Text("the path of a Python file")] = _required("The file.")
    conda_env: AnyText | None = _warned(
        "operators run in the Python that runs Headrace; install what they import there."
    )


class OperatorBlock(PortBlock):
    """`operator:` of a node."""

    title: ClassVar = "an operator"
    example: ClassVar = "{python: my_operator.py}"
    kinds: ClassVar[Mapping[str, frozenset[str]]] = {"python": frozenset(), "shared-library": frozenset()}
    refused: ClassVar = {
        "wasm": "WebAssembly operators cannot be run. Build the operator as a shared library and write "
        "`shared-library:`."
    }
    reasons: ClassVar = {
        **{
            name: f"write `{name}` beside `operator:` or `operators:`, not in it"
            for name in (
                "restart_policy", "max_restarts", "restart_delay", "max_restart_delay", "restart_window",
                "parallelism", "partition_by", "env", "deploy", "cpu_affinity",
            )
        },
        "source": "name what it runs: `python: file.py` or `shared-library: ./name`",
        "shared_library": "did you mean `shared-library`?",
        "path": "a process is a node with `path:`; an operator has `python:` or `shared-library:`",
        "sql": "a SQL step is a node of its own: write `sql:` in the place of `operator:`",
        "connector": "a connector is a node of its own: write `connector:` in the place of `operator:`",
    }  # fmt: skip

    id: OperatorId | None = _used("Its name; `op` unless written.")
    name: AnyText | None = _quiet("A display name.")
    description: AnyText | None = _quiet("A description.")
    python: (
        Annotated[
            Annotated[AnyText, Tag(TEXT)] | Annotated[PythonBlock, Tag(BLOCK)],
            BY_FORM,
            Expected("the path of a Python file", "file.py"),
        ]
        | None
    ) = _used("A Python file with `class Operator`, relative to the document; or a block with `source`.")
    library: Annotated[Scalar, Text("the path of a shared library")] | None = _used(
        "A library with dora's operator functions. `./name` is `libname.so` (`.dylib`, `.dll`) beside the "
        "document; so is `name`; the file's full name is taken too.",
        alias="shared-library",
    )
    inputs: Inputs | None = _used(_INPUTS)
    outputs: Outputs | None = _used("The names of its outputs.")
    build: Command | None = _used(_BUILD)


class ListedOperatorBlock(OperatorBlock):
    """One of `operators:` of a node."""

    title: ClassVar = "an operator in a list"
    example: ClassVar = "{id: my-operator, python: my_operator.py}"

    id: OperatorId = _required("Its name, unique in its node.")


# ------------------------------------------------------------------------------------- nodes

_PORTS = frozenset(PortBlock.model_fields)
_RESTART = frozenset(
    {"restart_policy", "max_restarts", "restart_delay", "max_restart_delay", "restart_window"}
)
_COPIES = frozenset({"parallelism", "partition_by"})
_PROCESS = frozenset({
    "args", "inputs", "outputs", "params", "build", "finish_grace_secs", "health_check_timeout",
    "startup_timeout", "shared_memory_pool_size", "path_sha256", "venv",
})  # fmt: skip
_COPY_REASONS = {
    "path": "a process is run once: make an operator of it (`operator: {python: …}`), which can run in "
    "parallel",
    "connector": "a connector runs as parallel as the whole run: `headrace run --parallelism`",
    "sql": "a SQL step runs as parallel as the whole run: `headrace run --parallelism`",
    "module": "write it on the nodes of the module",
}


class NodeBlock(PortBlock):
    """One of `nodes:`."""

    title: ClassVar = "a node"
    example: ClassVar = "{id: my-node, path: my_node.py}"
    kinds: ClassVar = {
        "path": _PROCESS | _PORTS | _RESTART,
        "operator": _RESTART | _COPIES,
        "operators": _RESTART | _COPIES,
        "module": frozenset({"inputs", "params"}),
        "connector": frozenset({"inputs", "outputs", "options", "schema"}),
        "sql": frozenset({"inputs", "outputs"}),
    }
    refused: ClassVar = {
        "git": "repositories are not cloned. Clone it with `build: git clone URL`, which `headrace build` "
        "runs, and give the program's `path` there.",
        **dict.fromkeys(
            ("branch", "tag", "rev"),
            "repositories are not cloned. Check it out in `build`, behind `git clone`.",
        ),
        "hub": "nodes are not fetched from a hub. Install its package with `build: pip install NAME`, which "
        "`headrace build` runs, and give its program as `path`.",
        "ros2": "there is no bridge to ROS 2. Run one as a program of your own, with `path`.",
        "custom": "it is the old form. Write its keys beside `id`, and its `source` as `path`.",
        "_unstable_deploy": "it is called `deploy` now.",
    }
    reasons: ClassVar = {
        **{
            name: f"it is an option of an input: write `name: {{source: node/output, {name}: …}}`"
            for name in ("queue_size", "queue_policy", "input_timeout")
        },
        **{
            f"{kind}.{name}": "on a node with operators it belongs to the operator: "
            f"write it in the block of `{kind}:`"
            for kind in ("operator", "operators")
            for name in OperatorBlock.fields_by_key()
        },
        **{f"{kind}.{name}": reason for kind, reason in _COPY_REASONS.items() for name in _COPIES},
        "connector": "a connector takes `options`, `schema`, `inputs` and `outputs`",
        "sql": "a SQL step takes `inputs` and `outputs`",
        "module": "a node with `module` takes `inputs`, `params` and `env`; the rest is in the module's file",
        "python": "write `operator:` around it: `operator: {python: …}`",
        "shared-library": "write `operator:` around it: `operator: {shared-library: …}`",
        "source": "the program of a node is its `path`",
    }

    id: NodeId = _required("Its name, unique in the document.")
    name: AnyText | None = _quiet("A display name.")
    description: AnyText | None = _quiet("A description.")
    path: Annotated[Scalar, Text("the path of a program")] | None = _used(
        "A program in a process of its own: a `.py` file, run by this Python, or anything that can be "
        "executed; relative to the document, or found on `PATH`. `dynamic`: a process that is started by "
        "hand and joins while the dataflow runs. URLs and `shell` are refused."
    )
    operator: OperatorBlock | None = _used(
        "One operator. Its outputs are `node/output`; `node/operator/output` is accepted too."
    )
    operators: (
        Annotated[
            list[ListedOperatorBlock],
            MinLen(1),
            Expected("a list of operators", f"[{ListedOperatorBlock.example}]"),
        ]
        | None
    ) = _used("Several operators. Their outputs are `node/operator/output`.")
    module: Annotated[Scalar, Text("the path of a module's file")] | None = _used(
        "The file of a module, whose nodes take the place of this one as `module.node`."
    )
    connector: Annotated[Scalar, Text("the name of a connector", "kafka")] | None = _used(
        "A connector of Headrace: a source if it has no inputs, a sink if it has."
    )
    sql: Annotated[Scalar, Text("a SELECT", "SELECT …")] | None = _used(
        "A SELECT over the batches of its inputs, each a table called by the input's name."
    )
    args: (
        Annotated[
            Annotated[AnyText, Tag(TEXT)] | Annotated[list[AnyText], Tag(LIST)],
            BY_FORM,
            Expected("a string or a list of strings"),
        ]
        | None
    ) = _used("Arguments of the program: a string, split as a shell does it, or a list.")
    env: Env | None = _used(
        "Environment variables of the node, over those of the document. `$NAME`, `${NAME}` and "
        "`${NAME:-default}` are the variables of the environment, `$$` is a dollar."
    )
    inputs: Inputs | None = _used(_INPUTS)
    outputs: Outputs | None = _used(
        "The names of its outputs. A source and a SQL step have one, `rows` unless written."
    )
    params: (
        Annotated[
            dict[
                Annotated[str, Name(pattern=r"[A-Za-z0-9_]+", advice="use letters, digits and `_`")], AnyText
            ],
            Expected("a mapping"),
        ]
        | None
    ) = _used(
        "Parameters of a module: `speed: 2` is `$PARAM_SPEED` in `args` and `env` of its nodes, and the "
        "variable `PARAM_SPEED` in their environment. On a node with `path` they have no effect."
    )
    options: Annotated[dict[_ANY_NAME, Anything], Expected("a mapping")] | None = _used(
        "The options of the connector."
    )
    columns: Columns | None = _used(
        "The columns of the connector with their SQL types, as a mapping or as one text.", alias="schema"
    )
    parallelism: Annotated[int, Ge(1), Expected("a whole number", read=Scalar.integer)] | None = _used(
        "The number of instances of each operator; with more than one, `partition_by` selects "
        "the instance for a message."
    )
    partition_by: Annotated[Scalar, Text("a name", "name")] | None = _used(
        "The column or metadata key that selects the instance: messages with equal values go to the same one."
    )
    build: Command | None = _used(_BUILD)
    venv: VenvName | None = _used(
        "The virtual environment that its `build` installs into and that it runs in: `.headrace/envs/NAME` "
        "beside the document, shared by all nodes that name it. Unless written, a node whose `build` calls "
        "Python has one of its own."
    )
    restart_policy: Annotated[RestartPolicy, Choice.of(RestartPolicy)] | None = _used(
        "What to do when it fails: end the run (`never`, the default), or start it again; with `always` a "
        "process is started again when it ends without a failure too."
    )
    max_restarts: Whole | None = _used("The maximum number of restarts; 0, the default, is unlimited.")
    restart_delay: Seconds | None = _used("Seconds before the first restart; doubled for each further one.")
    max_restart_delay: Seconds | None = _used("The longest delay.")
    restart_window: Seconds | None = _used("Restarts are counted within this many seconds.")
    finish_grace_secs: Seconds | None = _used(
        "Seconds that the process has to exit after its inputs have ended."
    )
    health_check_timeout: Seconds | None = _used(
        "Seconds that a process with inputs may take for an event without sending anything; then it is "
        "killed and has failed, see `restart_policy`. Without it there is no limit."
    )
    startup_timeout: Seconds | None = _used(
        "Seconds that a process with inputs has to make its `Node` when there is an event for it; then it is "
        "killed and has failed."
    )
    deploy: DeployBlock | None = _warned("Spark decides where operators run.")
    cpu_affinity: Annotated[list[Whole], Expected("a list")] | None = _warned(
        "Spark decides where operators run."
    )
    shared_memory_pool_size: AnyText | None = _quiet("Messages are not moved through shared memory.")
    path_sha256: AnyText | None = _warned("only files on this machine are run, and they are not checked.")


Nodes: TypeAlias = Annotated[
    list[NodeBlock], MinLen(1), Expected("a list of nodes", f"[{NodeBlock.example}]")
]

# ------------------------------------------------------------------------------------- documents


class DocumentBlock(YamlBlock):
    """A whole dataflow."""

    title: ClassVar = "a dataflow"
    example: ClassVar = f"nodes: [{NodeBlock.example}]"
    refused: ClassVar = {
        "communication": "it is the old form, and nothing has taken its place. Leave it out.",
        "_unstable_deploy": "it is called `deploy` now.",
        "_unstable_debug": "it is called `debug` now.",
        "module": "this is the file of a module. Name it in another document: `- {id: NAME, module: FILE}`.",
    }

    nodes: Nodes = _required("The nodes of the dataflow; at least one.")
    env: Env | None = _used("Environment variables of every node.")
    exit_when_nodes_finish: Annotated[bool, Flag()] | None = _used(
        "End when every node that has other inputs than timers has ended. Otherwise a timer keeps a dataflow "
        "running."
    )
    execution: Annotated[ExecutionMode, Choice.of(ExecutionMode)] | None = _used(
        "`resident`: a long-running task processes each message as it arrives; all units must be "
        "in one runtime. `epochs`: messages are processed with the next epoch. `auto`, the "
        "default, is `resident` if all units are operators, processes and sinks and Spark runs "
        "in local mode, else `epochs`."
    )
    strict_types: Annotated[bool, Flag()] | None = _used("Incompatible types are errors, not warnings.")
    type_rules: Annotated[list[TypeRule], Expected("a list")] | None = _used(
        "Compatible types in addition to the built-in rules: `{from: …, to: …}`."
    )
    deploy: DeployBlock | None = _warned("Spark decides where operators run.")
    debug: DebugBlock | None = _quiet("Messages can always be inspected, with `headrace topic`.")
    health_check_interval: Seconds | None = _warned(
        "processes are always monitored; see `health_check_timeout` of a node."
    )


class ModuleHeader(YamlBlock):
    """`module:` of the file of a module."""

    title: ClassVar = "a module header"

    name: Annotated[Scalar, Text(example="my_module")] = _required("A display name.")
    inputs: Outputs | None = _used(f"The names of its inputs: `{MODULE_PORTS}/name` in its nodes.")
    inputs_optional: Outputs | None = _used(
        "Inputs that need not be connected; their uses are left out then."
    )
    outputs: Outputs | None = _used("Outputs of its nodes that others may use, as `module/output`.")


class ModuleBlock(YamlBlock):
    """The file of a module."""

    title: ClassVar = "a module"

    module: ModuleHeader = _required("What it is called, and its inputs and outputs.")
    nodes: Nodes = _required("Its nodes; files are relative to the module.")
    build: Command | None = _used("A command that comes before `build` of its nodes.")


BLOCKS: tuple[type[YamlBlock], ...] = (
    DocumentBlock, NodeBlock, OperatorBlock, ListedOperatorBlock, PythonBlock, InputBlock, TypeRule,
    DeployBlock, DebugBlock, ModuleBlock, ModuleHeader,
)  # fmt: skip
"""Every block that a document may have."""
