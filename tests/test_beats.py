"""The heartbeat of a link, on virtual time."""

import asyncio
import itertools
from random import Random

import pytest

from defl.node.net.beats import (
    BEAT_S,
    NUMBERS,
    SILENT,
    SILENT_TICKS_MAX,
    UNANSWERED,
    UNANSWERED_TICKS_MAX,
    Beat,
    Heart,
    beat_of,
    header_of,
)
from defl.node.net.framing import BEAT_MESSAGES, SLICE_BYTES
from defl.node.net.letterbox import LetterboxLimits, LetterboxLink
from defl.node.net.send_queue import Frame
from support.virtual_links import (
    FRAME_BYTES_MAX,
    End,
    WireEnd,
    alone,
    clock,
    framed,
    run_virtually,
    wired,
)

HOUR_S = 3600.0


def beats(*sent: Beat) -> bytes:
    return b"".join(header_of(beat).to_bytes(4, "big") for beat in sent)


def ping(number: int) -> Beat:
    return Beat(number)


def pong(number: int) -> Beat:
    return Beat(number, is_pong=True)


def parts(sent: bytes) -> list[bytes | Beat]:
    """The frames and beats in a stream."""
    found: list[bytes | Beat] = []
    while sent:
        header = int.from_bytes(sent[:4], "big")
        beat = beat_of(header)
        end = 4 if beat is not None else 4 + header
        assert len(sent) >= end
        found.append(beat if beat is not None else sent[4:end])
        sent = sent[end:]
    return found


def longest_silence(end: End) -> float:
    times = [at for at, _ in end.wire.written]
    return max(after - before for before, after in itertools.pairwise(times))


# ---------------------------------------------------------------------- the bytes


@pytest.mark.parametrize("beat", [ping(0), pong(0), ping(7), pong(NUMBERS - 1), ping(NUMBERS - 1)])
def test_a_beat_is_a_header_that_no_frame_has(beat: Beat) -> None:
    header = header_of(beat)
    assert beat_of(header) == beat
    assert 2**31 <= header < 2**32


@pytest.mark.parametrize("length", [0, 1, FRAME_BYTES_MAX, 2**31 - 1])
def test_the_header_of_a_frame_is_no_beat(length: int) -> None:
    assert beat_of(length) is None


# ---------------------------------------------------------------------- an idle link


def test_the_round_trip_is_known_as_soon_as_the_link_is_open() -> None:
    async def scenario() -> None:
        here, there = wired(delay_s=0.05)
        here.open()
        there.open()
        assert here.link.round_trip_s is None
        await asyncio.sleep(0.11)
        assert here.link.round_trip_s == pytest.approx(0.1)
        assert there.link.round_trip_s == pytest.approx(0.1)

    run_virtually(scenario)


def test_an_idle_link_lives_for_hours_and_is_never_quiet_for_longer_than_a_beat() -> None:
    async def scenario() -> None:
        here, there = wired(delay_s=0.2)
        here.open()
        there.open()
        await asyncio.sleep(3 * HOUR_S)
        for end in (here, there):
            assert not end.link.closed.done()
            assert longest_silence(end) <= BEAT_S + 1e-6
            assert not end.received  # a beat is the link's own
            assert end.traffic.bytes_in == end.traffic.frames_in == 0

    run_virtually(scenario)


def test_a_longer_path_shows_in_the_next_round_trip() -> None:
    async def scenario() -> None:
        here, there = wired(delay_s=0.01)
        here.open()
        there.open()
        await asyncio.sleep(1)
        here.wire._delay_s = 0.5
        await asyncio.sleep(BEAT_S + 1)
        assert here.link.round_trip_s == pytest.approx(0.51)

    run_virtually(scenario)


# ---------------------------------------------------------------------- silence


