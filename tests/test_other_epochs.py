"""How often a peer of another epoch is told where this node is, or how the epoch ended."""

from defl.ids import NodeId
from defl.other_epochs import PEERS_MAX, OtherEpochs


def test_a_peer_of_another_epoch_is_told_once_per_period() -> None:
    others, peer = OtherEpochs(period_s=2.0), NodeId(1)

    assert others.may_tell(peer, 0, now=10.0)
    assert not others.may_tell(peer, 0, now=11.9)
    assert others.may_tell(peer, 0, now=12.0)
    assert others.may_tell(NodeId(2), 0, now=12.0)


def test_a_peer_that_has_moved_on_is_told_at_once() -> None:
    others, peer = OtherEpochs(period_s=2.0), NodeId(1)
    others.may_tell(peer, 0, now=10.0)

    assert others.may_tell(peer, 1, now=10.1)
    assert others.may_tell(peer, 2, now=10.2)


def test_a_peer_that_shows_old_epochs_in_turn_is_told_once_per_period() -> None:
    """Its frames are short, and handovers are long."""
    others, peer = OtherEpochs(period_s=2.0), NodeId(1)
    told = [others.may_tell(peer, frame % 2, now=10.0 + frame / 1000) for frame in range(1000)]

    assert told == [True, True, *[False] * 998], "once for each epoch, as if it had moved on"
    assert others.may_tell(peer, 0, now=13.0)
    assert not others.may_tell(peer, 1, now=13.1)


def test_a_clock_that_was_set_back_does_not_silence_a_node() -> None:
    others = OtherEpochs(period_s=2.0)
    others.may_tell(NodeId(1), 0, now=1000.0)

    assert others.may_tell(NodeId(1), 0, now=3.0)


def test_so_many_peers_are_remembered_and_no_more() -> None:
    others = OtherEpochs(period_s=2.0)
    for peer in range(PEERS_MAX + 1):
        assert others.may_tell(NodeId(peer), 0, now=10.0)

    assert not others.may_tell(NodeId(1), 0, now=10.0)
    assert others.may_tell(NodeId(0), 0, now=10.0), "the oldest is forgotten"
