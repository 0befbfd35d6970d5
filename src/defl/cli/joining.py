"""`defl node join` and `leave`: a machine asks for a place in a running federation, or leaves."""

import json
from pathlib import Path

import click

from defl.changes import Remove
from defl.cli.proposing import json_option, propose_and_wait, timeout_option
from defl.cli.running_node import RunningNode
from defl.cli.serve import node
from defl.errors import UserError
from defl.node.report.changes import counts_after, counts_of
from defl.node.setup.fingerprint import card_fingerprint
from defl.node.setup.joining import join_card_file, prepare_join
from defl.printable import printable

JOIN_EXAMPLES = """
Example:

\b
  defl node init eve --name eve --address eve.example.org:7400
  defl node join eve federation.toml --fingerprint "c9b1 4b02 ccf4 19e1 c372 b5cc 3d3b 61f2"

Exit code 0: the card is written; 2: it cannot join, and the message says why.
"""
LEAVE_EXAMPLES = """
Example:

\b
  defl node leave dan

Exit code 0: recorded in the members' log; 1: not recorded in time; 2: refused, and the message
says why.
"""


@node.command(epilog=JOIN_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("file", metavar="FEDERATION.TOML", type=click.Path(path_type=Path))
@click.option(
    "--fingerprint",
    required=True,
    help="Of the present epoch, as a member reads it to you on the phone.",
)
@click.option(
    "--lineage",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="How the members came to be the present ones; needed if no founder can be reached.",
)
@json_option
def join(folder: Path, file: Path, fingerprint: str, lineage: Path | None, as_json: bool) -> None:
    """Ask for a place in a running federation: as a new member, or as a member's new machine.

    DIR is a new node (defl node init), FEDERATION.TOML the file that the founders agreed on. A node
    with the name of a member asks to replace that member's key. A member writes the lineage with
    defl export --lineage.
    """
    agreement, card = prepare_join(folder, file, fingerprint, lineage)
    path = join_card_file(folder, card.name)
    takes_over = any(member.name == card.name for member in agreement.federation.members)
    if as_json:
        summary = {
            "card": str(path),
            "card_fingerprint": card_fingerprint(card),
            "origin": agreement.federation.chain.hex(),
            "replaces_founder": takes_over,
        }
        click.echo(json.dumps(summary, indent=1))
        return
    option = "--replace-key" if takes_over else "--add"
    name = printable(card.name)
    place = f"replace the key of {name}" if takes_over else f"add {name}"
    # federation.toml names the founders alone.
    later = "" if takes_over else f"     (--replace-key instead if {name} joined before)\n"
    click.echo(
        f"Wrote {path}, which asks the federation to {place}\n"
        f"  its fingerprint: {card_fingerprint(card)}\n"
        "Next:\n"
        f"  1. Give {path.name} to a member, who proposes it:\n"
        f"       defl federation propose THEIR-NODE {option} {path.name}\n"
        f"{later}"
        "  2. Read the card's fingerprint to the members on the phone; a quorum of them approves.\n"
        f"  3. Start this machine: defl node start {folder}\n"
        "     It follows as a guest and signs nothing but that it is ready. It is a member from\n"
        "     the next round on that closes after the approvals, once it has caught up.\n"
        "If the history that it is shown does not lead to the fingerprint that you typed, it says\n"
        "so and never says that it is ready."
    )


@node.command(epilog=LEAVE_EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@timeout_option
@json_option
def leave(folder: Path, yes: bool, timeout_s: float, as_json: bool) -> None:
    """Propose that this node leaves the federation.

    It takes effect when the open round closes, without anybody's approval if f stays the same.
    Leave the node running until it ends by itself: it serves the others until a quorum of those
    that stay knows that it has left.
    """
    if as_json and not yes:
        raise UserError("--json asks nothing, so add --yes")
    running = RunningNode(folder)
    present = running.present()
    operations = (Remove(present.me),)
    before, after = counts_of(present.federation), counts_after(present.federation, operations)
    if not as_json:
        click.echo(_explained(before.f, after.f, before.q))
    if not yes:
        click.confirm("Leave the federation?", abort=True)
    propose_and_wait(running, present, operations, timeout_s, as_json=as_json)


def _explained(before: int, after: int, quorum: int) -> str:
    when = (
        f"f sinks from {before} to {after}, so a quorum of {quorum} members must approve"
        if after < before
        else "nobody has to approve, since f stays the same"
    )
    return (
        f"Leaving takes effect when the open round closes; {when}.\n"
        "Leave the node running: it ends by itself once a quorum of those that stay knows of it."
    )
