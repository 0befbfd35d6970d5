"""The `defl` command: its groups, and how errors become exit codes.

Each subcommand lives in a file of its own and is imported only when it is called, so that
`defl --help` and the start of a node stay quick. exit_codes.py says what the exit codes mean.
"""

import importlib
import sys
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

import defl
from defl.cli.exit_codes import ExitCode, exit_code
from defl.errors import DeflError
from defl.printable import printable_lines


class LazyCommand(NamedTuple):
    place: str  # module:attribute
    short_help: str  # the first sentence of the command's own help, so that help imports nothing


COMMANDS = {
    "bench": LazyCommand(
        "defl.cli.bench:bench",
        "Measure the speed of rules, rounds and commits, memory, robustness and waiting.",
    ),
    "clean": LazyCommand(
        "defl.cli.clean:clean", "Delete the folders that earlier runs left behind."
    ),
    "completion": LazyCommand(
        "defl.cli.completion:completion", "Print the lines that teach a shell to complete `defl`."
    ),
    "dashboard": LazyCommand(
        "defl.cli.dashboard:dashboard",
        "Show a node, or all nodes of a run, as a web page; read-only.",
    ),
    "data": LazyCommand(
        "defl.cli.data:data", "List, fetch and show the data sets of the experiments."
    ),
    "demo": LazyCommand(
        "defl.cli.demo:demo",
        "Train on handwritten digits with an attacker among real nodes on this machine.",
    ),
    "export": LazyCommand(
        "defl.cli.export:export",
        "Write a model as .safetensors, .npz or a torch state dict (.pt, .pth).",
    ),
    "federation": LazyCommand(
        "defl.cli.changes:federation",
        "Found a federation, show it, and change its members, keys and rounds.",
    ),
    "new": LazyCommand(
        "defl.cli.new:new",
        "Create a small, complete project in the folder NAME: client, data, settings, README, "
        "test.",
    ),
    "node": LazyCommand("defl.cli.joining:node", "Set up and run your organisation's node."),
    "paper": LazyCommand(
        "defl.cli.paper:paper",
        "Measure the paper's tables and figures and compare them with its numbers.",
    ),
    "relay": LazyCommand(
        "defl.cli.relay:relay",
        "Connect members that can only dial: a relay passes on bytes that it cannot read.",
    ),
    "run": LazyCommand(
        "defl.cli.run:run",
        "Run a whole federation on this machine: real processes, TLS and disks.",
    ),
    "sim": LazyCommand(
        "defl.cli.sim:sim",
        "Run a whole federation on a virtual clock, with faults and liars, and check it.",
    ),
    "verify": LazyCommand(
        "defl.cli.verify:verify",
        "Check offline that a quorum of members vouches for exactly these bytes.",
    ),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's own
        return sorted(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - likewise
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name].place.split(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{COMMANDS[cmd_name].place} is not a command")
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - likewise
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].short_help) for name in sorted(COMMANDS)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        commands = [
            CompletionItem(name, help=COMMANDS[name].short_help)
            for name in sorted(COMMANDS)
            if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(defl.__version__, prog_name="defl")
def cli() -> None:
    """Federated learning without a server and without a trusted party."""


def main() -> None:
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.Abort:
        sys.exit(ExitCode.INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except DeflError as error:
        click.echo(f"Error: {printable_lines(str(error))}", err=True)
        sys.exit(exit_code(error))


if __name__ == "__main__":
    main()
