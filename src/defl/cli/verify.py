"""`defl verify`: do q members vouch for exactly this model, or for every round of a federation?
Did a member contradict itself?"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

import defl
from defl.cli.exit_codes import ExitCode
from defl.errors import UserError

if TYPE_CHECKING:
    from defl.node.report.evidence_file import EvidenceProof

EXAMPLES = """
Examples:

\b
  defl verify proven.safetensors round-certificate.json federation.toml
  defl verify proven.safetensors round-certificate.json federation.toml --lineage lineage.json
  defl verify federation.toml --lineage lineage.json
  defl verify federation.toml --evidence evidence-grace-vote-212.json

The second form is for a certificate that was signed after members had changed: the lineage proves
who the members were. The third checks the lineage itself: the members of each epoch, each round's
model, who contributed to it and who did not. A node's folder has it:

\b
  defl export FOLDER lineage.json --lineage

The fourth checks evidence: that a member signed two statements that exclude each other. A node
keeps it in its folder evidence/. Once members have changed, it needs the --lineage too.

federation.toml is the file that the federation began with; get it from somebody you trust. Needs no
network and no node. Exit code 0: proven; 1: not proven, and why; 2: a file is missing or cannot be
read.
"""

MODEL_FILES = 3  # model, certificate, federation.toml


@click.command(epilog=EXAMPLES)
@click.argument(
    "files",
    type=click.Path(path_type=Path),
    nargs=-1,
    required=True,
    metavar="[MODEL CERTIFICATE] FEDERATION.TOML",
)
@click.option(
    "--lineage",
    type=click.Path(path_type=Path),
    help="Proves the members of later epochs: a file, or a node's folder.",
)
@click.option(
    "--evidence",
    type=click.Path(path_type=Path),
    help="Proves that a member contradicted itself: a file of a node's folder evidence/.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def verify(
    files: tuple[Path, ...], lineage: Path | None, evidence: Path | None, as_json: bool
) -> None:
    """Check offline that a quorum of members vouches for exactly these bytes.

    MODEL is a .safetensors file and CERTIFICATE its round certificate, both as a node writes them.
    Without these two, the --lineage is checked: every round of the federation's life; or the
    --evidence against a member.
    """
    proof: defl.ModelProof | defl.LineageProof | EvidenceProof
    if len(files) == 1 and evidence is not None:
        from defl.proofs import verify_evidence  # noqa: PLC0415 - `--help` loads no verifier

        proof = verify_evidence(evidence, files[0], lineage=lineage)
    elif len(files) == MODEL_FILES and evidence is None:
        model, certificate, federation = files
        proof = defl.verify(model, certificate, federation, lineage=lineage)
    elif len(files) == 1 and evidence is None and lineage is not None:
        proof = defl.verify_lineage(lineage, files[0])
    else:
        raise UserError(
            "name a model, its certificate and federation.toml; or federation.toml alone with "
            "--lineage FILE or --evidence FILE (defl verify --help has examples)"
        )
    click.echo(json.dumps(proof.as_json(), indent=1) if as_json else str(proof))
    sys.exit(ExitCode.DONE if proof else ExitCode.FAILED)
