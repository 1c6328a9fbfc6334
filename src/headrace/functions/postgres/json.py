"""Functions that make, change and compare JSON; what they write is laid out as PostgreSQL's JSONB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from headrace.base.errors import ExpressionError
from headrace.functions.documents import MISSING, JsonNumber, parse, to_text
from headrace.functions.postgres.overload import BOOLEAN, INTEGER, TEXT, TEXTS, Overload


def layout(value: Any) -> str:
    """A value as JSONB is written: a blank after `:` and `,`, keys by length and then by bytes.

    >>> layout({"bb": 1, "a": [1, None]})
    '{"a": [1, null], "bb": 1}'
    """
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return "{" + ", ".join(f"{to_text(key)}: {layout(value[key])}" for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(layout, value)) + "]"
    return to_text(value)


def _of(document: str) -> Any:
    value = parse(document)
    if value is MISSING:
        shown = document if len(document) <= 60 else f"{document[:60]}…"
        raise ExpressionError(f"`{shown}` is not JSON", hint="to_jsonb(x) makes JSON of a text")
    return value


def json_type(document: str) -> str | None:
    """`jsonb_typeof`; NULL for what is not JSON.

    >>> json_type("[1]"), json_type("1.5")
    ('array', 'number')
    """
    value = parse(document)
    if value is MISSING:
        return None
    for kind, name in (((dict,), "object"), ((list,), "array"), ((str,), "string"), ((bool,), "boolean")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "number"


def _step(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step, MISSING)
    if isinstance(value, list):
        try:
            return value[int(step)]
        except (ValueError, IndexError):
            return MISSING
    return MISSING


def _at(document: str, path: Sequence[str]) -> Any:
    value = parse(document)
    for step in path:
        value = _step(value, step)
    return value


def element_at(document: str, path: Sequence[str]) -> str | None:
    """`json #> path`: the element as JSON.

    >>> element_at('{"a": [1, {"b": 2}]}', ["a", "1"])
    '{"b": 2}'
    """
    value = _at(document, path)
    return None if value is MISSING else layout(value)


def text_at(document: str, path: Sequence[str]) -> str | None:
    """`json #>> path`: the element as a text.

    >>> text_at('{"a": [1, "x"]}', ["a", "-1"])
    'x'
    """
    value = _at(document, path)
    if value is MISSING or value is None:
        return None
    return value if isinstance(value, str) else layout(value)


# ------------------------------------------------------------------------------------------ comparisons


def _same(left: Any, right: Any) -> bool:
    numbers = (int, JsonNumber)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, numbers) and isinstance(right, numbers):
        return float(left) == float(right)
    return bool(left == right)


def _holds(outer: Any, inner: Any, *, nested: bool = False) -> bool:
    if isinstance(inner, dict):
        return isinstance(outer, dict) and all(
            key in outer and _holds(outer[key], value, nested=True) for key, value in inner.items()
        )
    if isinstance(inner, list):
        return isinstance(outer, list) and all(
            any(_holds(item, wanted, nested=True) for item in outer) for wanted in inner
        )
    if isinstance(outer, list) and not nested:
        return any(_same(item, inner) for item in outer)
    return _same(outer, inner)


def contains(outer: str, inner: str) -> bool:
    """`json @> json`.

    >>> contains('{"a": [1, 2], "b": 3}', '{"a": [2]}')
    True
    """
    return _holds(_of(outer), _of(inner))


def equal(left: str, right: str) -> bool:
    """`json = json`.

    >>> equal('{"a": 1, "b": [2]}', '{"b":[2.0],"a":1}')
    True
    """
    return _equal(_of(left), _of(right))


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    return _same(left, right)


def _has_key(value: Any, key: str) -> bool:
    return key in value if isinstance(value, dict | list) else value == key


# ------------------------------------------------------------------------------------------ made


def object_of_texts(keys: Sequence[str], values: Sequence[str | None] | None = None) -> str:
    """`jsonb_object`: keys and values are texts, in two lists or in turns."""
    if values is None:
        if len(keys) % 2:
            raise ExpressionError("jsonb_object of one list takes keys and values in turns")
        keys, values = keys[::2], keys[1::2]
    if len(keys) != len(values) or None in keys:
        raise ExpressionError("jsonb_object takes as many keys as values, and no NULL key")
    return layout(dict(zip(keys, values, strict=True)))


# ------------------------------------------------------------------------------------------ changed


def _changed(value: Any, path: Sequence[str], change: Callable[[Any, str], None]) -> Any:
    """Call `change(container, last step)` where a path leads to, if it leads anywhere."""
    container = value
    for step in path[:-1]:
        container = _step(container, step)
    if path and isinstance(container, dict | list):
        change(container, path[-1])
    return value


def _index(step: str, items: list[Any]) -> int:
    try:
        index = int(step)
    except ValueError:
        raise ExpressionError(f"`{step}` is not an index of an array") from None
    return index + len(items) if index < 0 else index


def set_at(document: str, path: Sequence[str], new: str, create: bool = True) -> str:
    """`jsonb_set`.

    >>> set_at('{"a": [1]}', ["a", "0"], '"x"')
    '{"a": ["x"]}'
    """
    value = _of(new)

    def change(container: Any, step: str) -> None:
        if isinstance(container, dict):
            if create or step in container:
                container[step] = value
            return
        index = _index(step, container)
        if 0 <= index < len(container):
            container[index] = value
        elif create:
            container.insert(0 if index < 0 else len(container), value)

    return layout(_changed(_of(document), path, change))


def insert_at(document: str, path: Sequence[str], new: str, after: bool = False) -> str:
    """`jsonb_insert`."""
    value = _of(new)

    def change(container: Any, step: str) -> None:
        if isinstance(container, dict):
            if step in container:
                raise ExpressionError(f"jsonb_insert: the key `{step}` exists", hint="use jsonb_set")
            container[step] = value
            return
        index = _index(step, container) + (1 if after else 0)
        container.insert(max(index, 0), value)

    return layout(_changed(_of(document), path, change))


def delete_at(document: str, path: Sequence[str]) -> str:
    """`json #- path`."""

    def change(container: Any, step: str) -> None:
        if isinstance(container, dict):
            container.pop(step, None)
        elif 0 <= (index := _index(step, container)) < len(container):
            del container[index]

    return layout(_changed(_of(document), path, change))


def delete_key(document: str, key: str) -> str:
    """`json - key`."""
    value = _of(document)
    if isinstance(value, dict):
        value.pop(key, None)
    elif isinstance(value, list):
        value = [item for item in value if item != key]
    else:
        raise ExpressionError("nothing can be removed from a JSON value that is no object or array")
    return layout(value)


def delete_index(document: str, index: int) -> str:
    """`json - index`."""
    value = _of(document)
    if not isinstance(value, list):
        raise ExpressionError("an index can be removed from a JSON array only")
    if -len(value) <= index < len(value):
        del value[index]
    return layout(value)


def concatenate(left: str, right: str) -> str:
    """`json || json`."""
    first, second = _of(left), _of(right)
    if isinstance(first, dict) and isinstance(second, dict):
        return layout({**first, **second})
    lists = [value if isinstance(value, list) else [value] for value in (first, second)]
    return layout(lists[0] + lists[1])


def strip_nulls(document: str) -> str:
    """`jsonb_strip_nulls`: objects without the fields that are null."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items() if item is not None}
        return [strip(item) for item in value] if isinstance(value, list) else value

    return layout(strip(_of(document)))


