"""Who waits for whom at a relay: the rules as tables and scenarios, then any order of events."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defl.ids import digest_of
from defl.node.net.framing import Lane
from defl.node.relay.protocol import (
    RELAY_VERSION,
    Notice,
    Request,
    Signal,
    Verb,
    calls,
    decode_notice,
    decode_request,
    encode,
)
from defl.node.relay.switchboard import (
    OFFERED_TICKS_MAX,
    PARKED_TICKS_MAX,
    SPLICED_TICKS_MAX,
    Decision,
    Switchboard,
)

ORIGIN = digest_of(b"a federation")
KEYS = [bytes([i]) * 32 for i in range(1, 5)]
LOW, HIGH, HIGHER, STRANGER = KEYS
BEAT, READY = Notice(Signal.BEAT), Notice(Signal.READY)


def board(connections_max: int = 100) -> Switchboard[str]:
    made: Switchboard[str] = Switchboard(ORIGIN, connections_max)
    made.agree([LOW, HIGH, HIGHER])
    return made


def park(peer: bytes, lane: Lane = Lane.CONTROL) -> Request:
    return Request(RELAY_VERSION, ORIGIN, Verb.PARK, peer, lane)


def call(peer: bytes, lane: Lane = Lane.CONTROL) -> Request:
    return Request(RELAY_VERSION, ORIGIN, Verb.CALL, peer, lane)


def signals(decision: Decision[str]) -> list[tuple[str, Signal]]:
    return [(connection, notice.signal) for connection, notice in decision.tell]


def spliced(made: Switchboard[str]) -> Switchboard[str]:
    made.request("parked", HIGH, park(LOW))
    made.request("called", LOW, call(HIGH))
    made.notice("parked", READY)
    return made


def test_a_call_is_joined_with_the_parked_connection_once_that_is_ready() -> None:
    made = board()

    assert signals(made.request("parked", HIGH, park(LOW))) == [("parked", Signal.PARKED)]
    assert signals(made.request("called", LOW, call(HIGH))) == [("parked", Signal.GO)]
    ready = made.notice("parked", READY)
    assert signals(ready) == [("called", Signal.GO)]
    assert ready.splice == ("parked", "called")
    assert (made.parked, made.spliced, made.connections) == (0, 1, 2)


def test_a_call_to_somebody_who_is_not_parked_is_answered_at_once() -> None:
    made = board()
    made.request("other pair", HIGHER, park(LOW))
    made.request("other lane", HIGH, park(LOW, Lane.WEIGHTS))

    assert signals(made.request("called", LOW, call(HIGH))) == [("called", Signal.ABSENT)]
    assert made.connections == 2


@pytest.mark.parametrize(
    ("key", "request_", "reason"),
    [
        (LOW, None, "not a request"),
        (LOW, Request(9, ORIGIN, Verb.CALL, HIGH, Lane.CONTROL), "version 9"),
        (LOW, Request(1, digest_of(b"x"), Verb.CALL, HIGH, Lane.CONTROL), "another federation"),
        (STRANGER, call(LOW), "your key"),
        (LOW, call(STRANGER), "the peer's key"),
        (LOW, call(LOW), "lower key calls"),
        (HIGH, park(HIGH), "lower key calls"),
        (LOW, park(HIGH), "lower key calls"),
        (HIGH, call(LOW), "lower key calls"),
    ],
)
def test_requests_that_are_refused(key: bytes, request_: Request | None, reason: str) -> None:
    made = board()
    made.request("parked", HIGH, park(LOW))
    decision = made.request("new", key, request_)

    assert signals(decision) == [("new", Signal.REFUSED)]
    assert reason in decision.tell[0][1].reason
    assert decision.end == []
    assert made.connections == 1
    assert decode_notice(encode(decision.tell[0][1])) == decision.tell[0][1]


def test_a_probe_says_whether_a_key_is_served_and_leaves_nothing() -> None:
    made = board()
    probe = Request(RELAY_VERSION, ORIGIN, Verb.PROBE, LOW, Lane.CONTROL)

    assert signals(made.request("known", LOW, probe)) == [("known", Signal.KNOWN)]
    assert signals(made.request("unknown", STRANGER, probe)) == [("unknown", Signal.REFUSED)]
    assert made.connections == 0


def test_a_member_that_parks_again_ends_its_older_connection() -> None:
    made = board()
    made.request("older", HIGH, park(LOW))
    decision = made.request("newer", HIGH, park(LOW))

    assert decision.end == ["older"]
    assert signals(made.request("called", LOW, call(HIGH))) == [("newer", Signal.GO)]


def test_a_member_that_comes_again_has_lost_its_link_so_the_other_one_learns_it() -> None:
    parks_again = spliced(board()).request("newer", HIGH, park(LOW))
    calls_again = spliced(board()).request("newer", LOW, call(HIGH))

    assert parks_again.end == ["parked", "called"]
    assert signals(parks_again) == [("newer", Signal.PARKED)]
    assert calls_again.end == ["parked", "called"]
    assert signals(calls_again) == [("newer", Signal.ABSENT)]


def test_the_end_of_one_connection_ends_the_other() -> None:
    assert spliced(board()).gone("parked").end == ["called"]
    assert spliced(board()).gone("called").end == ["parked"]


def test_a_caller_is_told_when_the_parked_member_goes_before_it_is_ready() -> None:
    made = board()
    made.request("parked", HIGH, park(LOW))
    made.request("called", LOW, call(HIGH))

    assert signals(made.gone("parked")) == [("called", Signal.ABSENT)]
    assert made.connections == 0


def test_a_parked_member_that_was_told_to_go_is_of_no_use_without_its_caller() -> None:
    made = board()
    made.request("parked", HIGH, park(LOW))
    made.request("called", LOW, call(HIGH))

    assert made.gone("called").end == ["parked"]


def test_beats_are_returned_but_not_one_that_crosses_our_go() -> None:
    made = board()
    made.request("parked", HIGH, park(LOW))
    assert signals(made.notice("parked", BEAT)) == [("parked", Signal.BEAT)]
    made.request("called", LOW, call(HIGH))

    assert made.notice("parked", BEAT) == Decision()
    assert made.notice("parked", READY).splice == ("parked", "called")


@pytest.mark.parametrize("notice", [None, READY, Notice(Signal.GO), Notice(Signal.PARKED)])
def test_a_parked_member_that_says_anything_else_is_ended(notice: Notice | None) -> None:
    made = board()
    made.request("parked", HIGH, park(LOW))

    assert made.notice("parked", notice).end == ["parked"]


@pytest.mark.parametrize("notice", [None, Notice(Signal.GO), Notice(Signal.ABSENT)])
def test_a_parked_member_that_is_told_to_go_and_is_not_ready_is_ended(
    notice: Notice | None,
) -> None:
    made = board()
    made.request("parked", HIGH, park(LOW))
    made.request("called", LOW, call(HIGH))
    decision = made.notice("parked", notice)

    assert decision.end == ["parked", "called"]
    assert decision.splice is None


def test_a_caller_that_speaks_before_its_turn_is_ended() -> None:
    made = board()
    made.request("parked", HIGH, park(LOW))
    made.request("called", LOW, call(HIGH))

    assert made.notice("called", READY).end == ["parked", "called"]


def test_silence_ends_a_parked_an_offered_and_a_spliced_connection_each_in_its_time() -> None:
    parked, offered = board(), board()
    parked.request("parked", HIGH, park(LOW))
    offered.request("parked", HIGH, park(LOW))
    offered.request("called", LOW, call(HIGH))
    quiet: frozenset[str] = frozenset()

    for made, ticks in (
        (parked, PARKED_TICKS_MAX),
        (offered, OFFERED_TICKS_MAX),
        (spliced(board()), SPLICED_TICKS_MAX),
    ):
        assert all(made.tick(quiet).end == [] for _ in range(ticks - 1))
        assert made.connections > 0
        made.tick(quiet)
        assert made.connections == 0


def test_beats_keep_a_parked_and_bytes_a_spliced_connection() -> None:
    parked, busy = board(), spliced(board())
    parked.request("parked", HIGH, park(LOW))
    for _ in range(SPLICED_TICKS_MAX * 2):
        parked.notice("parked", BEAT)
        parked.tick(frozenset())
        busy.tick({"called"})

    assert (parked.parked, busy.spliced) == (1, 1)


def test_beats_do_not_keep_a_member_that_is_never_ready() -> None:
    made = board()
    made.request("parked", HIGH, park(LOW))
    made.request("called", LOW, call(HIGH))
    for _ in range(OFFERED_TICKS_MAX):
        made.notice("parked", BEAT)
        made.tick({"parked"})

    assert made.connections == 0


def test_connections_of_a_key_that_is_no_member_any_more_are_ended() -> None:
    made = spliced(board())
    made.request("kept", HIGHER, park(LOW))

    assert made.agree([LOW, HIGHER]).end == ["parked", "called"]
    assert made.parked == 1
    assert signals(made.request("again", HIGH, park(LOW))) == [("again", Signal.REFUSED)]


def test_a_full_relay_makes_room_at_the_key_that_parks_the_most() -> None:
    made = board(connections_max=3)
    made.request("high", HIGH, park(LOW))
    made.request("higher 1", HIGHER, park(LOW))
    made.request("higher 2", HIGHER, park(HIGH))
    decision = made.request("new", HIGH, park(LOW, Lane.WEIGHTS))

    assert decision.end == ["higher 1"]
    assert signals(decision) == [("new", Signal.PARKED)]


def test_what_is_spliced_is_not_ended_for_a_newcomer() -> None:
    made = spliced(board(connections_max=2))
    decision = made.request("new", HIGHER, park(LOW))

    assert decision.end == []
    assert signals(decision) == [("new", Signal.REFUSED)]
    assert "full" in decision.tell[0][1].reason


def test_a_call_does_not_evict_the_connection_that_it_is_for() -> None:
    made = board(connections_max=1)
    made.request("parked", HIGH, park(LOW))

    assert signals(made.request("called", LOW, call(HIGH))) == [("called", Signal.REFUSED)]
    assert made.parked == 1


def test_frames_survive_their_encoding_and_nothing_else_is_read() -> None:
    assert decode_request(encode(park(LOW))) == park(LOW)
    for garbage in (b"", b"\xc1", b"\x93", encode(BEAT), encode(call(LOW))[:-1]):
        assert decode_request(garbage) is None
    assert decode_notice(encode(Notice(Signal.REFUSED, "x" * 161))) is None
    assert decode_notice(b"\x91" * 200) is None


def test_of_a_pair_exactly_one_calls() -> None:
    for key in KEYS:
        assert [calls(key, peer) for peer in KEYS] == [peer > key for peer in KEYS]


# ------------------------------------------------------------------ any order of events


@dataclass
class Relay:
    """Does what the switchboard says with connections that are numbers."""

    board: Switchboard[int] = field(default_factory=lambda: Switchboard(ORIGIN, 6))
    alive: dict[int, bytes] = field(default_factory=dict)  # connection -> key
    pairs: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def do(self, decision: Decision[int]) -> None:
        for connection in decision.end:
            self.end(connection)
        for connection, notice in decision.tell:
            if notice.signal in (Signal.REFUSED, Signal.ABSENT):
                self.end(connection)
        if decision.splice is not None:
            first, second = decision.splice
            self.pairs |= {first: second, second: first}

    def end(self, connection: int) -> None:
        if self.alive.pop(connection, None) is None:
            return
        self.pairs.pop(connection, None)
        self.do(self.board.gone(connection))


EVENT = st.tuples(
    st.sampled_from(["request", "notice", "gone", "tick", "agree"]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from(list(Lane)),
    st.sampled_from([BEAT, READY, READY, None]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENT, max_size=60))
def test_whatever_happens_each_line_has_one_pair_and_no_connection_is_forgotten(
    events: list[tuple[str, int, int, Lane, Notice | None]],
) -> None:
    relay = Relay()
    relay.board.agree(KEYS[:3])
    for kind, first, second, lane, notice in events:
        chosen = list(relay.alive)[first : first + 1]
        if kind == "request":
            key, peer = KEYS[first], KEYS[second]
            verb = Verb.CALL if calls(key, peer) else Verb.PARK
            relay.count += 1
            relay.alive[relay.count] = key
            request = Request(RELAY_VERSION, ORIGIN, verb, peer, lane)
            relay.do(relay.board.request(relay.count, key, request))
        elif kind == "notice" and chosen:
            relay.do(relay.board.notice(chosen[0], notice))
        elif kind == "gone" and chosen:
            relay.end(chosen[0])
        elif kind == "tick":
            relay.do(relay.board.tick(set(chosen)))
        elif kind == "agree":
            relay.do(relay.board.agree(KEYS[:3] if first else KEYS[:2]))

        assert relay.board.connections == len(relay.alive) <= 6
        assert len(relay.pairs) == 2 * relay.board.spliced
        for connection, other in relay.pairs.items():
            assert relay.pairs[other] == connection
            assert relay.alive[connection] != relay.alive[other]
        assert STRANGER not in relay.alive.values()
