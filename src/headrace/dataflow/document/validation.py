"""Validates a YAML tree with pydantic models and reports every error at its location.

`blocks.py` declares the models. A block with a mistake is still read: what is wrong in it is reported and
left out, so that all mistakes of a document are found in one go.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, ValidationError, ValidationInfo
from pydantic import field_validator as validate_fields
from pydantic import model_validator as validate_model
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema

from headrace.base.errors import suggest
from headrace.base.spans import Span
from headrace.dataflow.document.findings import Findings
from headrace.dataflow.document.yaml_text import Fields, Items, Scalar, Tree, plain_value

NO_EFFECT = "No effect. "
WARNED = "No effect, with a warning: "
"""How the description of a key begins that is accepted and not used, silently or with a warning."""
TEXT, LIST, BLOCK = "\0text", "\0list", "\0block"
"""Tags of the types of a union, told apart by what is written. No key of a document has a NUL."""
_UNREADABLE = object()
"""Stands for the value of a required key that is written and was refused."""
_KIND = "\0kind"
"""The path to the error of a block of no kind."""
_LISTED_KEYS = 12
"""Keys that a message lists before it says that there are more."""


class _Key(str):
    """A key of a mapping, as pydantic gets it."""

    __slots__ = ("scalar",)
    scalar: Scalar

    def __new__(cls, scalar: Scalar) -> Self:
        key = super().__new__(cls, scalar.text)
        key.scalar = scalar
        return key


class _Mapping(dict[str, Any]):
    """The entries of a mapping in the document, as pydantic gets them."""

    def __init__(self, tree: Fields) -> None:
        super().__init__((_Key(key), _values_of(item)) for key, item in tree.entries)
        self.tree = tree
        self.is_block = False
        self.broken: set[str] = set()
        """Of a block: keys whose values were refused, and keys that are only there misspelt."""


def _values_of(tree: Tree) -> Any:
    """A tree for pydantic: scalars stay as they are written, and empty ones are None."""
    if isinstance(tree, Fields):
        return _Mapping(tree)
    if isinstance(tree, Items):
        return [_values_of(item) for item in tree.items]
    return None if tree.empty else tree


def plain(value: Any) -> Any:
    """A value of an unknown key, by the rules of YAML 1.2."""
    if isinstance(value, _Mapping):
        return plain_value(value.tree)
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.value() if isinstance(value, Scalar) else value


def _form(value: Any) -> str | None:
    forms = {Scalar: TEXT, list: LIST, _Mapping: BLOCK}
    return forms.get(type(value))


BY_FORM = Discriminator(_form)
"""Picks the type of a union by whether a scalar, a list or a mapping is written."""


def describe(value: Any) -> str:
    """A value in a message: the scalar itself, or what kind of collection it is."""
    if isinstance(value, list):
        return "a list"
    if isinstance(value, Mapping):
        return "a mapping"
    if value is None:
        return "empty"
    if not value.text:
        return "an empty string"
    first, *more = value.text.splitlines() or [""]
    shown = first if len(first) <= 60 and not more else f"{first[:60]}…"
    return f"`{shown}`" if value.plain else f"the text `{shown}`"


def listed(names: Iterable[str], word: str = "and") -> str:
    """Names in a sentence.

    >>> listed(["a", "b", "c"], "or")
    '`a`, `b` or `c`'
    """
    *most, last = [f"`{name}`" for name in names] or ["none"]
    return f"{', '.join(most)} {word} {last}" if most else last


# ------------------------------------------------------------------------------------- types


def _refusal(message: str, hint: str | None = None, *, at: str = "value") -> PydanticCustomError:
    """An error with a hint that points at a `value` or at its `key`; `{what}` is the name of the value."""
    return PydanticCustomError("refused", "{message}", {"message": message, "hint": hint, "at": at})


@dataclass(frozen=True)
class Expected:
    """What a value must be, in words: metadata of a type."""

    words: str
    """With an article: `a whole number`."""
    example: str = ""
    read: Callable[[Scalar], Any] | None = None
    """Reads a scalar as the value; without it, pydantic gets what is written."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], CoreSchema]) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(self._validate, handler(source))

    def _validate(self, written: Any, validate: Callable[[Any], Any]) -> Any:
        value = written
        if self.read is not None:
            value = self.read(written) if isinstance(written, Scalar) else None
            if value is None:
                raise self.refusal(written)
        try:
            return validate(value)
        except ValidationError as error:
            problem = error.errors()[0]
            if problem["loc"] or problem["type"] == "refused":
                raise
            raise self._explained(problem, written) from None

    def _explained(self, problem: ErrorDetails, written: Any) -> PydanticCustomError:
        limits: dict[str, Any] = problem.get("ctx", {})
        if "ge" in limits:
            return _refusal(f"{{what}} must be {limits['ge']:g} or more, not {written.text}")
        if "gt" in limits:
            return _refusal(f"{{what}} must be more than {limits['gt']:g}, not {describe(written)}")
        if problem["type"] == "too_short":
            return _refusal("{what} is an empty list", f"write it as `{self.example}`")
        return self.refusal(written)

    def refusal(self, written: Any) -> PydanticCustomError:
        """The error for a value that is something else."""
        hint = self.hint(written) or (f"write it as `{self.example}`" if self.example else None)
        return _refusal(f"{{what}} must be {self.words}, not {describe(written)}", hint)

    def hint(self, written: Any) -> str | None:
        """What to write instead, if what is written tells."""
        if self.read is None or not isinstance(written, Scalar) or written.plain:
            return None
        unquoted = Scalar(written.text, plain=True, span=written.span).value()
        return None if unquoted == written.text else "leave the quotes out"


