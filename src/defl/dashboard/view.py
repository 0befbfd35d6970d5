"""What the page gets: plain values, as JSON. Sentences, verdicts and counts are made here and in
node/report; the page only lays them out.

Everything that came from a peer, a rule or a log is text for the page to show as text.
"""

from msgspec import Struct

from defl.node.report.health import Health
from defl.node.report.phases import PhaseTime
from defl.node.report.round_facts import UpdateVerdict
from defl.node.report.status import Metrics

# --- /api/overview: the present, fetched every second ----------------------------------------


class EvidenceView(Struct, frozen=True):
    text: str  # "two votes in view 212"
    href: str | None  # the file; None: this node has none


class MemberView(Struct, frozen=True, kw_only=True):
    """A member as this node sees it; with several nodes, as the first running one does."""

    name: str
    active: bool  # a member of the present epoch
    address: str = ""
    link: str  # this node, connected, away, not connected yet, left
    is_this_node: bool = False
    connected: bool = False
    away_s: float | None = None
    last_round: int | None = None  # with an update of it
    route: str = ""
    round_trip_ms: float | None = None
    sent_bytes: int | None = None  # to it; None: this node itself, or not known
    received_bytes: int | None = None
    kept: int = 0  # rounds, of those in `judged`
    left_out: int = 0
    late: int = 0
    no_update: int = 0
    judged: int = 0  # rounds in which it was a member and that are on record
    summary: str = ""  # "26 of 40 kept; 8 left out, 6 none"
    trust: float | None = None  # from 0 to 1; None: the rule remembers nothing
    trouble: str = ""
    evidence: list[EvidenceView] = []
    refused: int = 0
    linked: dict[str, bool] = {}  # of a whole federation: node -> is it connected with this member?


class OpenRoundView(Struct, frozen=True, kw_only=True):
    number: int
    seen_from: str  # the node's name
    open_s: float
    sentence: str  # "opened 31 s ago; 6 of 7 updates are in, 5 are enough once 45 s have passed"
    phases: list[PhaseTime] = []
    arrivals: dict[str, float | None] = {}  # members whose update is in, seconds since the opening
    awaited: list[str] = []  # members whose update is not in
    closes_s: float | None = None  # when it closes without them, at the latest
    closes_text: str = ""  # "closes without bob"


class NodeView(Struct, frozen=True, kw_only=True):
    """One node whose folder the dashboard reads."""

    name: str
    address: str = ""
    runs: bool
    process: str  # "runs", "does not run", "runs, started again 11:37:17"
    phase: str = ""  # a Phase, or ""
    doing: str = ""  # "training, 0.2 s", "waiting for 2"
    round: int = 0
    model_round: int | None = None
    model: str | None = None  # digest, in hex
    same_model: bool | None = (
        None  # as the other nodes' of the same round; None: nothing to compare
    )
    proven_round: int | None = None  # newest proven model
    proven: str | None = None
    metrics: Metrics = {}  # newest evaluation
    metrics_round: int | None = None
    connected: int = 0
    peers: int = 0
    commit_p50_ms: float | None = None
    commit_p99_ms: float | None = None
    sent_bytes: int = 0
    received_bytes: int = 0
    memory_peak_bytes: int = 0
    disk_bytes: int = 0
    disk_max_bytes: int | None = None  # what the federation requires at most
    training_failures: int = 0
    worker_error: str | None = None
    evaluation_error: str | None = None
    view: int = 0
    height: int = 0
    epoch: int = 0
    role: str = ""


class Happened(Struct, frozen=True):
    at: float  # time of day
    node: str
    what: str  # "round 39 closed"
    more: str  # "with all 7 updates; left out: node-1, node-6"


class Overview(Struct, frozen=True, kw_only=True):
    title: str  # the node's name, or the folder's
    subtitle: str  # "one node of 7", "7 nodes on this machine"
    whole: bool  # several nodes
    fingerprint: str
    at: float  # when this was made
    health: Health
    members_health: Health
    version: str  # of the rounds; another one means: fetch /api/rounds?since=OLD
    rounds_closed: int
    rounds_total: int
    n: int
    f: int
    quorum: int
    rule: str
    members: list[MemberView]
    nodes: list[NodeView]
    open_round: OpenRoundView | None = None
    happened: list[Happened] = []  # newest first


# --- /api/rounds?since=VERSION: the strip and the curves -------------------------------------


class RoundRow(Struct, frozen=True, array_like=True):
    number: int
    cells: str  # one UpdateVerdict letter per member of RoundsView.members, in that order
    took_s: float | None
    is_proven: bool
    closed_at: float | None
    metrics: list[float | None]  # in the order of RoundsView.metrics


class RoundsView(Struct, frozen=True, kw_only=True):
    version: str
    whole: bool  # False: only what changed since; True: forget what you have
    members: list[str]  # of all epochs, in the federation's order; only ever grows
    metrics: list[str]  # likewise
    higher_is_better: list[bool]
    rounds: list[RoundRow]  # ascending
    marks: list[tuple[int, str]] = []  # all of them: round, what to write: "erin joins", "bob gone"


# --- /api/rounds/N: one round ----------------------------------------------------------------


class ShareView(Struct, frozen=True, kw_only=True):
    """A member's part in a round."""

    member: str
    verdict: UpdateVerdict
    words: str  # "Left out: with it the round would vary too much"
    weight: float | None = None
    score: float | None = None
    times_worst_kept: float | None = None  # its score; of members that were left out
    came_s: float | None = None
    waited_s: float | None = None
    came: str = ""  # "38.7 s, in time", "late by 0.1 s", "no update"
    reason: str = ""  # the rule's words about this member, for the inspector


class FileView(Struct, frozen=True):
    name: str
    href: str
    size: int | None


class RoundView(Struct, frozen=True, kw_only=True):
    number: int
    sentence: str
    proven: str = ""  # "Proven by 7 of 7"; empty: not yet
    closed_at: float | None = None
    took_s: float | None = None
    digest: str | None = None
    seen_from: str
    phases: list[PhaseTime] = []
    closes_s: float | None = None  # when it would have closed without whoever was awaited
    rule: str = ""
    reason: str = ""
    facts: list[tuple[str, str]] = []  # "accuracy of the model", "96.4 % (round 23: 96.4 %)"
    members: list[ShareView] = []
    files: list[FileView] = []
    verify: str = ""  # the exact command for these files; empty: nothing to verify yet
    proof: str = (
        ""  # "7 signatures, 5 are needed: every member trained from exactly this model ..."
    )


# --- /api/node?name=NAME: what rarely changes, and the log ------------------------------------


class FactsView(Struct, frozen=True, kw_only=True):
    name: str
    facts: list[tuple[str, str]]  # the federation's facts, as `defl federation show` says them
    worker_log: str  # its tail
    worker_log_is_cut: bool
