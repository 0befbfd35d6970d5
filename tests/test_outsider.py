"""A node that is no member: what it says, and when it may go."""

import pytest

from defl.ids import Height, NodeId
from defl.messages import BlockRequest, Gossip, ManifestRequest, Message
from defl.outsider import Outsider
from defl.sim.signer import NoopSigner
from support.builders import Small, name

SMALL = Small(real=False)


@pytest.mark.parametrize(
    ("message", "guest", "former"),
    [
        (ManifestRequest(name("blob")), True, True),
        (BlockRequest(name("block"), Height(0)), True, False),  # members would count it a fault
        (Gossip((SMALL.agg(0, 1),)), False, False),
        (SMALL.vote(0, 1, name("block")), False, False),
    ],
    ids=["a blob", "the log", "a member's transaction", "a vote"],
)
def test_an_outsider_says_only_what_members_listen_to(
    message: Message, guest: bool, former: bool
) -> None:
    assert Outsider(SMALL.federation, was_member=False).may_say(message) is guest
    assert Outsider(SMALL.federation, was_member=True).may_say(message) is former


def test_only_a_former_member_departs_and_only_when_a_quorum_of_members_knows() -> None:
    guest = Outsider(SMALL.federation, was_member=False)
    former = Outsider(SMALL.federation, was_member=True)
    for member in (0, 1, 1, 77):
        former.shown(NodeId(member))
    assert not former.departed

    for member in range(4):
        guest.shown(NodeId(member))
        former.shown(NodeId(member))

    assert former.departed
    assert not guest.departed


def test_an_outsider_shows_its_status_every_view_base_s_until_it_departs() -> None:
    outsider = Outsider(SMALL.federation, was_member=True)
    period = SMALL.federation.timing.view_base_s
    assert [outsider.is_due(t) for t in (0.0, period / 2, period)] == [True, False, True]

    for member in range(3):
        outsider.shown(NodeId(member))
    assert not outsider.is_due(100.0)
    assert outsider.wake_at is None


def test_a_guest_gossips_readies_and_nothing_beside_them() -> None:
    guest = Outsider(SMALL.federation, was_member=False)
    ready = SMALL.ready(NoopSigner(name("eve's key")), 1, name("model"))

    assert guest.may_say(Gossip((ready,)))
    assert not guest.may_say(Gossip((ready, SMALL.agg(0, 1))))