@pytest.mark.parametrize("one_way", [False, True])
def test_a_silent_peer_ends_the_link_after_a_minute(one_way: bool) -> None:
    async def scenario() -> None:
        here, there = wired(delay_s=0.05)
        here.open()
        there.open()
        await asyncio.sleep(HOUR_S)
        there.wire.cut = True
        here.wire.cut = not one_way
        began = clock().time()
        await asyncio.wait([here.link.closed], timeout=HOUR_S)
        assert here.link.closed.done()
        assert here.link.closed.result() == SILENT == "silent for 60 s"
        assert here.link.broken is None  # no rule was broken
        silent_s = clock().time() - began
        assert SILENT_TICKS_MAX * BEAT_S - 1 <= silent_s <= (SILENT_TICKS_MAX + 1) * BEAT_S

    run_virtually(scenario)


def test_a_cut_shorter_than_a_minute_costs_no_link() -> None:
    async def scenario() -> None:
        here, there = wired(delay_s=0.05)
        here.open()
        there.open()
        for _ in range(10):
            await asyncio.sleep(61)
            here.wire.cut = there.wire.cut = True
            here.send(b"said during the cut")
            await asyncio.sleep(50)
            here.wire.heal()
            there.wire.heal()
        await asyncio.sleep(61)
        assert not here.link.closed.done()
        assert not there.link.closed.done()
        assert there.received == 10 * [b"said during the cut"]

    run_virtually(scenario)


def test_a_slow_frame_is_not_silence() -> None:
    async def scenario() -> None:
        end = alone()
        end.open()
        stream = framed(bytes(100_000))
        for start in range(0, len(stream), 1000):
            await asyncio.sleep(50)
            end.wire.receive(stream[start:][:1000])
        assert not end.link.closed.done()
        assert end.received == [bytes(100_000)]

    run_virtually(scenario)


def test_what_we_do_not_read_is_not_the_peers_silence() -> None:
    async def scenario() -> None:
        free = asyncio.Event()

        async def handle(_: Frame) -> None:
            await free.wait()

        here, there = wired()
        here.open(handle)
        there.open()
        there.send(b"this takes long")
        await asyncio.sleep(HOUR_S)
        assert not here.link.closed.done()
        there.wire.cut = True  # now it is gone, and nobody notices before we read again
        await asyncio.sleep(HOUR_S)
        assert not here.link.closed.done()
        free.set()
        await asyncio.sleep((SILENT_TICKS_MAX + 1) * BEAT_S)
        assert here.link.closed.done()

    run_virtually(scenario)


def test_a_process_that_was_suspended_finds_its_links_alive() -> None:
    async def scenario() -> None:
        here, there = wired(delay_s=0.05)
        here.open()
        there.open()
        for _ in range(5):
            await asyncio.sleep(BEAT_S * 1.5)
            clock().suspend(HOUR_S)
        await asyncio.sleep(61)
        assert not here.link.closed.done()
        assert not there.link.closed.done()

    run_virtually(scenario)


def test_a_link_that_has_ended_ticks_no_more() -> None:
    async def scenario() -> None:
        end = alone()
        end.open()
        await asyncio.sleep(1)
        end.link.abort()
        await asyncio.sleep(0)
        tick = end.link._next_tick
        assert tick is not None
        assert tick.cancelled()
        late = alone()
        late.wire.abort()
        await asyncio.sleep(0)
        late.open()  # its owner did not know
        await asyncio.sleep(HOUR_S)
        assert not late.wire.written

    run_virtually(scenario)


# ---------------------------------------------------------------------- between the frames


def test_a_beat_is_never_inside_a_frame_and_goes_ahead_of_the_queue() -> None:
    async def scenario() -> None:
        end = alone()
        end.open()
        await asyncio.sleep(1)
        end.wire.written.clear()
        end.link.pause_writing()
        large = Random(1).randbytes(3 * SLICE_BYTES)  # noqa: S311
        end.send(large)
        end.send(b"small")
        end.link.resume_writing()
        await asyncio.sleep(0)
        end.link.pause_writing()  # in the middle of the large frame
        assert len(end.sent) < len(large)
        end.wire.receive(beats(ping(5)))
        await asyncio.sleep(BEAT_S)
        end.link.resume_writing()
        await asyncio.sleep(0.1)
        assert parts(end.sent) == [large, pong(5), ping(1), b"small"]

    run_virtually(scenario)


