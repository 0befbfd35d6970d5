"""`defl federation`: create the agreed file from the members' cards, and explain it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from defl.cli.agreed_facts import agreed_facts, charter_of
from defl.clients.protocol import schema_of
from defl.committee import AggQuorum, Federation
from defl.founding import found
from defl.node.setup.assemble import (
    read_cards,
    read_weights,
    require_new,
    roles_of_patterns,
    write_agreement,
)
from defl.node.setup.config import (
    INITIAL_FILE,
    Agreement,
    fingerprint,
    membership_of,
    read_federation,
)
from defl.node.setup.requirements import coverage, require_conditions, requirements_of
from defl.printable import printable

CREATE_EXAMPLES = """
Examples:

\b
  defl federation create *.card.toml --model task:client --project . -o federation.toml
  defl federation create *.card.toml --model start.safetensors --rounds 50 -o federation.toml
  defl federation create *.card.toml --model start.npz --role '*running_var=variance' \\
      -o federation.toml

Exit code 0: written; 2: not written, and the message says what to change.
"""
SHOW_EXAMPLES = """
Example:

\b
  defl federation show federation.toml

Exit code 0: shown; 2: the file is missing or is not a federation file.
"""
ENTRIES_SHOWN_MAX = 8


@click.group()
def federation() -> None:
    """Create and show the file that all members agree on."""


@federation.command(epilog=CREATE_EXAMPLES)
@click.argument(
    "cards", nargs=-1, required=True, metavar="CARD...", type=click.Path(path_type=Path)
)
@click.option("--model", required=True, help="A client (module:attribute), .safetensors or .npz.")
@click.option(
    "--project", default=".", type=click.Path(path_type=Path), help="Folder of the client."
)
@click.option(
    "--role", "roles", multiple=True, metavar="NAME=ROLE", help="Role of entries; * matches."
)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The file to write."
)
@click.option("--rounds", default=10, show_default=True, help="Rounds of training.")
@agreed_facts
@click.option("--strict", is_flag=True, help="Refuse facts that no theorem covers.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def create(
    cards: tuple[Path, ...],
    model: str,
    project: Path,
    roles: tuple[str, ...],
    output: Path,
    rounds: int,
    strict: bool,
    force: bool,
    as_json: bool,
    **facts: Any,
) -> None:
    """Assemble the members' cards and the agreed facts into one file.

    The initial weights are written beside it; give both to every member. The same cards, weights
    and options always produce the same bytes, in whatever order the cards are named.
    """
    require_new(output, force=force)
    members = read_cards(cards)
    weights, own_roles = read_weights(model, project)
    schema = schema_of(weights, {**own_roles, **roles_of_patterns(roles, list(weights))})
    draft = replace(charter_of(facts), schema=schema)
    membership = membership_of(members, rounds=rounds)
    founding = found(draft, membership, draft.schema.flatten(weights))
    require_conditions(founding.federation, strict=strict)
    agreement = write_agreement(output, founding, members)
    if as_json:
        click.echo(json.dumps(_json(agreement), indent=1))
        return
    click.echo(f"Wrote {output} and {output.parent / INITIAL_FILE}; give both to every member.\n")
    click.echo(_text(agreement))


@federation.command(epilog=SHOW_EXAMPLES)
@click.argument("file", metavar="FEDERATION.TOML", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def show(file: Path, as_json: bool) -> None:
    """Show members, tolerated faults, proven guarantees, costs and the fingerprint."""
    agreement = read_federation(file)
    click.echo(json.dumps(_json(agreement), indent=1) if as_json else _text(agreement))


def _json(agreement: Agreement) -> dict[str, object]:
    facts = agreement.federation
    committee = facts.committee
    return {
        "id": facts.chain.hex(),
        "fingerprint": fingerprint(facts.chain),
        "members": [
            {"name": card.name, "address": card.address, "key": card.key.hex()}
            for card in agreement.cards
        ],
        "n": committee.size,
        "f": committee.faults,
        "quorum": committee.quorum,
        "faults_max": facts.updates_faults_max,
        "aggregation": facts.aggregation,
        "rules": facts.rules.value,
        "agg_quorum": _closing(facts),
        "rounds": facts.rounds,
        "tau": facts.tau,
        "codec": facts.codec.value,
        "values": facts.schema.values,
        "initial": facts.initial.hex(),
        "coverage": [check.json for check in coverage(facts)],
        "requirements": asdict(requirements_of(facts)),
    }


def _closing(facts: Federation) -> int:
    committee = facts.committee
    return committee.quorum if facts.agg_quorum is AggQuorum.QUORUM else committee.faults + 1


def _text(agreement: Agreement) -> str:
    facts = agreement.federation
    n, f, q = facts.committee.size, facts.committee.faults, facts.committee.quorum
    width = max(len(card.name) for card in agreement.cards) + 2
    requires = requirements_of(facts)
    lines = [
        f"fingerprint  {fingerprint(facts.chain)}",
        "             compare it with the others on the phone before you start",
        "",
        f"{n} members; up to f = {f} may be Byzantine",
        *(f"  {i:<3}{card.name:<{width}}{card.address}" for i, card in enumerate(agreement.cards)),
        "",
        f"consensus    {facts.rules}, quorum q = {q} of {n}",
        (
            f"rounds       {facts.rounds}; one closes with all {n} updates, or with {q} and "
            f"{_closing(facts)} AGG votes"
        ),
        (
            f"waiting      {facts.timing.gst_lt_min_s:g} s to {facts.timing.gst_lt_max_s:g} s for "
            "members of the last round and for those that announce that they are training"
        ),
        (
            f"aggregation  {facts.aggregation}, configured to tolerate {facts.updates_faults_max} "
            "Byzantine updates"
        ),
        (
            f"model        {facts.schema.values} shared values in {len(facts.schema.shared)} of "
            f"{len(facts.schema.entries)} entries, sent as {facts.codec}"
        ),
    ]
    shown = facts.schema.entries[:ENTRIES_SHOWN_MAX]
    lines += [
        f"  {e.role:<10} {e.dtype:<8} {list(e.shape)!s:<16} {printable(e.name)}" for e in shown
    ]
    if len(facts.schema.entries) > len(shown):
        lines.append(f"  ... and {len(facts.schema.entries) - len(shown)} more")
    lines += ["", "covered by a theorem?"]
    lines += [f"  {check.line}" for check in coverage(facts)]
    lines += [
        "",
        "each node requires",
        f"  disk     {_size(requires.disk_bytes)} at most: weights of tau + 3 rounds, models, log",
        f"  memory   {_size(requires.memory_bytes)} about, with its worker",
        f"  traffic  {_size(requires.sent_bytes_per_round)} sent per round and as much received",
    ]
    return "\n".join(lines)


def _size(count: int) -> str:
    amount, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.3g} {unit}"
