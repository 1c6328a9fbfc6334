"""Types of inputs and outputs: checks that connected ones fit.

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
from headrace.dataflow.document.blocks import DocumentBlock, PortBlock
from headrace.dataflow.document.findings import Findings
from headrace.dataflow.document.model import Output, Timer, Unit
from headrace.dataflow.document.modules import DeclaredUnit
from headrace.dataflow.document.yaml_text import Fields, Scalar, parse_yaml

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

    names: frozenset[str]
    wider: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, document: DocumentBlock, directory: Path) -> TypeRules:
        """The standard types and rules, with those of a document and of the directory it is in."""
        rules = [(rule.narrow.text, rule.wide.text) for rule in document.type_rules or [] if not rule.broken]
        standard = {(_CORE + narrow, _CORE + wide) for narrow, wide in _WIDER}
        named = {_split(name)[0] for rule in rules for name in rule}
        return cls(
            frozenset(STANDARD_TYPES | set(_own_types(directory / "types")) | named),
            frozenset({*standard, *rules}),
        )

    def fit(self, actual: str, expected: str) -> bool:
        """Whether an input of type `expected` may take an output of type `actual`."""
        base, params = _split(actual)
        wanted, wanted_params = _split(expected)
        if base == wanted:
            return all(wanted_params.get(name, value) == value for name, value in params.items())
        return wanted == _BYTES or expected in self._widened(actual) or wanted in self._widened(base)

    def _widened(self, name: str) -> set[str]:
        """Every type that a type may be widened to, step by step."""
        widened, new = set[str](), {name}
        while new:
            widened |= new
            new = {wide for narrow, wide in self.wider if narrow in new} - widened
        return widened


def check_types(
    units: Sequence[tuple[DeclaredUnit, Unit]], document: DocumentBlock, directory: Path, findings: Findings
) -> None:
    """Compare the types at both ends of every connection; a mismatch is a warning, or an error if strict."""
    rules = TypeRules.of(document, directory)

    def complain(message: str, span: Span, hint: str | None) -> None:
        if document.strict_types:
            findings.refuse(message, span, hint)
        else:
            findings.warn(message if hint is None else f"{message} ({hint})", span)

    for declared, _ in units:
        for key, what, names in (
            ("input_types", "input", list(declared.block.inputs or {})),
            ("output_types", "output", declared.outputs),
            ("output_metadata", "output", declared.outputs),
        ):
            if f"{what}s" not in declared.block.broken:
                _check_names(declared.block, key, what, names, complain)
        for types in (declared.block.input_types, declared.block.output_types):
            _check_known(types or {}, rules.names, complain)
    output_types = {
        Output(declared.address, name): output_type.text
        for declared, _ in units
        for name, output_type in (declared.block.output_types or {}).items()
    }
    for declared, unit in units:
        for unit_input in unit.inputs:
            expected = (declared.block.input_types or {}).get(unit_input.id)
            source = unit_input.source
            actual = _TICK if isinstance(source, Timer) else None
            if isinstance(source, Output):
                actual = output_types.get(source)
            if expected is None or actual is None or rules.fit(actual, expected.text):
                continue
            shown = source.text if isinstance(source, Timer) else str(source)
            complain(
                f"input `{unit_input.id}` expects `{expected.text}`, and `{shown}` is `{actual}`",
                expected.span,
                "change one of the two, or add a rule to `type_rules`",
            )


def _check_names(block: PortBlock, key: str, what: str, names: Iterable[str], complain: Complain) -> None:
    for name in getattr(block, key) or {}:
        if name not in names:
            hint = suggest(name, names, listing=f"its {what}s are")
            complain(f"`{key}` names `{name}`, which is no {what}", block.key_span(key, name), hint)


def _check_known(types: Mapping[str, Scalar], names: frozenset[str], complain: Complain) -> None:
    for value in types.values():
        base, _ = _split(value.text)
        if base not in names:
            hint = suggest(base, names) or "types of your own are defined in files below `types/`"
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
