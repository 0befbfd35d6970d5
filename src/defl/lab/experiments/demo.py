"""The demonstration: real nodes on this machine, one that attacks, one that is killed.

The handwritten digits are cut among the nodes. The last node's client poisons its updates; node 1
is killed with SIGKILL half-way and started again when a round has closed without it. For comparison
the same clients, data and seed are trained by a plain server in one loop, with the attack and
without. How it is shown is decided in cli/.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import asdict

from defl.clients.protocol import Client
from defl.committee import Timing
from defl.errors import UserError
from defl.lab.attacks.attacks import ATTACKS, attack_named
from defl.lab.experiments import digits
from defl.lab.experiments.in_process import trained_by_server
from defl.lab.experiments.poisoned import Poisoned
from defl.node.report.model_file import read_model
from defl.node.report.results import MODEL
from defl.node.report.status import MemberShare, NodeStatus
from defl.node.report.status_client import last_status
from defl.node.setup.config import LogFormat
from defl.node.setup.local import make_local
from defl.node.setup.processes import Processes

HONEST = "defl.lab.experiments.digits:honest"
POISONED = "defl.lab.experiments.digits:poisoned"
WITNESS = 0  # honest and never killed: its word on each round is shown
VICTIM = 1  # is killed
# A round waits this long for a member that is away; training takes far less.
TIMING = Timing(view_base_s=1.0, gst_lt_min_s=2.0, gst_lt_max_s=10.0, grace_s=20.0)
POLL_S = 0.25
# A client's own node refuses to send these, so they would show nothing.
REFUSED_AT_HOME = ("nan", "infinity", "huge")
ATTACKS_SHOWN = tuple(name for name in ATTACKS if name not in REFUSED_AT_HOME)
ATTACK = "sign_flip_10"

BY_RULE = "by the rule"
NO_UPDATE = "no update in time"

LeftOut = dict[int, dict[str, str]]  # round -> node -> why


@dataclass(frozen=True, slots=True)
class DemoPlan:
    nodes: int = 7
    rounds: int = 10
    attack: str = ATTACK
    seed: int = 1

    def __post_init__(self) -> None:
        if self.rounds < 4:
            raise UserError("the demonstration needs at least 4 rounds: one node misses some")
        if self.nodes < 4:
            raise UserError("a federation in which one may lie has at least 4 nodes")

    @property
    def attacker(self) -> int:
        return self.nodes - 1

    @property
    def honest(self) -> list[int]:
        return [node for node in range(self.nodes) if node != self.attacker]

    @property
    def killed_after(self) -> int:
        """Rounds that have closed when the victim is killed."""
        return self.rounds // 2 - 1

    @property
    def attack_in_words(self) -> str:
        found = attack_named(self.attack)
        if not isinstance(found, partial):
            return self.attack
        settings = ", ".join(f"{name} {value:g}" for name, value in found.keywords.items())
        return f"{found.func.__name__}, {settings}"


@dataclass(frozen=True, slots=True)
class NodeNow:
    """One node as a live view shows it."""

    name: str
    state: str
    round: int
    accuracy: float | None
    commit_ms: float | None
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True, slots=True)
class Moment:
    rounds_closed: int
    nodes: tuple[NodeNow, ...]
    told: "Told"
    news: tuple[str, ...]


@dataclass(slots=True)
class Told:
    """What the witness told of each round, gathered from its statuses, which tell of the newest."""

    accuracy: dict[int, float] = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=dict)

    def hear(self, status: NodeStatus | None) -> None:
        for report in status.history if status is not None else ():
            number = report.round
            accuracy = report.metrics.get("accuracy")
            if accuracy is not None:
                self.accuracy[number] = accuracy
            whys = {
                **dict.fromkeys(report.left_out or (), BY_RULE),
                **dict.fromkeys(report.missing, NO_UPDATE),
            }
            if number:
                self.left_out[number] = {**whys, **self.left_out.get(number, {})}
        if status is not None and (newest := status.aggregation) is not None:
            self.left_out.setdefault(newest.round, {}).update(_scored(newest.members))


def _scored(members: dict[str, MemberShare]) -> dict[str, str]:
    """Why the rule left members out, where its scores tell more than that it did."""
    kept = [share.score for share in members.values() if share.weight and share.score]
    return {
        name: f"{BY_RULE}, score {share.score / max(kept):.1f} times the worst kept"
        for name, share in members.items()
        if not share.weight and share.score and kept
    }


@dataclass(frozen=True, slots=True)
class Outcome:
    rounds_closed: int
    digests: dict[str, str | None]  # of the honest nodes
    accuracy: float | None  # of their model
    told: Told
    commit_ms: dict[str, float]
    bytes_sent: int  # the most of any honest node, since its last start
    bytes_received: int
    disk_bytes: int
    news: tuple[str, ...]

    @property
    def digests_equal(self) -> bool:
        return len(set(self.digests.values())) == 1 and None not in self.digests.values()


def name_of(node: int) -> str:
    return f"node-{node}"


class Demo:
    def __init__(self, plan: DemoPlan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self._data = folder / "data"
        self._data.mkdir()
        digits.write_parts(self._data, plan.nodes, plan.seed)
        self._told = Told()
        self._said: dict[int, NodeStatus | None] = {}
        self._news: list[str] = []
        self._killed_at: int | None = None
        self._back = False

    def by_server(self, *, attacked: bool) -> tuple[float, ...]:
        """Accuracy after each round of FedAvg by a plain server, in this process."""
        plan = self.plan
        clients: list[Client] = [self._client(number) for number in range(plan.nodes)]
        if attacked:
            rng = np.random.default_rng(plan.attacker)
            attack = attack_named(plan.attack)
            clients[plan.attacker] = Poisoned(clients[plan.attacker], attack, rng)
        rounds = trained_by_server(clients, "fed_avg", 0, plan.rounds)
        return tuple(metrics["accuracy"] for metrics in rounds)

    def run(self, show: Callable[[Moment], None], limit_s: float) -> Outcome:
        """Real nodes, until each has ended by itself or time is up."""
        variables = {digits.DATA: str(self._data.resolve()), digits.ATTACK: self.plan.attack}
        local = make_local(
            self.folder,
            self.folder,
            HONEST,
            self.plan.nodes,
            self.plan.rounds,
            timing=TIMING,
            log_format=LogFormat.JSON,
            others={self.plan.attacker: POISONED},
            weights=self._client(WITNESS).initial_weights(),
        )
        processes = Processes(local, variables)
        until = time.monotonic() + limit_s
        try:
            processes.start()
            while processes.any_running and time.monotonic() < until:
                time.sleep(POLL_S)
                now = self._now(processes)
                self._kill_and_restart(processes, now.rounds_closed)
                show(now)
        finally:
            processes.stop()
        show(self._now(processes))
        return self._outcome(processes)

    def _kill_and_restart(self, processes: Processes, closed: int) -> None:
        if self._killed_at is None:
            if closed >= self.plan.killed_after:
                processes.kill(VICTIM)
                self._killed_at = closed
                self._news.append(f"{name_of(VICTIM)} was killed (SIGKILL) in round {closed + 1}")
        elif not self._back and closed > self._killed_at:
            processes.start(VICTIM)
            self._back = True
            self._news.append(f"{name_of(VICTIM)} was started again in round {closed + 1}")
        if self._killed_at is None or self._back:
            processes.require_no_failure()

    def _now(self, processes: Processes) -> Moment:
        # A killed node says nothing; what it said last is shown on.
        for member in processes.members:
            said = processes.status(member)
            if said is not None or member not in self._said:
                self._said[member] = said
        self._told.hear(self._said[WITNESS])
        nodes = tuple(
            NodeNow(
                name=name_of(member),
                state=self._state(processes, member, status),
                round=status.round if status else 0,
                accuracy=status.evaluation.metrics.get("accuracy")
                if status and status.evaluation
                else None,
                commit_ms=status.commit_ms.p50 if status and status.commit_ms else None,
                bytes_sent=status.sent_bytes if status else 0,
                bytes_received=status.received_bytes if status else 0,
            )
            for member, status in sorted(self._said.items())
        )
        closed = min(nodes[member].round for member in self.plan.honest if member != VICTIM)
        return Moment(closed, nodes, self._told, tuple(self._news))

    def _state(self, processes: Processes, member: int, status: NodeStatus | None) -> str:
        if not processes.running(member):
            return "ended" if status and status.finished else "killed"
        if status is None:
            return "starts"
        return "attacks" if member == self.plan.attacker else "runs"

    def _outcome(self, processes: Processes) -> Outcome:
        nodes = processes.local.nodes
        last = {node: last_status(nodes[node]) for node in self.plan.honest}
        known = [state for state in last.values() if state is not None]
        witness = last[WITNESS]
        self._told.hear(last[WITNESS])
        return Outcome(
            rounds_closed=min(state.round if state else 0 for state in last.values()),
            digests={name_of(node): state.model if state else None for node, state in last.items()},
            accuracy=self._accuracy_of(nodes[WITNESS]),
            told=self._told,
            commit_ms=asdict(witness.commit_ms) if witness and witness.commit_ms else {},
            bytes_sent=max((state.sent_bytes for state in known), default=0),
            bytes_received=max((state.received_bytes for state in known), default=0),
            disk_bytes=max((state.disk_bytes for state in known), default=0),
            news=tuple(self._news),
        )

    def _accuracy_of(self, node: Path) -> float | None:
        """Of the model that a node left, measured here."""
        if not (node / MODEL).exists():
            return None
        weights, _ = read_model(node / MODEL)
        return self._client(WITNESS).evaluate(weights)["accuracy"]

    def _client(self, number: int) -> digits.Digits:
        return digits.Digits(digits.part_file(self._data, number))
