"""Operators in shared libraries with dora's C interface, loaded into this process and called there.

A library exports `dora_init_operator`, `dora_on_event` and `dora_drop_operator`, and if its memory can be
saved also `headrace_snapshot_operator` and `headrace_restore_operator`. All structs of the interface are made
of words of 8 bytes, and arrays cross it through the Arrow C data interface, without a copy.

Who owns what: an event is this side's, except for the array in it, which the operator may take; an output is
handed over to this side as a whole. Texts that are handed over come from `malloc`, as Rust's do by default.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.base.errors import ConfigurationError
from headrace.dataflow.runtime.hosts import CONTINUE, STOP, STOP_ALL, Event, Host, Log, Send

TRACE_CONTEXT = "open_telemetry_context"
"""The one key of metadata that the interface carries."""


class _Vec(ctypes.Structure):
    """Bytes of Rust's: where they are, how many, and how many there is room for."""

    _fields_ = (("data", ctypes.c_void_p), ("length", ctypes.c_size_t), ("capacity", ctypes.c_size_t))


class _Made(ctypes.Structure):
    """The result of creating an operator: an error, or its handle."""

    _fields_ = (("error", ctypes.c_void_p), ("context", ctypes.c_void_p))


class _Handled(ctypes.Structure):
    """What handling an event gives."""

    _fields_ = (("error", ctypes.c_void_p), ("status", ctypes.c_uint8))


class _Output(ctypes.Structure):
    """An output as the operator hands it over; `_Places` says what is where."""

    _fields_ = (("words", ctypes.c_uint64 * 25),)


# A callback cannot return a struct. The struct that dora wants here is one pointer, which is returned alike.
_Call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, _Output)
_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Write = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


_UNCOUNTED = _Release(lambda _env: None)
"""Counts no references: what takes outputs lives as long as the operator."""


class _Sender(ctypes.Structure):
    """The function that takes outputs, with its reference count."""

    _fields_ = (("env", ctypes.c_void_p), ("call", _Call), ("release", _Release), ("retain", _Release))


_RawEvent = ctypes.c_uint64 * 8
_CLOSED, _STOP, _ERROR = 1, 4, 5
_RawInput = ctypes.c_uint64 * 26
_ARRAY_RELEASE, _SCHEMA_RELEASE = 8, 7

_libc = ctypes.CDLL(None)
_libc.malloc.argtypes, _libc.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
_libc.free.argtypes, _libc.free.restype = (ctypes.c_void_p,), None


class _WordOffsets(NamedTuple):
    """Where the parts of dora's `Input` and `Output` are, in words.

    The Rust compiler chose the order, and every released one chose the same. In an input the word before the
    array says whether it is still there, and `array` is the index of that word.
    """

    array: int
    id: int
    context: int
    schema: int


def _orders(sizes: Mapping[str, int]) -> tuple[_WordOffsets, ...]:
    """Every order of the parts, the one of `sizes` first."""
    orders = []
    for order in itertools.permutations(sizes):
        ends = itertools.accumulate(sizes[name] for name in order)
        orders.append(
            _WordOffsets(**{name: end - sizes[name] for name, end in zip(order, ends, strict=True)})
        )
    return tuple(orders)


_INPUTS = _orders({"array": 11, "id": 3, "context": 3, "schema": 9})
_OUTPUTS = _orders({"id": 3, "context": 3, "array": 10, "schema": 9})


