"""Made-up data as the dashboard's page gets it: every state that can be drawn, at any size."""

import random
from dataclasses import dataclass, field

from defl.dashboard.view import (
    EvidenceView,
    FactsView,
    FileView,
    Happened,
    MemberView,
    NodeView,
    OpenRoundView,
    Overview,
    RoundRow,
    RoundsView,
    RoundView,
    ShareView,
)
from defl.node.report.health import Health, Level
from defl.node.report.health_notes import HealthNote
from defl.node.report.phases import Phase, PhaseTime
from defl.node.report.round_facts import UpdateVerdict

NAMES = ["alice", "bob", "carol", "dave", "erin", "frank", "grace"]
NOON = 1_790_000_000.0
WORDS = {
    UpdateVerdict.KEPT: "Kept",
    UpdateVerdict.LEFT_OUT: "Left out: with it the round would vary too much",
    UpdateVerdict.LATE: "Late: the round closed without it",
    UpdateVerdict.NO_UPDATE: "No update",
    UpdateVerdict.NOT_A_MEMBER: "Not a member",
    UpdateVerdict.PENDING: "In, not judged yet",
    UpdateVerdict.UNKNOWN: "Not recorded: alice was away",
}


@dataclass
class Sample:
    """`whole`: seven nodes on one machine instead of one node of seven."""

    names: list[str] = field(default_factory=lambda: list(NAMES))
    rounds: int = 40
    total: int = 200
    whole: bool = False
    level: Level = Level.ATTENTION

    def cells(self, number: int) -> str:
        many = len(self.names) != len(NAMES)
        rng = random.Random(number)  # noqa: S311 - a sample
        letters = (
            self._of_many(place, number, rng) if many else self._of_seven(place, number)
            for place in range(len(self.names))
        )
        return "".join(letters)

    def _of_seven(self, place: int, number: int) -> str:
        """The pictures' story: grace lies, bob goes and comes back, erin joins."""
        if (place, number) in ((2, 15), (5, 1), (5, 29)):
            return "l"
        if place == 1 and (20 <= number < 24 or number > 38):
            return "n"
        if place == 6 or (place == 1 and 24 <= number < 33 and number != 27):
            return "x"
        return "-" if place == 4 and number < 9 else "k"

    def _of_many(self, place: int, number: int, rng: random.Random) -> str:
        share = number / self.rounds
        if place >= len(self.names) - max(1, len(self.names) // 25):
            return "x"
        if (place == 71 and share > 0.88) or (40 <= place < 60 and 0.70 <= share < 0.71):
            return "n"
        return rng.choice("xln") if rng.random() < 0.002 else "k"

    def rounds_view(self, since: int = 0) -> RoundsView:
        return RoundsView(
            version=f"sample.{self.rounds}",
            whole=since == 0,
            members=self.names,
            metrics=["accuracy", "loss"],
            higher_is_better=[True, False],
            rounds=[
                RoundRow(
                    r,
                    self.cells(r),
                    30 + (r * 7919 % 11) + (25 if 20 <= r < 24 else 0),
                    r < self.rounds,
                    NOON + r * 35,
                    [0.97 - 0.06 / r + 0.002 * (r * 31 % 5 - 2), 0.1 + 0.9 / r],
                )
                for r in range(since + 1, self.rounds + 1)
            ],
            marks=[
                (9, "erin joins"),
                (20, "bob gone"),
                (24, "bob back, left out"),
                (33, "bob kept"),
                (39, "bob gone"),
            ]
            if len(self.names) == 7
            else [(int(self.rounds * 0.7), "20 sites cut off at once")],
        )

    def phases(self, open_: bool) -> list[PhaseTime]:
        done = [
            PhaseTime(Phase.PREPARE, 0.0, 1.9),
            PhaseTime(Phase.TRAIN, 1.9, 18.4),
            PhaseTime(Phase.CERTIFY, 18.4, 23.1),
            PhaseTime(Phase.CLOSE, 23.1, None if open_ else 38.9),
        ]
        more = [PhaseTime(Phase.FETCH, 38.9, 40.6), PhaseTime(Phase.AGGREGATE, 40.6, 43.8)]
        return done if open_ else [*done, *more]

    def round_view(self, number: int) -> RoundView:
        cells = self.cells(number)
        shares = []
        for i, (name, letter) in enumerate(zip(self.names, cells, strict=True)):
            verdict = UpdateVerdict(letter)
            came = 23.7 + i * 0.7 if letter in "kx" else None
            if name == "bob" and came is not None:
                came = 38.7
            shares.append(
                ShareView(
                    member=name,
                    verdict=verdict,
                    words=WORDS[verdict],
                    weight=1 / cells.count("k")
                    if letter == "k"
                    else 0.0
                    if letter == "x"
                    else None,
                    score=0.14 + 0.01 * i if letter == "k" else 87.35 if letter == "x" else None,
                    times_worst_kept=398.4 if letter == "x" else None,
                    came_s=came,
                    waited_s=10.2 if name == "bob" and came is not None else None,
                    came=f"{came:.1f} s, in time" if came is not None else "no update",
                    reason="with 1 more the largest variance would exceed the gate, 1.6 times that "
                    "of the 5 most similar updates."
                    if letter == "x"
                    else "",
                )
            )
        return RoundView(
            number=number,
            sentence="All 7 updates came; the rule kept 5. Left out: bob, who would have made the "
            "directions vary too much, and grace, who opposes the others.",
            proven="" if number == self.rounds else "Proven by 7 of 7",
            closed_at=NOON + number * 35,
            took_s=38.9,
            digest="1b736f8a768677f5" * 4,
            seen_from=self.names[0],
            phases=self.phases(open_=False),
            closes_s=46.0,
            rule="adaptive, faults_max 2",
            reason="the mean of 5 of 7 updates. 1 left out: opposed to the others over many "
            "rounds. 1 left out: with more, the directions would vary over 2 times as much as the "
            "5 most similar.",
            facts=[
                ("accuracy of the model", "96.4 % (round 23: 96.4 %)"),
                ("evaluated in", "0.5 s"),
                ("waited at most", "46 s (gst_lt_max_s)"),
                ("commit latency", "504 ms"),
            ],
            members=shares,
            files=[
                FileView(
                    f"round-{number}.safetensors",
                    f"/files/alice/round-{number}.safetensors",
                    28_100_000,
                ),
                FileView(
                    f"round-{number}-certificate.json",
                    f"/files/alice/round-{number}-certificate.json",
                    2_100,
                ),
                FileView("federation.toml", "/files/alice/federation.toml", 9_100),
            ],
            verify=f"defl verify round-{number}.safetensors "
            f"round-{number}-certificate.json federation.toml",
            proof="7 signatures, 5 are needed: every member trained from exactly this model in "
            f"round {number + 1}.",
        )

    def members(self) -> list[MemberView]:
        rows = [self.cells(r) for r in range(1, self.rounds + 1)]
        views = []
        for i, name in enumerate(self.names):
            own = [row[i] for row in rows]
            away = name in ("bob", "site-71")
            judged = sum(letter != "-" for letter in own)
            views.append(
                MemberView(
                    name=name,
                    active=True,
                    address=f"{name}.example.org:7400",
                    link="this node"
                    if i == 0 and not self.whole
                    else "away"
                    if away
                    else "connected",
                    is_this_node=i == 0 and not self.whole,
                    connected=i > 0 and not away,
                    away_s=120.0 if away else None,
                    last_round=38 if away else None,
                    route="" if i == 0 else "direct",
                    round_trip_ms=None if i == 0 or away else 9.0 + i * 5,
                    sent_bytes=None if i == 0 else 930_000_000,
                    received_bytes=None if i == 0 else 910_000_000,
                    kept=own.count("k"),
                    left_out=own.count("x"),
                    late=own.count("l"),
                    no_update=own.count("n"),
                    judged=judged,
                    summary=f"{own.count('k')} of {judged} kept",
                    trust=0.0 if own[-1] == "x" else 0.84 if name == "bob" else 1.0,
                    trouble=f"nobody listens at {name}.example.org:7400; tried again every 10 s"
                    if away
                    else "",
                    evidence=[
                        EvidenceView(
                            "two votes in view 212", "/files/alice/evidence-grace-212.json"
                        )
                    ]
                    if name == "grace"
                    else [],
                    linked={other: other != name for other in self.names} if self.whole else {},
                )
            )
        return views

    def overview(self) -> Overview:
        n = len(self.names)
        sentence = (
            f"Round {self.rounds + 1} of {self.total}: waiting for 1 of {n} updates; "
            f"{n - 1} of {n} connected; bob is away: nobody listens at bob.example.org:7400."
        )
        return Overview(
            title="demo" if self.whole else self.names[0],
            subtitle=f"{n} nodes on this machine" if self.whole else f"one node of {n}",
            whole=self.whole,
            fingerprint="c9b1 4b02 ccf4 19e1 c372 b5cc 3d3b 61f2",
            at=NOON + 40 * 35 + 31,
            health=Health(
                self.level,
                "Running, 1 away",
                sentence,
                [
                    HealthNote(
                        "The round closes without bob in at most 14 s. Nothing has to be done "
                        "while no more than 2 of 7 are away.",
                        "n",
                    ),
                    HealthNote(
                        "grace was left out by the rule in 40 of the last 40 rounds, last in round "
                        "40: its data differ from the rest, or its training is faulty.",
                        "x",
                    ),
                ],
            ),
            members_health=Health(
                self.level,
                "1 away, 1 with evidence",
                "6 of 7 connected; bob is away: nobody listens at bob.example.org:7400.",
                [
                    HealthNote(
                        "A signed contradiction is held against grace: two votes in view 212. "
                        "Its key runs twice, or it lies: talk to them.",
                        "x",
                    )
                ],
            ),
            version=f"sample.{self.rounds}",
            rounds_closed=self.rounds,
            rounds_total=self.total,
            n=n,
            f=(n - 1) // 3,
            quorum=n - (n - 1) // 3,
            rule="adaptive",
            members=self.members(),
            nodes=[
                NodeView(
                    name=name,
                    address=f"{name}.example.org:7400",
                    runs=True,
                    process="runs" if i != 1 else "runs, started again 11:37:17",
                    phase="close" if i % 3 else "train",
                    doing="waiting for 2" if i % 3 else "training, 0.2 s",
                    round=self.rounds,
                    model_round=self.rounds,
                    model="f146d287" * 8,
                    same_model=True,
                    proven_round=self.rounds - 1,
                    proven="f146d287" * 8,
                    metrics={"accuracy": 0.961, "loss": 0.12},
                    metrics_round=self.rounds,
                    connected=n - 2,
                    peers=n - 1,
                    commit_p50_ms=290.0,
                    commit_p99_ms=1835.0,
                    sent_bytes=5_600_000_000,
                    received_bytes=5_400_000_000,
                    memory_peak_bytes=284_000_000,
                    disk_bytes=4_900_000_000,
                    disk_max_bytes=67_900_000_000,
                    view=346,
                    height=338,
                    role="member",
                )
                for i, name in enumerate(self.names if self.whole else self.names[:1])
            ],
            open_round=OpenRoundView(
                number=self.rounds + 1,
                seen_from=self.names[0],
                open_s=31.0,
                sentence="opened 31 s ago; 6 of 7 updates are in, 5 are enough once 45 s have "
                "passed",
                phases=self.phases(open_=True),
                arrivals={
                    name: 16.0 + i * 1.4 for i, name in enumerate(self.names) if name != "bob"
                },
                awaited=["bob"] if "bob" in self.names else [],
                closes_s=45.0,
                closes_text="closes without bob",
            ),
            happened=[
                Happened(
                    NOON + 40 * 35,
                    "node-0",
                    "round 39 closed",
                    "with all 7 updates; left out: node-1, node-6",
                ),
                Happened(NOON + 39 * 35, "node-1", "started again", "in round 19"),
                Happened(
                    NOON + 38 * 35, "node-0", "node-1 is away", "nobody listens at 127.0.0.1:16934"
                ),
            ],
        )

    def facts(self) -> FactsView:
        return FactsView(
            name=self.names[0],
            facts=[
                ("members", "7, of whom 2 may lie"),
                ("rule", "adaptive"),
                ("rounds", "200"),
                ("chunk_bytes", "1048576"),
            ],
            worker_log="epoch 1: loss 0.31\nepoch 2: loss 0.22\n",
            worker_log_is_cut=False,
        )