@dataclass(frozen=True)
class Text(Expected):
    """Any scalar that is not empty, with its text and its location."""

    words: str = "a string"
    pattern: str | None = None
    advice: str = ""
    """What to write instead of something else."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], CoreSchema]) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._text)

    def _text(self, written: Any) -> Any:
        if not isinstance(written, Scalar):
            raise self.refusal(written)
        if self.pattern is not None and not re.fullmatch(self.pattern, written.text):
            raise _refusal(f"{{what}} cannot be {describe(written)}", self.advice)
        return written

    def hint(self, written: Any) -> str | None:
        return self.advice

    def __get_pydantic_json_schema__(self, _core: object, _handler: object) -> dict[str, Any]:
        # A pattern holds for texts only, so that an id may be written as a number.
        pattern = {} if self.pattern is None else {"pattern": f"^(?:{self.pattern})$"}
        return {"type": ["string", "number", "boolean"], **pattern}


@dataclass(frozen=True)
class Name(Text):
    """A key of a mapping whose names are the user's own."""

    def _text(self, written: Any) -> Any:
        if written.scalar.empty or not re.fullmatch(self.pattern or ".*", written, re.DOTALL):
            shown = "empty" if written.scalar.empty else describe(written.scalar)
            raise _refusal(f"{{what}} cannot be {shown}", self.advice, at="key")
        return str(written)

    def __get_pydantic_json_schema__(self, _core: object, _handler: object) -> dict[str, Any]:
        return {} if self.pattern is None else {"pattern": f"^(?:{self.pattern})$"}


@dataclass(frozen=True)
class Flag(Expected):
    """True or false."""

    words: str = "`true` or `false`"
    read: Callable[[Scalar], Any] | None = Scalar.flag

    def hint(self, written: Any) -> str | None:
        flags = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
        flag = flags.get(written.text.lower()) if isinstance(written, Scalar) else None
        return f"write `{flag}`" if flag else super().hint(written)


@dataclass(frozen=True)
class Choice(Expected):
    """One of the strings of a `Literal`."""

    words: str = ""
    choices: tuple[str, ...] = ()

    @classmethod
    def of(cls, literal: Any) -> Choice:
        choices = get_args(literal)
        return cls(listed(choices, "or"), read=lambda scalar: scalar.text, choices=choices)

    def hint(self, written: Any) -> str | None:
        return suggest(written.text, self.choices) if isinstance(written, Scalar) else None


