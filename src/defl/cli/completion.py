"""`defl completion`: prints click's completion script for a shell."""

import json

import click
from click.shell_completion import get_completion_class

from defl.errors import UserError

EXAMPLES = """
Examples:

\b
  defl completion bash >> ~/.bashrc
  defl completion zsh >> ~/.zshrc
  defl completion fish > ~/.config/fish/completions/defl.fish

Exit code 0: printed; 2: no such shell.
"""
VARIABLE = "_DEFL_COMPLETE"


@click.command(epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.pass_context
def completion(ctx: click.Context, shell: str, as_json: bool) -> None:
    """Print the lines that teach a shell to complete `defl`."""
    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise UserError(f"the installed click cannot complete for {shell}; choose another shell")
    source = completion_class(ctx.find_root().command, {}, "defl", VARIABLE).source()
    click.echo(json.dumps({"shell": shell, "source": source}) if as_json else source)
