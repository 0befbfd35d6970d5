"""The running node that a command about the membership talks to."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from time import monotonic, sleep

from defl.changes import Add, Operation, Remove, ReplaceKey, Rounds
from defl.committee import Federation
from defl.errors import UserError
from defl.ids import Digest, NodeId, Round
from defl.node.report.membership import MembershipReport
from defl.node.report.requests import Request
from defl.node.report.status_client import running_membership, running_status, send_request
from defl.node.setup.agreement import read_federation
from defl.node.setup.config import read_node

POLL_S = 0.2


class Outcome(Enum):
    RECORDED = auto()  # in the log
    EFFECTIVE = auto()  # a new epoch has begun with it
    LAPSED = auto()  # a new epoch has begun without it
    NOT_YET = auto()  # the time is over; the node goes on trying
    NO_ANSWER = auto()  # the node has ended


@dataclass(frozen=True, slots=True)
class Present:
    """What the node knows at one moment."""

    federation: Federation  # the facts of the present epoch
    report: MembershipReport

    @property
    def me(self) -> NodeId:
        if self.report.me is None:
            raise UserError(
                "this node is no member of the present epoch, and only members propose and "
                "approve; ask the operator of a member"
            )
        return self.report.me


class RunningNode:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.origin = read_federation(folder / read_node(folder).federation).federation

    def present(self) -> Present:
        present = self._ask()
        if present is None:
            raise UserError(
                f"{self.folder}: the node is not running, or does not answer yet; the members "
                f"agree by their running nodes, so start it: defl node start {self.folder}"
            )
        return present

    def _ask(self) -> Present | None:
        report = running_membership(self.folder)
        if report is None:
            return None
        return Present(Federation(self.origin.charter, report.membership), report)

    def send(self, request: Request) -> None:
        send_request(self.folder, request)

    def await_log(
        self,
        since: Present,
        operations: tuple[Operation, ...],
        is_recorded: Callable[[MembershipReport], bool],
        timeout_s: float,
        tell: Callable[[str], None],
    ) -> tuple[Outcome, Present]:
        """Wait until the log has it. `operations` are what a new epoch would begin with."""
        until = monotonic() + timeout_s
        told = False
        present = since
        while True:
            asked = self._ask()
            if asked is None:
                return Outcome.NO_ANSWER, present
            present = asked
            if present.federation.epoch > since.federation.epoch:
                done = have_taken_effect(present.federation, operations)
                return (Outcome.EFFECTIVE if done else Outcome.LAPSED), present
            if is_recorded(present.report):
                return Outcome.RECORDED, present
            if monotonic() >= until:
                return Outcome.NOT_YET, present
            if not told:
                told = True
                tell(f"waiting for the log (at most {timeout_s:g} s): {self.connected()}")
            sleep(POLL_S)

    def connected(self) -> str:
        status = running_status(self.folder)
        if status is None:
            return "the node does not answer"
        return f"{sum(status.peers.values())} of {len(status.peers)} peers are connected"


def have_taken_effect(federation: Federation, operations: tuple[Operation, ...]) -> bool:
    """Does this epoch have what the operations ask for?"""
    return bool(operations) and all(_holds(federation, operation) for operation in operations)


def _holds(federation: Federation, operation: Operation) -> bool:
    committee = federation.committee
    keys = {committee.keys[member] for member in committee.members}
    match operation:
        case Add(card=card) | ReplaceKey(card=card):
            return card.key in keys
        case Remove(member=member):
            return not committee.has(member)
        case Rounds(rounds=rounds):
            return federation.rounds == rounds


def has_approval(report: MembershipReport, digest: Digest) -> bool:
    return any(
        change.digest == digest and report.me in change.approvals for change in report.changes
    )


def has_withdrawn(report: MembershipReport, digest: Digest, since: Round) -> bool:
    """Whether no approval of this member counts, in the round after `since` or later."""
    change = next((change for change in report.changes if change.digest == digest), None)
    if change is None or report.me in change.withdrawn:
        return True
    return report.me not in change.approvals and report.round > since


def has_no_proposal(report: MembershipReport) -> bool:
    return not report.unsent and not any(
        change.author == report.me and change.operations for change in report.changes
    )
