"""One run of a federation on a network: started, watched, disturbed by a condition, judged."""

import time
from collections.abc import Callable
from concurrent.futures import Future

from defl.errors import UserError
from defl.lab.chaos.network import ChaosNetwork
from defl.lab.chaos.outcome import Moment, Recovery, TrialOutcome, recovery_of, round_seconds
from defl.lab.chaos.sites import FederationSetting, Sites, found_sites
from defl.lab.experiments.processes import violations_of
from defl.node.report.status import NodeStatus

POLL_S = 0.2
POLL_AFTER_HEAL_S = 0.05


class Stalled(UserError):
    """What a trial waits for does not come."""


class Trial:
    def __init__(self, net: ChaosNetwork, setting: FederationSetting, limit_s: float) -> None:
        self.net = net
        self.setting = setting
        self.local = found_sites(net.folder / "federation", net.hosts, setting)
        self.sites = Sites(self.local, net.hosts)
        self.notes: list[str] = []  # what the condition itself has found
        self.violations: list[str] = []
        self._ends_at = time.monotonic() + limit_s
        self._limit_s = limit_s
        self._newest: dict[int, NodeStatus] = {}
        self._asked: dict[int, Future[NodeStatus | None]] = {}
        self._moments: list[Moment] = []  # heights, as they were seen
        self._healed_at: float | None = None
        self._started = time.monotonic()

    @property
    def members(self) -> range:
        return self.sites.members

    def start(self, *members: int) -> None:
        """These members, or all."""
        self.sites.start(*members)

    def sleep(self, seconds: float) -> None:
        """Watch for this long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.observe()
            time.sleep(POLL_S)

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        while not condition():
            if time.monotonic() > self._ends_at:
                raise Stalled(f"{what}: not within {self._limit_s:.0f} s; rounds: {self.rounds}")
            self.sites.require_no_failure()
            self.observe()
            recovering = self._healed_at is not None and self.recovery is None
            time.sleep(POLL_AFTER_HEAL_S if recovering else POLL_S)

    def wait_round(self, number: int, *members: int) -> None:
        """Until these members, or all, have closed the round."""
        those = members or self.members
        self.wait(f"round {number} closes", lambda: all(self.rounds[m] >= number for m in those))

    @property
    def rounds(self) -> list[int]:
        return [s.round if (s := self._newest.get(m)) else 0 for m in self.members]

    def height(self, member: int) -> int:
        return status.height if (status := self._newest.get(member)) else 0

    def newest(self, member: int) -> NodeStatus | None:
        return self._newest.get(member)

    def observe(self) -> None:
        """Ask every node that does not owe us an answer; a stopped one answers later."""
        for member in self.members:
            asked = self._asked.get(member)
            if asked is not None and not asked.done():
                continue
            if asked is not None and (status := asked.result()) is not None:
                self._newest[member] = status
                self._moments.append(Moment(time.monotonic(), member, status.height))
            self._asked[member] = self.sites.ask(member)

    def healed(self) -> None:
        """The disturbance is over; the recovery is timed from here."""
        self.observe()
        self._healed_at = time.monotonic()

    @property
    def recovery(self) -> Recovery | None:
        """None as long as not every member has passed what was committed before the heal."""
        if self._healed_at is None:
            return None
        return recovery_of(self._moments, self._healed_at, len(self.members))

    def finish(self) -> None:
        """Wait until every member has all rounds, then end the nodes."""
        self.wait(
            "all members finish",
            lambda: (
                all(
                    (status := self._newest.get(m)) is not None
                    and status.round == self.setting.rounds
                    and status.model is not None
                    for m in self.members
                )
                and len({self._newest[m].model for m in self.members}) == 1
            ),
        )

    def outcome(self, name: str, title: str) -> TrialOutcome:
        """Ends the nodes and judges what they left behind."""
        self.sites.stop()
        violations = [*self.violations, *violations_of(self.local, self.setting.rounds)]
        stats = self.net.link.stats()
        members = len(self.members)
        return TrialOutcome(
            name=name,
            title=title,
            members=members,
            rounds=min(self.rounds),
            rounds_wanted=self.setting.rounds,
            seconds=time.monotonic() - self._started,
            round_s=round_seconds([self.sites.log(m) for m in self.members]),
            recovery=self.recovery,
            view_s=self.setting.timing.view_base_s,
            late_ms=stats.late_ms,
            notes=self.notes,
            violations=violations,
        )

    def close(self) -> None:
        self.sites.close()
