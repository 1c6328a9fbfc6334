"""Runs a Python operator: a file with `class Operator` and `on_event(self, dora_event, send_output)`."""

from __future__ import annotations

import io
import linecache
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from headrace.base.errors import ConfigurationError, suggest
from headrace.dataflow.document.model import Unit
from headrace.dataflow.runtime.hosts import CONTINUE, STOP, STOP_ALL, Event, Host, Log, Send
from headrace.dataflow.runtime.printed import Capture
from headrace.dataflow.runtime.saved import StateUnpickler
from headrace.dataflow.runtime.siblings import Siblings

PROVIDED = Path(__file__).parents[1] / "dora" / "provided"
"""The directory with the module `dora` for operators that import it."""

_DESCRIPTOR = "dataflow_descriptor"


class PythonHost(Host):
    """Runs one operator in this process.

    Its attributes are its memory: they are saved by pickle, or by its own `snapshot()`, and brought back
    over those of a new `Operator()`, or by its own `restore(state)`.
    """

    at_once = 64

    def __init__(
        self,
        unit: Unit,
        text: str,
        *,
        descriptor: Mapping[str, Any],
        log: Log,
        capture: Capture,
        before: str | None = None,
    ) -> None:
        self._unit = unit
        self._text = text
        self._before = before
        """The text before a reload: what does not load must not be the end of what runs."""
        self._descriptor = descriptor
        self._log = log
        self._capture = capture
        self._siblings = Siblings.of(Path(str(unit.file)).parent)
        self._operator: Any = None
        self._type: Any = None
        self._made: frozenset[str] = frozenset()
        """The attributes that `__init__` makes."""
        self._continue: Any = object()
        """The object by which the operator said that it goes on."""
        self._left_out: frozenset[str] = frozenset()
        """Those of them that cannot be saved."""

    def start(self, state: bytes | None) -> None:
        """Make the operator if there is none yet, and give it its memory."""
        with _AtWork(self):
            if self._type is None:
                self._type = self._load()
            if self._operator is None or state is None:
                self._operator = self._make()
            if state is not None:
                self._restore(self._operator, _Unpickler(state, self.send).load())

    def restart(self) -> None:
        """Create the operator anew, with the state of the failed one."""
        with _AtWork(self):
            fresh, old = self._make(), self._operator
            if not hasattr(old, "snapshot"):
                self._restore(fresh, ("attributes", _attributes(old)))
            else:
                self._restore(fresh, ("own", old.snapshot()))
            self._operator = fresh

    def _load(self) -> Any:
        if self._before is None:
            return _operator_class(self._unit, self._text)
        try:
            return _operator_class(self._unit, self._text)
        except Exception as error:  # noqa: BLE001 - whatever the file raises
            self._log("error", f"the changed file cannot be loaded, the old one runs on: {error}")
            return _operator_class(self._unit, self._before)

    def _make(self) -> Any:
        operator = self._type()
        self._made = frozenset(getattr(operator, "__dict__", ()))
        operator.dataflow_descriptor = dict(self._descriptor)
        return operator

    def _restore(self, operator: Any, saved: tuple[str, Any]) -> None:
        how, state = saved
        if how == "own":
            operator.restore(state)
        elif hasattr(operator, "__setstate__"):
            operator.__setstate__(state)
        else:
            plain, slots = state if isinstance(state, tuple) else (state, None)
            for name in set(getattr(operator, "__dict__", ())) - set(plain or ()) - self._made:
                delattr(operator, name)
            for name, value in {**(plain or {}), **(slots or {})}.items():
                setattr(operator, name, value)
        operator.dataflow_descriptor = dict(self._descriptor)

    def handle(self, events: Sequence[Event], send: Send) -> int:
        """Call `on_event` for each event."""
        with _AtWork(self):
            on_event = self._operator.on_event
            for event in events:
                if event["type"] == "RELOAD":
                    self._reload(event, send)
                    continue
                status = on_event(event, send)
                if status is self._continue:
                    continue
                value = _status(status)
                if value != CONTINUE:
                    return value
                self._continue = status
        return CONTINUE

    def _reload(self, event: Event, send: Send) -> None:
        """Send RELOAD; an operator that does not handle it may raise."""
        try:
            self._operator.on_event(event, send)
        except Exception as error:  # noqa: BLE001 - whatever the operator raises
            self._log("warning", f"on_event raised at RELOAD: {type(error).__name__}: {error}")

    def snapshot(self) -> bytes:
        """The operator's attributes, or what its own `snapshot()` returns."""
        with _AtWork(self):
            operator = self._operator
            own = hasattr(operator, "snapshot")
            if own != hasattr(operator, "restore"):
                there, missing = ("snapshot", "restore(state)") if own else ("restore", "snapshot()")
                raise TypeError(f"`{self._unit.address}` has {there} and no {missing}: one needs the other")
            return self._save(("own", operator.snapshot()) if own else ("attributes", _attributes(operator)))

    def _save(self, state: tuple[str, Any]) -> bytes:
        if self._left_out and isinstance(state[1], dict):
            state = (
                state[0],
                {name: value for name, value in state[1].items() if name not in self._left_out},
            )
        try:
            return _dump(state, self.send)
        except Exception as error:
            unsavable = self._unsavable(state)
            lost = [name for name in unsavable if name not in self._made]
            if lost or not unsavable:
                because = f", because of its attribute `{lost[0]}` ({unsavable[lost[0]]})" if lost else ""
                raise ConfigurationError(
                    f"operator `{self._unit.address}` cannot be saved{because}: {error}",
                    hint="make it in `__init__`, so that it can be made anew, or give the operator "
                    "`snapshot(self)`, which returns what has to be remembered, and `restore(self, state)`",
                ) from error
        named = ", ".join(f"`{name}` ({kind})" for name, kind in unsavable.items())
        self._log("warning", f"{named} cannot be saved: after a crash it is as `__init__` makes it")
        self._left_out |= set(unsavable)
        return self._save(state)

    def _unsavable(self, state: tuple[str, Any]) -> dict[str, str]:
        """The attributes that cannot be saved, with their types."""
        unsavable: dict[str, str] = {}
        for name, value in (
            state[1].items() if state[0] == "attributes" and isinstance(state[1], dict) else ()
        ):
            try:
                _dump(value, self.send)
            except Exception:  # noqa: BLE001 - whatever pickling raises, this is the attribute
                unsavable[name] = type(value).__name__
        return unsavable

    def close(self) -> None:
        """Let the operator go."""
        with _AtWork(self):
            self._operator = None


