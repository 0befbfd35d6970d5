"""For tests of storage: a boundary between two epochs of the small federation."""

from msgspec.structs import replace

from defl.committee import Federation
from defl.contacts import Former
from defl.ids import Round
from defl.ledger import decode_state
from defl.messages import StoreAck
from defl.output import Persist, Switch
from defl.participant_parts import first_record_of
from defl.succession import next_membership
from support.stores import SMALL, record

HANDOVER = SMALL.handover()
STATE = decode_state(HANDOVER.snapshot.state)


def switch_of() -> Switch:
    """From epoch 0 to epoch 1."""
    state = STATE
    membership = next_membership(SMALL.federation, state.round, state.changes, state.ready)
    assert membership is not None
    former = (Former(SMALL.federation.members[3], Round(1)),)
    return Switch(membership, state.closed, former, HANDOVER)


SWITCH = switch_of()
NEXT = Federation(SMALL.federation.charter, SWITCH.membership)


def ack(round_: int, author: int = 0) -> StoreAck:
    return SMALL.ack(1, SMALL.offer(author, round_, SMALL.blob(round_)[0]))


# What a node holds in the middle of an epoch.
BEFORE = Persist(
    record=record(3),
    blocks=(SMALL.block(), SMALL.block(view=2)),
    acks=(ack(1), ack(2)),
    offer=SMALL.offer(1, 1, SMALL.blob(1)[0]),
)
# The boundary's one write, with the first things of the next epoch.
BOUNDARY = Persist(
    record=first_record_of(NEXT, SWITCH.closed),
    model=(Round(1), SMALL.blob(3)[0]),
    acks=(ack(2, author=2),),
    offer=SMALL.offer(1, 2, SMALL.blob(2)[0]),
    switch=SWITCH,
)
AFTER = Persist(record=replace(first_record_of(NEXT, SWITCH.closed), observing="later"))
