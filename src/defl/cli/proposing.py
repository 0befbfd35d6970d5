"""Bringing a change of the membership into the log: ask the node, wait, and say what came of it."""

import json
import sys
from typing import Any

import click

from defl.changes import Operation
from defl.cli.change_text import (
    DIGEST_CHARACTERS,
    counts_text,
    operation_lines,
    review_json,
    review_text,
    reviews_of,
)
from defl.cli.exit_codes import ExitCode
from defl.cli.running_node import (
    Outcome,
    Present,
    RunningNode,
    has_approval,
)
from defl.ids import Digest
from defl.node.report.changes import counts_after, counts_of
from defl.node.report.requests import ProposeRequest, change_of

WAIT_S = 60.0
NOT_RECORDED = {
    Outcome.LAPSED: (
        "a new epoch began before this was recorded, and changes of the old one lapse; look at "
        "the members (defl federation show) and propose it again"
    ),
    Outcome.NOT_YET: (
        "the log has not recorded it yet: a quorum of members must be connected (defl node "
        "status). The node goes on trying in each round until it ends; look again with: defl "
        "federation changes"
    ),
    Outcome.NO_ANSWER: (
        "the node has stopped answering before the log recorded it; start it, look with defl "
        "federation changes, and ask again if it is not there"
    ),
}

timeout_option = click.option(
    "--timeout", "timeout_s", default=WAIT_S, show_default=True, metavar="SECONDS",
    help="How long to wait for the log.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object, no text.")


def propose_and_wait(
    node: RunningNode,
    present: Present,
    operations: tuple[Operation, ...],
    timeout_s: float,
    *,
    as_json: bool,
) -> None:
    digest = change_of(present.me, operations)
    tell = silent if as_json else click.echo
    for line in operation_lines(present, operations):
        tell(line)
    before, after = counts_of(present.federation), counts_after(present.federation, operations)
    tell(counts_text(before, after))
    node.send(ProposeRequest(operations))
    if _changed_this_round(present):
        tell("this member's earlier proposal is replaced when the open round closes")
    outcome, present = node.await_log(
        present, operations, lambda report: has_approval(report, digest), timeout_s, tell
    )
    conclude(outcome, present, digest, as_json=as_json)


def _changed_this_round(present: Present) -> bool:
    """A member proposes once per round."""
    report = present.report
    return any(c.author == report.me and c.round > report.round for c in report.changes)


def conclude(outcome: Outcome, present: Present, digest: Digest, *, as_json: bool) -> None:
    epoch = present.federation.epoch
    if outcome is Outcome.EFFECTIVE:
        text = f"it has taken effect: epoch {epoch} has begun, {counts_of(present.federation)}"
        show({"recorded": True, "in_effect": True, "epoch": epoch}, text, as_json=as_json)
        return
    if outcome is not Outcome.RECORDED:
        not_recorded(outcome, as_json=as_json)
    review = next(r for r in reviews_of(present) if r.digest == digest.hex())
    summary = {"recorded": True, "in_effect": False, **review_json(present, review)}
    text = f"recorded in the members' log:\n{review_text(present, review)}"
    if any("approval" in missing for missing in review.missing):
        text += (
            "\n\nthe others approve it at their nodes: defl federation approve NODE "
            f"{review.digest[:DIGEST_CHARACTERS]}"
        )
    show(summary, text, as_json=as_json)


def not_recorded(outcome: Outcome, *, as_json: bool) -> None:
    reason = NOT_RECORDED[outcome]
    if as_json:
        click.echo(json.dumps({"recorded": False, "reason": reason}, indent=1))
    else:
        click.echo(reason, err=True)
    sys.exit(ExitCode.FAILED)


def show(summary: dict[str, Any], text: str, *, as_json: bool) -> None:
    click.echo(json.dumps(summary, indent=1) if as_json else text)


def silent(_text: str) -> None:
    """JSON on stdout stands alone."""
