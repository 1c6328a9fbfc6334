"""What a value in a dataflow document may be: each shape reads it, names it and describes it to editors.

The grammar (`grammar.py`) is made of these. What does not fit is reported with its place, and reading goes
on, so that all mistakes of a document are found in one go.
"""

from __future__ import annotations

import difflib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.base.errors import suggest
from headrace.base.spans import Span
from headrace.dataflow.document.findings import Findings
from headrace.dataflow.document.yaml_text import Fields, Items, Scalar, Tree, plain_value

Effect = Literal["used", "quiet", "warned", "refused"]
"""What becomes of a key: it is used, accepted without effect (silently or with a warning), or refused."""


_MANY = 12
"""Names that a message lists before it says that there are more."""


@dataclass(frozen=True)
class Value:
    """What the document says at one place."""

    value: Any
    span: Span
    tree: Tree
    key: Span | None = None
    """Where the name of the value stands, if it has one."""

    @property
    def scalar(self) -> Scalar:
        """The scalar it was read from."""
        assert isinstance(self.tree, Scalar)
        return self.tree


@dataclass(frozen=True)
class Record:
    """A mapping that was read: its keys with their values."""

    span: Span
    tree: Fields
    values: Mapping[str, Value]
    broken: frozenset[str]
    """Keys that are written and could not be read; why is among the findings."""
    variant: str | None = None
    """Of a block with variants: the one key that says what it is."""

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a key, or the default where it is not written."""
        return self.values[name].value if name in self.values else default

    def texts(self, name: str) -> list[str]:
        """The items of a list of texts."""
        return [item.value for item in self.get(name, [])]

    def at(self, name: str) -> Span:
        """Where the value of a key stands; where the mapping does, if it is not written."""
        return self.values[name].span if name in self.values else self.span


class Shape(ABC):
    """What a value may be."""

    words: str
    """What is expected, with its article: `a whole number`."""
    example: str = ""

    @abstractmethod
    def read(self, tree: Tree, what: str, findings: Findings) -> Any:
        """The value, or None if it does not fit, which is then among the findings.

        `what` is the value's name in messages.
        """

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """The same as JSON schema."""

    def refuse(self, tree: Tree, what: str, findings: Findings, hint: str | None = None) -> None:
        """Say that a value has another shape."""
        hint = hint or (f"write it as `{self.example}`" if self.example else None)
        findings.refuse(f"{what} must be {self.words}, not {describe(tree)}", tree.span, hint)


def describe(tree: Tree) -> str:
    """A value in a message: the scalar itself, or what kind of collection it is."""
    if isinstance(tree, Items):
        return "a list"
    if isinstance(tree, Fields):
        return "a mapping"
    if tree.empty:
        return "empty"
    if not tree.text:
        return "an empty text"
    first, *more = tree.text.splitlines() or [""]
    shown = first if len(first) <= 60 and not more else f"{first[:60]}…"
    return f"`{shown}`" if tree.plain else f"the text `{shown}`"


@dataclass(frozen=True)
class Text(Shape):
    """Any scalar, as the text it was written as."""

    words: str = "a text"
    example: str = ""
    pattern: str | None = None
    advice: str = ""
    """What to write instead of something else."""

    def read(self, tree: Tree, what: str, findings: Findings) -> str | None:
        if not isinstance(tree, Scalar) or tree.empty:
            self.refuse(tree, what, findings, self.advice)
            return None
        if self.pattern is not None and not re.fullmatch(self.pattern, tree.text):
            findings.refuse(f"{what} cannot be {describe(tree)}", tree.span, self.advice)
            return None
        return tree.text

    def schema(self) -> dict[str, Any]:
        if self.pattern is None:
            return {"type": ["string", "number", "boolean"]}
        # A pattern holds for texts only, so that an id may be written as a number.
        return {"type": ["string", "number", "boolean"], "pattern": f"^(?:{self.pattern})$"}


@dataclass(frozen=True)
class Whole(Shape):
    """A whole number."""

    least: int = 0
    words: str = "a whole number"

    def read(self, tree: Tree, what: str, findings: Findings) -> int | None:
        number = tree.integer() if isinstance(tree, Scalar) else None
        if number is None:
            self.refuse(tree, what, findings, _unquoted(tree))
        elif number < self.least:
            findings.refuse(f"{what} must be {self.least} or more, not {number}", tree.span)
        else:
            return number
        return None

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least}


@dataclass(frozen=True)
class Number(Shape):
    """A number of seconds, or of anything else that has fractions."""

    words: str = "a number"
    positive: bool = False

    def read(self, tree: Tree, what: str, findings: Findings) -> float | None:
        number = tree.number() if isinstance(tree, Scalar) else None
        if number is None or number == float("inf"):
            self.refuse(tree, what, findings, _unquoted(tree))
        elif number < 0 or (self.positive and number == 0):
            least = "more than 0" if self.positive else "0 or more"
            findings.refuse(f"{what} must be {least}, not {describe(tree)}", tree.span)
        else:
            return number
        return None

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "exclusiveMinimum" if self.positive else "minimum": 0}


@dataclass(frozen=True)
class Flag(Shape):
    """True or false."""

    words: str = "`true` or `false`"

    def read(self, tree: Tree, what: str, findings: Findings) -> bool | None:
        flag = tree.flag() if isinstance(tree, Scalar) else None
        if flag is None:
            meant = tree.text.lower() if isinstance(tree, Scalar) else ""
            hint = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
            self.refuse(tree, what, findings, f"write `{hint[meant]}`" if meant in hint else _unquoted(tree))
        return flag

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Choice(Shape):
    """One of some texts."""

    choices: tuple[str, ...]

    @property
    def words(self) -> str:  # type: ignore[override]
        return listed(self.choices, "or")

    def read(self, tree: Tree, what: str, findings: Findings) -> str | None:
        if isinstance(tree, Scalar) and tree.text in self.choices:
            return tree.text
        self.refuse(
            tree, what, findings, suggest(tree.text, self.choices) if isinstance(tree, Scalar) else None
        )
        return None

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.choices)}


@dataclass(frozen=True)
class ListOf(Shape):
    """A list of values of one shape."""

    item: Shape
    words: str = "a list"
    example: str = ""
    filled: bool = False
    """Whether it has one item at least."""

    def read(self, tree: Tree, what: str, findings: Findings) -> list[Value] | None:
        """The items that can be read."""
        if not isinstance(tree, Items):
            hint = None
            if isinstance(tree, Scalar) and not tree.empty and isinstance(self.item, Text):
                hint = f"write `[{tree.text}]`"
            self.refuse(tree, what, findings, hint)
            return None
        if self.filled and not tree.items:
            name = self.item.name if isinstance(self.item, Block) else "an item"
            findings.refuse(f"{what} is an empty list", tree.span, f"add {name}: `{self.item.example}`")
            return None
        read = []
        for number, item in enumerate(tree.items, start=1):
            value = self.item.read(item, f"item {number} of {what}", findings)
            if value is not None:
                read.append(Value(value, item.span, item))
        return read

    def schema(self) -> dict[str, Any]:
        least = {"minItems": 1} if self.filled else {}
        return {"type": "array", "items": self.item.schema(), **least}


@dataclass(frozen=True)
class MapOf(Shape):
    """A mapping from names of the user's own to values of one shape."""

    name: Text
    value: Shape
    words: str = "a mapping"
    example: str = ""

    def read(self, tree: Tree, what: str, findings: Findings) -> dict[str, Value] | None:
        """The entries that can be read."""
        if not isinstance(tree, Fields):
            self.refuse(tree, what, findings)
            return None
        read = {}
        for key, item in tree.entries:
            name = self.name.read(key, f"a name in {what}", findings)
            value = self.value.read(item, f"`{key.text}` in {what}", findings)
            if name is not None and value is not None:
                read[name] = Value(value, key.span if _is_empty(item) else item.span, item, key.span)
        return read

    def schema(self) -> dict[str, Any]:
        names = {"propertyNames": {"pattern": f"^(?:{self.name.pattern})$"}} if self.name.pattern else {}
        return {"type": "object", "additionalProperties": self.value.schema(), **names}


