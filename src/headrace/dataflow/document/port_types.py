"""Types of inputs and outputs: whether what a document says about them fits together.

Types are names: `std/core/v1/Int64`, `std/media/v1/Image[encoding=rgb8]`, or one that a file below `types/`
beside the document defines. Nothing has to be typed, and the messages themselves are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import suggest
from headrace.base.spans import Source, Span
from headrace.dataflow.document.findings import Findings
from headrace.dataflow.document.model import Output, Timer, Unit
from headrace.dataflow.document.modules import Part
from headrace.dataflow.document.shapes import Record, Value, listed
from headrace.dataflow.document.yaml_text import Fields, parse_yaml

_STANDARD = {
    "core": "Float32 Float64 Int32 Int64 UInt8 UInt32 UInt64 String Bytes Bool",
    "math": "Vector3 Quaternion Pose Transform",
    "control": "Twist JointState Odometry",
    "media": "Image CompressedImage PointCloud AudioFrame",
    "vision": "BoundingBox Detection Segmentation",
}
STANDARD_TYPES = frozenset(
    f"std/{group}/v1/{name}" for group, names in _STANDARD.items() for name in names.split()
)
_CORE = "std/core/v1/"
_WIDER = {("UInt8", "UInt32"), ("UInt32", "UInt64"), ("Int32", "Int64"), ("Float32", "Float64")}
_BYTES = f"{_CORE}Bytes"
_TICK = f"{_CORE}UInt64"
"""What a timer's messages count as; their values are empty."""
_TYPE = re.compile(r"(?P<base>[^\[\]]+)(?:\[(?P<params>[^\[\]]*)\])?")

Complain = Callable[[str, Span, str | None], None]


@dataclass(frozen=True)
class TypeRules:
    """Which types there are, and which outputs an input of a type may take."""

    known: frozenset[str]
    wider: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, document: Record, directory: Path) -> TypeRules:
        """The standard types and rules, with those of a document and of the directory it is in."""
        rules = [
            (rule.value.get("from"), rule.value.get("to"))
            for rule in document.get("type_rules", [])
            if not rule.value.broken
        ]
        standard = {(_CORE + narrow, _CORE + wide) for narrow, wide in _WIDER}
        named = {_split(name)[0] for rule in rules for name in rule}
        return cls(
            frozenset(STANDARD_TYPES | set(_own_types(directory / "types")) | named),
            frozenset({*standard, *rules}),
        )

    def fit(self, given: str, expected: str) -> bool:
        """Whether an input of type `expected` may take an output of type `given`."""
        base, params = _split(given)
        wanted, wanted_params = _split(expected)
        if base == wanted:
            return all(wanted_params.get(name, value) == value for name, value in params.items())
        return wanted == _BYTES or expected in self._widened(given) or wanted in self._widened(base)

    def _widened(self, name: str) -> set[str]:
        """Every type that a type may be widened to, step by step."""
        found, new = set[str](), {name}
        while new:
            found |= new
            new = {wide for narrow, wide in self.wider if narrow in new} - found
        return found


def check_types(
    parts: Sequence[tuple[Part, Unit]], document: Record, directory: Path, findings: Findings
) -> None:
    """Compare the types at both ends of every connection; what does not fit is said, or refused if strict."""
    rules = TypeRules.of(document, directory)

    def complain(message: str, span: Span, hint: str | None) -> None:
        if document.get("strict_types"):
            findings.refuse(message, span, hint)
        else:
            findings.warn(message if hint is None else f"{message} ({hint})", span)

    for part, _ in parts:
        for key, what, names in (
            ("input_types", "input", list(part.record.get("inputs", {}))),
            ("output_types", "output", part.outputs),
            ("output_metadata", "output", part.outputs),
        ):
            if f"{what}s" not in part.record.broken:
                _check_names(part.record.get(key, {}), key, what, names, complain)
        for key in ("input_types", "output_types"):
            _check_known(part.record.get(key, {}), rules.known, complain)
    types = {
        Output(part.address, name): value.value
        for part, _ in parts
        for name, value in part.record.get("output_types", {}).items()
    }
    for part, unit in parts:
        for one in unit.inputs:
            expected = part.record.get("input_types", {}).get(one.id)
            given = _TICK if isinstance(one.source, Timer) else None
            if isinstance(one.source, Output):
                given = types.get(one.source)
            if expected is None or given is None or rules.fit(given, expected.value):
                continue
            source = one.source.text if isinstance(one.source, Timer) else str(one.source)
            complain(
                f"input `{one.id}` expects `{expected.value}`, and `{source}` is `{given}`",
                expected.span,
                "change one of the two, or add a rule to `type_rules`",
            )


def _check_names(
    block: Mapping[str, Value], key: str, what: str, names: Iterable[str], complain: Complain
) -> None:
    for name, value in block.items():
        if name not in names:
            assert value.key is not None
            hint = suggest(name, names) or (f"its {what}s are {listed(names)}" if list(names) else None)
            complain(f"`{key}` names `{name}`, which is no {what}", value.key, hint)


def _check_known(block: Mapping[str, Value], known: frozenset[str], complain: Complain) -> None:
    for value in block.values():
        base, _ = _split(value.value)
        if base not in known:
            hint = suggest(base, known) or "types of your own are defined in files below `types/`"
            complain(f"there is no type `{base}`", value.span, hint)


def _split(name: str) -> tuple[str, dict[str, str]]:
    """A type and its params.

    >>> _split("std/media/v1/AudioFrame[sample_type=f32]")
    ('std/media/v1/AudioFrame', {'sample_type': 'f32'})
    """
    match = _TYPE.fullmatch(name)
    if match is None:
        return name, {}
    params = [param.partition("=") for param in (match["params"] or "").split(",") if param.strip()]
    return match["base"].strip(), {key.strip(): value.strip() for key, _, value in params}


def _own_types(directory: Path) -> Iterable[str]:
    """The types that files below `types/` define: `types/shop/v1.yml` those that begin with `shop/v1/`."""
    for file in sorted(directory.glob("**/*.yml")) if directory.is_dir() else ():
        try:
            tree = parse_yaml(Source(str(file), file.read_text(encoding="utf-8")), Findings())
        except (OSError, UnicodeDecodeError):
            continue
        types = dict(_entries(tree)).get("types")
        prefix = file.relative_to(directory).with_suffix("").as_posix()
        for name, _ in _entries(types):
            yield f"{prefix}/{name}"


def _entries(tree: object) -> Iterable[tuple[str, object]]:
    return [(key.text, value) for key, value in tree.entries] if isinstance(tree, Fields) else []
