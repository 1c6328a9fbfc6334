"""`headrace new`: begin a dataflow, a pipeline or an operator with something that runs."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Literal

import click

from headrace.cli.terminal import verbose_option

Kind = Literal["dataflow", "pipeline", "operator"]

TEMPLATES = Path(__file__).parent / "templates"
"""A folder for each kind. Python files are called `.py.template`: no tool takes them for the product's."""


@click.command
@click.argument("kind", type=click.Choice(["dataflow", "pipeline", "operator"]))
@click.argument("name", metavar="NAME")
@verbose_option
def new(kind: Kind, name: str, verbose: bool) -> None:  # noqa: ARG001  read by the error renderer
    """Create a dataflow, a pipeline or an operator.

    `new dataflow NAME` creates the directory NAME with a YAML dataflow, two operators and their tests, `new
    pipeline NAME` one with SQL and its expected rows, and `new operator NAME` the file NAME.py with a test.
    Everything that is created can be run at once. Nothing is overwritten.
    """
    from headrace.base.errors import UserError

    path = Path(name)
    _check_name(kind, path)
    files = _texts(kind, path)
    existing = [file for file in ([path] if kind != "operator" else files) if file.exists()]
    if existing:
        raise UserError(f"{existing[0]} is already there", hint="choose another name; nothing was changed")
    if not path.parent.is_dir():
        raise UserError(f"there is no directory {path.parent}", hint=f"make it first: mkdir -p {path.parent}")
    try:
        for file, text in files.items():
            file.parent.mkdir(exist_ok=True)
            with file.open("x", encoding="utf-8") as opened:
                opened.write(text)
    except OSError as error:
        raise UserError(f"{error.filename} cannot be written: {error.strerror}") from None
    click.echo("created " + " ".join(str(file) for file in files))
    click.echo("next:")
    for command in _next(kind, path):
        click.echo(f"  {command}")


def _check_name(kind: Kind, path: Path) -> None:
    from headrace.base.errors import UserError

    # An operator is a module, and all others are named after it in a file or a directory.
    allowed = r"[A-Za-z_][A-Za-z0-9_]*" if kind == "operator" else r"[A-Za-z0-9_][A-Za-z0-9_-]*"
    if re.fullmatch(allowed, path.name) and not (kind == "operator" and keyword.iskeyword(path.name)):
        return
    signs = "_" if kind == "operator" else "_ and -"
    cleaned = re.sub(r"[^A-Za-z0-9_]+" if kind == "operator" else r"[^A-Za-z0-9_-]+", "_", path.stem)
    cleaned = cleaned.strip("_-") or f"my_{kind}"
    if kind == "operator" and (cleaned[0].isdigit() or keyword.iskeyword(cleaned)):
        cleaned = f"{kind}_{cleaned}"
    raise UserError(
        f"`{path.name or path}` cannot be the name of {'an' if kind == 'operator' else 'a'} {kind}",
        hint=f"use letters, digits, {signs}, such as `{path.parent / cleaned}`",
    )


def _texts(kind: Kind, path: Path) -> Mapping[Path, str]:
    """The content of each file that is created."""
    folder = path.parent if kind == "operator" else path
    return {
        folder / _file_name(template.name, kind, path.name): Template(
            template.read_text(encoding="utf-8")
        ).safe_substitute(name=path.name)
        for template in sorted((TEMPLATES / kind).iterdir())
        if template.is_file()
    }


def _file_name(template: str, kind: Kind, name: str) -> str:
    """A template that is called after its kind becomes a file that is called after what is made."""
    plain = template.removesuffix(".template")
    return plain if kind == "dataflow" else plain.replace(kind, name)


def _next(kind: Kind, path: Path) -> list[str]:
    if kind == "operator":
        use = f"{{python: {path.name}.py, inputs: {{number: NODE/OUTPUT}}, outputs: [total]}}"
        return [f"pytest {path.with_name(f'test_{path.name}.py')}", f"in a dataflow: operator: {use}"]
    if kind == "pipeline":
        return [f"cd {path}", f"headrace run {path.name}.sql", "headrace test ."]
    return [f"cd {path}", "headrace run dataflow.yml", "headrace explain dataflow.yml --mermaid", "pytest"]
