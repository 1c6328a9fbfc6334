"""Places in a text, and the lines that show them."""

from headrace.base.spans import Source, Span


def test_a_place_is_told_by_file_line_and_column() -> None:
    source = Source("a.sql", "select\n  x,\n  yy from t")
    span = Span(source, source.text.index("yy"), source.text.index("yy") + 2)
    assert span.where == "a.sql:3:3"
    assert span.excerpt() == "  3 |   yy from t\n    |   ^^"


def test_tabs_keep_the_caret_below_its_place() -> None:
    source = Source("a.sql", "\tx y")
    assert Span(source, 3, 4).excerpt() == "  1 | \tx y\n    | \t  ^"


def test_a_place_over_several_lines_is_shown_by_its_first() -> None:
    source = Source("a.sql", "select (a\n + b)")
    assert Span(source, 7, 15).excerpt() == "  1 | select (a\n    |        ^^"


def test_of_a_long_line_only_what_is_around_the_place_is_shown() -> None:
    text = "x" * 300 + "here" + "y" * 300
    shown, carets = Span(Source("a.sql", text), 300, 304).excerpt().splitlines()
    assert len(shown) < 140
    assert shown[carets.index("^") : carets.rindex("^") + 1] == "here"


def test_the_end_of_a_text_has_a_place() -> None:
    source = Source("a.sql", "select")
    assert Span(source, 6, 6).excerpt() == "  1 | select\n    |       ^"
