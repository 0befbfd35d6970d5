"""`defl federation propose`, `changes` and `approve`: how members and keys change.

A command asks the running node of this organisation. The node signs, and the members' log decides.
"""

import json
import sys
from pathlib import Path
from typing import Any

import click

from defl.changes import Add, Operation, Remove, ReplaceKey, Rounds
from defl.cli.change_text import (
    DIGEST_CHARACTERS,
    changes_json,
    changes_text,
    counts_text,
    operation_lines,
    review_json,
    review_text,
    reviews_of,
)
from defl.cli.exit_codes import ExitCode
from defl.cli.federation import federation
from defl.cli.running_node import (
    Outcome,
    Present,
    RunningNode,
    has_approval,
    has_no_proposal,
)
from defl.errors import UserError
from defl.ids import Digest, NodeId, Round
from defl.node.report.changes import Review, counts_after, counts_of
from defl.node.report.requests import ApproveRequest, ProposeRequest, change_of
from defl.node.setup.config import read_card_file
from defl.printable import printable
from defl.succession import PendingChange

WAIT_S = 60.0

PROPOSE_EXAMPLES = """
Examples:

\b
  defl federation propose alice --add eve.join.toml
  defl federation propose alice --remove dan
  defl federation propose alice --replace-key bob.join.toml --rounds 200
  defl federation propose alice --withdraw

Exit code 0: recorded in the members' log; 1: not recorded in time; 2: refused, and the message
says why.
"""
CHANGES_EXAMPLES = """
Example:

\b
  defl federation changes alice

Exit code 0: shown; 2: the node is not running.
"""
APPROVE_EXAMPLES = """
Example:

\b
  defl federation approve alice 3f9a01

Exit code 0: recorded in the members' log; 1: not recorded in time; 2: refused, and the message
says why; 130: you said no.
"""

node_argument = click.argument("folder", metavar="NODE", type=click.Path(path_type=Path))
timeout_option = click.option(
    "--timeout", "timeout_s", default=WAIT_S, show_default=True, metavar="SECONDS",
    help="How long to wait for the log.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object, no text.")


@federation.command(epilog=PROPOSE_EXAMPLES)
@node_argument
@click.option("--add", "added", multiple=True, metavar="CARD", help="A new member's .join.toml.")
@click.option("--remove", "removed", multiple=True, metavar="NAME", help="A member that goes.")
@click.option(
    "--replace-key", "replaced", multiple=True, metavar="CARD",
    help="A member's new key: the .join.toml of its new machine.",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=1), help="Another last round.")
