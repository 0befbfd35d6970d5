"""`defl federation create` and `show`: the agreed file, made from the members' cards and explained.

`show` of a node's folder explains the present epoch instead.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from msgspec.structs import replace

from defl.cards import Card, Reach
from defl.cli.agreed_facts import agreed_facts, charter_of
from defl.cli.proven_start import draft_from
from defl.clients.protocol import schema_of
from defl.committee import Federation, Member
from defl.errors import UserError
from defl.founding import found
from defl.node.relay.dependence import relay_dependence
from defl.node.setup.agreement import INITIAL_FILE, membership_of, read_federation
from defl.node.setup.assemble import (
    read_cards,
    read_relay_cards,
    read_weights,
    require_new,
    roles_of_patterns,
    weights_by_name,
    write_agreement,
)
from defl.node.setup.config import read_node
from defl.node.setup.facts_text import (
    closing_votes,
    consensus_lines,
    requirement_lines,
    shares_of_all,
    weight_lines,
)
from defl.node.setup.fingerprint import fingerprint
from defl.node.setup.present import present_facts
from defl.node.setup.requirements import coverage, require_conditions, requirements_of
from defl.printable import printable
from defl.schema import Codec

CREATE_EXAMPLES = """
Examples:

\b
  defl federation create *.card.toml --model task:client --project . -o federation.toml
  defl federation create *.card.toml --model start.safetensors --rounds 50 -o federation.toml
  defl federation create *.card.toml --model start.npz --role '*running_var=variance' \\
      -o federation.toml
  defl federation create *.card.toml --model task:client --weight alice=18 --weight bob=2 \\
      -o federation.toml
  defl federation create *.card.toml --model task:client --relay r1.relay.toml \\
      -o federation.toml
  defl federation create *.card.toml --from proven.safetensors round-certificate.json \\
      old/federation.toml -o federation.toml

Exit code 0: written; 2: not written, and the message says what to change.
"""
SHOW_EXAMPLES = """
Examples:

\b
  defl federation show federation.toml
  defl federation show alice

