"""`headrace schema`: the JSON schema of dataflow documents, for editors."""

from __future__ import annotations

import json

import click


@click.command
def schema() -> None:
    """Print the JSON schema of dataflow documents, for editors.

    An editor that speaks YAML checks and completes a document with it: save it as dataflow.schema.json, and
    begin the document with `# yaml-language-server: $schema=dataflow.schema.json`.
    """
    from headrace.dataflow.document.json_schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
