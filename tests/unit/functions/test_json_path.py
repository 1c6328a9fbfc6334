import json
from typing import Any

import pytest

from headrace.base.errors import ExpressionError
from headrace.functions.documents import parse, to_text
from headrace.functions.json_path import compile_path

STORE = {
    "books": [
        {"title": "One", "price": 8.5, "tags": ["a", "b"]},
        {"title": "Two", "price": 12, "isbn": None},
        {"title": "Three", "price": 8, "tags": []},
    ],
    "open": True,
    "a key": {"it's": 1, 'a"b': 2},
    "limit": 10,
    "größe": 5,
}


def selected(path: str, document: Any = STORE) -> list[Any]:
    value = parse(json.dumps(document))
    return [json.loads(to_text(one)) for one in compile_path(path).select(value, value)]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("$", [STORE]),
        (" $ ", [STORE]),
        ("$.open", [True]),
        ("$.größe", [5]),
        ("$.nothing", []),
        ("$.open.deeper", []),
        ("$['a key']", [STORE["a key"]]),
        ('$["a key"]', [STORE["a key"]]),
        ("$['a key']['it\\'s']", [1]),
        ("$['a key']['a\"b']", [2]),
        ('$["a key"]["a\\"b"]', [2]),
        ("$['a key']['\\u0069t\\'s']", [1]),
        ("$.books[0].title", ["One"]),
        ("$.books[-1].title", ["Three"]),
        ("$.books[3]", []),
        ("$.books[-4]", []),
        ("$.books['0']", []),
        ("$.limit[0]", []),
        ("$.books[*].title", ["One", "Two", "Three"]),
        ("$.books.*.title", ["One", "Two", "Three"]),
        ("$['a key'].*", [1, 2]),
        ("$.limit.*", []),
        ("$.books[1:].title", ["Two", "Three"]),
        ("$.books[:1].title", ["One"]),
        ("$.books[::2].title", ["One", "Three"]),
        ("$.books[::-1].title", ["Three", "Two", "One"]),
        ("$.books[-2:-1].title", ["Two"]),
        ("$.books[::0].title", []),
        ("$.open[:]", []),
        ("$.books[0, 2].title", ["One", "Three"]),
        ("$.books[0]['title', 'price']", ["One", 8.5]),
        ("$..title", ["One", "Two", "Three"]),
        ("$..tags[0]", ["a"]),
        ("$.books..tags", [["a", "b"], []]),
        ("$.books[0]..*", ["One", 8.5, ["a", "b"], "a", "b"]),
        ("$..['isbn']", [None]),
    ],
)
def test_a_path_selects_the_elements_it_names(path: str, expected: list[Any]) -> None:
    assert selected(path) == expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("@.price < 10", ["One", "Three"]),
        ("@.price <= 8", ["Three"]),
        ("@.price > 8.4", ["One", "Two"]),
        ("@.price >= 12", ["Two"]),
        ("@.price == 8.50", ["One"]),
        ("@.price == 12.0", ["Two"]),
        ("@.title == 'Two'", ["Two"]),
        ("'Two' == @.title", ["Two"]),
        ("@.title != 'Two'", ["One", "Three"]),
        ("@.title > 'P'", ["Two", "Three"]),
        ("@.isbn == null", ["Two"]),
        ("@.isbn", ["Two"]),
        ("!@.isbn", ["One", "Three"]),
        ("@.tags[0]", ["One"]),
        ("@.price < $.limit", ["One", "Three"]),
        ("(@.price < 10 && @.tags[0]) || @.title == 'Two'", ["One", "Two"]),
        ("!(@.price < 10)", ["Two"]),
        ("@.price < 'x'", []),
        ("@.price == true", []),
        ("@.missing == @.also_missing", ["One", "Two", "Three"]),
        ("@.missing < 1", []),
        ("$.open == true", ["One", "Two", "Three"]),
    ],
)
def test_a_filter_keeps_the_children_that_pass_its_test(condition: str, expected: list[str]) -> None:
    assert selected(f"$.books[?{condition}].title") == expected
    assert selected(f"$.books[?({condition})].title") == expected


def test_a_filter_passes_over_the_values_of_an_object() -> None:
    assert selected("$[?@ > 1]", {"a": 1, "b": 2, "c": 3}) == [2, 3]
    assert selected("$[?@ == 1]", {"a": True, "b": 1}) == [1]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("", "a path starts with `$` at column 1"),
        ("a.b", "a path starts with `$` at column 1"),
        ("$.", "expected a name or `*` at column 3"),
        ("$.a b", "expected `.`, `..` or `[` at column 5"),
        ("$a", "at column 2"),
        ("$[", "expected a name in quotes, an index, a slice, `*` or `?` at column 3"),
        ("$['a'", "expected `]` or `,` at column 6"),
        ("$['a", "at column 3"),
        ("$['\\x']", "wrong escape"),
        ("$[?1]", "expected a comparison at column 5"),
        ("$[?@.a == ]", "expected `@`, `$`, a number"),
        ("$[?(@.a]", "expected `)`"),
    ],
)
def test_what_is_not_a_path_is_an_error_that_says_where(path: str, said: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_path(path)
    assert said in caught.value.message
    assert f"`{path}`" in caught.value.message
