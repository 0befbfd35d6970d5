"""Which node of a pair dials: one table."""

import pytest

from defl.ids import NodeId
from defl.node.net.who_dials import dials

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
