"""Settings of a run: flags, then environment, then a TOML file, then defaults.

A setting has a section and a key. `[run] epoch_rows` in `headrace.toml` is `HEADRACE__RUN__EPOCH_ROWS` in the
environment and `--epoch-rows` on the command line. The table `[spark] conf` is merged key by key; everything
else is taken whole from the first place that has it.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticKnownError

from headrace.base.errors import ConfigurationError, suggest
from headrace.base.execution import EngineName, ExecutionMode
from headrace.base.option_errors import describe_problem, suggest_value
from headrace.base.options import Duration, Options
from headrace.engine.autoscale import AutoParallelism

FILE = "headrace.toml"
PREFIX = "HEADRACE__"

LOG_AREAS = ("engine", "kafka", "nats", "postgres", "run", "single_file", "spark", "state")
"""What has a level of its own: the loggers below `headrace`."""
LogLevel = Literal["debug", "info", "warning", "error"]


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("it must be greater than zero")
    return value


def _check_memory(value: str) -> str:
    if not re.fullmatch(r"\d+[kmgt]b?", value, re.IGNORECASE):
        raise ValueError("write a size such as `4g` or `512m`")
    return value


def _read_conf(value: Any) -> Any:
    if isinstance(value, str):
        if value.lstrip().startswith("{"):
            value = json.loads(value)
        else:
            pairs = [pair.partition("=") for pair in value.split(",")]
            if not all(equals for _, equals, _ in pairs):
                raise ValueError("write it as `name=value,name=value` or as a JSON object")
            value = {name.strip(): text.strip() for name, _, text in pairs}
    if isinstance(value, Mapping):
        return dict(_flat(value))
    return value


def _read_levels(value: Any) -> Any:
    """Read `info,kafka=debug`; the level without an area is under an empty name."""
    if isinstance(value, str):
        parts = [part.strip().partition("=") for part in value.split(",") if part.strip()]
        value = {name if equals else "": level if equals else name for name, equals, level in parts}
    if isinstance(value, Mapping):
        for area in value:
            if area not in ("", *LOG_AREAS):
                raise ValueError(
                    f"there is no area `{area}`; {suggest(area, LOG_AREAS, listing='there are')}"
                )
    return value


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Flatten nested tables: TOML reads `spark.ui.port = 1` as tables in tables."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value).lower() if isinstance(value, bool) else str(value)


_POSITIVE_INT: TypeAdapter[int] = TypeAdapter(PositiveInt)


def _read_parallelism(value: Any) -> int | AutoParallelism | None:
    if value is None or isinstance(value, AutoParallelism):
        return value
    if isinstance(value, str) and value.strip().startswith("auto"):
        bounds = AutoParallelism.parse(value)
        if bounds is None:
            raise ValueError("write the fewest and the most subtasks, as in `auto:2-64`")
        return bounds
    try:
        return _POSITIVE_INT.validate_python(value)
    except ValidationError as error:
        problem = error.errors()[0]
        raise PydanticKnownError(problem["type"], problem.get("ctx")) from None  # type: ignore[arg-type]


class RunSettings(Options):
    """`[run]`: the size of epochs and the end of a run."""

    parallelism: Annotated[int | AutoParallelism | None, PlainValidator(_read_parallelism)] = Field(
        None,
        description=(
            "Subtasks of each operator, or `auto:2-64` to scale with the load within bounds. By "
            "default the number of cores of the master, or 1 with the engine `local`."
        ),
    )
    epoch_target: Annotated[Duration, AfterValidator(_positive)] = Field(
        timedelta(milliseconds=500),
        description=("The target duration of an epoch; the size of epochs adapts to it."),
    )
    epoch_rows: PositiveInt | None = Field(None, description="The maximum number of rows in an epoch.")
    max_epochs: PositiveInt | None = Field(None, description="Stop after this many epochs.")
    available_now: bool = Field(
        default=False,
        description=(
            "Process all data that is available at the start, then stop; the next run reads the data "
            "since then."
        ),
    )
    restarts: int = Field(3, ge=0, description="How often an epoch is retried after an external error.")
    execution: ExecutionMode = Field(
        "auto",
        description="`resident`: a task that stays handles the messages of a dataflow as they come; "
        "`epochs`: each epoch is a job; `auto`: what the document says, else `resident` if its units are "
        "operators, processes and sinks in one runtime and tasks run on this machine.",
    )
    engine: EngineName = Field(
        "spark",
        description=(
            "Where tasks run: on `spark`; or `local`, one after the other in the process of the run, "
            "without Spark and Java."
        ),
    )
    start_timeout: Duration = Field(
        timedelta(seconds=5),
        description="How long a run waits before its first epoch for servers that do not answer.",
    )


class StateSettings(Options):
    """`[state]`: the directory of checkpoints, and how many are kept."""

    dir: str | None = Field(None, description="A path or URL; without it the state is deleted after the run.")
    keep_checkpoints: PositiveInt = Field(10, description="The number of checkpoints that are kept.")
    compact_after: int = Field(
        8, ge=2, description="The number of files of one table and subtask that are merged into one."
    )


class SparkSettings(Options):
    """`[spark]`: the Spark master and its settings."""

    master: str = Field(
        "local[*]", min_length=1, description="`local[*]`, the URL of a cluster, or `sc://host:15002`."
    )
    memory: Annotated[str, AfterValidator(_check_memory)] = Field("2g", description="Memory of the driver.")
    conf: Annotated[Mapping[str, str], BeforeValidator(_read_conf)] = Field(
        default_factory=dict, description="Any other setting of Spark, by its own name."
    )


class LogSettings(Options):
    """`[log]`: where logs go, and what `headrace run` writes to them."""

    dir: str | None = Field(
        None,
        description=(
            "The directory of log files; by default `logs` in a local state directory, or a temporary one."
        ),
    )
    format: Literal["text", "json"] = Field(
        "text",
        description=(
            "The format of stderr of `headrace run`; `json` is also written to a file in `dir`, if set."
        ),
    )
    level: Annotated[Mapping[str, LogLevel], BeforeValidator(_read_levels)] = Field(
        default_factory=dict,
        description="What is logged: `debug`, `info`, `warning` or `error`, and by area, such as "
        f"`info,kafka=debug`. The areas are {', '.join(LOG_AREAS)}.",
    )


class MetricsSettings(Options):
    """`[metrics]`: metrics for Prometheus."""

    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Serve `/metrics`, `/healthz` and `/readyz` at this port; 0 chooses a free one.",
    )
    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description=(
            "The address to listen on; with `0.0.0.0` everyone on the network can read them, without "
            "authentication."
        ),
    )


class Settings(Options):
    """Everything that can be set, by section."""

    run: RunSettings = Field(default_factory=RunSettings)
    state: StateSettings = Field(default_factory=StateSettings)
    spark: SparkSettings = Field(default_factory=SparkSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)


SECTIONS: Mapping[str, type[Options]] = MappingProxyType(
    {
        "run": RunSettings,
        "state": StateSettings,
        "spark": SparkSettings,
        "log": LogSettings,
        "metrics": MetricsSettings,
    }
)


@dataclass(frozen=True)
class _Setting:
    """A value someone gave, and where: a line of a file, a variable, a flag."""

    section: str
    key: str
    value: Any
    where: str


@dataclass(frozen=True)
class _Problem:
    message: str
    where: str
    hint: str | None = None


def load_settings(
    *,
    flags: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    flags_at: str | None = None,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Settings:
    """Read the settings of a run; one ConfigurationError lists every problem and its origin.

    `flags` is {section: {key: value}}, None meaning not given; they were written at `flags_at`, a line of a
    program, and by default on the command line. `config` is the TOML file; without it
    `headrace.toml` in `directory` (the current one) is read if it is there.
    """
    problems: list[_Problem] = []
    values: dict[str, dict[str, _Setting]] = {section: {} for section in SECTIONS}
    for setting in (
        *_from_file(config, directory or Path.cwd(), problems),
        *_from_environ(os.environ if environ is None else environ, problems),
        *_from_flags(flags, flags_at),
    ):
        if problem := _unknown(setting):
            problems.append(problem)
            continue
        if setting.section == "spark" and setting.key == "conf":
            setting = _merge_conf(values["spark"].get("conf"), setting)  # noqa: PLW2901
        values[setting.section][setting.key] = setting
    sections = _validated(values, problems)
    settings = None if problems else Settings.model_validate(sections)
    if settings is not None and settings.run.engine == "local":
        problems.extend(_unread(flags, flags_at, values["run"]["engine"]))
    if settings is None or problems:
        raise _report(problems)
    return settings


def check_values(flags: Mapping[str, Mapping[str, Any]], *, flags_at: str | None) -> None:
    """Refuse values, {section: {key: value}}, that are wrong whatever other settings say; None is unset."""
    problems: list[_Problem] = []
    values: dict[str, dict[str, _Setting]] = {section: {} for section in SECTIONS}
    for setting in _from_flags(flags, flags_at):
        values[setting.section][setting.key] = setting
    _validated(values, problems)
    if problems:
        raise _report(problems)


def _validated(values: Mapping[str, Mapping[str, _Setting]], problems: list[_Problem]) -> dict[str, Options]:
    sections: dict[str, Options] = {}
    for section, model in SECTIONS.items():
        try:
            sections[section] = model.model_validate(
                {key: setting.value for key, setting in values[section].items()}
            )
        except ValidationError as error:
            problems.extend(_invalid(error, values[section]))
    return sections


def _from_file(config: Path | None, directory: Path, problems: list[_Problem]) -> Iterator[_Setting]:
    path = config or directory / FILE
    if config is None and not path.is_file():
        return
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"the settings file cannot be read: {reason}", where=str(path)) from None
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _bad_toml(error, text, path) from None
    for section, table in tables.items():
        where = f"{path}:{_line_of(text, section)}"
        if section in SECTIONS and not isinstance(table, Mapping):
            problems.append(
                _Problem(f"`{section}` is a section, got {table!r}", where, f"write `[{section}]`")
            )
        elif section not in SECTIONS:
            problems.append(_unknown_section(section, where, f"[{section}]"))
        else:
            for key, value in table.items():
                yield _Setting(section, key, value, f"{path}:{_line_of(text, section, key)}")


def _from_environ(environ: Mapping[str, str], problems: list[_Problem]) -> Iterator[_Setting]:
    for name, value in environ.items():
        if not name.startswith(PREFIX) or value == "":
            continue
        section, separator, key = name.removeprefix(PREFIX).lower().partition("__")
        if section not in SECTIONS:
            problems.append(_unknown_section(section, name, section.upper()))
        elif not separator or not key:
            problems.append(
                _Problem("the variable names no key", name, f"write {PREFIX}{section.upper()}__KEY")
            )
        else:
            yield _Setting(section, key, value, name)


def _from_flags(flags: Mapping[str, Mapping[str, Any]], at: str | None) -> Iterator[_Setting]:
    for section, values in flags.items():
        for key, value in values.items():
            if value is not None:
                yield _Setting(section, key, value, at or flag_of(section, key))


def _unread(
    flags: Mapping[str, Mapping[str, Any]], flags_at: str | None, engine: _Setting
) -> Iterator[_Problem]:
    """The flags for Spark of a run without it. What a file says of Spark is for other runs."""
    for setting in _from_flags({"spark": flags.get("spark", {})}, flags_at):
        what = "`spark_conf`" if setting.key == "conf" else f"`{setting.key}`"
        if flags_at is None:
            what = flag_of("spark", setting.key)
        is_flag = engine.where in {flags_at, flag_of("run", "engine")}
        source = "" if is_flag else f", as {engine.where} says"
        yield _Problem(
            f"{what} is for Spark, and the engine of this run is `local`{source}",
            setting.where,
            "leave one of them out" if is_flag else "leave it out, or choose the engine `spark`",
        )


def flag_of(section: str, key: str) -> str:
    """The flag of a setting, if it has one."""
    name = f"{section}-{key}" if key == "dir" or section in {"log", "metrics"} else key
    return f"--{name.replace('_', '-')}"


def _unknown(setting: _Setting) -> _Problem | None:
    model = SECTIONS.get(setting.section)
    if model is None:
        return _unknown_section(setting.section, setting.where, setting.section)
    if setting.key in model.model_fields:
        return None
    elsewhere = [section for section, other in SECTIONS.items() if setting.key in other.model_fields]
    hint = suggest(setting.key, model.model_fields) or (
        f"it belongs to [{elsewhere[0]}]"
        if elsewhere
        else f"[{setting.section}] has {', '.join(model.model_fields)}"
    )
    return _Problem(f"unknown key `{setting.key}` in [{setting.section}]", setting.where, hint)


def _unknown_section(section: str, where: str, shown: str) -> _Problem:
    homes = [name for name, model in SECTIONS.items() if section in model.model_fields]
    hint = suggest(section, SECTIONS) or f"the sections are {', '.join(SECTIONS)}"
    if homes:
        hint = f"`{section}` is a key of [{homes[0]}]"
    return _Problem(f"unknown section `{shown}`", where, hint)


def _merge_conf(lower: _Setting | None, upper: _Setting) -> _Setting:
    try:
        merged = {**(_read_conf(lower.value) if lower else {}), **_read_conf(upper.value)}
    except (ValueError, TypeError):
        return upper  # validation says what is wrong with it
    return _Setting(upper.section, upper.key, merged, upper.where)


def _invalid(error: ValidationError, values: Mapping[str, _Setting]) -> Iterator[_Problem]:
    for item in error.errors():
        setting = values[str(item["loc"][0])]
        message = describe_problem(item, f"[{setting.section}] {setting.key}")
        yield _Problem(f"{message}, got {setting.value!r}", setting.where, suggest_value(item))


def _report(problems: list[_Problem]) -> ConfigurationError:
    if len(problems) == 1:
        problem = problems[0]
        return ConfigurationError(problem.message, hint=problem.hint, where=problem.where)
    lines = [
        f"  - {problem.where}: {problem.message}" + (f"; {problem.hint}" if problem.hint else "")
        for problem in problems
    ]
    return ConfigurationError(f"{len(problems)} settings are not valid:\n" + "\n".join(lines))


def _line_of(text: str, section: str, key: str | None = None) -> int:
    """The line where a section, or a key in it, is written; the closest thing when it is written oddly."""
    inside, line_number = key is None, 1
    written = re.compile(rf"\s*[\"']?{re.escape(key or section)}[\"']?\s*[.=]")
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*[\"']?([^\s\]\"'.]+)", line):
            here = header.group(1) == section
            line_number = number if here and line_number == 1 else line_number
            inside = here and key is not None
        elif inside and written.match(line):
            return number
    return line_number


def _bad_toml(error: tomllib.TOMLDecodeError, text: str, path: Path) -> ConfigurationError:
    message = str(error)
    position = re.search(r"\(at line (\d+), column (\d+)\)", message)
    lines = text.splitlines()
    number = int(position.group(1)) if position else max(len(lines), 1)
    column = int(position.group(2)) if position else 1
    reason = re.sub(r"\s*\(at .*\)$", "", message)
    shown = lines[number - 1] if number <= len(lines) else ""
    return ConfigurationError(
        f"the settings file is not valid TOML: {reason}\n    {shown}\n    {' ' * (column - 1)}^",
        where=f"{path}:{number}",
    )
