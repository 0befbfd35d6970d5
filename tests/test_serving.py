"""A peer that asks for chunks without end is served a bounded number at a time."""

from defl.ids import NodeId
from defl.node.serving import CHUNKS_PER_PEER_MAX, Serving


def test_one_peer_gets_so_many_chunks_at_a_time_and_others_are_not_affected() -> None:
    serving = Serving()
    greedy, modest = NodeId(1), NodeId(2)
    begun = [serving.begin(greedy) for _ in range(100)]

    assert sum(begun) == CHUNKS_PER_PEER_MAX
    assert serving.begin(modest)


def test_what_was_sent_makes_room_for_the_next() -> None:
    serving = Serving()
    while serving.begin(NodeId(1)):
        pass
    serving.end(NodeId(1))

    assert serving.begin(NodeId(1))
    assert not serving.begin(NodeId(1))
