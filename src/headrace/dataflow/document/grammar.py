"""The grammar of dataflow documents: every key, what it takes and what it means here.

The reader, the suggestions of near names, the JSON schema and the tables of the reference page are all made
from these blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.dataflow.document.shapes import (
    Anything,
    Block,
    Choice,
    Either,
    Flag,
    Key,
    ListOf,
    MapOf,
    Number,
    Text,
    Whole,
)

_WORD = r"[A-Za-z0-9_.-]+"
MODULE_PORTS = "_mod"
"""In a module: the name under which its inputs are sources."""
TIMER_UNITS = {"secs": 1_000_000_000, "millis": 1_000_000, "micros": 1_000, "nanos": 1}
"""The units of `dora/timer/UNIT/N` in nanoseconds, from the coarsest."""
LOG_LEVELS = ("stdout", "trace", "debug", "info", "warn", "error")

_ID_ADVICE = "use letters, digits, `_`, `-` and `.`, and not `.` at the beginning"
NODE_ID = Text(
    words="an id",
    example="my-node",
    pattern=rf"(?!dora$|{MODULE_PORTS}$|\.){_WORD}",
    advice=f"{_ID_ADVICE}; `dora` and `{MODULE_PORTS}` are taken",
)
OPERATOR_ID = Text(words="an id", example="my-operator", pattern=rf"(?!\.){_WORD}", advice=_ID_ADVICE)
DATA_ID = Text(
    words="a name",
    pattern=rf"{_WORD}(?:/{_WORD})*",
    advice="use letters, digits, `_`, `-` and `.`, with `/` between parts",
)
_NAME = Text(words="a name", example="name")


@dataclass(frozen=True)
class Source(Text):
    """Where an input comes from. `wiring.py` finds out what is meant; editors see the form."""

    words: str = "a source"
    example: str = "node/output"

    def schema(self) -> dict[str, Any]:
        units = "|".join(TIMER_UNITS)
        levels = "|".join(LOG_LEVELS)
        forms = (
            rf"dora/timer/(?:{units})/0*[1-9][0-9]*",
            r"dora/timer/hz/[0-9.eE+-]*[1-9][0-9.eE+-]*",
            rf"dora/logs(?:/(?:{levels})(?:/{_WORD})?)?",
            rf"(?!dora/){_WORD}(?:/{_WORD})+",
        )
        return {"type": "string", "pattern": f"^(?:{'|'.join(forms)})$"}


_TYPES = MapOf(
    _NAME, Text(words="a type, such as `std/core/v1/Int64`"), words="a mapping from names to types"
)
_SECONDS = Number(words="a number of seconds")
_ENV = MapOf(
    Text(words="a name", pattern=r"[^=\s]+", advice="names of variables have no `=` and no spaces"),
    Text(
        words="a text, a number or a flag",
        advice='write `""` for nothing, and `$NAME` for a variable of the environment',
    ),
    words="a mapping from names to values",
    example="NAME: value",
)
_SCHEMA = Either(
    scalar=Text(),
    fields=MapOf(_NAME, Text(words="an SQL type, such as `BIGINT`")),
    words="a mapping from columns to SQL types, or one text",
    example="{id: BIGINT, name: TEXT}",
)

# ------------------------------------------------------------------------------------- small blocks

DEPLOY = Block(
    "a deploy block",
    (
        Key("machine", Text(), "Spark decides where operators run.", "quiet"),
        Key("working_dir", Text(), "Operators run in the directory of the document.", "quiet"),
        Key("labels", MapOf(_NAME, Text()), "Spark decides where operators run.", "quiet"),
        Key("distribute", Choice(("local", "scp", "http")), "Spark ships what operators need.", "quiet"),
    ),
)

DEBUG = Block(
    "a debug block",
    (Key("enable_debug_inspection", Flag(), "There is nothing to switch on.", "quiet"),),
)

TYPE_RULE = Block(
    "a type rule",
    (
        Key("from", Text(words="a type"), "The type of an output.", required=True),
        Key("to", Text(words="a type"), "A type of an input that may take it.", required=True),
    ),
)

INPUT = Block(
    "an input",
    (
        Key("source", Source(), "Where the messages come from.", required=True),
        Key(
            "queue_size",
            Whole(),
            "How many messages wait before `queue_policy` applies; 10 unless written, and 0 is 1.",
        ),
        Key(
            "queue_policy",
            Choice(("backpressure", "drop_oldest")),
            "What happens when the queue is full. `backpressure`, the default here: the sender waits, and "
            "nothing is lost. `drop_oldest`: the oldest message is dropped, and counted.",
        ),
        Key(
            "input_timeout",
            Number(words="a number of seconds", positive=True),
            "Seconds without a message after which the input counts as closed.",
        ),
        Key(
            "schema",
            _SCHEMA,
            "For SQL steps: the columns of the messages with their SQL types, as a mapping or as one text.",
        ),
    ),
)

_INPUTS = MapOf(
    DATA_ID,
    Either(scalar=Source(), fields=INPUT, words="a source", example="node/output"),
    words="a mapping from names to sources",
    example="name: node/output",
)
_OUTPUTS = ListOf(DATA_ID, words="a list of names", example="[name]")

_INPUTS_KEY = Key("inputs", _INPUTS, "Its inputs by name: `name: source`, or a block with options.")
_OUTPUTS_KEY = Key("outputs", _OUTPUTS, "The names of its outputs.")


def _ports(*variants: str) -> tuple[Key, ...]:
    """What a path node and an operator say about their inputs, outputs and logs."""
    return (
        Key(
            "input_types",
            _TYPES,
            "The types of inputs. They are compared with those of the outputs they are connected to; what "
            "does not fit is a warning, or an error with `strict_types`.",
            variants=variants,
        ),
        Key("output_types", _TYPES, "The types of outputs, for the same check.", variants=variants),
        Key(
            "output_metadata",
            MapOf(_NAME, ListOf(_NAME)),
            "The metadata that outputs carry. Names that are no outputs are a warning; the messages are not "
            "looked at.",
            variants=variants,
        ),
        Key(
            "pattern",
            Choice(("service-server", "service-client", "action-server", "action-client")),
            "Metadata is passed on for every pattern.",
            "quiet",
            variants=variants,
        ),
        Key(
            "output_framing",
            Anything(),
            "Messages between operators are not encoded.",
            "quiet",
            variants=variants,
        ),
        Key(
            "send_stdout_as",
            DATA_ID,
            "The output that gets each printed line as a text, with its line end. It must be in `outputs`.",
            variants=variants,
        ),
        Key(
            "send_logs_as",
            DATA_ID,
            "The output that gets each log entry as a text of JSON. It must be in `outputs`.",
            variants=variants,
        ),
        Key(
            "min_log_level",
            Choice(LOG_LEVELS),
            "Entries below this level are neither shown nor sent.",
            variants=variants,
        ),
        Key("max_log_size", Text(), "logs are not rotated by size.", "warned", variants=variants),
        Key("max_rotated_files", Whole(), "logs are not rotated by size.", "warned", variants=variants),
    )


_BUILD = "A command that makes what is run. With it, a missing file is a warning and no error."

# ------------------------------------------------------------------------------------- operators

PYTHON = Block(
    "a python block",
    (
        Key("source", Text(words="the path of a Python file"), "The file.", required=True),
        Key(
            "conda_env",
            Text(),
            "operators run in the Python that runs Headrace; install what they import there.",
            "warned",
        ),
    ),
)

_OPERATOR_REASONS = {
    name: f"write `{name}` beside `operator:` or `operators:`, not in it"
    for name in (
        "restart_policy", "max_restarts", "restart_delay", "max_restart_delay", "restart_window",
        "parallelism", "partition_by", "env", "deploy", "cpu_affinity",
    )
} | {
    "source": "name what it runs: `python: file.py` or `shared-library: ./name`",
    "shared_library": "did you mean `shared-library`?",
    "path": "a process is a node with `path:`; an operator has `python:` or `shared-library:`",
    "sql": "a SQL step is a node of its own: write `sql:` in the place of `operator:`",
    "connector": "a connector is a node of its own: write `connector:` in the place of `operator:`",
}  # fmt: skip


def _operator(name: str, *, listed: bool) -> Block:
    """The block of `operator:`, or of one of `operators:`."""
    return Block(
        name,
        (
            Key(
                "id",
                OPERATOR_ID,
                "Its name, unique in its node." if listed else "Its name; `op` unless written.",
                required=listed,
            ),
            Key("name", Text(), "A name for people.", "quiet"),
            Key("description", Text(), "A sentence for people.", "quiet"),
            Key(
                "python",
                Either(scalar=Text(), fields=PYTHON, words="the path of a Python file", example="file.py"),
                "A Python file with `class Operator`, relative to the document; or a block with `source`.",
            ),
            Key(
                "shared-library",
                Text(words="the path of a shared library"),
                "A library with dora's operator functions. `./name` is `libname.so` (`.dylib`, `.dll`) "
                "beside the document; so is `name`; the file's full name is taken too.",
            ),
            Key(
                "wasm",
                Anything(),
                "WebAssembly operators cannot be run. Build the operator as a shared library and write "
                "`shared-library:`.",
                "refused",
            ),
            _INPUTS_KEY,
            _OUTPUTS_KEY,
            Key("build", Text(words="a command"), _BUILD),
            *_ports(),
        ),
        variants=("python", "shared-library"),
        reasons=_OPERATOR_REASONS,
        example="{id: my-operator, python: my_operator.py}" if listed else "{python: my_operator.py}",
    )


OPERATOR = _operator("an operator", listed=False)
LISTED_OPERATOR = _operator("an operator in a list", listed=True)

# ------------------------------------------------------------------------------------- nodes

_NODE_EXAMPLE = "{id: my-node, path: my_node.py}"
_OPERATORS = ("operator", "operators")
_RUN = ("path", *_OPERATORS)
_IN_OPERATOR = "on a node with operators it belongs to the operator: write it in the block of `{}`"

_NODE_REASONS = {
    **{
        key.name: f"it is an option of an input: write `name: {{source: node/output, {key.name}: …}}`"
        for key in INPUT.keys
        if key.name not in {"source", "schema"}
    },
    **{
        f"{variant}.{key.name}": _IN_OPERATOR.format(f"{variant}:")
        for variant in _OPERATORS
        for key in OPERATOR.keys
        if key.name not in {"id", "name", "description"}
    },
    **{
        f"{variant}.{name}": why
        for variant, why in {
            "path": "a process is run once: make an operator of it (`operator: {python: …}`), which can run "
            "in parallel",
            "connector": "a connector runs as parallel as the whole run: `headrace run --parallelism`",
            "sql": "a SQL step runs as parallel as the whole run: `headrace run --parallelism`",
            "module": "write it on the nodes of the module",
        }.items()
        for name in ("parallelism", "partition_by")
    },
    "connector": "a connector takes `options`, `schema`, `inputs` and `outputs`",
    "sql": "a SQL step takes `inputs` and `outputs`",
    "module": "a node with `module` takes `inputs`, `params` and `env`; the rest is in the module's file",
    "python": "write `operator:` around it: `operator: {python: …}`",
    "shared-library": "write `operator:` around it: `operator: {shared-library: …}`",
    "source": "the program of a node is its `path`",
}

NODE = Block(
    "a node",
    (
        Key("id", NODE_ID, "Its name, unique in the document.", required=True),
        Key("name", Text(), "A name for people.", "quiet"),
        Key("description", Text(), "A sentence for people.", "quiet"),
        Key(
            "path",
            Text(words="the path of a program"),
            "A program in a process of its own: a `.py` file, run by this Python, or anything that can be "
            "executed; relative to the document, or found on `PATH`. URLs, `shell` and `dynamic` are "
            "refused.",
        ),
        Key(
            "operator",
            OPERATOR,
            "One operator. Its outputs are `node/output`; `node/operator/output` is taken too.",
        ),
        Key(
            "operators",
            ListOf(LISTED_OPERATOR, words="a list of operators", filled=True),
            "Several operators. Their outputs are `node/operator/output`.",
        ),
        Key(
            "module",
            Text(words="the path of a module's file"),
            "The file of a module, whose nodes take the place of this one as `module.node`.",
        ),
        Key(
            "connector",
            Text(words="the name of a connector", example="kafka"),
            "A connector of Headrace: a source if it has no inputs, a sink if it has.",
        ),
        Key(
            "sql",
            Text(words="a SELECT", example="SELECT …"),
            "A SELECT over the batches of its inputs, each a table called by the input's name.",
        ),
        Key(
            "args",
            Either(scalar=Text(), items=ListOf(Text()), words="a text or a list of texts"),
            "Arguments of the program: a text, split as a shell does it, or a list.",
            variants=("path",),
        ),
        Key(
            "env",
            _ENV,
            "Environment variables of the node, over those of the document. `$NAME`, `${NAME}` and "
            "`${NAME:-default}` are the variables of the environment, `$$` is a dollar.",
        ),
        Key("inputs", _INPUTS, _INPUTS_KEY.says, variants=("path", "module", "connector", "sql")),
        Key(
            "outputs",
            _OUTPUTS,
            "The names of its outputs. A source and a SQL step have one, `rows` unless written.",
            variants=("path", "connector", "sql"),
        ),
        Key(
            "params",
            MapOf(
                Text(words="a name", pattern=r"[A-Za-z0-9_]+", advice="use letters, digits and `_`"), Text()
            ),
            "Values for a module: `speed: 2` is `$PARAM_SPEED` in `args` and `env` of its nodes, and the "
            "variable `PARAM_SPEED` in their environment. On a node with `path` they have no effect.",
            variants=("module", "path"),
        ),
        Key("options", MapOf(_NAME, Anything()), "The options of the connector.", variants=("connector",)),
        Key(
            "schema",
            _SCHEMA,
            "The columns of the connector with their SQL types, as a mapping or as one text.",
            variants=("connector",),
        ),
        Key(
            "parallelism",
            Whole(least=1),
            "How many copies of each operator run; with more than one, `partition_by` says which of them "
            "gets a message.",
            variants=_OPERATORS,
        ),
        Key(
            "partition_by",
            _NAME,
            "What decides which copy gets a message: messages that are equal in it go to the same one.",
            variants=_OPERATORS,
        ),
        Key("build", Text(words="a command"), _BUILD, variants=("path",)),
        *_ports("path"),
        Key(
            "restart_policy",
            Choice(("never", "on-failure", "always")),
            "What to do when it fails: end the run (`never`, the default), or start it again; with `always` "
            "a process is started again when it ends without a failure too.",
            variants=_RUN,
        ),
        Key("max_restarts", Whole(), "How often; 0, the default, is without limit.", variants=_RUN),
        Key(
            "restart_delay",
            _SECONDS,
            "Seconds before the first restart; doubled for each further one.",
            variants=_RUN,
        ),
        Key("max_restart_delay", _SECONDS, "The longest delay.", variants=_RUN),
        Key("restart_window", _SECONDS, "Seconds after which restarts are counted anew.", variants=_RUN),
        Key(
            "finish_grace_secs",
            _SECONDS,
            "Seconds that the process has to end after its inputs have.",
            variants=("path",),
        ),
        Key("deploy", DEPLOY, "Spark decides where operators run.", "warned"),
        Key("cpu_affinity", ListOf(Whole()), "Spark decides where operators run.", "warned"),
        Key(
            "health_check_timeout",
            _SECONDS,
            "a process that hangs is not killed; `input_timeout` tells the nodes behind it.",
            "warned",
            variants=("path",),
        ),
        Key(
            "startup_timeout",
            _SECONDS,
            "nodes have as long as they need to start.",
            "warned",
            variants=("path",),
        ),
        Key(
            "shared_memory_pool_size",
            Text(),
            "Messages are not moved through shared memory.",
            "quiet",
            variants=("path",),
        ),
        Key(
            "path_sha256",
            Text(),
            "only files on this machine are run, and they are not checked.",
            "warned",
            variants=("path",),
        ),
        Key(
            "git",
            Anything(),
            "repositories are not cloned. Clone it beside the document and give the program's `path` there.",
            "refused",
        ),
        *(
            Key(name, Anything(), "repositories are not cloned. Check it out beside the document.", "refused")
            for name in ("branch", "tag", "rev")
        ),
        Key(
            "hub",
            Anything(),
            "nodes are not fetched from a hub. Install it and give its program as `path`.",
            "refused",
        ),
        Key(
            "ros2",
            Anything(),
            "there is no bridge to ROS 2. Run one as a program of your own, with `path`.",
            "refused",
        ),
        Key(
            "custom",
            Anything(),
            "it is the old form. Write its keys beside `id`, and its `source` as `path`.",
            "refused",
        ),
        Key("_unstable_deploy", Anything(), "it is called `deploy` now.", "refused"),
    ),
    variants=("path", "operator", "operators", "module", "connector", "sql"),
    reasons=_NODE_REASONS,
    example=_NODE_EXAMPLE,
)

_NODES = ListOf(NODE, words="a list of nodes", example=f"[{_NODE_EXAMPLE}]", filled=True)

# ------------------------------------------------------------------------------------- documents

DOCUMENT = Block(
    "a dataflow",
    (
        Key("nodes", _NODES, "The nodes of the dataflow; at least one.", required=True),
        Key("env", _ENV, "Environment variables of every node."),
        Key(
            "exit_when_nodes_finish",
            Flag(),
            "End when every node that has other inputs than timers has ended. Otherwise a timer keeps a "
            "dataflow running.",
        ),
        Key("strict_types", Flag(), "Types that do not fit are errors, not warnings."),
        Key("type_rules", ListOf(TYPE_RULE), "Types that fit besides those that widen: `{from: …, to: …}`."),
        Key("deploy", DEPLOY, "Spark decides where operators run.", "warned"),
        Key("debug", DEBUG, "There is nothing to switch on.", "quiet"),
        Key(
            "health_check_interval",
            _SECONDS,
            "processes are watched all the time, and a process that hangs is not killed.",
            "warned",
        ),
        Key(
            "communication",
            Anything(),
            "it is the old form, and nothing has taken its place. Leave it out.",
            "refused",
        ),
        Key("_unstable_deploy", Anything(), "it is called `deploy` now.", "refused"),
        Key("_unstable_debug", Anything(), "it is called `debug` now.", "refused"),
        Key(
            "module",
            Anything(),
            "this is the file of a module. Name it in another document: `- {id: NAME, module: FILE}`.",
            "refused",
        ),
    ),
    example=f"nodes: [{_NODE_EXAMPLE}]",
)

MODULE_HEADER = Block(
    "a module header",
    (
        Key("name", Text(example="my_module"), "A name for people.", required=True),
        Key("inputs", _OUTPUTS, f"The names of its inputs: `{MODULE_PORTS}/name` in its nodes."),
        Key("inputs_optional", _OUTPUTS, "Inputs that need not be connected; their uses are left out then."),
        Key("outputs", _OUTPUTS, "Outputs of its nodes that others may use, as `module/output`."),
    ),
)

MODULE = Block(
    "a module",
    (
        Key("module", MODULE_HEADER, "What it is called, and its inputs and outputs.", required=True),
        Key("nodes", _NODES, "Its nodes; files are relative to the module.", required=True),
        Key("build", Text(words="a command"), "A command that comes before `build` of its nodes."),
    ),
)

BLOCKS = (
    DOCUMENT,
    NODE,
    OPERATOR,
    LISTED_OPERATOR,
    PYTHON,
    INPUT,
    TYPE_RULE,
    DEPLOY,
    DEBUG,
    MODULE,
    MODULE_HEADER,
)
"""Every block there is."""
