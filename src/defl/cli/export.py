"""`defl export`: a node's model as a file that other programs read, or the federation's lineage."""

import json
import sys
from pathlib import Path

import click

from defl.clients.prior import PRIOR_ENTRY
from defl.clients.state_dict import prior_path, write_prior
from defl.errors import UserError
from defl.node.report.export import (
    ExportedModel,
    RoundChoice,
    described,
    kept_model,
    proven_model,
    write_export,
    write_whole,
)
from defl.node.report.lineage_file import read_lineage
from defl.node.setup.requirements import all_hold
from defl.proofs import export_lineage

EXAMPLES = """
Examples:

\b
  defl export alice model.npz                 the newest model of the node in alice/
  defl export alice model.pt --check          as a torch state dict, if a quorum vouches for it
  defl export alice round-7.npz --round 7     one of the rounds that the node keeps
  defl export alice best.npz --round best     the best one, if node.toml sets keep_best
  defl export alice lineage.json --lineage    the proof of every round, for defl verify --lineage

A .pt file is loaded with model.load_state_dict(torch.load(path, weights_only=True)).

A classifier that corrects for its class prior has one more entry, defl.prior: the log of this
site's class frequencies. Without it the model gives the shared logits; add it to them to predict
at this site. It is in the .npz or .safetensors file, and beside a .pt file in MODEL.prior.pt.

Entries that stay local, such as batch norm's counters, have this node's own values; the digest and
the proof cover the shared entries. --shared-only leaves the local ones out.

A lineage holds no weights: the members of each epoch, each round's certificate, and so who took
part in which round. A node that was away, or that joined late, misses certificates of some rounds;
another member's lineage completes its own: --complete-from FILE.

Exit code 0: written; 1: not proven, nothing was written; 2: it cannot be carried out as asked, and
the message says what to do.
"""
STATE_DICTS = (".pt", ".pth")  # files that a module loads, which refuses entries it does not have


@click.command(epilog=EXAMPLES)
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@click.option(
    "--round", "round_", metavar="N|best", help="The model of this round, if the node keeps it."
)
@click.option("--shared-only", is_flag=True, help="Leave out the entries that stay local.")
@click.option("--check", is_flag=True, help="Export only if a quorum vouches for the model.")
@click.option("--certificate", type=click.Path(path_type=Path), help="For a SOURCE that is a file.")
@click.option("--federation", type=click.Path(path_type=Path), help="For a SOURCE that is a file.")
@click.option("--lineage", is_flag=True, help="Write the proof of every round instead of a model.")
@click.option(
    "--complete-from",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --lineage: another member's, for rounds that this node missed.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def export(
    source: Path,
    output: Path,
    round_: str | None,
    shared_only: bool,
    check: bool,
    certificate: Path | None,
    federation: Path | None,
    lineage: bool,
    complete_from: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write a model as .safetensors, .npz or a torch state dict (.pt, .pth).

    SOURCE is a node's folder or a .safetensors file that a node wrote; the name of OUTPUT decides
    the format. With --lineage, OUTPUT is a JSON file that proves every round, and SOURCE a node's
    folder; the node may be running.
    """
    if lineage:
        _refuse_options(round_, shared_only, check, certificate, federation)
        _export_lineage(source, output, complete_from, force=force, as_json=as_json)
        return
    if complete_from is not None:
        raise UserError("--complete-from completes a lineage; add --lineage")
    choice = _round_choice(round_)
    proof: str | None = None
    if check:
        model, checks = proven_model(
            source, certificate, federation, choice, shared_only=shared_only
        )
        proof = checks[-1].detail
        if not all_hold(checks):
            for item in checks:
                click.echo(item.line, err=True)
            click.echo("NOT PROVEN: nothing was written", err=True)
            sys.exit(1)
    else:
        model = kept_model(source, choice, shared_only=shared_only)
    prior = _write(output, model, force=force)
    if as_json:
        report = {
            **model.metadata,
            "output": str(output),
            "prior": None if prior is None else str(prior),
            "proof": proof,
            "entries": described(model),
            "local": model.local,
        }
        click.echo(json.dumps(report, indent=1))
        return
    entries = "1 entry" if len(model.arrays) == 1 else f"{len(model.arrays)} entries"
    local = f", {len(model.local)} of them this node's own" if model.local else ""
    click.echo(
        f"{output}: the model of round {model.metadata.get('round', 'unknown')}, "
        f"{entries}{local}\n  {model.metadata.get('digest', '')}"
    )
    if proof is not None:
        click.echo(f"  {proof}")
    if prior is not None:
        click.echo(
            f"  {PRIOR_ENTRY} in {prior} is this site's class prior: the model gives shared "
            "logits, and with the prior added to them this site's own"
        )


def _write(output: Path, model: ExportedModel, *, force: bool) -> Path | None:
    """Write the model; return the file with this site's class prior, or None without one."""
    if PRIOR_ENTRY not in model.arrays:
        write_export(output, model, force=force)
        return None
    if output.suffix not in STATE_DICTS:
        write_export(output, model, force=force)
        return output
    beside = prior_path(output)
    if beside.exists() and not force:  # before the model is written
        raise UserError(f"{beside} exists; choose another name, or overwrite it with --force")
    write_export(output, model, force=force)
    write_whole(beside, lambda path: write_prior(path, model.arrays), force=force)
    return beside


def _refuse_options(*given: object) -> None:
    if any(given):
        raise UserError(
            "--lineage takes no option of a model; combine it with --complete-from, --force, --json"
        )


def _export_lineage(
    source: Path, output: Path, complete_from: Path | None, *, force: bool, as_json: bool
) -> None:
    other = None if complete_from is None else read_lineage(complete_from)
    proof = export_lineage(source, output, other, force=force)
    size = output.stat().st_size
    if as_json:
        click.echo(json.dumps({**proof.as_json(), "output": str(output), "bytes": size}, indent=1))
        return
    click.echo(f"{output}: the lineage, {size} bytes")
    for item in proof.checks:
        click.echo(f"  {item.line}")


def _round_choice(text: str | None) -> RoundChoice:
    if text is None:
        return None
    try:
        return "best" if text == "best" else int(text)
    except ValueError:
        raise UserError(f"--round {text!r}: write a round's number, or best") from None