class NativeOperator(Host):
    """Runs an operator of a shared library in this process: if the library crashes, so does the process.

    What the library reports as an error is raised as a RuntimeError with its text.
    """

    at_once = 256

    def __init__(self, library: Path, *, address: str, log: Log) -> None:
        self._file = library
        self._address = address
        self._log = log
        self._library: ctypes.CDLL | None = None
        self._context: int | None = None
        self._inputs: dict[str, _Input] = {}
        self._send: Send | None = None
        self._failure: BaseException | None = None

    def start(self, state: bytes | None) -> None:
        library = _load(self._file, self._address)
        self._input_places = self._found(_find_input(library), "inputs")
        self._output_places = self._found(_find_output(library), "outputs")
        self._sender = _Sender(None, _Call(self._receive), _UNCOUNTED, _UNCOUNTED)
        if state is None or not _can_be_saved(library):
            if state is not None:
                self._log("warning", f"{self._file.name} cannot restore its memory any more: it starts anew")
            created = library.dora_init_operator()
        else:
            created = library.headrace_restore_operator(state, len(state))
        _raise(created.error)
        self._library, self._context = library, created.context

    def _found(self, offsets: _WordOffsets | None, what: str) -> _WordOffsets:
        if offsets is None:
            raise ConfigurationError(
                f"{self._file} lays out {what} as no known release of dora does",
                hint="build it with a released dora-operator-api and a released Rust compiler, without "
                "-Zrandomize-layout",
                where=f"operator {self._address}",
            )
        return offsets

    def handle(self, events: Sequence[Event], send: Send) -> int:
        assert self._library is not None, "handle comes after start"
        self._send = send
        try:
            for event in events:
                status = self._handle(event, self._library)
                if status != CONTINUE:
                    return status
        finally:
            self._send = None
        return CONTINUE

    def _handle(self, event: Event, library: ctypes.CDLL) -> int:
        raw, kind = _RawEvent(), event["type"]
        known_input: _Input | None = None
        text = b""
        if kind == "INPUT":
            known_input = self._inputs.get(event["id"])
            if known_input is None:
                known_input = self._inputs[event["id"]] = _Input(event["id"], self._input_places)
            raw[0] = known_input.fill(event["value"], (event["metadata"] or {}).get(TRACE_CONTEXT, ""))
        elif kind == "STOP":
            raw[_STOP] = 1
        elif kind == "INPUT_CLOSED":
            text = event["id"].encode()
            _put_text(raw, _CLOSED, text)
        elif kind == "ERROR":
            text = str(event["error"]).encode()
            _put_text(raw, _ERROR, text)
        else:
            return CONTINUE
        try:
            handled = library.dora_on_event(raw, self._sender, self._context)
        finally:
            if known_input is not None:
                known_input.clear()
        return self._status(handled)

    def _status(self, handled: _Handled) -> int:
        failure, self._failure = self._failure, None
        if failure is not None and not isinstance(failure, Exception):
            raise failure
        _raise(handled.error, failure)
        if failure is not None:
            raise failure
        status: int = handled.status
        if status not in {CONTINUE, STOP, STOP_ALL}:
            raise RuntimeError(
                f"dora_on_event of {self._file.name} returned the status {status}: "
                "expected 0 (continue), 1 (stop) or 2 (stop all)"
            )
        return status

    def _receive(self, _env: int | None, output: _Output) -> int | None:
        """Take an output; nothing may be raised here, for below is foreign code."""
        try:
            name, array, context = _take_output(output, self._output_places)
            if self._send is None:
                return _new_error(f"`{name}` was sent outside of an event: send while you handle one")
            self._send(name, array, {TRACE_CONTEXT: context})
        except BaseException as error:  # noqa: BLE001 - raised again when the operator has returned
            self._failure = self._failure or error
            return _new_error(str(error) or type(error).__name__)
        return None

    def snapshot(self) -> bytes | None:
        assert self._library is not None, "snapshot comes after start"
        if not _can_be_saved(self._library):
            return None
        parts: list[bytes] = []
        write = _Write(lambda _sink, data, length: parts.append(ctypes.string_at(data or 0, length)))
        _raise(self._library.headrace_snapshot_operator(self._context, None, write))
        return b"".join(parts)

    def close(self) -> None:
        for known_input in self._inputs.values():
            known_input.close()
        self._inputs = {}
        library, self._library = self._library, None
        if library is not None:
            # The library stays loaded: arrays that it has sent may be in use.
            _raise(library.dora_drop_operator(self._context))


class _Input:
    """What an operator is given for the messages of one input; it is filled anew for each."""

    def __init__(self, name: str, offsets: _WordOffsets) -> None:
        self._offsets = offsets
        self._words = _RawInput()
        self._address = ctypes.addressof(self._words)
        self._array = self._address + 8 * (offsets.array + 1)
        self._schema = self._address + 8 * offsets.schema
        self._name = name.encode()
        self._type: pa.DataType | None = None
        self._context: str | None = None
        _put_text(self._words, offsets.id, self._name)

    def fill(self, value: pa.Array, context: str) -> int:
        """Put an array into it, with its trace context; returns the input's address."""
        exported = self._words[self._offsets.schema + _SCHEMA_RELEASE]
        if not exported or not value.type.equals(self._type, check_metadata=True):
            self.close()
            self._type = value.type
            self._type._export_to_c(self._schema)  # noqa: SLF001 - the way into foreign structs
        value._export_to_c(self._array)  # noqa: SLF001
        if context != self._context:
            self._context, self._trace = context, context.encode()
            _put_text(self._words, self._offsets.context, self._trace)
        self._words[self._offsets.array] = 1
        return self._address

    def clear(self) -> None:
        """Let go of the array, if the operator has not taken it."""
        if self._words[self._offsets.array]:
            self._words[self._offsets.array] = 0
            _release(self._array, _ARRAY_RELEASE)

    def close(self) -> None:
        _release(self._schema, _SCHEMA_RELEASE)


