"""The `defl` command: its groups, and how errors become exit codes.

Each subcommand lives in a file of its own and is imported only when it is asked for, so that
`defl --help` and the start of a node stay quick.

What the exit codes mean is in exit_codes.py.
"""

import importlib
import sys

import click

import defl
from defl.cli.exit_codes import ExitCode, exit_code
from defl.errors import DeflError

COMMANDS: dict[str, str] = {
    "bench": "defl.cli.bench:bench",
    "clean": "defl.cli.clean:clean",
    "completion": "defl.cli.completion:completion",
    "data": "defl.cli.data:data",
    "demo": "defl.cli.demo:demo",
    "export": "defl.cli.export:export",
    "federation": "defl.cli.federation:federation",
    "new": "defl.cli.new:new",
    "node": "defl.cli.serve:node",
    "paper": "defl.cli.paper:paper",
    "run": "defl.cli.run:run",
    "sim": "defl.cli.sim:sim",
    "verify": "defl.cli.verify:verify",
}


class LazyGroup(click.Group):
    """A group whose commands are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, attribute = COMMANDS[cmd_name].split(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{COMMANDS[cmd_name]} is not a command")
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(defl.__version__, prog_name="defl")
def cli() -> None:
    """Federated learning with no server and nobody to trust."""


def main() -> None:
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.Abort:
        sys.exit(ExitCode.INTERRUPTED)
    except click.ClickException as wrong:
        wrong.show()
        sys.exit(wrong.exit_code)
    except DeflError as wrong:
        click.echo(f"Error: {wrong}", err=True)
        sys.exit(exit_code(wrong))


if __name__ == "__main__":
    main()
