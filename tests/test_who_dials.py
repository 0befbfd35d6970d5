"""Which node of a pair dials: one table."""

import itertools

import pytest

from defl.cards import Reach
from defl.contacts import FORMER_FROM
from defl.ids import NodeId
from defl.node.net.who_dials import Part, part_of

MEMBER, LATER_MEMBER, LAST_MEMBER, GUEST, OUTSIDER = map(NodeId, (0, 1, 99, 100, 999))
FORMER = NodeId(FORMER_FROM)
BOTH, DIAL = Reach.BOTH, Reach.DIAL


@pytest.mark.parametrize(
    ("me", "my_reach", "peer", "its_reach", "part"),
    [
        # Two members: the lower id, or whoever cannot be dialled.
        (MEMBER, BOTH, LATER_MEMBER, BOTH, Part.DIAL),
        (LATER_MEMBER, BOTH, MEMBER, BOTH, Part.EXPECT),
        (LAST_MEMBER, BOTH, MEMBER, BOTH, Part.EXPECT),
        (LATER_MEMBER, DIAL, MEMBER, BOTH, Part.DIAL),
        (MEMBER, BOTH, LATER_MEMBER, DIAL, Part.LISTEN),
        (MEMBER, DIAL, LATER_MEMBER, DIAL, Part.MEET),
        (LATER_MEMBER, DIAL, MEMBER, DIAL, Part.MEET),
        # A guest, which may not come for a long time.
        (OUTSIDER, BOTH, MEMBER, BOTH, Part.DIAL),
        (OUTSIDER, DIAL, MEMBER, BOTH, Part.DIAL),
        (OUTSIDER, BOTH, MEMBER, DIAL, Part.LISTEN),
        (OUTSIDER, DIAL, MEMBER, DIAL, Part.MEET),
        (MEMBER, BOTH, GUEST, BOTH, Part.LISTEN),
        (LAST_MEMBER, DIAL, GUEST, BOTH, Part.DIAL),
        (MEMBER, BOTH, GUEST, DIAL, Part.LISTEN),
        (MEMBER, DIAL, GUEST, DIAL, Part.MEET),
        # A former member, which may be gone for good.
        (MEMBER, BOTH, FORMER, BOTH, Part.LISTEN),
        (MEMBER, DIAL, FORMER, BOTH, Part.LISTEN),
        (MEMBER, DIAL, FORMER, DIAL, Part.LISTEN),
        # Two outsiders.
        (OUTSIDER, BOTH, GUEST, BOTH, Part.LISTEN),
        (OUTSIDER, DIAL, GUEST, DIAL, Part.LISTEN),
    ],
)
def test_who_dials(me: NodeId, my_reach: Reach, peer: NodeId, its_reach: Reach, part: Part) -> None:
    assert part_of(me, my_reach, peer, its_reach) is part


def test_of_two_members_one_dials_unless_neither_can_be_dialled() -> None:
    for (a, b), reach_a, reach_b in itertools.product(
        itertools.combinations([NodeId(i) for i in range(100)], 2), Reach, Reach
    ):
        parts = {part_of(a, reach_a, b, reach_b), part_of(b, reach_b, a, reach_a)}
        if reach_a is reach_b is DIAL:
            assert parts == {Part.MEET}
        else:
            assert parts in ({Part.DIAL, Part.EXPECT}, {Part.DIAL, Part.LISTEN})


def test_a_member_that_cannot_be_dialled_dials() -> None:
    for peer in range(100):
        assert part_of(NodeId(50), DIAL, NodeId(peer), BOTH) is Part.DIAL
        assert part_of(NodeId(50), BOTH, NodeId(peer), DIAL) is Part.LISTEN