def _status(status: Any) -> int:
    """What an operator wants, by what it returned."""
    value = getattr(status, "value", None)
    if value is None:
        raise TypeError(
            f"on_event must return DoraStatus.CONTINUE, STOP or STOP_ALL, got {status!r}: "
            "end it with `return DoraStatus.CONTINUE`"
        )
    if value not in (CONTINUE, STOP, STOP_ALL):
        raise ValueError(f"on_event returned the status {value!r}; it must be 0, 1 or 2")
    return int(value)


class _AtWork:
    """While a unit's code runs: its environment, and whose lines are printed."""

    __slots__ = ("_before", "_host", "_siblings")

    def __init__(self, host: PythonHost) -> None:
        self._host = host

    def __enter__(self) -> None:
        host = self._host
        host._capture.enter(host._log)  # noqa: SLF001 - a part of the host
        self._siblings = host._siblings.enter()  # noqa: SLF001
        if env := host._unit.env:  # noqa: SLF001
            self._before = {name: os.environ.get(name) for name in env}
            os.environ.update(env)

    def __exit__(self, *_: object) -> None:
        host = self._host
        host._siblings.leave(self._siblings)  # noqa: SLF001
        host._capture.leave()  # noqa: SLF001
        if host._unit.env:  # noqa: SLF001
            for name, value in self._before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _attributes(operator: Any) -> Any:
    """What Python itself would pickle of an object, without what the runtime gave it."""
    state = operator.__getstate__()
    if isinstance(state, dict):
        return {name: value for name, value in state.items() if name != _DESCRIPTOR}
    if isinstance(state, tuple) and isinstance(state[0], dict):
        return ({name: value for name, value in state[0].items() if name != _DESCRIPTOR}, *state[1:])
    return state


_SEND = "send_output"


class _Pickler(pickle.Pickler):
    """Saves an operator that keeps `send_output` too."""

    def __init__(self, file: io.BytesIO, send: Send) -> None:
        super().__init__(file, protocol=5)
        self._send = send

    def persistent_id(self, value: Any) -> str | None:
        return _SEND if value is self._send else None


class _CloudPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Saves what pickle cannot: functions and classes that are made while a program runs."""

    def __init__(self, file: io.BytesIO, send: Send) -> None:
        super().__init__(file, protocol=5)
        self._send = send

    def persistent_id(self, value: Any) -> str | None:
        return _SEND if value is self._send else None


class _Unpickler(StateUnpickler):
    def __init__(self, data: bytes, send: Send) -> None:
        super().__init__(io.BytesIO(data))
        self._send = send

    def persistent_load(self, _: Any) -> Send:
        return self._send


def _dump(value: Any, send: Send) -> bytes:
    file = io.BytesIO()
    try:
        _Pickler(file, send).dump(value)
    except Exception:  # noqa: BLE001 - what pickle cannot save, cloudpickle often can
        file = io.BytesIO()
        _CloudPickler(file, send).dump(value)
    return file.getvalue()


def _operator_class(unit: Unit, text: str) -> Any:
    """The class `Operator` of a file, loaded under a name of its own: files of one name do not collide."""
    file = str(unit.file)
    name = "headrace_operator_" + "".join(c if c.isalnum() else "_" for c in unit.address)
    if str(PROVIDED) not in sys.path:
        sys.path.insert(0, str(PROVIDED))
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    # So that tracebacks show the lines that run, also where the file is not, or has changed since.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), module.__dict__)  # noqa: S102 - the user's own operator
    operator = getattr(module, "Operator", None)
    if not isinstance(operator, type):
        classes = [
            n for n, value in vars(module).items() if isinstance(value, type) and value.__module__ == name
        ]
        raise ConfigurationError(
            f"{file} has no class `Operator`",
            hint=suggest("Operator", classes)
            or "an operator is a class called Operator with a method on_event",
        )
    if not callable(getattr(operator, "on_event", None)):
        raise ConfigurationError(
            f"`Operator` in {file} has no method `on_event`",
            hint="write `def on_event(self, dora_event, send_output)` and return a DoraStatus",
        )
    return operator
