"""Parse `.proto` files into descriptors, so that no compiler is needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from headrace.base.errors import ConfigurationError
from headrace.base.extras import load_extra

_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/"""
    r"""|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<word>\.?[A-Za-z_][\w.]*)|(?P<number>[0-9.][\w.]*)|(?P<mark>[{}\[\]()<>=;,:+-])""",
    re.DOTALL,
)
_SCALARS = [
    "double",
    "float",
    "int64",
    "uint64",
    "int32",
    "fixed64",
    "fixed32",
    "bool",
    "string",
    "group",
    "message",
    "bytes",
    "uint32",
    "enum",
    "sfixed32",
    "sfixed64",
    "sint32",
    "sint64",
]
_LABELS = {"optional": 1, "required": 2, "repeated": 3}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


def load_protobuf(module: str) -> Any:
    """Import a module of the Protobuf package; raises a MissingExtraError if it is not installed."""
    return load_extra(
        f"google.protobuf.{module}", feature="the format `protobuf`", extra="protobuf", package="protobuf"
    )


def descriptors() -> Any:
    """Import the descriptor module of Protobuf."""
    return load_protobuf("descriptor_pb2")


def parse_proto(text: str, name: str) -> Any:
    """Parse a `.proto` file into its descriptor; names are resolved when it is added to a pool."""
    return _Parser(text, name).file()


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._name, self._text, self._at = name, text, 0
        self._kinds = descriptors()
        self._proto3 = False
        self._tokens = list(self._split())

    def _split(self) -> Iterator[tuple[str, int]]:
        position = 0
        while position < len(self._text):
            match = _TOKEN.match(self._text, position)
            if match is None:
                raise self._error(f"`{self._text[position : position + 20]}` is not understood", position)
            if match.lastgroup is not None:
                yield match.group(), position
            position = match.end()

    def _error(self, reason: str, position: int | None = None) -> ConfigurationError:
        if position is None:
            position = self._tokens[self._at][1] if self._at < len(self._tokens) else len(self._text)
        line = self._text.count("\n", 0, position) + 1
        return ConfigurationError(
            f"{self._name}, line {line}: {reason}",
            hint="if protoc takes it: compile it with --descriptor_set_out, and use `protobuf.descriptor`",
        )

    # -------------------------------------------------------------------------------------------- tokens

    @property
    def _next(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _take(self, expected: str = "") -> str:
        token = self._next
        if not token or (expected and token != expected):
            raise self._error(f"`{expected or 'more'}` is expected, got `{token or 'the end'}`")
        self._at += 1
        return token

    def _skip(self, *tokens: str) -> bool:
        if self._next in tokens:
            self._at += 1
            return True
        return False

    def _string(self) -> str:
        parts = [self._take()]
        while self._next[:1] in {'"', "'"}:
            parts.append(self._take())
        if any(part[0] not in "\"'" for part in parts):
            raise self._error("a text in quotes is expected")
        return "".join(re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), part[1:-1]) for part in parts)

    def _number(self) -> int:
        try:
            return int(self._take(), 0)
        except ValueError:
            self._at -= 1
            raise self._error(f"`{self._next}` is not a number") from None

    def _leave(self) -> None:
        """Skip a statement that does not define message types, up to its `;` or the end of its block."""
        depth = 0
        while True:
            mark = self._take()
            depth += mark in {"{", "[", "("}
            depth -= mark in {"}", "]", ")"}
            if depth == 0 and mark in {";", "}"}:
                self._skip(";")
                return

    # ---------------------------------------------------------------------------------------- statements

    def file(self) -> Any:
        """Parse the file."""
        file = self._kinds.FileDescriptorProto(name=self._name)
        while self._next:
            word = self._take()
            if word == "syntax":
                self._take("=")
                file.syntax = self._string()
                self._proto3 = file.syntax == "proto3"
                self._take(";")
            elif word == "edition":
                raise self._error("editions are not understood")
            elif word == "package":
                file.package = self._take()
                self._take(";")
            elif word == "import":
                self._skip("public", "weak")
                file.dependency.append(self._string())
                self._take(";")
            elif word == "message":
                self._message(file.message_type.add())
            elif word == "enum":
                self._enum(file.enum_type.add())
            elif word in {"option", "service", "extend"}:
                self._leave()
            elif word != ";":
                self._at -= 1
                raise self._error(f"`{word}` is not understood")
        return file

    def _message(self, message: Any) -> None:
        message.name = self._take()
        self._take("{")
        while not self._skip("}"):
            word = self._next
            if word == "message":
                self._take()
                self._message(message.nested_type.add())
            elif word == "enum":
                self._take()
                self._enum(message.enum_type.add())
            elif word == "oneof":
                self._take()
                self._oneof(message)
            elif word in {"option", "reserved", "extensions", "extend"}:
                self._leave()
            elif not self._skip(";"):
                self._field(message)
        # Fields that are optional in proto3 are alone in a oneof each, behind the real ones.
        for field in message.field:
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")

    def _oneof(self, message: Any) -> None:
        index = len(message.oneof_decl)
        message.oneof_decl.add(name=self._take())
        self._take("{")
        while not self._skip("}"):
            if self._next == "option":
                self._leave()
            else:
                self._field(message).oneof_index = index

    def _field(self, message: Any) -> Any:
        label = self._take() if self._next in _LABELS else "optional"
        explicit = self._tokens[self._at - 1][0] == "optional"
        kind = self._take()
        if kind == "map" and self._skip("<"):
            return self._map(message)
        field = message.field.add(label=_LABELS[label])
        if kind == "group":
            return self._group(message, field)
        if kind in _SCALARS:
            field.type = _SCALARS.index(kind) + 1
        else:
            field.type_name = kind
        if explicit and self._proto3:
            field.proto3_optional = True
        return self._rest(field)

    def _rest(self, field: Any) -> Any:
        """Parse the name of a field, its number and its options."""
        field.name = self._take()
        self._take("=")
        field.number = self._number()
        if self._skip("["):
            while not self._skip("]"):
                self._field_option(field)
        self._take(";")
        return field

    def _field_option(self, field: Any) -> None:
        name = self._next
        if name in {"default", "packed"}:
            self._take()
            self._take("=")
            text = self._next[:1] in {'"', "'"}
            value = self._string() if text else ("-" if self._skip("-") else "") + self._take()
            if name == "packed":
                field.options.packed = value == "true"
            else:
                field.default_value = value
            self._skip(",")
            return
        depth = 0
        while depth or self._next not in {",", "]"}:
            mark = self._take()
            depth += mark in {"{", "[", "("}
            depth -= mark in {"}", "]", ")"}
        self._skip(",")

    def _map(self, message: Any) -> Any:
        key = self._take()
        self._take(",")
        value = self._take()
        self._take(">")
        field = self._rest(message.field.add(label=_LABELS["repeated"]))
        entry = message.nested_type.add(name=camel(field.name) + "Entry")
        entry.options.map_entry = True
        for number, (name, kind) in enumerate((("key", key), ("value", value)), 1):
            member = entry.field.add(name=name, number=number, label=_LABELS["optional"])
            if kind in _SCALARS:
                member.type = _SCALARS.index(kind) + 1
            else:
                member.type_name = kind
        field.type_name = entry.name
        return field

    def _group(self, message: Any, field: Any) -> Any:
        name = self._take()
        self._take("=")
        field.name, field.number, field.type = name.lower(), self._number(), _SCALARS.index("group") + 1
        field.type_name = name
        if self._next == "[":
            raise self._error("options of a group are not understood")
        self._at -= 1
        self._tokens[self._at] = (name, self._tokens[self._at][1])
        self._message(message.nested_type.add())
        return field

    def _enum(self, enum: Any) -> None:
        enum.name = self._take()
        self._take("{")
        while not self._skip("}"):
            if self._next in {"option", "reserved"}:
                if self._next == "option" and self._tokens[self._at + 1][0] == "allow_alias":
                    enum.options.allow_alias = True
                self._leave()
            elif not self._skip(";"):
                value = enum.value.add(name=self._take())
                self._take("=")
                value.number = -self._number() if self._skip("-") else self._number()
                if self._next == "[":
                    self._leave()
                else:
                    self._take(";")


def camel(name: str) -> str:
    """Return a name in camel case: `place_of_birth` is `PlaceOfBirth`."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))
