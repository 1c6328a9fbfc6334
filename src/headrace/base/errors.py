"""Every exception of Headrace.

    HeadraceError            code · message · hint · where · domain · retry
    ├── UserError            exit 2: what the user wrote has to change
    │   ├── ConfigurationError   settings, options, command line
    │   ├── PlanError            a pipeline that cannot be planned
    │   ├── OperatorError        a raise in the user's own operator (exit 1: it happened while running)
    │   ├── PlacedError          a mistake in a text, with its place there
    │   │   ├── SqlError             SQL that cannot be run
    │   │   └── DataflowError        a YAML dataflow that cannot be run
    │   ├── ExpressionError      a SQL expression that cannot be computed (exit 1 while running)
    │   └── MissingExtraError    an optional library that is not installed
    ├── ExternalError        something outside failed; a retry may help
    │   ├── WorkerError          Spark lost a task, a worker or an executor
    │   │   └── SparkEndedError      Spark's Java has ended and cannot be started again; no retry helps
    │   ├── RefusedError         the other side says no; no retry helps
    │   └── BadLineError         a line of input that is not what it should be; no retry helps
    ├── StateError           the state on disk and this pipeline do not fit
    │   ├── IncompatibleStateError
    │   ├── CorruptStateError
    │   ├── StateInUseError
    │   └── ReplacedError        another run has taken over while this one was at work
    ├── OutputClosedError    whoever read the output has closed it: a request to stop
    └── InternalError        a bug in Headrace

`domain` and `retry` alone decide whether a run is tried again and with which code the command exits.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final, Literal, Self

Domain = Literal["user", "external", "internal"]


class HeadraceError(Exception):
    """The base class of all errors of Headrace: what happened, what to do, where, and who has to act.

    Args:
        message: what happened.
        hint: what to do about it.
        where: the file, the line or the operator.

    `domain` says who can do something about it: `user`, `external` or `internal`; `retry` whether trying
    again may help; `exit_code` is that of the command line.

    >>> import headrace as hr
    >>> try:
    ...     hr.Pipeline().source("kafkaa")
    ... except hr.HeadraceError as error:
    ...     print(f"{type(error).__name__}, {error.domain}: {error.message}; {error.hint}")
    ConfigurationError, user: there is no source called `kafkaa`; did you mean `kafka`?
    """

    code: ClassVar[str] = "error"
    domain: ClassVar[Domain] = "internal"
    retry: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None, where: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where
        self.log_file: str | None = None
        self.traceback_text = ""
        """The user's part of the traceback, when the error came out of the user's code."""
        self.printed: tuple[object, ...] = ()
        """What the user's code printed in the epoch that failed (lines of `dataflow.runtime.printed`)."""

    @classmethod
    def unknown(
        cls, message: str, *, name: str, candidates: Iterable[str], listing: str | None = None
    ) -> Self:
        """An error about a name that does not exist, with the near ones as its hint.

        Args:
            message: what happened.
            name: the name that does not exist.
            candidates: the names that do.
            listing: begins a sentence with all of them, when none is close.

        Returns:
            The error, to be raised.

        >>> import headrace as hr
        >>> hr.PlanError.unknown("no column `shp`", name="shp", candidates=["shop", "item"]).hint
        'did you mean `shop`?'
        """
        return cls(message, hint=suggest(name, candidates, listing=listing))

    def __str__(self) -> str:
        lines = [self.message]
        if self.where:
            lines.append(f"  at {self.where}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        if self.traceback_text:
            lines.append(self.traceback_text.rstrip())
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.__dict__.copy()))


def _rebuild(cls: type[HeadraceError], state: dict[str, object]) -> HeadraceError:
    error = cls.__new__(cls)
    error.__dict__.update(state)
    error.args = (state.get("message"),)
    return error


class UserError(HeadraceError):
    """Raised when what the user wrote cannot be done; nothing was started.

    Operators raise it in `validate` for what cannot work.

    >>> import headrace as hr
    >>> print(hr.UserError("there is no model `tides`", hint="train it first"))
    there is no model `tides`
      hint: train it first
    """

    code = "user"
    domain = "user"
    exit_code = 2


class ConfigurationError(UserError):
    """Raised for a setting, an option or a command line that is not valid.

    >>> import headrace as hr
    >>> hr.MemorySink(nam="rows")
    Traceback (most recent call last):
    headrace.base.errors.ConfigurationError: MemorySink: unknown option `nam`: did you mean `name`?
    """

    code = "configuration"
    problems: Sequence[tuple[str | None, str]] = ()
    """Each option that is wrong, by name if the problem is of one option, and what is wrong with it."""


class PlanError(UserError):
    """Raised for a pipeline that cannot be planned or shipped to the workers."""

    code = "plan"


class MissingExtraError(UserError):
    """Raised when an optional library is needed and not installed.

    >>> import headrace as hr
    >>> hr.MissingExtraError("the connector `kafka`", extra="kafka", package="confluent-kafka").hint
    "pip install 'headrace[kafka]'"
    """

    code = "missing-extra"

    def __init__(self, feature: str, *, extra: str, package: str) -> None:
        super().__init__(
            f"{feature} needs the package `{package}`, which is not installed",
            hint=f"pip install 'headrace[{extra}]'",
        )


class OperatorError(UserError):
    """Raised when a user's operator raises while the pipeline runs; its traceback is in `traceback_text`."""

    code = "operator"
    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        operator_id: str,
        subtask: int,
        epoch: int,
        traceback_text: str,
        hint: str | None = None,
    ) -> None:
        super().__init__(
            message, hint=hint, where=f"operator {operator_id}, subtask {subtask}, epoch {epoch}"
        )
        self.operator_id = operator_id
        self.subtask = subtask
        self.epoch = epoch
        self.traceback_text = traceback_text