Exit code 0: shown; 2: there is no federation file or node of that name.
"""
ENTRIES_SHOWN_MAX = 8
BYTES_OF_A_SLOW_SECOND = 12_500_000  # at 100 Mbit/s


@click.group()
def federation() -> None:
    """Found a federation, show it, and change its members, keys and rounds."""


@federation.command(epilog=CREATE_EXAMPLES)
@click.argument(
    "cards", nargs=-1, required=True, metavar="CARD...", type=click.Path(path_type=Path)
)
@click.option("--model", help="A client (module:attribute), .safetensors or .npz.")
@click.option(
    "--from",
    "proven",
    nargs=3,
    type=click.Path(path_type=Path),
    metavar="MODEL CERTIFICATE FEDERATION.TOML",
    help="Go on from another federation's proven model.",
)
@click.option(
    "--lineage",
    type=click.Path(path_type=Path),
    help="With --from: proves the old members, if they had changed.",
)
@click.option(
    "--project", default=".", type=click.Path(path_type=Path), help="Folder of the client."
)
@click.option(
    "--role", "roles", multiple=True, metavar="NAME=ROLE", help="Role of entries; * matches."
)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The file to write."
)
@click.option(
    "--relay",
    "relays",
    multiple=True,
    metavar="CARD",
    type=click.Path(path_type=Path),
    help="A relay's card (defl relay init); several are better.",
)
@click.option(
    "--weight",
    "weights",
    multiple=True,
    metavar="NAME=N",
    help="How much this member counts in the mean, 1 to 1,000; default 1. May be repeated.",
)
@click.option("--rounds", default=10, show_default=True, help="Rounds of training.")
@agreed_facts
@click.option("--strict", is_flag=True, help="Refuse facts that no theorem covers.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def create(
    cards: tuple[Path, ...],
    model: str | None,
    proven: tuple[Path, Path, Path] | None,
    lineage: Path | None,
    project: Path,
    roles: tuple[str, ...],
    output: Path,
    relays: tuple[Path, ...],
    weights: tuple[str, ...],
    rounds: int,
    strict: bool,
    force: bool,
    as_json: bool,
    **facts: Any,
) -> None:
    """Assemble the members' cards and the agreed facts into one file.

    The initial weights are written beside it; give both to every member. The same cards, weights
    and options always produce the same bytes, in whatever order the cards are named.

    Updates that the rule keeps count by the members' weights, capped so that the f heaviest hold
    at most a third; `defl federation show` prints the shares.

    With --from the initial weights are a model that a quorum of the old federation vouches for, and
    facts that you do not name are the old ones, except rounds, faults_max and members' weights.
    """
    require_new(output, force=force)
    members = read_cards(cards)
    relay_cards = read_relay_cards(relays, members)
    agreed_weights = weights_by_name(weights)
    if (model is None) == (proven is None):
        raise UserError("name the initial weights: either --model or --from, not both")
    if proven is not None:
        if roles:
            raise UserError("--role goes with --model; --from keeps the old federation's roles")
        given = frozenset(name for name in facts if _is_given(name))
        draft, row = draft_from(proven, lineage, charter_of(facts), given)
    else:
        arrays, own_roles = read_weights(model or "", project)
        schema = schema_of(arrays, {**own_roles, **roles_of_patterns(roles, list(arrays))})
        draft = replace(charter_of(facts), schema=schema)
        row = schema.flatten(arrays)
    membership = membership_of(members, rounds=rounds, weights=agreed_weights)
    founding = found(draft, membership, row)
    require_conditions(founding.federation, strict=strict)
    agreement = write_agreement(output, founding, members, relay_cards)
    agreed = agreement.federation
    if as_json:
        click.echo(json.dumps(_json(agreed, agreement.relays), indent=1))
        return
    click.echo(f"Wrote {output} and {output.parent / INITIAL_FILE}; give both to every member.\n")
    click.echo(_text(agreed, agreement.relays))


def _is_given(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source is not ParameterSource.DEFAULT


@federation.command(epilog=SHOW_EXAMPLES)
@click.argument("file", metavar="FEDERATION.TOML|NODE", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def show(file: Path, as_json: bool) -> None:
    """Show members, tolerated faults, proven guarantees, costs and the fingerprint.

    A file says how the federation began; the folder of a node says who its members are now.
    """
    agreement = read_federation(file / read_node(file).federation if file.is_dir() else file)
    facts = present_facts(file) if file.is_dir() else agreement.federation
    relays = agreement.relays
    click.echo(json.dumps(_json(facts, relays), indent=1) if as_json else _text(facts, relays))


def _json(facts: Federation, relays: tuple[Card, ...]) -> dict[str, object]:
    committee = facts.committee
    active = [facts.members[i] for i in committee.members]
    return {
        "id": facts.chain.hex(),
        "fingerprint": fingerprint(facts.chain),
        "epoch": facts.epoch,
        "origin": facts.origin.hex(),
        "members": [
            {
                "name": member.name,
                "address": member.address,
                "reach": member.reach.value,
                "relay": member.relay,
                "key": member.key.hex(),
                "weight": member.weight,
                "share": float(share),
            }
            for member, share in zip(active, shares_of_all(facts), strict=True)
        ],
        "departed": [member.name for member in facts.members if not member.active],
        "relays": [
            {"name": card.name, "address": card.address, "key": card.key.hex()} for card in relays
        ],
        "relayed": relay_dependence(facts, relays).json,
        "n": committee.size,
        "f": committee.faults,
        "quorum": committee.quorum,
        "faults_max": facts.updates_faults_max,
        "aggregation": facts.aggregation,
        "rules": facts.rules.value,
        "agg_quorum": closing_votes(facts),
        "rounds": facts.rounds,
        "tau": facts.tau,
        "codec": facts.codec.value,
        "values": facts.schema.values,
        "initial": facts.initial.hex(),
        "coverage": [check.json for check in coverage(facts)],
        "requirements": asdict(requirements_of(facts)),
    }


def _where(member: Member) -> str:
    if member.reach is Reach.DIAL:
        return "only dials"
    return member.address + ("  relays" if member.relay else "")


def _relay_lines(facts: Federation, relays: tuple[Card, ...]) -> list[str]:
    lines = relay_dependence(facts, relays).lines
    return [f"{'' if place else 'relays':<13}{line}" for place, line in enumerate(lines)]


def _labelled(lines: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{name:<13}{text}" for name, text in lines]


def _text(facts: Federation, relays: tuple[Card, ...]) -> str:
    n, f = facts.committee.size, facts.committee.faults
    width = max(len(member.name) for member in facts.members) + 2
    departed = [member.name for member in facts.members if not member.active]
    requires = requirements_of(facts)
    lines = [
        f"fingerprint  {fingerprint(facts.chain)}",
        (
            "             compare it with the others on the phone before you start"
            if facts.epoch == 0
            else f"             of epoch {facts.epoch}, which began with round {facts.first_round}"
        ),
        "",
        f"{n} members; up to f = {f} may be Byzantine",
        *(
            f"  {i:<3}{facts.members[i].name:<{width}}{_where(facts.members[i])}"
            for i in facts.committee.members
        ),
        *([f"  left: {', '.join(departed)}"] if departed else []),
        *(f"  relay {card.name}  {card.address}" for card in relays),
        "",
        *_labelled(consensus_lines(facts)[:1]),
        *_relay_lines(facts, relays),
        *_labelled(consensus_lines(facts)[1:-1]),
        *_labelled(weight_lines(facts)),
        *_labelled(consensus_lines(facts)[-1:]),
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
        *(f"  {name:<9}{text}" for name, text in requirement_lines(facts)),
    ]
    if facts.codec == Codec.FP32 and requires.sent_bytes_per_round > BYTES_OF_A_SLOW_SECOND:
        lines.append("           a quarter of it with --codec int8: for links below 100 Mbit/s")
    return "\n".join(lines)
