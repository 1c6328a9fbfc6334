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
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, ValidationError

from headrace.base.errors import ConfigurationError, suggest
from headrace.base.options import Duration, Options

FILE = "headrace.toml"
PREFIX = "HEADRACE__"


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("should be greater than zero")
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


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """TOML reads `spark.ui.port = 1` as tables in tables; Spark wants one name and a text."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value).lower() if isinstance(value, bool) else str(value)


class RunSettings(Options):
    """`[run]`: how much an epoch takes and how long a run goes on."""

    parallelism: PositiveInt | None = Field(
        None, description="Subtasks of every operator; as many as the master has cores when not set."
    )
    epoch_target: Annotated[Duration, AfterValidator(_positive)] = Field(
        timedelta(milliseconds=500), description="How long an epoch should take; its size adapts to it."
    )
    epoch_rows: PositiveInt | None = Field(None, description="The most rows an epoch takes.")
    max_epochs: PositiveInt | None = Field(None, description="Stop after this many epochs.")
    available_now: bool = Field(
        default=False,
        description="End when what is there at the start is read; the next run reads what came since.",
    )
    restarts: int = Field(
        3, ge=0, description="How often a failed epoch is tried again when something outside failed."
    )
    start_timeout: Duration = Field(
        timedelta(seconds=5),
        description="How long a run waits, before its first epoch, for servers that do not answer yet.",
    )


class StateSettings(Options):
    """`[state]`: where checkpoints live and how many are kept."""

    dir: str | None = Field(
        None, description="A path or URL; without one the state lives as long as the run."
    )
    keep_checkpoints: PositiveInt = Field(10, description="How many checkpoints are kept.")
    compact_after: int = Field(
        8, ge=2, description="Files of one table and subtask that are merged into one."
    )


class SparkSettings(Options):
    """`[spark]`: the Spark that runs it."""

    master: str = Field("local[*]", min_length=1, description="`local[*]`, or the URL of a cluster.")
    memory: str = Field("2g", pattern=r"^\d+[kmgtKMGT]b?$", description="Memory of the driver.")
    conf: Annotated[Mapping[str, str], BeforeValidator(_read_conf)] = Field(
        default_factory=dict, description="Any other setting of Spark, by its own name."
    )


class LogSettings(Options):
    """`[log]`: where Spark's own log goes."""

    dir: str | None = Field(None, description="A folder for log files; the run's own directory when not set.")


class Settings(Options):
    """Everything that can be set, by section."""

    run: RunSettings = Field(default_factory=RunSettings)
    state: StateSettings = Field(default_factory=StateSettings)
    spark: SparkSettings = Field(default_factory=SparkSettings)
    log: LogSettings = Field(default_factory=LogSettings)


SECTIONS: Mapping[str, type[Options]] = MappingProxyType(
    {"run": RunSettings, "state": StateSettings, "spark": SparkSettings, "log": LogSettings}
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
    """Read the settings of a run; every problem is in one ConfigurationError that says where it came from.

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
    sections: dict[str, Options] = {}
    for section, model in SECTIONS.items():
        try:
            sections[section] = model.model_validate(
                {k: setting.value for k, setting in values[section].items()}
            )
        except ValidationError as error:
            problems.extend(_invalid(error, values[section]))
    if problems:
        raise _report(problems)
    return Settings.model_validate(sections)


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
                name = f"{section}-dir" if key == "dir" else key.replace("_", "-")
                yield _Setting(section, key, value, at or f"--{name}")


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
        message = item["msg"].removeprefix("Value error, ")
        yield _Problem(f"[{setting.section}] {setting.key}: {message}, got {setting.value!r}", setting.where)


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
