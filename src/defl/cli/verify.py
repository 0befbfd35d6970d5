"""`defl verify`: do q members of a federation vouch for exactly this model?"""

import json
import sys
from pathlib import Path

import click

import defl
from defl.cli.exit_codes import ExitCode

EXAMPLES = """
Example:

\b
  defl verify model.safetensors certificate.json federation.toml

Needs no network and no node. Exit code 0: proven; 1: not proven, and why; 2: a file is missing
or cannot be read.
"""


@click.command(epilog=EXAMPLES)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("certificate", type=click.Path(path_type=Path))
@click.argument("federation", type=click.Path(path_type=Path), metavar="FEDERATION.TOML")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def verify(model: Path, certificate: Path, federation: Path, as_json: bool) -> None:
    """Check offline that a quorum of members vouches for exactly these bytes.

    MODEL is a .safetensors file and CERTIFICATE its round certificate, both as a node writes them.
    """
    proof = defl.verify(model, certificate, federation)
    click.echo(json.dumps(proof.as_json(), indent=1) if as_json else str(proof))
    sys.exit(ExitCode.DONE if proof else ExitCode.FAILED)
