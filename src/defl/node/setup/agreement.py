"""federation.toml: what the founders agree on, byte for byte.

It is typed and complete, and unknown keys are refused. The federation's id covers every byte of the
file, so two files that differ in a comment are two federations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from defl.cards import RELAY_ORIGIN, Card
from defl.committee import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    AggQuorum,
    Charter,
    Federation,
    Membership,
    Rules,
    Timing,
    member_of,
    require_weight,
)
from defl.errors import UserError
from defl.fields import MEMBERS_MAX, WEIGHT_DEFAULT
from defl.founding import check_founded
from defl.ids import Digest, NodeId, digest_of
from defl.node.setup.identity import (
    card_of,
    card_text,
    require_distinct,
)
from defl.node.setup.typed_toml import parse, quoted, read_bytes
from defl.schema import Codec, Entry, Schema

INITIAL_FILE = "initial.safetensors"  # the initial weights, beside federation.toml
# A member that only dials keeps two connections open at each relay for each other such member.
RELAYS_MAX = 8


@dataclass(frozen=True, slots=True)
class Agreement:
    federation: Federation
    cards: tuple[Card, ...]  # one per member, in the members' order
    text: bytes  # the file, byte for byte
    relays: tuple[Card, ...] = ()  # which are no members

    def member(self, key: bytes) -> NodeId | None:
        keys = self.federation.committee.keys
        return NodeId(keys.index(key)) if key in keys else None


class _Model(Struct, frozen=True, forbid_unknown_fields=True):
    initial: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    entries: tuple[Entry, ...]


class _FederationFile(Struct, frozen=True, forbid_unknown_fields=True):
    """No defaults: a later version could change them, and the agreed facts with them."""

    rounds: int
    tau: int
    rules: Rules
    agg_quorum: AggQuorum
    aggregation: str
    faults_max: int
    codec: Codec
    chunk_bytes: Annotated[int, Meta(ge=CHUNK_BYTES_MIN, le=CHUNK_BYTES_MAX)]
    timing: Timing
    model: _Model
    # Bounded here, before the signature of each card is verified.
    members: Annotated[tuple[dict[str, Any], ...], Meta(max_length=MEMBERS_MAX)]
    relays: Annotated[tuple[dict[str, Any], ...], Meta(max_length=RELAYS_MAX)] = ()


def membership_of(
    cards: Sequence[Card], *, rounds: int, weights: Mapping[str, int] | None = None
) -> Membership:
    """The members that found a federation, with weights by name. Later ones are in its log."""
    agreed = weights or {}
    names = [card.name for card in cards]
    if unknown := [name for name in agreed if name not in names]:
        raise UserError(
            f"a weight is for {unknown[0]!r}, but no member has this name; there are: "
            f"{', '.join(names)}"
        )
    members = tuple(member_of(card, agreed.get(card.name, WEIGHT_DEFAULT)) for card in cards)
    return Membership(rounds=rounds, members=members)


def _without_weight(fields: dict[str, Any], source: str) -> tuple[dict[str, Any], int]:
    if "weight" not in fields:
        raise UserError(f"{source}: the key 'weight' is missing; add it")
    require_weight(fields["weight"], source)
    return {key: value for key, value in fields.items() if key != "weight"}, fields["weight"]


def read_federation(path: Path) -> Agreement:
    hint = "defl federation create writes it; ask another member for it"
    text = read_bytes(path, hint)
    file = parse(text, _FederationFile, path)
    sources = [f"{path}, member {index + 1}" for index in range(len(file.members))]
    tables = list(map(_without_weight, file.members, sources))
    cards = tuple(
        card_of(fields, source) for (fields, _), source in zip(tables, sources, strict=True)
    )
    weights = {card.name: weight for card, (_, weight) in zip(cards, tables, strict=True)}
    relay_sources = [f"{path}, relay {index + 1}" for index in range(len(file.relays))]
    relays = tuple(
        card_of(fields, source, RELAY_ORIGIN)
        for fields, source in zip(file.relays, relay_sources, strict=True)
    )
    require_distinct((*cards, *relays), (*sources, *relay_sources))
    try:
        charter = Charter(
            Schema(file.model.entries),
            Digest(bytes.fromhex(file.model.initial)),
            tau=file.tau,
            rules=file.rules,
            agg_quorum=file.agg_quorum,
            aggregation=file.aggregation,
            faults_max=file.faults_max,
            codec=file.codec,
            chunk_bytes=file.chunk_bytes,
            timing=file.timing,
            document=digest_of(text),
        )
        federation = Federation(charter, membership_of(cards, rounds=file.rounds, weights=weights))
        check_founded(federation)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return Agreement(federation, cards, text, relays)


def federation_text(
    federation: Federation, cards: Sequence[Card], relays: Sequence[Card] = ()
) -> str:
    """The file's text; the same facts always give the same bytes."""
    timing = federation.timing
    size, faults = federation.committee.size, federation.committee.faults
    entries = "".join(
        f"  {{ name = {quoted(entry.name)}, shape = {list(entry.shape)}, "
        f"dtype = {quoted(entry.dtype)}, role = {quoted(entry.role)} }},\n"
        for entry in federation.schema.entries
    )
    weights = [member.weight for member in federation.members]
    members = "".join(
        _card_table("members", card, f"weight = {weight}\n")
        for card, weight in zip(cards, weights, strict=True)
    )
    if relays:
        members += (
            "\n# Relays: machines of nobody's that connect members that can only dial. They see\n"
            "# encrypted bytes alone.\n"
        )
        members += "".join(_card_table("relays", card) for card in relays)
    return f"""\
# What the founders of this federation agree on; later members and keys are in its log. Every byte
# counts, comments too: the hash of this file is part of the federation's id, and nodes with
# different files refuse each other.
# Compare the fingerprint on the phone: defl federation show federation.toml

rounds = {federation.rounds}          # rounds of learning
tau = {federation.tau}             # rounds whose weights every member keeps
rules = {quoted(federation.rules)}   # consensus: "hotstuff" (three-chain) or "jolteon" (two-chain)
agg_quorum = {quoted(federation.agg_quorum)}  # who closes a round: "quorum" (n - f) or "paper" (f + 1)
aggregation = {quoted(federation.aggregation)}
faults_max = {federation.updates_faults_max}      # Byzantine updates that the aggregation rule is told to tolerate,
                    # at most f = {faults} of n = {size}
codec = {quoted(federation.codec)}      # how updates travel: {", ".join(quoted(c) for c in Codec)}
chunk_bytes = {federation.chunk_bytes}

[timing]            # how fast things go, never what is agreed
view_base_s = {timing.view_base_s}   # a view of consensus is given up after this ...
view_cap_s = {timing.view_cap_s}   # ... each time a little later, up to this
gst_lt_min_s = {timing.gst_lt_min_s}  # GST_LT: how long a round is kept open for members, at least ...
gst_lt_max_s = {timing.gst_lt_max_s}  # ... and at most; in between, twice what a member usually needs
grace_s = {timing.grace_s}      # how long a finished node goes on serving the others

[model]
# The digest of the initial weights, which lie beside this file as {INITIAL_FILE}.
initial = "{federation.initial.hex()}"
# Roles: trainable (judged and averaged), statistic and variance (averaged alike, not judged),
# local (never leaves its node), memory (what the aggregation rule remembers; no client sees it).
entries = [
{entries}]

# The members: how much each one's updates weigh in the mean, relative to the others' and capped,
# and its card, signed by its key. A card states no weight.
{members}"""  # noqa: E501 - a comment belongs on the line of its key


def _card_table(table: str, card: Card, agreed: str = "") -> str:
    lines = (line for line in card_text(card).splitlines() if line[:1] != "#")
    return f"\n[[{table}]]\n{agreed}" + "".join(f"{line}\n" for line in lines)


def write_federation(
    path: Path, federation: Federation, cards: Sequence[Card], relays: Sequence[Card] = ()
) -> Agreement:
    """Write the file and read it back, so that the result is what every member will read."""
    path.write_bytes(federation_text(federation, cards, relays).encode())
    return read_federation(path)
