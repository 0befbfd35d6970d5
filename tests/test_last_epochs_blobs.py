"""What a member still needs of the last epoch: its blobs, from whom, and until when."""

from collections.abc import Iterator

from msgspec.structs import replace

from defl.committee import Federation
from defl.contacts import FORMER_FROM
from defl.ids import NodeId, Round
from defl.messages import ManifestRequest
from defl.output import ClosedRound, Envelope, Output, Received, Tick, Trained
from defl.participant import Participant
from defl.pool.pool import Pool
from support.benches import ME, ClientBench
from support.builders import Small
from support.switches import SWITCH

LEAVER = NodeId(FORMER_FROM)


def second_epoch(bench: ClientBench) -> None:
    """It begins with round 2; one that was a member in the first has left."""
    federation = bench.small.federation
    membership = replace(federation.membership, epoch=1, first_round=2)
    bench.client.enter(
        Federation(federation.charter, membership), ME, bench.finish, leavers=(LEAVER,)
    )


def asked(bench: ClientBench) -> Iterator[NodeId]:
    """Whom the pool asks for a manifest while nobody answers."""
    for second in range(120):
        bench.at(float(second))
        bench.pool.send_due(float(second))
        for item in bench.pool.take().send:
            if isinstance(item, Envelope) and isinstance(item.message, ManifestRequest):
                yield from item.to or ()


def test_a_leaver_is_asked_for_a_blob_of_the_epoch_that_it_was_in() -> None:
    """If all others lost power, it may be the only one that has it."""
    bench = ClientBench()
    bench.close_round(1, 2, 3, now=0.0)
    second_epoch(bench)

    assert LEAVER in set(asked(bench))


def test_leavers_are_needed_until_the_update_trained_from_their_last_round_is_offered() -> None:
    """Only then is the model of that round synced: a power cut may take it before."""
    bench = ClientBench()
    bench.to_round(1, now=0.0)
    second_epoch(bench)
    assert bench.client.model(Round(1)) is not None
    assert not bench.client.can_do_without_leavers

    bench.at(1.0)
    manifest, _ = bench.small.blob(1, bench.model.digest)
    bench.client.trained(Trained(Round(2), manifest), 2.0)

    assert bench.client.can_do_without_leavers


def test_a_restarted_member_keeps_the_updates_that_the_last_epoch_closed() -> None:
    """No ack of the new epoch names them."""
    small = Small(real=False)
    manifest, _ = small.blob(1)
    stray, _ = small.blob(2)
    reference = replace(SWITCH.closed[-1].updates[0], digest=manifest.digest)
    closed = ClosedRound(Round(1), manifest.digest, manifest.base, (reference,), 0, 1)
    durable = small.durable()
    every = frozenset(range(len(manifest.chunks)))
    durable.held = (*durable.held, (manifest, every), (stray, every))
    durable.switch = replace(SWITCH, closed=(closed,))

    pool = Pool(small.federation, ME, small.signers[ME], durable, Round(1))

    assert pool.has(manifest.digest)
    assert pool.take().drop == [stray.digest]


def test_a_member_that_catches_up_waits_for_the_next_handover_before_it_fetches() -> None:
    small = Small()
    participant = Participant(small.federation, ME, small.signers[ME], small.durable())
    participant.handle(Tick(), 0.0)

    at_once = participant.handle(Received(NodeId(2), small.handover()), 1.0)
    later = participant.handle(Tick(), 1.0 + small.federation.timing.view_base_s)

    assert participant.epoch == 1
    assert not manifests_requested(at_once)
    assert manifests_requested(later)


def manifests_requested(output: Output) -> int:
    return sum(
        isinstance(item, Envelope) and isinstance(item.message, ManifestRequest)
        for item in output.send
    )