def pretty(document: str) -> str:
    """`jsonb_pretty`."""

    def show(value: Any, indent: str) -> str:
        inner = indent + "    "
        if isinstance(value, dict) and value:
            keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
            body = ",\n".join(f"{inner}{to_text(key)}: {show(value[key], inner)}" for key in keys)
            return f"{{\n{body}\n{indent}}}"
        if isinstance(value, list) and value:
            return "[\n" + ",\n".join(inner + show(item, inner) for item in value) + f"\n{indent}]"
        if isinstance(value, dict | list):
            return f"{{\n{indent}}}" if isinstance(value, dict) else f"[\n{indent}]"
        return to_text(value)

    return show(_of(document), "")


def _both(name: str, *parts: Any) -> list[Overload]:
    """A function as `json_…` and as `jsonb_…`."""
    return [Overload(f"{prefix}_{name}", *parts) for prefix in ("json", "jsonb")]


JSON_FUNCTIONS: Final = (
    *_both("typeof", (TEXT,), TEXT, json_type),
    *_both("strip_nulls", (TEXT,), TEXT, strip_nulls),
    Overload("jsonb_pretty", (TEXT,), TEXT, pretty),
    *_both("object", (TEXTS,), TEXT, object_of_texts),
    *_both("object", (TEXTS, TEXTS), TEXT, object_of_texts),
    Overload("jsonb_set", (TEXT, TEXTS, TEXT), TEXT, set_at),
    Overload("jsonb_set", (TEXT, TEXTS, TEXT, BOOLEAN), TEXT, set_at),
    Overload("jsonb_insert", (TEXT, TEXTS, TEXT), TEXT, insert_at),
    Overload("jsonb_insert", (TEXT, TEXTS, TEXT, BOOLEAN), TEXT, insert_at),
    *(
        overload
        for count in range(1, 6)
        for overload in (
            *_both("extract_path", (TEXT,) * (count + 1), TEXT, lambda text, *path: element_at(text, path)),
            *_both("extract_path_text", (TEXT,) * (count + 1), TEXT, lambda text, *path: text_at(text, path)),
        )
    ),
    # What operators and rewritten calls mean.
    Overload("json_element_at", (TEXT, TEXTS), TEXT, element_at, internal=True),
    Overload("json_text_at", (TEXT, TEXTS), TEXT, text_at, internal=True),
    Overload("json_equal", (TEXT, TEXT), BOOLEAN, equal, internal=True),
    Overload("json_holds", (TEXT, TEXT), BOOLEAN, contains, internal=True),
    Overload("jsonb_text", (TEXT,), TEXT, lambda document: layout(_of(document)), internal=True),
    Overload(
        "json_has_key", (TEXT, TEXT), BOOLEAN,
        lambda document, key: _has_key(_of(document), key), internal=True,
    ),
    Overload(
        "json_has_any", (TEXT, TEXTS), BOOLEAN,
        lambda document, keys: any(_has_key(_of(document), key) for key in keys), internal=True,
    ),
    Overload(
        "json_has_all", (TEXT, TEXTS), BOOLEAN,
        lambda document, keys: all(_has_key(_of(document), key) for key in keys), internal=True,
    ),
    Overload("json_delete_at", (TEXT, TEXTS), TEXT, delete_at, internal=True),
    Overload("json_delete", (TEXT, TEXT), TEXT, delete_key, internal=True),
    Overload("json_delete", (TEXT, INTEGER), TEXT, delete_index, internal=True),
    Overload("json_concatenate", (TEXT, TEXT), TEXT, concatenate, internal=True),
)  # fmt: skip
