"""Which node of a pair dials: one table."""

import pytest

from defl.ids import NodeId
from defl.node.net.who_dials import Part, dials, part_of

MEMBER, LATER_MEMBER, LAST_MEMBER, GUEST, OUTSIDER = map(NodeId, (0, 1, 99, 100, 999))


@pytest.mark.parametrize(
    ("me", "peer", "expected"),
    [
        (MEMBER, LATER_MEMBER, True),
        (LATER_MEMBER, MEMBER, False),
        (MEMBER, LAST_MEMBER, True),
        (MEMBER, GUEST, False),
        (LAST_MEMBER, GUEST, False),
        (OUTSIDER, MEMBER, True),
        (OUTSIDER, LAST_MEMBER, True),
        (OUTSIDER, GUEST, False),
        (GUEST, OUTSIDER, False),
    ],
)
def test_one_of_two_members_and_every_outsider_dials(
    me: NodeId, peer: NodeId, expected: bool
) -> None:
    assert dials(me, peer) is expected


def test_of_two_members_exactly_one_dials() -> None:
    members = [NodeId(i) for i in range(100)]
    for me in members:
        assert all(dials(me, peer) != dials(peer, me) for peer in members if peer != me)


@pytest.mark.parametrize(
    ("me", "peer", "part"),
    [
        (MEMBER, LATER_MEMBER, Part.DIAL),
        (LATER_MEMBER, MEMBER, Part.EXPECT),
        (OUTSIDER, MEMBER, Part.DIAL),
        (MEMBER, GUEST, Part.LISTEN),  # nobody misses it
        (OUTSIDER, GUEST, Part.LISTEN),
    ],
)
def test_a_member_that_does_not_dial_misses_other_members_only(
    me: NodeId, peer: NodeId, part: Part
) -> None:
    assert part_of(me, peer) is part