@dataclass(frozen=True)
class Texts(Expected):
    """A list of strings."""

    words: str = "a list"

    def hint(self, written: Any) -> str | None:
        return f"write `[{written.text}]`" if isinstance(written, Scalar) else None


# ------------------------------------------------------------------------------------- blocks


class YamlBlock(BaseModel):
    """A mapping with known keys.

    A block that can be of several kinds has exactly one of the keys that name a kind.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    title: ClassVar[str] = ""
    """What it is in messages, with its article: `a node`."""
    example: ClassVar[str] = ""
    kinds: ClassVar[Mapping[str, frozenset[str]]] = {}
    """By the key that names a kind: the keys that only some kinds take, this one among them."""
    refused: ClassVar[Mapping[str, str]] = {}
    """Keys of dora that cannot be used: why, and after a full stop what to do instead."""
    reasons: ClassVar[Mapping[str, str]] = {}
    """Why a `key`, a `kind.key` or any key that a `kind` does not take is wrong, and where it belongs."""

    _tree: Fields
    _broken: frozenset[str]

    @classmethod
    @cache
    def fields_by_key(cls) -> dict[str, FieldInfo]:
        """The fields by the keys that documents write, those of the class itself before its bases'."""
        own = [name for base in cls.__mro__ if issubclass(base, YamlBlock) for name in base.__annotations__]
        fields = {name: cls.model_fields[name] for name in own if name in cls.model_fields}
        return {field.alias or name: field for name, field in fields.items()}

    @classmethod
    def keys_of(cls, kind: str | None) -> list[str]:
        """The keys that a block of a kind takes; all keys for None."""
        others = set(cls.kinds).union(*cls.kinds.values()) - {kind, *cls.kinds.get(kind or "", ())}
        return [key for key in cls.fields_by_key() if kind is None or key not in others]

    @classmethod
    def expected(cls) -> Expected:
        """What a value must be that is validated with this model."""
        return Expected(f"a mapping with the keys of {cls.title}", cls.example)

    @property
    def tree(self) -> Fields:
        return self._tree

    @property
    def span(self) -> Span:
        return self._tree.span

    @property
    def broken(self) -> frozenset[str]:
        """Keys that are written and could not be read; why is among the findings."""
        return self._broken

    @property
    def kind(self) -> str | None:
        return next((key.text for key, _ in self._tree.entries if key.text in self.kinds), None)

    def key_span(self, *path: str) -> Span:
        """Where a key of the block stands, or a key of the mapping that the key before it has."""
        tree: Tree = self._tree
        span = tree.span
        for name in path:
            assert isinstance(tree, Fields)
            key, tree = tree.entry(name)
            span = key.span
        return span

    def value_span(self, key: str) -> Span:
        """Where the value of a key stands; where the block does, if the key is not written."""
        return next((item.span for name, item in self._tree.entries if name.text == key), self.span)

    def is_whole(self, key: str) -> bool:
        """Whether all that is written for a key could be read, every item of a list too."""
        trees = [item for name, item in self._tree.entries if name.text == key]
        items = sum(len(tree.items) for tree in trees if isinstance(tree, Items))
        return key not in self._broken and len(getattr(self, key) or []) >= items

    # ------------------------------------------------------------------------- validation

    @validate_fields("*", mode="wrap")
    @classmethod
    def _skip_unreadable(cls, value: Any, validate_value: Callable[[Any], Any]) -> Any:
        return None if value is _UNREADABLE else validate_value(value)

    @validate_model(mode="wrap")
    @classmethod
    def _validate(cls, written: Any, validate_values: Callable[[Any], Self], info: ValidationInfo) -> Self:
        if not isinstance(written, _Mapping):
            raise cls.expected().refusal(written)
        written.is_block = True
        kind = next((key.text for key, _ in written.tree.entries if key.text in cls.kinds), None)
        errors = {key: cls._key_error(key, value, kind) for key, value in written.items()}
        values = {key: value for key, value in written.items() if errors[key] is None}
        errors |= cls._kind_errors(written, kind)
        details = [
            InitErrorDetails(type=error, loc=(key,), input=None) for key, error in errors.items() if error
        ]
        fields = cls.fields_by_key()
        # What is misspelt is not missing besides.
        meant = {
            name for key in errors if errors[key] for name in difflib.get_close_matches(key, fields, n=1)
        }
        written.broken |= meant.difference(values)
        required = {key for key, field in fields.items() if field.is_required()}
        values |= dict.fromkeys(required & written.broken, _UNREADABLE)
        block = None
        try:
            block = validate_values(values)
        except ValidationError as error:
            details += [cls._value_error(problem) for problem in error.errors()]
        if details or block is None:
            raise ValidationError.from_exception_data(cls.__name__, details)
        return block._remember(written, info)  # noqa: SLF001 - a block of this class

    def _remember(self, written: _Mapping, info: ValidationInfo) -> Self:
        self._tree, self._broken = written.tree, frozenset(written.broken)
        for key, field in self.fields_by_key().items():
            description = field.description or ""
            if written.get(key) is not None and description.startswith(WARNED) and info.context is not None:
                why = _lowered(description.removeprefix(WARNED).removesuffix("."))
                info.context.append((self.key_span(key), f"`{key}` has no effect here: {why}"))
        return self

    @classmethod
    def _kind_errors(cls, written: _Mapping, kind: str | None) -> dict[str, PydanticCustomError]:
        """The error of a block that is of two kinds, or of none and without a misspelt one."""
        second = [key for key in written if key in cls.kinds and key != kind]
        if second:
            message = f"{cls.title} is one thing: here are `{kind}` and `{second[0]}`"
            hint = "keep one of them; give the other one a block of its own"
            return {second[0]: _refusal(message, hint, at="key")}
        names = [key.text for key, _ in written.tree.entries]
        unknown = [name for name in names if name not in cls.fields_by_key()]
        excused = {*cls.refused, *cls.kinds, *(name for name in unknown if suggest(name, cls.kinds))}
        if not cls.kinds or _KIND in written.broken or not excused.isdisjoint(names):
            return {}
        message = f"{cls.title} needs one of {listed(cls.kinds, 'or')}, which says what it runs"
        return {_KIND: _refusal(message, f"its keys are {listed(names)}" if names else None)}

    @classmethod
    def _key_error(cls, name: str, value: Any, kind: str | None) -> PydanticCustomError | None:
        field = cls.fields_by_key().get(name)
        if name in cls.refused:
            why, _, instead = cls.refused[name].removesuffix(".").partition(". ")
            return _refusal(f"`{name}` cannot be used here: {why}", _lowered(instead) or None, at="key")
        if field is None:
            keys = cls.keys_of(kind)
            advice = cls.reasons.get(name) or suggest(name, keys) or f"its keys are {cls._some(keys)}"
            return _refusal(f"`{name}` is not a key of {cls.title}", advice, at="key")
        if kind is not None and name not in (*cls.keys_of(kind), *cls.kinds):
            kinds = [other for other, keys in cls.kinds.items() if name in keys]
            hint = cls.reasons.get(f"{kind}.{name}") or cls.reasons.get(kind)
            hint = hint or f"it belongs to {cls.title} with {listed(kinds, 'or')}"
            return _refusal(f"`{name}` is not a key of {cls.title} with `{kind}`", hint, at="key")
        if value is None and (field.is_required() or name in cls.kinds):
            return _refusal(f"`{name}` is empty", f"it must be {expected_of(field).words}", at="key")
        return None

    @classmethod
    def _some(cls, keys: Iterable[str]) -> str:
        """The keys that matter most, in a sentence."""
        fields = cls.fields_by_key()
        used = [key for key in keys if not (fields[key].description or "").startswith("No effect")]
        some = ", ".join(f"`{name}`" for name in used[:_LISTED_KEYS])
        return listed(used) if len(used) <= _LISTED_KEYS else f"{some}, …"

    @classmethod
    def _value_error(cls, problem: ErrorDetails) -> InitErrorDetails:
        """A problem of pydantic as one of ours; all but missing keys are already."""
        if problem["type"] == "missing":
            key = str(problem["loc"][0])
            example = expected_of(cls.fields_by_key()[key]).example or "…"
            error = _refusal(f"{{what}} has no `{key}`", f"add `{key}: {example}`")
        else:
            error = _refusal(**problem["ctx"])
        return InitErrorDetails(type=error, loc=problem["loc"], input=None)


