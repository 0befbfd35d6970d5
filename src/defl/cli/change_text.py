"""Changes of the membership as text, and as JSON, for the commands that show them."""

from msgspec import to_builtins

from defl.changes import Add, Operation, Remove
from defl.cli.running_node import Present
from defl.node.report.changes import Counts, Review, cards_of, counts_of, in_words, name_of, reviews
from defl.node.setup.facts_text import share_of_newcomer
from defl.node.setup.fingerprint import card_fingerprint, fingerprint
from defl.printable import printable

DIGEST_CHARACTERS = 12
LABEL_COLUMNS = 13


def head_text(present: Present) -> str:
    facts, report = present.federation, present.report
    return (
        f"epoch {facts.epoch}, {report.round} of {facts.rounds} rounds closed; {counts_of(facts)}\n"
        f"{_line('fingerprint', fingerprint(facts.chain))}"
    )


def reviews_of(present: Present) -> list[Review]:
    report = present.report
    return reviews(present.federation, report.round, report.changes, report.ready)


def changes_text(present: Present) -> str:
    shown = reviews_of(present)
    if not shown:
        return f"{head_text(present)}\n\nno change is pending"
    return "\n\n".join([head_text(present), *(review_text(present, review) for review in shown)])


def review_text(present: Present, review: Review) -> str:
    before = counts_of(present.federation)
    lines = [
        (
            f"{review.digest[:DIGEST_CHARACTERS]}  proposed by {printable(review.author)} in round "
            f"{review.round}"
        ),
        *operation_lines(present, _operations(present, review)),
        counts_text(before, review.after),
        _line("approved by", f"{', '.join(map(printable, review.approvals))}{_needed(review)}"),
    ]
    if review.withdrawn:
        lines.append(_line("withdrawn by", f"{', '.join(map(printable, review.withdrawn))}"))
    if review.missing:
        lines += [
            _line("missing" if place == 0 else "", printable(missing))
            for place, missing in enumerate(review.missing)
        ]
    else:
        lines.append(
            _line(
                "missing", f"nothing: it takes effect when round {present.report.round + 1} closes"
            )
        )
    return "\n".join(lines)


def counts_text(before: Counts, after: Counts) -> str:
    return _line("members", f"{before}  ->  {after}")


def _needed(review: Review) -> str:
    return f"; {review.needs} are needed" if review.needs > 1 else "; nobody else has to"


def operation_lines(present: Present, operations: tuple[Operation, ...]) -> list[str]:
    """Each operation with what a careful operator looks at before agreeing to it."""
    lines = []
    for operation in operations:
        lines.append(_line("", printable(in_words(present.federation, operation))))
        lines += [
            _line("", f"  its card: {card_fingerprint(card)}; compare it on the phone")
            for card in cards_of((operation,))
        ]
        if isinstance(operation, Add) and (
            share := share_of_newcomer(present.federation, operations, operation)
        ):
            lines.append(_line("", f"  {share}"))
        if isinstance(operation, Remove):
            lines += [_line("", f"  {text}") for text in evidence_texts(present, operation)]
    return lines


def evidence_texts(present: Present, operation: Remove) -> list[str]:
    if operation.member == present.report.me:
        return []
    found = [
        f"it signed two contradicting {known.kind} statements in epoch {known.epoch}"
        for known in present.report.evidence
        if known.member == operation.member
    ]
    name = printable(name_of(present.federation, operation.member))
    return found or [f"this node has no evidence against {name}"]


def changes_json(present: Present) -> dict[str, object]:
    facts, report = present.federation, present.report
    return {
        "epoch": facts.epoch,
        "id": facts.chain.hex(),
        "fingerprint": fingerprint(facts.chain),
        "round": report.round,
        "rounds": facts.rounds,
        **to_builtins(counts_of(facts)),
        "unsent": report.unsent,
        "changes": [review_json(present, review) for review in reviews_of(present)],
    }


def review_json(present: Present, review: Review) -> dict[str, object]:
    operations = _operations(present, review)
    return {
        **to_builtins(review),
        "cards": {card.name: card_fingerprint(card) for card in cards_of(operations)},
        "evidence": {
            name_of(present.federation, operation.member): evidence_texts(present, operation)
            for operation in operations
            if isinstance(operation, Remove)
        },
    }


def _operations(present: Present, review: Review) -> tuple[Operation, ...]:
    changes = present.report.changes
    return next(c.operations for c in changes if c.digest.hex() == review.digest)


def _line(label: str, text: str) -> str:
    return f"  {label:<{LABEL_COLUMNS}}{text}"
