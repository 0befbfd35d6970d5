"""`defl export`: a node's model as a file that other programs read."""

import json
import sys
from pathlib import Path

import click

from defl.errors import UserError
from defl.node.report.export import described, kept_model, proven_model, write_export
from defl.node.setup.requirements import all_hold

EXAMPLES = """
Examples:

\b
  defl export alice model.npz                 the newest model of the node in alice/
  defl export alice model.pt --check          as a torch state dict, if a quorum vouches for it
  defl export alice round-7.npz --round 7     one of the rounds that the node keeps

A .pt file is loaded with torch.load(path, weights_only=True).

Exit code 0: written; 1: not proven, and nothing was written; 2: it cannot be done as asked, and the
message says what to do.
"""


@click.command(epilog=EXAMPLES)
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--round", "round_", type=int, help="Of this round, if the node keeps it.")
@click.option("--check", is_flag=True, help="Only a model that a quorum vouches for.")
@click.option("--certificate", type=click.Path(path_type=Path), help="Of a SOURCE that is a file.")
@click.option("--federation", type=click.Path(path_type=Path), help="Of a SOURCE that is a file.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def export(
    source: Path,
    output: Path,
    round_: int | None,
    check: bool,
    certificate: Path | None,
    federation: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write a model as .safetensors, .npz or a torch state dict (.pt, .pth).

    SOURCE is a node's folder or a .safetensors file that a node wrote; the name of OUTPUT decides
    the format.
    """
    if check and round_ is not None:
        raise UserError(
            "a node keeps the proof of its newest proven round alone: leave --round out"
        )
    proof: str | None = None
    if check:
        model, checks = proven_model(source, certificate, federation)
        proof = checks[-1].detail
        if not all_hold(checks):
            for item in checks:
                click.echo(item.line, err=True)
            click.echo("NOT PROVEN: nothing was written", err=True)
            sys.exit(1)
    else:
        model = kept_model(source, round_)
    write_export(output, model, force=force)
    told = {**model.metadata, "output": str(output), "proof": proof, "entries": described(model)}
    if as_json:
        click.echo(json.dumps(told, indent=1))
        return
    click.echo(
        f"{output}: the model of round {model.metadata.get('round', 'unknown')}, "
        f"{len(model.arrays)} entries\n  {model.metadata.get('digest', '')}"
    )
    if proof is not None:
        click.echo(f"  {proof}")
