"""A federation's agreed facts in words, for `defl federation show` and the dashboard."""

from defl.committee import AggQuorum, Federation
from defl.node.setup.requirements import coverage, requirements_of

Lines = list[tuple[str, str]]  # a label and a sentence


def facts_in_words(facts: Federation) -> Lines:
    """All of them, in the order of `defl federation show`."""
    proofs = [
        (check.name, ("" if check.holds else "NO: ") + check.detail) for check in coverage(facts)
    ]
    return [
        ("members", f"{facts.committee.size}; up to f = {facts.committee.faults} may be Byzantine"),
        *consensus_lines(facts),
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
                f"{len(facts.schema.entries)} entries, sent as {facts.codec}"
            ),
        ),
    ]


def requirement_lines(facts: Federation) -> Lines:
    """What each node needs."""
    needs = requirements_of(facts)
    return [
        ("disk", f"{_size(needs.disk_bytes)} at most: weights of tau + 3 rounds, models, log"),
        ("memory", f"{_size(needs.memory_bytes)} about, with its worker"),
        ("traffic", f"{_size(needs.sent_bytes_per_round)} sent per round and as much received"),
    ]


def _size(count: int) -> str:
    amount, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.3g} {unit}"
