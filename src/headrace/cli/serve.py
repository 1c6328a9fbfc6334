"""`headrace serve`: many pipelines behind one REST API."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

import click

from headrace.cli.terminal import stderr, verbose_option


@click.command
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    default=5115,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port; 0 chooses a free one.",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("headrace-data"),
    show_default=True,
    help="The directory of pipelines, their state and their logs.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file with the token that each request must send.",
)
@click.option(
    "--users",
    "users_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML file with users and roles.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A host name that requests may use; repeatable.",
)
@click.option(
    "--tls-cert", type=click.Path(path_type=Path, dir_okay=False), help="The TLS certificate with its chain."
)
@click.option(
    "--tls-key", type=click.Path(path_type=Path, dir_okay=False), help="The key of the certificate."
)
@click.option(
    "--master", metavar="URL", help="The Spark master of pipelines that set none; local[*] unless set."
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="The log format of the server and its pipelines; text unless set.",
)
@click.option(
    "--log-level",
    metavar="LEVELS",
    help="The log level of pipelines: debug, info, warning or error, also by area, such as "
    "info,engine=debug; info unless set.",
)
@verbose_option
def serve(
    host: str,
    port: int,
    data_dir: Path,
    token_file: Path | None,
    users_file: Path | None,
    allowed_hosts: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    master: str | None,
    log_format: Literal["text", "json"] | None,
    log_level: str | None,
    verbose: bool,
) -> None:
    """Run many pipelines behind a REST API.

    Each has a process of its own, which outlives the server: Ctrl-C and SIGTERM end the server alone, and the
    next one on the same data directory goes on with them. Without a token or users only this machine can
    reach it.
    """
    from headrace.base.errors import MissingExtraError
    from headrace.base.log_lines import ContextFormatter, JsonFormatter
    from headrace.base.secrets import Secrets
    from headrace.jobs.settings import load_settings

    try:
        from headrace.server.serve import ListenOptions
        from headrace.server.serve import serve as run_server
        from headrace.server.service import ServiceOptions
        from headrace.server.users import load_accounts
    except ModuleNotFoundError as error:
        if error.name in ("fastapi", "uvicorn", "starlette", "prometheus_client"):
            raise MissingExtraError("`headrace serve`", extra="server", package=error.name) from None
        raise
    log = load_settings(flags={"log": {"format": log_format, "level": log_level}}).log
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(Secrets()) if log.format == "json" else ContextFormatter(Secrets()))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    options = ListenOptions(
        host=host,
        port=port,
        accounts=load_accounts(token_file, users_file),
        allowed_hosts=allowed_hosts,
        certificate=tls_cert,
        key=tls_key,
    )
    run_server(
        options,
        ServiceOptions(data_dir.absolute(), master, log),
        on_address=lambda address: _say(address, as_json=log.format == "json"),
    )


def _say(address: str, *, as_json: bool) -> None:
    text = f"headrace serves at {address}"
    if as_json:
        logging.getLogger("headrace.server").info("%s", text)
    else:
        stderr().print(text, markup=False)