def _take_output(output: _Output, offsets: _WordOffsets) -> tuple[str, pa.Array, str]:
    """The name, array and trace context of an output; afterwards nothing of it is left."""
    address = ctypes.addressof(output)
    words = struct.unpack("25Q", output)
    name = _take_text(*words[offsets.id : offsets.id + 3])
    context = _take_text(*words[offsets.context : offsets.context + 3])
    array, schema = address + 8 * offsets.array, address + 8 * offsets.schema
    try:
        return name, pa.Array._import_from_c(array, schema), context  # noqa: SLF001
    except Exception as error:
        _release(array, _ARRAY_RELEASE)
        _release(schema, _SCHEMA_RELEASE)
        raise ValueError(f"`{name}` was sent with an array that cannot be read: {error}") from error


def _put_text(words: ctypes.Array[ctypes.c_uint64], word: int, text: bytes) -> None:
    """Store a string as its address, length and capacity; the buffer must outlive the structure."""
    struct.pack_into("3Q", words, 8 * word, _address(text), len(text), len(text))


def _address(text: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value or 0


def _take_text(data: int, length: int, capacity: int) -> str:
    """A text that was handed over, which is freed."""
    text = ctypes.string_at(data, length).decode(errors="replace") if length else ""
    if capacity:
        _libc.free(data)
    return text


def _new_error(message: str) -> int:
    """An error to be handed over: whoever gets it frees it."""
    text = message.encode()
    copy = _libc.malloc(len(text))
    ctypes.memmove(copy, text, len(text))
    error: int = _libc.malloc(ctypes.sizeof(_Vec))
    _Vec.from_address(error).data = copy
    _Vec.from_address(error).length = _Vec.from_address(error).capacity = len(text)
    return error


def _raise(error: int | None, cause: BaseException | None = None) -> None:
    """Raise an error that was handed over; None is no error."""
    if error is None:
        return
    vec = _Vec.from_address(error)
    message = _take_text(vec.data or 0, vec.length, vec.capacity)
    _libc.free(error)
    raise RuntimeError(message or "the operator failed without saying why") from cause


def _release(address: int, word: int) -> None:
    """Release an Arrow struct, if nobody has; `word` is the index of its release function."""
    function = ctypes.c_uint64.from_address(address + 8 * word).value
    if function:
        _Release(function)(address)


_FUNCTIONS: Mapping[str, tuple[tuple[Any, ...], Any]] = {
    "dora_init_operator": ((), _Made),
    "dora_on_event": ((_RawEvent, ctypes.POINTER(_Sender), ctypes.c_void_p), _Handled),
    "dora_drop_operator": ((ctypes.c_void_p,), ctypes.c_void_p),
}
_SAVING: Mapping[str, tuple[tuple[Any, ...], Any]] = {
    "headrace_snapshot_operator": ((ctypes.c_void_p, ctypes.c_void_p, _Write), ctypes.c_void_p),
    "headrace_restore_operator": ((ctypes.c_char_p, ctypes.c_size_t), _Made),
}
_HELPERS: Mapping[str, tuple[tuple[Any, ...], Any]] = {
    "dora_read_input_id": ((ctypes.c_void_p,), ctypes.c_void_p),
    "dora_free_input_id": ((ctypes.c_void_p,), None),
    "dora_read_data": ((ctypes.c_void_p,), _Vec),
    "dora_send_operator_output": (
        (ctypes.POINTER(_Sender), ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t),
        ctypes.c_void_p,
    ),
}
"""dora's own functions for operators, which a library exports if it was built with them."""


def _load(file: Path, address: str) -> ctypes.CDLL:
    """The library with its functions declared, or an error that says what to do about the file."""
    where = f"operator {address}"
    if not file.is_file():
        raise ConfigurationError(
            f"there is no shared library at {file}",
            hint="build it first; `shared-library: ./name` stands for the file libname.so",
            where=where,
        )
    _check_machine(file, where)
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        message, hint = _explain(file, str(error))
        raise ConfigurationError(message, hint=hint, where=where) from error
    missing = [name for name in _FUNCTIONS if not hasattr(library, name)]
    if missing:
        raise ConfigurationError(
            f"{file} is not an operator: it does not export {_listed(missing)}",
            hint='in C++ the functions of an operator have to be `extern "C"`; in Rust `register_operator!` '
            "of dora-operator-api makes them, in a crate of type cdylib",
            where=where,
        )
    saving = [name for name in _SAVING if hasattr(library, name)]
    if len(saving) == 1:
        (absent,) = _SAVING.keys() - saving
        raise ConfigurationError(
            f"{file} exports `{saving[0]}` and not `{absent}`",
            hint="an operator whose memory is saved needs both; one that has nothing to save needs neither",
            where=where,
        )
    for name, (arguments, result) in {**_FUNCTIONS, **_SAVING, **_HELPERS}.items():
        if hasattr(library, name):
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, result
    return library


def _can_be_saved(library: ctypes.CDLL) -> bool:
    return all(hasattr(library, name) for name in _SAVING)


_MACHINES = {3: "x86", 40: "ARM", 62: "x86-64", 183: "AArch64", 243: "RISC-V"}


def _check_machine(file: Path, where: str) -> None:
    """Refuse a library for another processor; the loader would only say that there is no such file."""
    built, running = _machine(file), _machine(Path(sys.executable))
    if built is not None and running is not None and built != running:
        raise ConfigurationError(
            f"{file} is built for {_machine_name(built)} and this is {_machine_name(running)}",
            hint="build it for the machine that the dataflow runs on",
            where=where,
        )


def _machine(file: Path) -> tuple[int, int] | None:
    """The bits and the number of the processor that an ELF file is for; None of any other file."""
    with file.open("rb") as opened:
        head = opened.read(20)
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return None
    return 32 * head[4], int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")


def _machine_name(machine: tuple[int, int]) -> str:
    bits, number = machine
    return f"{_MACHINES.get(number, f'processor {number}')} ({bits} bits)"


def _explain(file: Path, problem: str) -> tuple[str, str]:
    """What the loader said about a file, and what to do."""
    if undefined := re.search(r"undefined symbol: (\S+)", problem):
        name = undefined[1]
        return f"{file} uses `{name}`, which no library that it links has", (
            "link dora's libdora_operator_api_c.a, or include headrace_operator.h, which needs no library"
            if name in {*_HELPERS, "dora_free_data"}
            else f"link the library that has `{name}`"
        )
    if (absent := re.match(r"(\S+): cannot open shared object file", problem)) and absent[1] != str(file):
        return f"{file} needs {absent[1]}, which is not found", (
            f"install it, or put its directory into LD_LIBRARY_PATH; `ldd {file}` lists what is missing"
        )
    return f"{file} cannot be loaded: {problem.removeprefix(f'{file}: ')}", (
        "expected a shared library, as `cc -shared -fPIC` makes it, or cargo of a crate of type cdylib"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _find_output(library: ctypes.CDLL) -> _WordOffsets | None:
    """How the library lays out outputs: it is made to send one, if it has dora's function for that.

    None if it is in no order of the parts.
    """
    if not hasattr(library, "dora_send_operator_output"):
        return _OUTPUTS[0]
    name, data = b"headrace_finds_out_how_outputs_are_laid_out", bytes(1009)
    received: list[_Output] = []
    keep = _Call(lambda _env, output: received.append(_Output.from_buffer_copy(output)))
    _raise(
        library.dora_send_operator_output(_Sender(None, keep, _UNCOUNTED, _UNCOUNTED), name, data, len(data))
    )
    for output, offsets in itertools.product(received, _OUTPUTS):
        words = output.words
        # Only when all of these fit is a word taken for a pointer.
        if (
            words[offsets.id + 1] == len(name)
            and words[offsets.context + 1] == 0
            and words[offsets.array] == len(data)
            and words[offsets.array + 3] == 2
            and words[offsets.array + _ARRAY_RELEASE]
            and words[offsets.schema + _SCHEMA_RELEASE]
        ):
            _take_output(output, offsets)
            return offsets
    return None


def _find_input(library: ctypes.CDLL) -> _WordOffsets | None:
    """How the library lays out inputs: it is made to read some, if it has dora's functions for that.

    After a wrong guess it would follow a word that is no pointer. So at first there is a name in every place
    where the name of the input can be. Then the orders that have it there are tried in such a way that the
    library finds an empty array of bytes, or an array that is not bytes, or none. None if no order is right.
    """
    if not hasattr(library, "dora_read_input_id") or not hasattr(library, "dora_read_data"):
        return _INPUTS[0]
    # The places 11 and 12 overlap: at 12 there is no name, and who reads there finds a length of 0.
    names = {str(order.id).encode(): order.id for order in _INPUTS if order.id != 12}
    words = _RawInput()
    for name, word in names.items():
        words[word], words[word + 1] = _address(name), len(name)
    read = library.dora_read_input_id(words)
    mark = {**names, b"": 12}.get(ctypes.string_at(read))
    if hasattr(library, "dora_free_input_id"):
        library.dora_free_input_id(read)
    orders = [order for order in _INPUTS if order.id == mark]
    no_buffers, uint8, int8 = (ctypes.c_void_p * 2)(), b"C", b"c"
    # Tried like this, no order has its mark where the trial of an earlier one needs a word that is not 0.
    for order in sorted(orders, key=lambda order: (0, 9, 3, 12, 6, 15).index(order.array)):
        words = _RawInput()
        for twin in orders:
            if twin.array == order.array:
                words[twin.schema] = _address(int8)
        words[order.schema] = _address(uint8)
        words[order.array], words[order.array + 4] = 1, len(no_buffers)
        words[order.array + 6] = ctypes.addressof(no_buffers)
        if library.dora_read_data(words).data is not None:
            return order
    return None
