"""`defl federation propose`, `changes` and `approve`: how members and keys change.

A command asks the running node of this organisation. The node signs, and the members' log decides.
"""

import sys
from pathlib import Path

import click

from defl.changes import Add, Operation, Remove, ReplaceKey, Rounds
from defl.cli.change_text import (
    DIGEST_CHARACTERS,
    changes_json,
    changes_text,
    review_text,
    reviews_of,
)
from defl.cli.exit_codes import ExitCode
from defl.cli.federation import federation
from defl.cli.proposing import (
    conclude,
    json_option,
    not_recorded,
    propose_and_wait,
    show,
    silent,
    timeout_option,
)
from defl.cli.running_node import (
    Outcome,
    Present,
    RunningNode,
    has_approval,
    has_no_proposal,
    has_withdrawn,
)
from defl.errors import UserError
from defl.fields import NUMBER_MAX, WEIGHT_DEFAULT, WEIGHT_MAX
from defl.ids import Digest, NodeId, Round
from defl.node.report.changes import Review
from defl.node.report.requests import ApproveRequest, ProposeRequest
from defl.node.setup.config import read_card_file
from defl.printable import printable
from defl.succession import PendingChange

PROPOSE_EXAMPLES = """
Examples:

\b
  defl federation propose alice --add eve.join.toml
  defl federation propose alice --add eve.join.toml --weight 5
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
Examples:

\b
  defl federation approve alice 3f9a01
  defl federation approve alice 3f9a01 --withdraw

Exit code 0: recorded in the members' log; 1: not recorded in time, or the change took effect
before its approval was withdrawn; 2: refused, and the message says why; 130: you said no.
"""

node_argument = click.argument("folder", metavar="NODE", type=click.Path(path_type=Path))


@federation.command(epilog=PROPOSE_EXAMPLES)
@node_argument
@click.option("--add", "added", multiple=True, metavar="CARD", help="A new member's .join.toml.")
@click.option(
    "--weight", type=click.IntRange(1, WEIGHT_MAX),
    help="How much the members that are added count in the mean; default 1.",
)  # fmt: skip
@click.option("--remove", "removed", multiple=True, metavar="NAME", help="A member that goes.")
@click.option(
    "--replace-key", "replaced", multiple=True, metavar="CARD",
    help="A member's new key: the .join.toml of its new machine.",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, NUMBER_MAX), help="Another last round.")
@click.option("--withdraw", is_flag=True, help="Withdraw this node's pending proposal.")
@timeout_option
@json_option
def propose(
    folder: Path,
    added: tuple[str, ...],
    weight: int | None,
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
    if weight is not None and not added:
        raise UserError(
            "--weight goes with --add: the weight of a member never changes; other weights need a "
            "new federation (defl federation create --from)"
        )
    node = RunningNode(folder)
    present = node.present()
    weight = WEIGHT_DEFAULT if weight is None else weight
    operations: tuple[Operation, ...] = (
        *(Add(read_card_file(Path(card), node.origin.chain), weight) for card in added),
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


def _withdraw(node: RunningNode, present: Present, timeout_s: float, *, as_json: bool) -> None:
    if has_no_proposal(present.report):
        raise UserError("this member has no pending proposal; there is nothing to withdraw")
    tell = silent if as_json else click.echo
    node.send(ProposeRequest(()))
    outcome, _ = node.await_log(present, (), has_no_proposal, timeout_s, tell)
    if outcome in (Outcome.RECORDED, Outcome.LAPSED):
        show({"withdrawn": True}, "withdrawn", as_json=as_json)
        return
    not_recorded(outcome, as_json=as_json)


@federation.command(epilog=CHANGES_EXAMPLES)
@node_argument
@json_option
def changes(folder: Path, as_json: bool) -> None:
    """Show the pending changes: who proposed and approved them, and what each still lacks."""
    present = RunningNode(folder).present()
    show(changes_json(present), changes_text(present), as_json=as_json)


@federation.command(epilog=APPROVE_EXAMPLES)
@node_argument
@click.argument("prefix", metavar="DIGEST-PREFIX")
@click.option("--withdraw", is_flag=True, help="Withdraw this node's approval.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@timeout_option
@json_option
def approve(
    folder: Path, prefix: str, withdraw: bool, yes: bool, timeout_s: float, as_json: bool
) -> None:
    """Approve a pending change, after showing what it does to n, f and the quorums.

    DIGEST-PREFIX is the beginning of its digest, as `defl federation changes` prints it.

    An approval stands until you withdraw it, or until another change takes effect first. The change
    takes effect at the first close at which nothing is missing, whenever that is. With a new
    machine, that is the first close after its READY.
    """
    if as_json and not yes and not withdraw:
        raise UserError("--json asks nothing, so add --yes")
    node = RunningNode(folder)
    present = node.present()
    review = _review(present, prefix)
    change = _change(present, review)
    if withdraw:
        _withdraw_approval(node, present, change, timeout_s, as_json=as_json)
        return
    if present.me in change.approvals:
        raise UserError("this member has approved it already; look with: defl federation changes")
    tell = silent if as_json else click.echo
    tell(review_text(present, review))
    tell(
        "your approval stands until you withdraw it (--withdraw): the change takes effect at the "
        "first close at which nothing is missing, whenever that is"
    )
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
    conclude(outcome, present, change.digest, as_json=as_json)


def _withdraw_approval(
    node: RunningNode, present: Present, change: PendingChange, timeout_s: float, *, as_json: bool
) -> None:
    if present.me not in change.approvals and not present.report.unsent:
        raise UserError("this member has not approved it; there is nothing to withdraw")
    tell = silent if as_json else click.echo
    since = Round(present.report.round)
    node.send(ApproveRequest(change.digest.hex(), withdraw=True))
    outcome, present = node.await_log(
        present,
        change.operations,
        lambda report: has_withdrawn(report, change.digest, since),
        timeout_s,
        tell,
    )
    if outcome is Outcome.EFFECTIVE:
        conclude(outcome, present, change.digest, as_json=as_json)
        sys.exit(ExitCode.FAILED)
    if outcome not in (Outcome.RECORDED, Outcome.LAPSED):
        not_recorded(outcome, as_json=as_json)
    show({"withdrawn": True}, "the approval is withdrawn", as_json=as_json)


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
