"""Avro unions as structs: a declared struct has a member for each type of the union."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.base.errors import ConfigurationError
from headrace.formats.avro.schema import BRANCHES, AvroType
from headrace.formats.base import Path, is_json, is_list, plain_name


def with_branches(node: AvroType, target: pa.Schema) -> AvroType:
    """Return a record type in which unions that are declared as structs have named branches."""
    return _record(node, list(target), ())


def _record(node: AvroType, target: Sequence[pa.Field], path: Path) -> AvroType:
    fields = {field.name: field for field in target}
    members = [
        (name, _fit(member, fields[name], (*path, name)) if name in fields else member)
        for name, member in node.fields
    ]
    return replace(node, fields=members)


def _fit(node: AvroType, target: pa.Field, path: Path) -> AvroType:
    if is_json(target):
        return node
    if node.optional is not None:
        members = [
            (name, branch if branch.kind == "null" else _fit(branch, target, path))
            for name, branch in node.fields
        ]
        return replace(node, fields=members)
    if node.kind == "record" and pa.types.is_struct(target.type):
        return _record(node, list(target.type), path)
    if node.kind == "union" and pa.types.is_struct(target.type):
        return _union(node, list(target.type), path)
    if node.kind == "array" and is_list(target.type):
        assert node.item is not None
        return replace(node, item=_fit(node.item, target.type.value_field, path))
    if node.kind == "map":
        assert node.item is not None
        item = None
        if pa.types.is_map(target.type):
            item = target.type.item_field
        elif is_list(target.type) and pa.types.is_struct(target.type.value_type):
            entry = target.type.value_type
            item = entry.field("value") if entry.get_field_index("value") >= 0 else None
        return node if item is None else replace(node, item=_fit(node.item, item, path))
    return node


def _union(node: AvroType, target: Sequence[pa.Field], path: Path) -> AvroType:
    fields = {field.name: field for field in target}
    members = []
    for own, branch in node.fields:
        name = next((candidate for candidate in _names(own, branch) if candidate in fields), None)
        fitted = branch if name is None else _fit(branch, fields[name], (*path, name))
        members.append((own if name is None else name, fitted))
    if not any(name in fields for name, _ in members):
        raise ConfigurationError(
            f"column `{'.'.join(path)}` is a union in the schema of the messages, and none of its types is a "
            "member of the declared struct",
            hint="its members are called after the types: "
            + ", ".join(name for name, branch in node.fields if branch.kind != "null"),
        )
    return replace(node, fields=members, logical=BRANCHES)


def _names(name: str, branch: AvroType) -> list[str]:
    """Return the accepted member names of a branch: its type, without namespace, lower-cased."""
    names = [name, name.rpartition(".")[2], plain_name(name)]
    if branch.logical and branch.logical != BRANCHES and not branch.name:
        names.append(plain_name(branch.logical))
    return [*names, *(spelling.lower() for spelling in names)]
