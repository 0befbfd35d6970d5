"""A federation's agreed facts in words, for `defl federation show` and the dashboard."""

from collections.abc import Iterable
from fractions import Fraction

from defl.aggregation.shares import capped_shares
from defl.changes import Add, Operation, Remove, ReplaceKey
from defl.committee import AggQuorum, Federation, faults_of
from defl.node.setup.requirements import coverage, requirements_of
from defl.pool.weights import payload_bytes

Lines = list[tuple[str, str]]  # a label and a sentence


def facts_in_words(facts: Federation) -> Lines:
    """All of them, in the order of `defl federation show`."""
    proofs = [
        (check.name, ("" if check.holds else "NO: ") + check.detail) for check in coverage(facts)
    ]
    return [
        ("members", f"{facts.committee.size}; up to f = {facts.committee.faults} may be Byzantine"),
        *consensus_lines(facts),
        *weight_lines(facts),
        *proofs,
        *requirement_lines(facts),
    ]


def closing_votes(facts: Federation) -> int:
    """AGG votes that close a round without all updates."""
    committee = facts.committee
    return committee.quorum if facts.agg_quorum is AggQuorum.QUORUM else committee.faults + 1


def consensus_lines(facts: Federation) -> Lines:
    n, q = facts.committee.size, facts.committee.quorum
    return [
        ("consensus", f"{facts.rules}, quorum q = {q} of {n}"),
        (
            "rounds",
            (
                f"{facts.rounds}; one closes with all {n} updates, or with {q} and "
                f"{closing_votes(facts)} AGG votes"
            ),
        ),
        (
            "waiting",
            (
                f"{facts.timing.gst_lt_min_s:g} s to {facts.timing.gst_lt_max_s:g} s for members "
                "of the last round and for those that announce that they are training"
            ),
        ),
        (
            "aggregation",
            (
                f"{facts.aggregation}, configured to tolerate {facts.updates_faults_max} Byzantine "
                "updates"
            ),
        ),
        (
            "model",
            (
                f"{facts.schema.values} shared values in {len(facts.schema.shared)} of "
                f"{len(facts.schema.entries)} entries, sent as {facts.codec}: {update_share(facts)}"
            ),
        ),
    ]


def weight_lines(facts: Federation) -> Lines:
    """How much each member counts in the mean, after the cap."""
    members = [facts.members[i] for i in facts.committee.members]
    if len({member.weight for member in members}) == 1:
        return [("weights", "equal: all updates that the rule keeps count the same")]
    faults_max = facts.updates_faults_max
    total = sum(member.weight for member in members)
    lines = [
        "of the mean, if all updates are kept; "
        + ("nothing is capped" if not faults_max else f"{_heaviest(faults_max)} a third at most")
    ]
    for member, share in zip(members, shares_of_all(facts), strict=True):
        alone = Fraction(member.weight, total)
        capped = f", capped: {_percent(alone)} by weight alone" if share < alone else ""
        lines.append(f"  {member.name}: {_percent(share)} (weight {member.weight}{capped})")
    if faults_max:
        lines.append(f"  with {3 * faults_max} or fewer kept, all count the same")
    return [("" if place else "weights", line) for place, line in enumerate(lines)]


def shares_of_all(facts: Federation) -> tuple[Fraction, ...]:
    """Of the active members in the order of their ids, if the rule keeps all their updates."""
    weights = [facts.members[i].weight for i in facts.committee.members]
    return capped_shares(weights, facts.updates_faults_max)


def share_of_newcomer(
    facts: Federation, operations: Iterable[Operation], newcomer: Add
) -> str | None:
    """In words, once all these operations took effect, one of which adds it, if all updates are
    kept; None if all count the same."""
    staying = set(facts.committee.members)
    weights = [newcomer.weight]
    for operation in operations:
        match operation:
            case Add(weight=weight) if operation is not newcomer:
                weights.append(weight)
            case Remove(member=member):
                staying.discard(member)
            case ReplaceKey(member=member) if member < facts.committee.slots:
                staying.add(member)  # a departed member comes back
    weights += [facts.members[member].weight for member in staying]
    if len(set(weights)) == 1:
        return None
    faults_max = facts.charter.updates_faults_max(faults_of(len(weights)))
    return f"its share of the mean: {_percent(capped_shares(weights, faults_max)[0])}"


def _heaviest(count: int) -> str:
    return "the heaviest gets" if count == 1 else f"the {count} heaviest together get"


def _percent(share: Fraction) -> str:
    return f"{float(100 * share):.1f} %"


def update_share(facts: Federation) -> str:
    """How much of the model an update sends."""
    update = payload_bytes(facts.schema, facts.codec)
    return f"an update has {_size(update)}, the model {_size(facts.schema.model_bytes)}"


def requirement_lines(facts: Federation) -> Lines:
    """What each node needs."""
    needs = requirements_of(facts)
    return [
        ("disk", f"{_size(needs.disk_bytes)} at most: weights of tau + 3 rounds, models, log"),
        ("memory", f"{_size(needs.memory_bytes)} about, and what your training needs"),
        ("traffic", f"{_size(needs.sent_bytes_per_round)} sent per round and as much received"),
    ]


def _size(count: int) -> str:
    amount, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.3g} {unit}"