def expected_of(field: FieldInfo) -> Expected:
    """What the value of a key must be."""
    types = [field.annotation, *get_args(field.annotation)]
    metadata = [*field.metadata, *(data for kind in types for data in get_args(kind))]
    for candidate in (*metadata, *types):
        if isinstance(candidate, Expected):
            return candidate
        if isinstance(candidate, type) and issubclass(candidate, YamlBlock):
            return candidate.expected()
    return Expected("any value")


def _lowered(sentence: str) -> str:
    """A sentence as a part of another one."""
    return sentence if sentence.startswith("Spark ") else sentence[:1].lower() + sentence[1:]


# ------------------------------------------------------------------------------------- documents

AnyBlock = TypeVar("AnyBlock", bound=YamlBlock)


def validate(model: type[AnyBlock], tree: Tree, what: str, findings: Findings) -> AnyBlock | None:
    """The block of a tree, without invalid parts, which are errors in the findings.

    None if it is no mapping at all. `what` is its name in messages.
    """
    values = _values_of(tree)
    reported = False
    while True:
        warnings: list[tuple[Span, str]] = []
        try:
            block = model.model_validate(values, context=warnings)
        except ValidationError as error:
            problems = [(problem, _locate(problem["loc"], values, tree, what)) for problem in error.errors()]
        else:
            for span, message in sorted(warnings, key=lambda warning: warning[0].start):
                findings.warn(message, span)
            return block
        # A list that has lost all its items is refused once more, which is no news.
        for problem, location in problems if not reported else ():
            message, hint, at = (problem["ctx"][name] for name in ("message", "hint", "at"))
            span = location.key.span if at == "key" and location.key else location.tree.span
            findings.refuse(message.replace("{what}", location.what, 1), span, hint)
        if not isinstance(values, _Mapping):
            return None
        reported = True
        for location in reversed(
            {(id(location.container), location.step): location for _, location in problems}.values()
        ):
            if isinstance(location.container, _Mapping):
                location.container.broken.add(str(location.step))
                location.container.pop(str(location.step), None)
            else:
                del location.container[location.step]


@dataclass(frozen=True)
class _Location:
    """The part of a document that the path of an error leads to."""

    what: str
    """Its name in messages."""
    tree: Tree
    key: Scalar | None = None
    container: Any = None
    step: int | str = 0
    """Where it is in the container."""


def _locate(path: tuple[int | str, ...], values: Any, tree: Tree, what: str) -> _Location:
    location, outer = _Location(what, tree), what
    for step in path:
        if isinstance(values, list) and isinstance(step, int):
            assert isinstance(location.tree, Items)
            outer, values, container = location.what, values[step], values
            location = _Location(
                f"item {step + 1} of {outer}", location.tree.items[step], None, container, step
            )
        elif isinstance(values, _Mapping) and step in values:
            assert isinstance(location.tree, Fields)
            key, item = location.tree.entry(str(step))
            outer, values, container = location.what, values[str(step)], values
            name = f"`{step}`" if container.is_block else f"`{step}` in {outer}"
            location = _Location(name, item, key, container, step)
        elif isinstance(values, _Mapping) and values.is_block:
            location = replace(location, container=values, step=step)
        elif step == "[key]":
            location = replace(location, what=f"a name in {outer}")
    return location
