"""The `headrace` command: its subcommands, how errors look, and with which code it exits.

Exit codes: 0 done · 1 failed while running · 2 the user's input has to change · 130 ended by Ctrl-C ·
143 by SIGTERM.
Every library that takes long to import is imported inside the function that needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from headrace.base.errors import HeadraceError, suggest
from headrace.cli.build import build
from headrace.cli.check import check
from headrace.cli.connectors import connectors
from headrace.cli.doctor import doctor
from headrace.cli.explain import explain
from headrace.cli.interrupts import Interruptible, exit_code_of_signal
from headrace.cli.join import join
from headrace.cli.new import new
from headrace.cli.operators import operators
from headrace.cli.record import record, replay
from headrace.cli.run import run
from headrace.cli.running import list_runs, rescale, stop, top
from headrace.cli.schema import schema
from headrace.cli.serve import serve
from headrace.cli.serving import ps, restart, up
from headrace.cli.ship_env import ship_env
from headrace.cli.state import state
from headrace.cli.submit import submit
from headrace.cli.terminal import Invocation, print_error, print_text
from headrace.cli.test import test
from headrace.cli.topics import graph, logs, topic

INTERRUPTED = 130


class CommandLine(click.Group):
    """The root of the command line: turns exceptions into messages and exit codes."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run the command and exit."""
        invocation = Invocation()
        extra |= {"standalone_mode": False, "obj": invocation}
        try:
            with Interruptible():
                result = super().main(args, prog_name, **extra)
        except click.UsageError as error:
            _print_usage_error(error)
            sys.exit(error.exit_code)
        except click.ClickException as error:
            print_text("error", error.format_message())
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            print_text("interrupted")
            sys.exit(exit_code_of_signal() or INTERRUPTED)
        except HeadraceError as error:
            if error.exit_code != 0:  # 0 is a request to stop, such as a reader that has closed the pipe
                _report(error, invocation)
            sys.exit(error.exit_code)
        except Exception as error:  # noqa: BLE001  whatever is left is a bug, and must look like one
            _report(error, invocation)
            sys.exit(1)
        sys.exit(result if isinstance(result, int) else 0)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand, or fail with a suggestion."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            hint = suggest(name, self.commands, listing="the commands are")
            ctx.fail(f"there is no command `{name}`; {hint}")
        return super().resolve_command(ctx, args)


def _report(error: Exception, invocation: Invocation) -> None:
    """Say what ended the command."""
    if invocation.logs_json:
        from headrace.base.log_lines import error_lines

        for line in error_lines(error, pipeline=invocation.pipeline, secrets=invocation.secrets):
            click.echo(line, err=True)
    else:
        print_error(error, verbose=invocation.verbose, secrets=invocation.secrets)


def _print_usage_error(error: click.UsageError) -> None:
    command = error.ctx.command_path if error.ctx else "headrace"
    message = error.format_message().rstrip(".")
    print_text("error[usage]", message[:1].lower() + message[1:], hint=f"see `{command} --help`")


@click.group(
    cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="headrace", message="headrace %(version)s")
def main() -> None:
    """Run streaming SQL, streams of Arrow operators and dataflows on Spark, exactly once.

    Settings come from flags, then from variables HEADRACE__SECTION__KEY, then from headrace.toml.
    """


for command in (
    run,
    submit,
    serve,
    up,
    ps,
    restart,
    new,
    check,
    explain,
    build,
    record,
    replay,
    join,
    list_runs,
    top,
    stop,
    rescale,
    topic,
    logs,
    graph,
    test,
    state,
    connectors,
    operators,
    schema,
    ship_env,
    doctor,
):
    main.add_command(command)