class PlacedError(UserError):
    """An error in SQL or YAML: its location, a caret below it, and a hint.

    `more` holds the other errors of the same text: all of them are found in one go.
    """

    excerpt: str = ""
    """The line, and carets below the place."""
    offset: int = -1
    """Where in the text it is, so that errors can be told in the text's order."""
    end: int = -1
    """Where in the text its place ends."""
    more: tuple[PlacedError, ...] = ()

    def __str__(self) -> str:
        lines = [self.message]
        if self.where:
            lines.append(f"  at {self.where}")
        if self.excerpt:
            lines.append(self.excerpt)
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join([*lines, *(str(error) for error in self.more)])


class SqlError(PlacedError):
    """Raised for SQL that cannot be parsed, bound or run; the error shows its location.

    >>> import headrace as hr
    >>> try:
    ...     hr.Pipeline().source("memory", rows=[{"shop": "mill"}]).select("shp")
    ... except hr.SqlError as error:
    ...     print(error.hint)
    did you mean `shop`?
    """

    code = "sql"


class DataflowError(PlacedError):
    """A YAML dataflow that cannot be read, wired or run."""

    code = "dataflow"


class ExpressionError(UserError):
    """Raised for a SQL expression that fails for a row, such as a cast of a string to a number."""

    code = "expression"
    exit_code = 1


class ExternalError(HeadraceError):
    """Raised when something outside Headrace fails; the epoch is tried again if `retry` is true."""

    code = "external"
    domain = "external"
    retry = True


class WorkerError(ExternalError):
    """Raised when Spark loses a task, a Python worker or an executor more often than it retries."""

    code = "worker"


class SparkEndedError(WorkerError):
    """Raised when Spark's Java has ended, and with it a session that Headrace cannot start again."""

    code = "spark-ended"
    retry = False


class RefusedError(ExternalError):
    """The other side has answered, and trying again does not help: a wrong password, a missing right."""

    code = "refused"
    retry = False


FAULTS: Final[Mapping[str, str]] = {
    "malformed": "it is not in the format: no JSON, not UTF-8, cut off, another number of values",
    "wrong-value": "the value of a column does not fit its type",
    "missing-value": "a column that is NOT NULL has no value",
    "bad-change": "a change (`debezium_json`) without a valid `op`, or without the row that it needs",
    "unknown-schema": "it does not begin with the id of a schema, or of one that cannot be used",
    "too-long": "it has more bytes than `max_record_bytes`",
    "bad-file": "a file, or the rest of it, cannot be read",
}
"""The kinds of errors of records that cannot be read."""


class BadLineError(ExternalError):
    """A line or message that cannot be read as a row; trying again does not help."""

    code = "bad-line"
    retry = False

    def __init__(
        self,
        message: str,
        *,
        line: int,
        content: str,
        column: str | None = None,
        hint: str | None = None,
        where: str | None = None,
        record: bytes | None = None,
        position: str | None = None,
        offset: int | None = None,
        partition: int | None = None,
        fault: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, where=where)
        self.line = line
        self.content = content
        self.column = column
        self.record = content.encode() if record is None else record
        """The line or message as it came."""
        self.position = position or f"line {line}"
        """Where it stood, in the words of its source."""
        self.offset = line if position is None else offset
        """The number of the line or row, or the offset of the message; None where there is none."""
        self.partition = partition
        """The partition of the message, of sources that have partitions."""
        self.fault = fault or ("malformed" if column is None else "wrong-value")
        """What kind of error it is: one of `FAULTS`, which stay the same from version to version."""


class OutputClosedError(HeadraceError):
    """Whoever read the output has closed it, as `head` does: a request to stop, not a failure."""

    code = "output-closed"
    domain = "user"
    exit_code = 0


class StateError(HeadraceError):
    """Raised when the state directory and this pipeline do not fit together."""

    code = "state"
    domain = "user"
    exit_code = 2


class IncompatibleStateError(StateError):
    """Raised when the pipeline has changed in a way that its saved state cannot follow."""

    code = "incompatible-state"


class CorruptStateError(StateError):
    """Raised when a file of the state is missing, truncated or altered."""

    code = "corrupt-state"
    exit_code = 1


class StateInUseError(StateError):
    """Raised when another run holds the state directory, or has taken it over."""

    code = "state-in-use"


class ReplacedError(StateError):
    """Raised when another run has taken over the state directory: this one publishes nothing any more."""

    code = "replaced"
    exit_code = 1


class InternalError(HeadraceError):
    """Raised for a bug in Headrace: please report it."""

    code = "internal"


def suggest(
    name: str, candidates: Iterable[str], *, listing: str | None = None, cutoff: float = 0.6
) -> str | None:
    """A hint for a name that is not among the candidates: `did you mean …?` for those close to it.

    When none is close, `listing` begins a sentence with all of them; without it there is no hint. `cutoff` is
    how similar a close name is, from 0 to 1.

    >>> suggest("jsn", ["json", "avro"])
    'did you mean `json`?'
    >>> suggest("xml", ["json", "avro"], listing="the formats are")
    'the formats are json, avro'
    """
    names = list(candidates)
    matches = difflib.get_close_matches(name, names, n=3, cutoff=cutoff)
    if matches:
        return "did you mean " + " or ".join(f"`{match}`" for match in matches) + "?"
    return f"{listing} {', '.join(names)}" if listing and names else None


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "argument"), counted(2, "argument")
    ('1 argument', '2 arguments')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def user_traceback(error: BaseException) -> str:
    """The traceback from the first frame of the user's code on; empty if there is none."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("headrace."):
        trace = trace.tb_next
    if trace is None:
        return ""
    return "".join(traceback.format_exception(type(error), error, trace))
