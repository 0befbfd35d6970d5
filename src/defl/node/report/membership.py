"""The membership of the epoch that a running node is in, as its operator's commands read it.

Like the status, it is a plain value and needs no node: it travels as JSON over loopback.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from defl.committee import Membership
from defl.ids import OUTSIDER, NodeId, Round
from defl.succession import PendingChange, ReadyKey

if TYPE_CHECKING:
    from defl.participant import Participant


class MemberEvidence(Struct, frozen=True):
    """A member signed two statements that exclude each other."""

    member: NodeId
    kind: str  # the type of the statements: Vote, Upd, ...
    epoch: int


class MembershipReport(Struct, frozen=True, kw_only=True):
    membership: Membership
    me: NodeId | None  # None: this node is no member
    round: Round  # closed so far
    changes: tuple[PendingChange, ...]  # in the log's order
    ready: tuple[ReadyKey, ...]
    unsent: bool  # something that its operator asked for is not in the log yet
    evidence: tuple[MemberEvidence, ...]


Reporter = Callable[[], MembershipReport]

_decoder = msgspec.json.Decoder(MembershipReport)


def membership_report(participant: "Participant") -> MembershipReport:
    state = participant.state
    return MembershipReport(
        membership=participant.federation.membership,
        me=None if participant.me == OUTSIDER else participant.me,
        round=state.round,
        changes=state.changes,
        ready=state.ready,
        unsent=participant.changes_unsent,
        evidence=tuple(
            MemberEvidence(e.first.author, type(e.first).__name__, e.epoch)
            for e in participant.evidence
        ),
    )


def encode_membership(report: MembershipReport) -> bytes:
    return msgspec.json.encode(report)


def decode_membership(data: bytes) -> MembershipReport | None:
    """None: not the report of a node of this release."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
