"""PostgreSQL's patterns for numbers, `FM999,990.00`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from functools import lru_cache
from typing import Final

from headrace.base.errors import ExpressionError
from headrace.functions.postgres.overload import DECIMAL, TEXT, Overload

_TOKEN: Final = re.compile(
    r'"((?:[^"\\]|\\.)*)"|(FM|EEEE|MI|PL|SG|PR|RN|TH|[09.,DGSVLB])|(.)', re.DOTALL | re.IGNORECASE
)
_DIGITS: Final = ("0", "9")
_SIGNS: Final = ("S", "MI", "PL", "SG", "PR")
_LARGEST_ROMAN: Final = 3999
_ROMAN: Final = (
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"),
    (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
)  # fmt: skip


@dataclass(frozen=True)
class NumberPattern:
    """A pattern, read."""

    tokens: tuple[tuple[str, str], ...]
    """What is written, in order: (the kind of a token, its text)."""
    before: int
    """How many digits there are in front of the decimal point."""
    behind: int
    """How many digits there are behind it."""
    shifted: int
    """How many digits follow a V."""
    is_filled: bool
    """Whether blanks and zeros fill it: there is no FM."""
    signs: frozenset[str] = field(default_factory=frozenset)

    @property
    def digits(self) -> list[str]:
        """The digits, each 0 or 9."""
        return [kind for kind, _ in self.tokens if kind in _DIGITS]

    def has(self, kind: str) -> bool:
        """Whether there is a token of this kind."""
        return any(token == kind for token, _ in self.tokens)


@lru_cache(maxsize=256)
def read_pattern(pattern: str) -> NumberPattern:
    """Read a pattern; raises an ExpressionError for what PostgreSQL refuses."""
    tokens: list[tuple[str, str]] = []
    before = behind = shifted = 0
    point = has_v = False
    for quoted, token, other in _TOKEN.findall(pattern):
        kind = {"D": ".", "G": ","}.get(token.upper(), token.upper())
        if not token:
            tokens.append(("text", re.sub(r"\\(.)", r"\1", quoted) if quoted else other))
            continue
        if kind == "." and (point or has_v):
            raise ExpressionError(f"`{pattern}` has two decimal points", hint="such as '999.99'")
        point, has_v = point or kind == ".", has_v or kind == "V"
        if kind in _DIGITS:
            before, behind, shifted = before + (not point), behind + point, shifted + has_v
        tokens.append((kind, token))
    kinds = [kind for kind, _ in tokens]
    signs = frozenset(kinds) & frozenset(_SIGNS)
    if ("S" in signs and len(signs) > 1) or kinds.count("S") > 1:
        raise ExpressionError(f"`{pattern}` has two signs", hint="S, or MI, PL, SG and PR")
    if "EEEE" in kinds and (signs or {"V", "RN", "FM"} & set(kinds)):
        raise ExpressionError(f"`{pattern}` has EEEE with more than digits", hint="such as '9.99EEEE'")
    written = tuple(token for token in tokens if token[0] not in ("FM", "B"))
    return NumberPattern(written, before, behind, shifted, "FM" not in kinds, signs)


def number_to_char(value: Decimal, pattern: str) -> str:
    """A number in a pattern.

    >>> number_to_char(Decimal("-1234.5"), "9,999.99"), number_to_char(Decimal("0.5"), "FM990.00")
    ('-1,234.50', '0.50')
    """
    form = read_pattern(pattern)
    if form.has("RN"):
        return _roman(value, form)
    if form.has("EEEE"):
        return _scientific(value, form)
    with localcontext() as context:
        context.prec = 100
        value = value.scaleb(form.shifted) if form.has("V") else value
        rounded = abs(value).quantize(Decimal(1).scaleb(-form.behind), rounding=ROUND_HALF_UP)
    whole, _, fraction = format(rounded, "f").partition(".")
    # Without fill, and without zeros behind the point, 0 is written as "0.".
    zeros_behind = any(kind == "0" for kind in form.digits[form.before :])
    if whole == "0" and form.behind and form.before and (form.is_filled or rounded or zeros_behind):
        whole = ""
    is_negative = value < 0 and rounded != 0
    if len(whole) > form.before:
        whole, fraction = "#" * form.before, "#" * form.behind
    return _Writer(form, whole, fraction, is_negative=is_negative).text()


class _Writer:
    """Writes the digits of a number, and its sign in front of the first one."""

    def __init__(self, form: NumberPattern, whole: str, fraction: str, *, is_negative: bool) -> None:
        self._form = form
        self._is_negative = is_negative
        self._digits = whole.rjust(form.before) + fraction
        kinds = form.digits
        first = form.before - len(whole)
        zeros = [at for at, kind in enumerate(kinds[: form.before]) if kind == "0"]
        self._first = min([first, *zeros[:1]])
        """The position of the first digit that is written."""
        self._last = self._last_digit(kinds)
        self._whole = whole
        self._result = ""
        self._is_signed = False

    def _last_digit(self, kinds: list[str]) -> int:
        """The position behind the last digit: without fill, zeros of a 9 behind the point are left out."""
        form, last = self._form, len(kinds)
        if form.is_filled or not form.behind:
            return last
        while last > form.before and kinds[last - 1] == "9" and self._digits[last - 1] == "0":
            last -= 1
        return last

    def text(self) -> str:
        form, position = self._form, 0
        for at, (kind, text) in enumerate(form.tokens):
            if kind in _DIGITS:
                self._digit(position)
                position += 1
            elif kind == "." and (form.behind or "#" in self._whole):
                self._sign()
                self._result += "."
            elif kind == ",":
                if position > self._first:
                    self._result += ","
                elif form.is_filled:
                    self._result += " "
            elif kind in ("S", "PR"):
                if kind == "S" and any(other in _DIGITS for other, _ in form.tokens[:at]):
                    self._result += "-" if self._is_negative else "+"
            elif kind in ("MI", "PL", "SG"):
                self._result += self._anchored(kind)
            elif kind == "TH":
                self._result += self._ordinal(text)
            elif kind == "L":
                self._result += " " * form.is_filled
            elif kind == "text":
                self._result += text
        if "PR" in form.signs:
            self._result += ">" if self._is_negative else " " * form.is_filled
        return self._result

    def _digit(self, position: int) -> None:
        form = self._form
        if position >= self._last:
            return
        if position >= form.before:
            self._sign()
        if position < self._first:
            self._result += " " * form.is_filled
            return
        self._sign()
        digit = self._digits[position]
        self._result += "0" if digit == " " else digit

    def _sign(self) -> None:
        """Write the sign that stands in front of the first digit, once."""
        if self._is_signed:
            return
        self._is_signed = True
        signs, blank = self._form.signs, " " * self._form.is_filled
        if "S" in signs:
            kinds = [kind for kind, _ in self._form.tokens]
            if not any(kind in _DIGITS for kind in kinds[: kinds.index("S")]):
                self._result += "-" if self._is_negative else "+"
        elif "PR" in signs:
            self._result += "<" if self._is_negative else blank
        elif signs <= {"PL"}:
            self._result += "-" if self._is_negative else blank

    def _anchored(self, kind: str) -> str:
        blank = " " * self._form.is_filled
        if kind == "SG":
            return "-" if self._is_negative else "+"
        if kind == "MI":
            return "-" if self._is_negative else blank
        return blank if self._is_negative else "+"

    def _ordinal(self, text: str) -> str:
        if self._is_negative or self._form.behind or "#" in self._whole:
            return ""
        number = self._whole
        endings = {"1": "st", "2": "nd", "3": "rd"}
        ending = "th" if number[-2:-1] == "1" else endings.get(number[-1:], "th")
        return ending.upper() if text.isupper() else ending


def _scientific(value: Decimal, form: NumberPattern) -> str:
    with localcontext() as context:
        context.rounding = ROUND_HALF_UP
        text = format(value, f".{form.behind}e") if value else f"{value:.{form.behind}f}e+0"
    digits, _, exponent = text.partition("e")
    sign = "" if digits.startswith("-") else " "
    return f"{sign}{digits}e{int(exponent):+03}"


def _roman(value: Decimal, form: NumberPattern) -> str:
    number = int(value.to_integral_value(rounding=ROUND_HALF_UP))
    result, rest = "", number
    if not 0 < number <= _LARGEST_ROMAN:
        return "#" * 15
    for size, numeral in _ROMAN:
        result += numeral * (rest // size)
        rest %= size
    letters = next(text for kind, text in form.tokens if kind == "RN")
    result = result.lower() if letters.islower() else result
    return result.rjust(15) if form.is_filled else result


def char_to_number(text: str, pattern: str) -> Decimal:
    """The number that a text in a pattern stands for.

    >>> char_to_number("-1,234.5", "9,999.9"), char_to_number("<12>", "99PR")
    (Decimal('-1234.5'), Decimal('-12'))
    """
    form = read_pattern(pattern)
    digits = re.sub(r"[^0-9.]", "", text if form.has(".") else text.partition(".")[0])
    whole, _, fraction = digits.partition(".")
    is_negative = "-" in text or ("PR" in form.signs and "<" in text)
    number = whole[: form.before] + (f".{fraction[: form.behind]}" if form.behind else "")
    try:
        value = Decimal(number)
    except InvalidOperation:
        raise ExpressionError(f"`{text}` is not a number", hint=f"it is read as '{pattern}'") from None
    value = value.scaleb(-form.shifted) if form.has("V") else value
    return -value if is_negative else value


PATTERN_FUNCTIONS: Final = (
    Overload(
        "number_text", (TEXT, TEXT), TEXT, lambda number, p: number_to_char(Decimal(number), p), internal=True
    ),
    Overload("to_number", (TEXT, TEXT), DECIMAL, char_to_number),
)
