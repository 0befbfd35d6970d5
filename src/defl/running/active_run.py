"""The processes of one run: watched, killed and restarted on purpose, stopped, summed up."""

import time
from collections.abc import Mapping

from msgspec.structs import asdict

from defl.errors import WorkerFailed
from defl.node.report.status import NodeStatus
from defl.node.report.status_client import last_status, running_status
from defl.node.setup.agreement import read_federation
from defl.node.setup.facts_text import update_share
from defl.node.setup.local import FEDERATION_FILE, Local
from defl.node.setup.processes import Processes
from defl.results import MemberTraffic, Result, RoundRecord
from defl.running.plan import RunPlan, require_kills
from defl.running.progress import Audience, MemberNow, MemberState, ProgressLines, RunProgress
from defl.running.records import RunRecords, read_records, write_records
from defl.schema import Role

POLL_S = 0.1
RECORDS_EVERY_S = 5.0
# A node whose training failed this often in a row will not recover on its own.
TRAINING_FAILURES_MAX = 3
# Below this share, what stays local is only counters and statistics.
LOCAL_SHARE_SHOWN = 0.1


class RunFailed(WorkerFailed):
    """Too many members cannot train for a round to close; `result` is what the run reached."""

    def __init__(self, reason: str, result: Result) -> None:
        super().__init__(reason)
        self.result = result

    def __reduce__(self) -> tuple[type["RunFailed"], tuple[str, Result]]:
        """So that it reaches the caller of a process pool."""
        return type(self), (str(self), self.result)


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C while the nodes ran; all of them are stopped. `result` is what they reached."""

    def __init__(self, result: Result) -> None:
        super().__init__()
        self.result = result

    def __reduce__(self) -> tuple[type["RunInterrupted"], tuple[Result]]:
        return type(self), (self.result,)


class ActiveRun:
    """The processes of one run, from their start to their end."""

    def __init__(
        self,
        plan: RunPlan,
        local: Local,
        kills: Mapping[str, int],
        audience: Audience,
        started: float,
    ) -> None:
        self.local = local
        self._plan = plan
        self._federation = read_federation(local.folder / FEDERATION_FILE).federation
        require_kills(kills, plan, self._federation)
        self._audience = audience
        self._started = started
        self._processes = Processes(local, plan.environment)
        self._names = plan.names
        self._answering: set[str] = set()
        self._statuses: dict[str, NodeStatus] = {}
        earlier = read_records(local.folder)
        self._records = RunRecords(earlier)
        # The nodes may have trained for the round that was open when the run was interrupted.
        before = {node.name: last_status(node) for node in local.nodes}
        last = {name: status for name, status in before.items() if status is not None}
        self._records.observe(last)
        self._down: dict[str, int] = {}  # killed members -> rounds that were closed then
        self._catching_up: set[str] = set()  # killed and started again
        closed = min((status.round for status in last.values()), default=0)
        closed = closed if len(last) == len(before) else 0  # 0: none before, or it was killed
        self._closed = max([closed, *(record.number for record in earlier)])
        self._closed_at = self._kept_at = time.monotonic()
        self._handed_over = self._closed  # rounds whose records the caller has
        self._kills = {name: number for name, number in kills.items() if number > self._closed}
        self._lines = ProgressLines(self._federation.rounds, self._records, closed=self._closed)

    def report(self, *lines: str) -> None:
        """Report the lines and the state of the members to the caller."""
        members = tuple(self._member_now(name) for name in self._names)
        rounds, folder = self._federation.rounds, self.local.folder
        self._audience.report(RunProgress(self._closed, rounds, members, lines, folder))

    def run(self, *first_lines: str) -> Result:
        """Run until every node has exited on its own."""
        try:
            self.report(*first_lines)
            self._processes.start()
            failing = self._follow()
        except KeyboardInterrupt:
            self._processes.stop()
            self._observe()
            raise RunInterrupted(self._result(interrupted=True)) from None
        finally:
            self._processes.stop()
            self._keep_records()
        self._observe()
        result = self._result(interrupted=False)
        if failing:
            raise RunFailed(
                f"training keeps failing at {', '.join(failing)}, and without them no "
                f"round can close. {failing[0]} reports:\n{result.worker_errors[failing[0]]}",
                result,
            )
        return result

    @property
    def sharing(self) -> tuple[str, ...]:
        """A line about what stays local, if that is a part of the model worth mentioning."""
        schema = self._federation.schema
        local = sum(entry.size for entry in schema.entries if entry.role is Role.LOCAL)
        if local < LOCAL_SHARE_SHOWN * (local + schema.values):
            return ()
        return (f"{update_share(self._federation)}: the rest stays local",)

    @property
    def rounds_closed(self) -> str:
        return f"{self._closed} of {self._federation.rounds} rounds are closed"

    def _follow(self) -> list[str]:
        """Returns the members that cannot train if, without them, no round can close."""
        running = True
        while running:
            time.sleep(POLL_S)
            running = self._processes.any_running
            self._observe()
            self.report(*self._kill_and_restart())
            self._processes.require_no_failure()
            failing = [
                name
                for name in sorted(self._answering)
                if self._statuses[name].training_failures >= TRAINING_FAILURES_MAX
            ]
            if len(failing) > self._federation.committee.faults:
                return failing
        return []

    def _observe(self) -> None:
        self._answering.clear()
        for number, node in enumerate(self.local.nodes):
            running = self._processes.running(number)
            status = running_status(node) if running else None
            if status is not None:
                self._answering.add(node.name)
            elif not running and node.name not in self._down:
                status = last_status(node)
            if status is not None:
                self._statuses[node.name] = status
                if status.round >= self._closed:
                    self._catching_up.discard(node.name)
        self._records.observe(self._statuses)
        closed, now = max(self._closed, self._closed_by_all()), time.monotonic()
        if closed > self._closed:
            seconds = (now - self._closed_at) / (closed - self._closed)
            for number in range(self._closed + 1, closed + 1):
                self._records.closed(number, seconds)
            self._closed, self._closed_at = closed, now
        evaluating = [
            name
            for name in self._answering - set(self._down) - self._catching_up
            if self._statuses[name].evaluation_error is None
        ]
        self.report(*self._lines.update(self._statuses, closed, evaluating, now))
        if (settled := self._lines.settled(evaluating)) > self._handed_over:
            for record in self._rounds()[self._handed_over : settled]:
                self._audience.closed(record)
                self._handed_over = record.number
        if now - self._kept_at >= RECORDS_EVERY_S:
            self._kept_at = now
            self._keep_records()

    def _closed_by_all(self) -> int:
        """Rounds closed by all members except those down on purpose or still catching up."""
        rounds = [
            self._statuses[name].round if name in self._statuses else 0
            for name in self._names
            if name not in self._down and name not in self._catching_up
        ]
        return min(rounds)

    def _kill_and_restart(self) -> list[str]:
        lines = []
        for name, number in list(self._kills.items()):
            if self._closed >= number - 1:
                del self._kills[name]
                self._processes.kill(self._names.index(name))
                self._down[name] = self._closed
                lines.append(f"{name} was killed (SIGKILL) in round {self._closed + 1}")
        for name, killed_at in list(self._down.items()):
            if self._closed > killed_at:
                del self._down[name]
                self._catching_up.add(name)
                self._processes.start(self._names.index(name))
                lines.append(f"{name} was started again in round {self._closed + 1}")
        return lines

    def _member_now(self, name: str) -> MemberNow:
        status = self._statuses.get(name)
        if name in self._down:
            state = MemberState.KILLED
        elif name not in self._answering:
            state = MemberState.ENDED if status and status.finished else MemberState.STARTING
        else:
            state = MemberState.ATTACKING if name in self._plan.attacks else MemberState.RUNNING
        if status is None:
            return MemberNow(name, state)
        metrics = self._records.metrics.get(status.evaluation.round) if status.evaluation else None
        return MemberNow(
            name,
            state,
            round=status.round,
            metrics=None if metrics is None else metrics.get(name),
            commit_ms=None if status.commit_ms is None else status.commit_ms.p50,
            sent_bytes=status.sent_bytes,
            received_bytes=status.received_bytes,
        )

    def _rounds(self) -> tuple[RoundRecord, ...]:
        statuses = [self._statuses.get(name) for name in self._names]
        closed = min(status.round if status is not None else 0 for status in statuses)
        digests = {status.model for status in statuses if status is not None}
        return self._records.rounds(closed, digests.pop() if len(digests) == 1 else None)

    def _keep_records(self) -> None:
        """Save the records for a run that resumes this one, even if this process is killed."""
        rounds = self._rounds()
        initial = RoundRecord(number=0, metrics=self._records.initial_metrics)
        if rounds and len(rounds) < self._federation.rounds:
            write_records(self.local.folder, (initial, *rounds))

    def _result(self, *, interrupted: bool) -> Result:
        statuses = self._statuses
        return Result(
            members=self._names,
            rounds=self._rounds(),
            rounds_planned=self._federation.rounds,
            initial_metrics=self._records.initial_metrics,
            byzantine=self._plan.attacks,
            # Before the first round closes, a node's model is the initial one, not an aggregate.
            digests={
                name: statuses[name].model if name in statuses and statuses[name].round else None
                for name in self._names
            },
            traffic={
                name: MemberTraffic(status.sent_bytes, status.received_bytes)
                for name, status in statuses.items()
            },
            seconds=time.monotonic() - self._started,
            folder=self.local.folder,
            interrupted=interrupted,
            commit_ms={
                name: asdict(status.commit_ms)
                for name, status in statuses.items()
                if status.commit_ms is not None
            },
            disk_bytes={name: status.disk_bytes for name, status in statuses.items()},
            worker_errors={
                name: status.worker_error
                for name, status in statuses.items()
                if status.worker_error is not None
            },
        )