@click.option("--withdraw", is_flag=True, help="Withdraw this node's pending proposal.")
@timeout_option
@json_option
def propose(
    folder: Path,
    added: tuple[str, ...],
    removed: tuple[str, ...],
    replaced: tuple[str, ...],
    rounds: int | None,
    withdraw: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Propose a change of members, keys or rounds; all parts of it take effect, or none.

    A proposal counts as this member's approval. It replaces this member's earlier one, and it
    lapses when another change takes effect first.
    """
    node = RunningNode(folder)
    present = node.present()
    operations: tuple[Operation, ...] = (
        *(Add(read_card_file(Path(card), node.origin.chain)) for card in added),
        *(Remove(member_named(present, name)) for name in removed),
        *(_replacement(present, Path(card), node.origin.chain) for card in replaced),
        *([Rounds(Round(rounds))] if rounds is not None else []),
    )
    if withdraw == bool(operations):
        raise UserError(
            "say what to propose (--add, --remove, --replace-key, --rounds), or --withdraw alone"
        )
    if withdraw:
        _withdraw(node, present, timeout_s, as_json=as_json)
    else:
        propose_and_wait(node, present, operations, timeout_s, as_json=as_json)


def member_named(present: Present, name: str) -> NodeId:
    members = present.federation.members
    for place, member in enumerate(members):
        if member.name == name:
            return NodeId(place)
    there = ", ".join(printable(member.name) for member in members if member.active)
    raise UserError(f"no member is named {name!r}; there are: {there}")


def _replacement(present: Present, path: Path, origin: Digest) -> ReplaceKey:
    card = read_card_file(path, origin)
    if all(member.name != card.name for member in present.federation.members):
        raise UserError(
            f"{path}: no member is named {card.name!r}, so no key can be replaced; propose a new "
            "member with --add, or let its owner make a node with the member's name"
        )
    return ReplaceKey(member_named(present, card.name), card)


def propose_and_wait(
    node: RunningNode,
    present: Present,
    operations: tuple[Operation, ...],
    timeout_s: float,
    *,
    as_json: bool,
) -> None:
    digest = change_of(present.me, operations)
    tell = _silent if as_json else click.echo
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
    _conclude(outcome, present, digest, as_json=as_json)


def _changed_this_round(present: Present) -> bool:
    """A member proposes once per round."""
    report = present.report
    return any(c.author == report.me and c.round > report.round for c in report.changes)


def _withdraw(node: RunningNode, present: Present, timeout_s: float, *, as_json: bool) -> None:
    if has_no_proposal(present.report):
        raise UserError("this member has no pending proposal; there is nothing to withdraw")
    tell = _silent if as_json else click.echo
    node.send(ProposeRequest(()))
    outcome, _ = node.await_log(present, (), has_no_proposal, timeout_s, tell)
    if outcome in (Outcome.RECORDED, Outcome.LAPSED):
        _show({"withdrawn": True}, "withdrawn", as_json=as_json)
        return
    _not_recorded(outcome, as_json=as_json)


@federation.command(epilog=CHANGES_EXAMPLES)
@node_argument
@json_option
def changes(folder: Path, as_json: bool) -> None:
    """Show the pending changes: who proposed and approved them, and what each still lacks."""
    present = RunningNode(folder).present()
    _show(changes_json(present), changes_text(present), as_json=as_json)


@federation.command(epilog=APPROVE_EXAMPLES)
@node_argument
@click.argument("prefix", metavar="DIGEST-PREFIX")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@timeout_option
@json_option
def approve(folder: Path, prefix: str, yes: bool, timeout_s: float, as_json: bool) -> None:
    """Approve a pending change, after showing what it does to n, f and the quorums.

    DIGEST-PREFIX is the beginning of its digest, as `defl federation changes` prints it.
    """
    if as_json and not yes:
        raise UserError("--json asks nothing, so add --yes")
    node = RunningNode(folder)
    present = node.present()
    review = _review(present, prefix)
    change = _change(present, review)
    if present.me in change.approvals:
        raise UserError("this member has approved it already; look with: defl federation changes")
    tell = _silent if as_json else click.echo
    tell(review_text(present, review))
    if not yes:
        click.confirm("Approve this change?", abort=True)
    node.send(ApproveRequest(review.digest))
    outcome, present = node.await_log(
        present,
        change.operations,
        lambda report: has_approval(report, change.digest),
        timeout_s,
        tell,
    )
    _conclude(outcome, present, change.digest, as_json=as_json)


def _review(present: Present, prefix: str) -> Review:
    shown = reviews_of(present)
    wanted = [review for review in shown if review.digest.startswith(prefix.lower())]
    if len(wanted) == 1 and prefix:
        return wanted[0]
    listed = "\n".join(
        f"  {review.digest[:DIGEST_CHARACTERS]}  {printable(', '.join(review.operations))}"
        for review in wanted or shown
    )
    if not shown:
        raise UserError("no change is pending; it may have lapsed, or has taken effect already")
    if not wanted:
        raise UserError(f"no pending change begins with {prefix!r}; there are:\n{listed}")
    raise UserError(f"more than one change begins with {prefix!r}; write more of it:\n{listed}")


def _change(present: Present, review: Review) -> PendingChange:
    return next(c for c in present.report.changes if c.digest.hex() == review.digest)


def _conclude(outcome: Outcome, present: Present, digest: Digest, *, as_json: bool) -> None:
    epoch = present.federation.epoch
    if outcome is Outcome.EFFECTIVE:
        text = f"it has taken effect: epoch {epoch} has begun, {counts_of(present.federation)}"
        _show({"recorded": True, "in_effect": True, "epoch": epoch}, text, as_json=as_json)
        return
    if outcome is not Outcome.RECORDED:
        _not_recorded(outcome, as_json=as_json)
    review = next(r for r in reviews_of(present) if r.digest == digest.hex())
    summary = {"recorded": True, "in_effect": False, **review_json(present, review)}
    text = f"recorded in the members' log:\n{review_text(present, review)}"
    if any("approval" in missing for missing in review.missing):
        text += (
            "\n\nthe others approve it at their nodes: defl federation approve NODE "
            f"{review.digest[:DIGEST_CHARACTERS]}"
        )
    _show(summary, text, as_json=as_json)


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


def _not_recorded(outcome: Outcome, *, as_json: bool) -> None:
    reason = NOT_RECORDED[outcome]
    if as_json:
        click.echo(json.dumps({"recorded": False, "reason": reason}, indent=1))
    else:
        click.echo(reason, err=True)
    sys.exit(ExitCode.FAILED)


def _show(summary: dict[str, Any], text: str, *, as_json: bool) -> None:
    click.echo(json.dumps(summary, indent=1) if as_json else text)


def _silent(_text: str) -> None:
    """JSON on stdout stands alone."""
