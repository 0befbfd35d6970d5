"""What a node that is no member waits for, as text that follows "waiting"."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from defl.contacts import PeerRole
from defl.node.report.changes import Review
from defl.node.setup.fingerprint import fingerprint
from defl.succession import wanted_keys

if TYPE_CHECKING:  # `defl run` reads statuses, and loads no machine for it
    from defl.participant import Participant

LEAVES = (
    "for a quorum of the members to show that they know that it has left; then it stops by itself"
)


def outsider_waits(participant: "Participant", pending: Sequence[Review]) -> str:
    if participant.departed:
        return "for nothing: it has left, and enough members know it"
    if participant.role is PeerRole.FORMER:
        return LEAVES
    if participant.awaits_chain:
        return (
            "for the members to show how they came to the epoch whose fingerprint you typed; so "
            f"far they led to epoch {participant.epoch}: "
            f"{fingerprint(participant.federation.chain)}. If that stays so, compare it with a "
            "member on the phone, type it again (defl node join) and restart this node"
        )
    state = participant.state
    wanted = {c.digest.hex() for c in state.changes if participant.key in wanted_keys((c,))}
    own = [review for review in pending if review.digest in wanted]
    if not own:
        return (
            "for a quorum of the members to approve it (defl federation propose, approve); they "
            "refuse its calls before"
        )
    if any(not review.missing for review in own):
        return f"for round {state.round + 1} to close; then it is a member"
    return f"for a place: {'; '.join(own[0].missing)}"