def test_many_pings_get_one_pong() -> None:
    async def scenario() -> None:
        end = alone()
        end.open()
        await asyncio.sleep(1)
        end.wire.written.clear()
        end.link.pause_writing()  # the peer sends and does not read
        end.wire.receive(beats(*(ping(i) for i in range(10_000))))
        await asyncio.sleep(1)
        assert not end.wire.written
        end.link.resume_writing()
        await asyncio.sleep(0.1)
        assert parts(end.sent) == [pong(9_999)]
        assert not end.received

    run_virtually(scenario)


def test_a_beat_is_charged_like_many_messages() -> None:
    async def scenario() -> None:
        end = alone()
        end.open(messages_per_s=BEAT_MESSAGES, messages_burst=10 * BEAT_MESSAGES)
        end.wire.receive(beats(*(ping(i) for i in range(30))) + framed(b"vote"))
        await asyncio.sleep(10)
        assert not end.received
        await asyncio.sleep(15)
        assert end.received == [b"vote"]

    run_virtually(scenario)


def test_a_beat_before_the_hello_or_without_a_heartbeat_is_a_frame_that_is_too_long() -> None:
    async def scenario() -> None:
        early = alone()
        early.wire.receive(beats(ping(1)))
        await asyncio.sleep(0)
        assert early.link.broken is not None
        letterbox = alone()
        letterbox.open(heartbeat=False)
        await asyncio.sleep(BEAT_S * 5)
        assert not letterbox.wire.written
        assert not letterbox.link.closed.done()
        letterbox.wire.receive(beats(ping(1)))
        await asyncio.sleep(0)
        assert letterbox.link.broken is not None

    run_virtually(scenario)


def test_a_letterbox_has_no_heartbeat_and_ends_when_it_is_idle() -> None:
    async def scenario() -> None:
        end = alone()
        end.wire.receive(framed(b"hello"))
        limits = LetterboxLimits()
        opened = LetterboxLink(end.link, limits, FRAME_BYTES_MAX, lambda _: None)
        await opened.until_idle()
        assert clock().time() <= 2 * limits.letterbox_idle_s
        assert not end.wire.written

    run_virtually(scenario)


# ---------------------------------------------------------------------- the round trip


def test_a_ping_without_an_answer_is_repeated_and_its_time_goes_on() -> None:
    heart = Heart()
    assert heart.beats(100.0) == [ping(1)]
    assert heart.tick(reading=True) is None
    assert heart.beats(120.0) == [ping(1)]
    heart.take(pong(1), 125.0)
    assert heart.round_trip_s == 25.0
    heart.take(pong(1), 130.0)  # the answer to the second one
    assert heart.round_trip_s == 25.0
    heart.tick(reading=True)
    assert heart.beats(140.0) == [ping(2)]


@pytest.mark.parametrize("reads", [True, False])
def test_a_link_of_short_frames_that_lets_bytes_through_but_no_answer_ends(reads: bool) -> None:
    """A relay may pass on a byte now and then, so that the link is never silent. Or the peer reads
    nothing, so that our pings wait here."""
    heart = Heart(short_frames=True)
    for tick in range(UNANSWERED_TICKS_MAX):
        if reads:
            heart.beats(BEAT_S * tick)
        heart.heard = True
        ended = heart.tick(reading=True)
        assert ended == (UNANSWERED if tick + 1 == UNANSWERED_TICKS_MAX else None)


def test_an_answer_on_its_way_behind_a_long_frame_is_waited_for() -> None:
    heart = Heart()
    for tick in range(10 * UNANSWERED_TICKS_MAX):
        heart.beats(BEAT_S * tick)
        heart.heard = True
        assert heart.tick(reading=True) is None


def test_while_we_do_not_read_no_answer_is_missed() -> None:
    heart = Heart(short_frames=True)
    for tick in range(10 * UNANSWERED_TICKS_MAX):
        heart.beats(BEAT_S * tick)
        assert heart.tick(reading=False) is None