@dataclass(frozen=True)
class Either(Shape):
    """One of several shapes, told apart by whether it is a scalar, a list or a mapping."""

    scalar: Shape | None = None
    items: Shape | None = None
    fields: Shape | None = None
    words: str = ""
    example: str = ""

    def read(self, tree: Tree, what: str, findings: Findings) -> Any:
        shape = {Scalar: self.scalar, Items: self.items, Fields: self.fields}[type(tree)]
        if shape is None or _is_empty(tree):
            self.refuse(tree, what, findings)
            return None
        return shape.read(tree, what, findings)

    def schema(self) -> dict[str, Any]:
        shapes = (self.scalar, self.items, self.fields)
        return {"anyOf": [shape.schema() for shape in shapes if shape is not None]}


@dataclass(frozen=True)
class Anything(Shape):
    """Any value; scalars are read by the rules of YAML 1.2."""

    words: str = "any value"

    def read(self, tree: Tree, what: str, findings: Findings) -> Any:
        return plain_value(tree)

    def schema(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Key:
    """A key of a block: what it takes, what it means here, and where it may stand."""

    name: str
    shape: Shape
    says: str
    """What it does here; of a key that is not used: why not, and what to do instead."""
    effect: Effect = "used"
    required: bool = False
    variants: tuple[str, ...] = ()
    """The variants of the block that it may stand in; all, if none is named."""

    @property
    def accepted(self) -> bool:
        return self.effect != "refused"


@dataclass(frozen=True)
class Block(Shape):
    """A mapping with known keys.

    A block with variants has exactly one of those keys, which says what it is and which other keys it takes.
    """

    name: str
    """What it is in messages, with its article: `a node`."""
    keys: tuple[Key, ...]
    variants: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    """By variant: why it does not take the keys of others, and where they belong."""
    example: str = ""

    @property
    def words(self) -> str:  # type: ignore[override]
        return f"a mapping with the keys of {self.name}"

    @property
    def by_name(self) -> Mapping[str, Key]:
        return {key.name: key for key in self.keys}

    def allowed(self, variant: str | None) -> list[Key]:
        """The keys that are accepted in a block of a variant."""
        return [
            key
            for key in self.keys
            if key.accepted
            and (key.name not in self.variants or variant in {None, key.name})
            and (not key.variants or variant is None or variant in key.variants)
        ]

    def read(self, tree: Tree, what: str, findings: Findings) -> Record | None:
        if not isinstance(tree, Fields):
            self.refuse(tree, what, findings)
            return None
        variant = self._variant(tree, what, findings)
        values: dict[str, Value] = {}
        broken: set[str] = set()
        for key, item in tree.entries:
            known = self._known(key, variant, findings)
            if known is None:
                # What was meant is not missing besides.
                broken.update(difflib.get_close_matches(key.text, self.by_name, n=1))
                continue
            if _is_empty(item):
                if known.required or known.name in self.variants:
                    findings.refuse(f"`{key.text}` is empty", key.span, f"it must be {known.shape.words}")
                    broken.add(known.name)
                continue
            value = known.shape.read(item, f"`{key.text}`", findings)
            if value is None:
                broken.add(known.name)
            else:
                values[known.name] = Value(value, item.span, item, key.span)
                if known.effect == "warned":
                    why = _lowered(known.says.removesuffix("."))
                    findings.warn(f"`{key.text}` has no effect here: {why}", key.span)
        for known in self.keys:
            if known.required and known.name not in values and known.name not in broken:
                findings.refuse(
                    f"{_subject(what, self.name, values)} has no `{known.name}`",
                    tree.span,
                    f"add `{known.name}: {known.shape.example or '…'}`",
                )
                broken.add(known.name)
        return Record(tree.span, tree, values, frozenset(broken), variant)

    def _variant(self, tree: Fields, what: str, findings: Findings) -> str | None:
        if not self.variants:
            return None
        names = [key.text for key, _ in tree.entries]
        found = [name for name in names if name in self.variants]
        if len(found) > 1:
            second = next(key for key, _ in tree.entries if key.text == found[1])
            findings.refuse(
                f"{self.name} is one thing: here are `{found[0]}` and `{found[1]}`",
                second.span,
                "keep one of them; give the other one a block of its own",
            )
        known = self.by_name
        refused = any(name in known and not known[name].accepted for name in names)
        unknown = any(name not in known and suggest(name, self.variants) for name in names)
        if not found and not refused and not unknown:
            findings.refuse(
                f"{self.name} needs one of {listed(self.variants, 'or')}, which says what it runs",
                tree.span,
                f"its keys are {listed(names)}" if names else None,
            )
        return found[0] if found else None

    def _known(self, key: Scalar, variant: str | None, findings: Findings) -> Key | None:
        known = self.by_name.get(key.text)
        if known is None:
            names = [one.name for one in self.allowed(variant)]
            findings.refuse(
                f"`{key.text}` is not a key of {self.name}",
                key.span,
                self.reasons.get(key.text)
                or suggest(key.text, names)
                or f"its keys are {self._some(variant)}",
            )
        elif not known.accepted:
            why, _, instead = known.says.removesuffix(".").partition(". ")
            findings.refuse(f"`{key.text}` cannot be used here: {why}", key.span, _lowered(instead) or None)
            return None
        elif variant is not None and known.variants and variant not in known.variants:
            findings.refuse(
                f"`{key.text}` is not a key of {self.name} with `{variant}`",
                key.span,
                self.reasons.get(f"{variant}.{key.text}")
                or self.reasons.get(variant)
                or f"it belongs to {self.name} with {listed(known.variants, 'or')}",
            )
            return None
        return known

    def _some(self, variant: str | None) -> str:
        """The keys that matter most, in a sentence."""
        names = [key.name for key in self.allowed(variant) if key.effect == "used"]
        return (
            listed(names) if len(names) <= _MANY else ", ".join(f"`{name}`" for name in names[:_MANY]) + ", …"
        )

    def schema(self) -> dict[str, Any]:
        return {"$ref": f"#/$defs/{self.definition}"}

    @property
    def definition(self) -> str:
        """Its name among the definitions of the JSON schema."""
        return re.sub(r"^an? |^the ", "", self.name).replace(" ", "_")


def _subject(what: str, name: str, values: Mapping[str, Value]) -> str:
    if "id" in values:
        return f"{name.removeprefix('an ').removeprefix('a ')} `{values['id'].value}`"
    return what


def _lowered(sentence: str) -> str:
    """A sentence as a part of another one."""
    return sentence[:1].lower() + sentence[1:] if sentence.split(" ", maxsplit=1)[0] != "Spark" else sentence


def _is_empty(tree: Tree) -> bool:
    return isinstance(tree, Scalar) and tree.empty


def _unquoted(tree: Tree) -> str | None:
    if not isinstance(tree, Scalar) or tree.plain:
        return None
    unquoted = Scalar(tree.text, plain=True, span=tree.span).value()
    return None if unquoted == tree.text else "leave the quotes out"


def listed(names: Iterable[str], word: str = "and") -> str:
    """Names in a sentence.

    >>> listed(["a", "b", "c"], "or")
    '`a`, `b` or `c`'
    """
    *most, last = [f"`{name}`" for name in names] or ["none"]
    return f"{', '.join(most)} {word} {last}" if most else last
