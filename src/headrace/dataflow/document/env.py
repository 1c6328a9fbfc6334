"""`env` blocks: values as strings, with environment variables expanded."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.base.errors import suggest
from headrace.base.spans import Span
from headrace.dataflow.document.findings import Findings
from headrace.dataflow.document.yaml_text import Scalar

_VARIABLE = re.compile(
    r"\$(?:\$|(?P<bare>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}|(?P<open>\{))"
)
_PARAM = re.compile(r"\$(?:(PARAM_\w+)|\{(PARAM_\w+)\})")


def param_variable(name: str) -> str:
    """The variable of a module's param.

    >>> param_variable("speed")
    'PARAM_SPEED'
    """
    return f"PARAM_{name.upper()}"


def expand_env(block: Mapping[str, Scalar], environ: Mapping[str, str], findings: Findings) -> dict[str, str]:
    """The variables of an `env` block; those that cannot be expanded are errors.

    Numbers are the texts they are written as, so that a version 1.10 stays one; flags are `true` and `false`.
    """
    values = {name: _text(value, environ, findings) for name, value in block.items()}
    return {name: value for name, value in values.items() if value is not None}


def _text(value: Scalar, environ: Mapping[str, str], findings: Findings) -> str | None:
    return expand(value, environ, findings) if value.flag() is None else value.text.lower()


def expand(text: Scalar, environ: Mapping[str, str], findings: Findings) -> str | None:
    """Expand `$NAME`, `${NAME}` and `${NAME:-default}` in a string; `$$` is a dollar."""
    is_complete = True

    def put(match: re.Match[str]) -> str:
        nonlocal is_complete
        name = match["bare"] or match["braced"]
        if name is None:
            if match["open"] is None:
                return "$"
            is_complete = False
            _refuse_braces(text, match, findings)
            return ""
        if name in environ:
            return environ[name]
        if match["default"] is not None:
            return match["default"]
        is_complete = False
        _refuse(name, text.span_of(*match.span()), environ, findings)
        return ""

    expanded = _VARIABLE.sub(put, text.text)
    return expanded if is_complete else None


def check_params(text: Scalar, params: Mapping[str, str], findings: Findings) -> None:
    """Report every `$PARAM_NAME` of a string that the module has no value for."""
    for match in _PARAM.finditer(text.text):
        name = match[1] or match[2]
        if name not in params:
            _refuse(name, text.span_of(*match.span()), params, findings)


def put_params(word: str, params: Mapping[str, str]) -> str:
    """A word with the values of each `$PARAM_NAME`; other variables stay as they are."""
    return _PARAM.sub(lambda match: params.get(match[1] or match[2], match[0]), word)


def _refuse_braces(text: Scalar, match: re.Match[str], findings: Findings) -> None:
    end = text.text.find("}", match.start())
    span = text.span_of(match.start(), match.end() if end < 0 else end + 1)
    message = "`${` is not closed" if end < 0 else f"`{text.text[match.start() : end + 1]}` names no variable"
    findings.refuse(message, span, "write `${NAME}`, `${NAME:-default}`, or `$$` for a dollar")


def _refuse(name: str, span: Span, environ: Mapping[str, str], findings: Findings) -> None:
    if name.startswith("PARAM_"):
        param = name.removeprefix("PARAM_").lower()
        findings.refuse(
            f"the module was not given the param `{param}`",
            span,
            f"write `params: {{{param}: …}}` beside `module:`",
        )
    else:
        findings.refuse(
            f"the environment has no variable `{name}`",
            span,
            suggest(name, environ) or f"set it, write `${{{name}:-default}}`, or write `$$` for a dollar",
        )