def test_late_answers_keep_a_link_of_short_frames() -> None:
    heart = Heart(short_frames=True)
    for tick in range(10 * UNANSWERED_TICKS_MAX):
        (beat,) = heart.beats(BEAT_S * tick)
        heart.heard = True
        assert heart.tick(reading=True) is None
        if tick % 2:
            heart.take(pong(beat.number), BEAT_S * (tick + 1))


def test_a_pong_that_answers_nothing_tells_nothing() -> None:
    heart = Heart()
    heart.take(pong(1), 50.0)  # before any ping was written
    heart.beats(100.0)
    heart.take(pong(0), 101.0)
    heart.take(pong(2), 101.0)
    assert heart.round_trip_s is None
    assert not heart.is_due


def test_numbers_begin_again_when_they_are_used_up() -> None:
    heart = Heart()
    heart._number = NUMBERS - 1
    assert heart.beats(0.0) == [ping(0)]


# ---------------------------------------------------------------------- hostile streams


@pytest.mark.parametrize("seed", range(20))
def test_frames_and_beats_survive_any_slicing(seed: int) -> None:
    async def scenario() -> None:
        rng = Random(seed)  # noqa: S311
        frames: list[bytes] = []
        stream = bytearray()
        for _ in range(200):
            if rng.random() < 0.5:
                beat = Beat(rng.randrange(NUMBERS), is_pong=rng.random() < 0.5)
                stream += beats(beat)
            else:
                frames.append(rng.randbytes(rng.choice([1, 4, 100, 65_532, 70_000, 200_000])))
                stream += framed(frames[-1])
        end = alone()
        end.open()
        while stream:
            cut = rng.choice([1, 3, 4, 5, 1000, 100_000, 10**6])
            end.wire.receive(bytes(stream[:cut]))
            del stream[:cut]
            if rng.random() < 0.1:
                await asyncio.sleep(0)
        await asyncio.sleep(1)
        assert end.received == frames
        assert not end.link.closed.done()

    run_virtually(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_rubbish_ends_the_link_or_is_frames_and_beats_within_bounds(seed: int) -> None:
    async def scenario() -> None:
        rng = Random(seed)  # noqa: S311
        for _ in range(50):
            end = End(WireEnd(0.0))
            end.open()
            for _ in range(20):
                header = rng.choice([0, 1, 5, 2**30, 2**31, 2**31 + 1, 3 * 2**30, 2**32 - 1])
                end.wire.receive(header.to_bytes(4, "big") + rng.randbytes(rng.randrange(8)))
                await asyncio.sleep(0)
            await asyncio.sleep(1)
            assert all(1 <= len(frame) <= FRAME_BYTES_MAX for frame in end.received)
            assert len(parts(end.sent)) <= 1 + 20 * 3  # a first ping, and at most a pong per beat
            end.link.abort()
            await asyncio.sleep(0)

    run_virtually(scenario)


def test_a_ping_that_waited_through_a_cut_does_not_make_a_line_slow() -> None:
    heart = Heart()
    for asked_at, answered_at in ((0.0, 0.1), (20.0, 55.0), (60.0, 60.2)):
        heart.tick(reading=True)
        (ping,) = heart.beats(asked_at)
        assert heart.take(Beat(ping.number, is_pong=True), answered_at)
        assert heart.usual_round_trip_s == pytest.approx(0.1 if asked_at < 60 else 0.2)


def test_an_answer_to_a_later_ping_is_one_to_all_earlier_ones_and_none_is_made_up() -> None:
    """A peer answers only the newest of several pings that it reads at once."""
    heart = Heart()
    heart.beats(0.0)
    first = heart.challenge()
    heart.beats(0.0)
    second = heart.challenge()
    assert not heart.has_answered(first)
    heart.take(pong(second), 0.1)  # which was not sent yet
    assert not heart.has_answered(first)
    heart.beats(0.2)
    heart.take(pong(second), 0.3)
    assert heart.has_answered(first)
    assert heart.has_answered(second)
    assert not heart.has_answered(heart.challenge())
