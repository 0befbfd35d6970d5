"""`defl verify`: do q members of a federation vouch for exactly this model?"""

import json
import sys
from pathlib import Path

import click

from defl.node.report.certificate import verify_files
from defl.node.setup.config import read_federation
from defl.node.setup.requirements import all_hold

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
    agreed = read_federation(federation).federation
    checks = verify_files(agreed, model, certificate)
    proven = all_hold(checks)
    if as_json:
        found = {"proven": proven, "checks": [check.json for check in checks]}
        click.echo(json.dumps(found, indent=1))
    else:
        for check in checks:
            click.echo(check.line)
        click.echo("\nproven" if proven else "\nNOT PROVEN: do not use this model")
    sys.exit(0 if proven else 1)
