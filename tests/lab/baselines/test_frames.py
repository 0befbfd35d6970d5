"""A baseline's messages on the wire: whole or in parts, bounded, canonical."""

import msgspec
import numpy as np
import pytest
from points import World

from defl.crypto import Ed25519Signer
from defl.errors import Malformed, PeerFault, WrongAuthor
from defl.ids import NO_DIGEST, NodeId, Round
from defl.lab.baselines import fl
from defl.lab.baselines.frames import FramePart, Frames, Inbox, lane_of
from defl.lab.baselines.machine import SeatReceived
from defl.lab.baselines.ordering import LogBlock, OrderingKind, Record
from defl.node.net.framing import HEADER_BYTES, Lane

PEER = NodeId(1)


def frames(part_bytes: int = 100) -> Frames:
    return Frames(fl.Update | fl.FlModel, part_bytes=part_bytes, message_bytes_max=1000)


@pytest.mark.parametrize("size", [1, 80, 100, 900])
def test_message_survives_splitting_into_any_number_of_parts(size: int) -> None:
    message = fl.FlModel(Round(3), bytes(range(256)) * 4)
    message = fl.FlModel(Round(3), message.payload[:size])
    inbox = Inbox(frames())
    messages = [inbox.take(PEER, Lane.WEIGHTS, frame) for frame in frames().encode(message, 7)]

    assert messages[:-1] == [None] * (len(messages) - 1)
    assert messages[-1] == message
    assert lane_of(message) is Lane.WEIGHTS


def test_parts_of_different_peers_and_lanes_do_not_mix() -> None:
    inbox = Inbox(frames())
    one, two = fl.FlModel(Round(1), bytes(300)), fl.FlModel(Round(2), b"\1" * 300)
    messages = []
    for a, b in zip(frames().encode(one, 0), frames().encode(two, 0), strict=True):
        messages += [inbox.take(PEER, Lane.WEIGHTS, a), inbox.take(NodeId(2), Lane.WEIGHTS, b)]

    assert [message for message in messages if message] == [one, two]


def test_lost_part_loses_only_its_own_message() -> None:
    inbox = Inbox(frames())
    first, _, *rest = frames().encode(fl.FlModel(Round(1), bytes(300)), 0)
    inbox.take(PEER, Lane.WEIGHTS, first)
    for frame in rest:
        with pytest.raises(Malformed):
            inbox.take(PEER, Lane.WEIGHTS, frame)

    following = fl.FlModel(Round(2), bytes(300))
    messages = [inbox.take(PEER, Lane.WEIGHTS, frame) for frame in frames().encode(following, 1)]
    assert messages[-1] == following


def test_oversized_message_is_rejected_before_it_is_complete() -> None:
    inbox = Inbox(frames())
    parts = frames().encode(fl.FlModel(Round(1), bytes(2000)), 0)
    for part in parts[:10]:
        assert inbox.take(PEER, Lane.WEIGHTS, part) is None

    with pytest.raises(Malformed, match="more than 1000"):
        inbox.take(PEER, Lane.WEIGHTS, parts[10])


@pytest.mark.parametrize(
    "whole",
    [
        b"",
        b"\xc1",
        b"\x80",
        msgspec.msgpack.encode([1, 1, 0, b""]),  # no sample
        msgspec.msgpack.encode([1, -1, 1, b""]),
        msgspec.msgpack.encode([9, 1, b""]),  # no such kind
        msgspec.msgpack.encode([2, 1, b"x", b"extra"]),
        b"\x93\x02\xcd\x00\x01\xc4\x00",  # a 1 in three bytes
    ],
)
def test_bytes_that_are_not_a_message_are_malformed(whole: bytes) -> None:
    part = msgspec.msgpack.encode(FramePart(bytes(4), 0, 1, whole))
    with pytest.raises(Malformed):
        Inbox(frames()).take(PEER, Lane.WEIGHTS, part)
    with pytest.raises(Malformed):
        Inbox(frames()).take(PEER, Lane.WEIGHTS, whole)


def test_log_blocks_have_the_size_of_metadata() -> None:
    signer = Ed25519Signer(bytes(32))
    record = Record(OrderingKind.READY, Round(3), NodeId(2), NO_DIGEST, 0, signer.sign(NO_DIGEST))
    block = LogBlock(12, NO_DIGEST, record, signer.sign(NO_DIGEST))
    (frame,) = Frames(LogBlock | Record, part_bytes=4096, message_bytes_max=4096).encode(block, 0)

    assert 200 <= len(frame) + HEADER_BYTES <= 300
    assert lane_of(block) is Lane.CONTROL


def test_only_the_server_sends_models_and_only_clients_send_updates() -> None:
    world = World(fl.FlProfile())
    payload = bytes(4 * 500)

    with pytest.raises(WrongAuthor):
        world.machines[0].handle(SeatReceived(NodeId(1), fl.FlModel(Round(1), payload)), 0.0)
    with pytest.raises(WrongAuthor):
        world.machines[4].handle(SeatReceived(NodeId(4), fl.Update(Round(1), 1, payload)), 0.0)
    with pytest.raises(PeerFault):
        world.machines[4].handle(SeatReceived(NodeId(0), fl.Update(Round(1), 1, payload[1:])), 0.0)


def test_fed_avg_weights_updates_by_their_samples() -> None:
    world = World(fl.FlProfile(), rounds=1, values=2)
    server = world.machines[4]
    for node, (value, samples) in enumerate([(1.0, 1), (2.0, 2), (3.0, 3), (4.0, 4)]):
        payload = np.full(2, value, dtype="<f4").tobytes()
        output = server.handle(
            SeatReceived(NodeId(node), fl.Update(Round(1), samples, payload)), 0.0
        )

    assert output.models[0].row.tolist() == [3.0, 3.0]
