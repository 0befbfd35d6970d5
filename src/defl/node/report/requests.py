"""Requests of an operator to the running node: to propose a change of the membership, to approve
one or to withdraw that. The node checks each against its own state and says why it refuses.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from defl.changes import CHANGE_BYTES_MAX, OPERATIONS_MAX, Change, Operation
from defl.committee import Federation
from defl.errors import UserError
from defl.ids import OUTSIDER, Digest, NodeId, Round
from defl.node.report.changes import cards_of
from defl.node.setup.identity import card_defect
from defl.output import ApproveChange, Propose
from defl.succession import refusal

if TYPE_CHECKING:
    from defl.participant import Participant

# A CHANGE has at most 8,192 bytes; JSON takes four thirds of that, and a little more.
REQUEST_BODY_BYTES_MAX = 2 * CHANGE_BYTES_MAX


class ProposeRequest(Struct, frozen=True, tag="propose"):
    operations: tuple[Operation, ...]  # none withdraws the last proposal


class ApproveRequest(Struct, frozen=True, tag="approve"):
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    withdraw: bool = False


Request = ProposeRequest | ApproveRequest
OnRequest = Callable[[Request], None]  # raises a UserError that says why not

_decoder: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)


def encode_request(request: Request) -> bytes:
    return msgspec.json.encode(request)


def decode_request(data: bytes) -> Request:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"not a request of this release: {error}") from error


def change_of(member: NodeId, operations: tuple[Operation, ...]) -> Digest:
    """The digest that this member's proposal has in the log."""
    return Change(Round(1), member, operations, b"").digest


def event_of(request: Request, participant: "Participant") -> Propose | ApproveChange:
    """The event that does what is asked; a UserError says why the node does not."""
    _require_member(participant)
    if isinstance(request, ProposeRequest):
        _check_proposal(request.operations, participant)
        return Propose(request.operations)
    digest = Digest(bytes.fromhex(request.digest))
    _check_approval(digest, participant, withdraw=request.withdraw)
    return ApproveChange(digest, agrees=not request.withdraw)


def _require_member(participant: "Participant") -> None:
    federation, state = participant.federation, participant.state
    if participant.me == OUTSIDER:
        raise UserError(
            "this node is no member of the present epoch, and only members propose and approve; "
            "ask the operator of a member"
        )
    if (reason := participant.replica.observing) is not None:
        raise UserError(
            f"this node signs nothing ({reason}); ask another member to propose a new key for it"
        )
    if state.round >= federation.rounds:
        raise UserError(
            f"all {federation.rounds} rounds are closed, so nothing can be changed any more; found "
            "a new federation from the last model: defl federation create --from"
        )


def _check_proposal(operations: tuple[Operation, ...], participant: "Participant") -> None:
    federation, state = participant.federation, participant.state
    if len(operations) > OPERATIONS_MAX:
        raise UserError(
            f"{len(operations)} changes at once, at most {OPERATIONS_MAX} are allowed; propose the "
            "others when these have taken effect"
        )
    proposal = Change(Round(1), participant.me, operations, bytes(64))
    if len(msgspec.msgpack.encode(proposal)) > CHANGE_BYTES_MAX:
        raise UserError(
            f"the cards are too long for one proposal of {CHANGE_BYTES_MAX} bytes; propose fewer"
        )
    _check_cards(federation, operations)
    if reason := refusal(federation, Round(state.round + 1), list(operations)):
        raise UserError(f"this can never take effect: {reason}")


def _check_approval(digest: Digest, participant: "Participant", *, withdraw: bool) -> None:
    change = participant.state.change(digest)
    if change is None or not change.operations:
        raise UserError(
            "no such change is pending any more: it was withdrawn or replaced, or has lapsed"
        )
    if withdraw:
        return  # of an approval in the log, or of one that is on its way there
    if participant.me in change.approvals:
        raise UserError("this node has approved it already")
    _check_cards(participant.federation, change.operations)


def _check_cards(federation: Federation, operations: tuple[Operation, ...]) -> None:
    """The log checks signatures alone; a card must also be one that nodes can connect to."""
    for card in cards_of(operations):
        if defect := card_defect(card, federation.origin):
            raise UserError(f"{card.name}'s card cannot be used: {defect}")
