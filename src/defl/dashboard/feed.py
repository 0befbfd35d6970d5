"""The dashboard's source of truth: the folders of nodes, looked at again for each answer."""

from collections.abc import Sequence
from heapq import nlargest
from pathlib import Path
from time import localtime, strftime, time

from defl.dashboard.asking import wait_for
from defl.dashboard.downloads import NodeFiles
from defl.dashboard.happened import happened
from defl.dashboard.members import member_views
from defl.dashboard.nodes import WatchedNode
from defl.dashboard.round_page import round_view
from defl.dashboard.source import Download
from defl.dashboard.strip import Strip
from defl.dashboard.view import (
    FactsView,
    NodeView,
    OpenRoundView,
    Overview,
    RoundsView,
    RoundView,
)
from defl.dashboard.words import seconds_text
from defl.dashboard.worker_log import log_tail
from defl.node.report.health import Health, health_of, members_health
from defl.node.report.health_notes import MemberRecord
from defl.node.report.last_seen import health_by_files
from defl.node.report.machine_health import LocalNode, health_of_all
from defl.node.report.open_round_text import closes_text, opened_sentence
from defl.node.report.phases import Phase, PhaseTime
from defl.node.report.round_facts import UpdateVerdict
from defl.node.report.status import NodeStatus
from defl.node.setup.facts_text import facts_in_words
from defl.node.setup.fingerprint import fingerprint
from defl.node.setup.requirements import requirements_of

# Digests that are compared between nodes: a node may be this many rounds behind.
MODELS_COMPARED = 8


class Feed:
    """Answers the page's requests. Called from one thread; `file` from others too."""

    def __init__(self, folders: Sequence[Path], title: str) -> None:
        """`title`: of a whole federation; "" for a single node, which has a name."""
        self._nodes = [WatchedNode(folder) for folder in folders]
        self._title = title or self._nodes[0].name
        self._strip = Strip()

    # --- The page's requests -----------------------------------------------------------------

    def overview(self) -> Overview:
        self._refresh()
        witness = self._witness
        federation, status = witness.federation, witness.status
        is_whole = len(self._nodes) > 1
        n = federation.committee.size if federation is not None else len(self._nodes)
        return Overview(
            title=self._title,
            subtitle=f"{len(self._nodes)} nodes on this machine"
            if is_whole
            else f"one node of {n}",
            whole=is_whole,
            fingerprint="" if federation is None else fingerprint(federation.chain),
            at=time(),
            health=self._health(),
            members_health=self._members_health(),
            version=self._strip.version,
            rounds_closed=max(
                (node.status.round for node in self._nodes if node.status), default=0
            ),
            rounds_total=status.rounds if status is not None else _planned(witness),
            n=n,
            f=federation.committee.faults if federation is not None else 0,
            quorum=federation.committee.quorum if federation is not None else 0,
            rule="" if federation is None else federation.aggregation,
            members=member_views(witness, self._nodes, self._strip),
            nodes=[self._node_view(node) for node in self._nodes],
            open_round=_open_round(witness),
            happened=happened(self._nodes),
        )

    def rounds(self, since: str) -> RoundsView:
        self._refresh()
        return self._strip.view(since)

    def round(self, number: int, node: str | None) -> RoundView | None:
        """None: there is no such node. Without a name: the first node that has a record."""
        if node is not None:
            found = self._named(node)
            return None if found is None else round_view(number, found)
        having = (n for n in self._by_liveness if number in n.history.rounds)
        return round_view(number, next(having, self._witness))

    def facts(self, name: str | None) -> FactsView | None:
        node = self._witness if name is None else self._named(name)
        if node is None:
            return None
        text, is_cut = log_tail(node.folder / node.config.state)
        facts = [] if node.federation is None else facts_in_words(node.federation)
        return FactsView(name=node.name, facts=facts, worker_log=text, worker_log_is_cut=is_cut)

    def file(self, node: str, name: str) -> Download | None:
        found = self._named(node)
        return None if found is None else NodeFiles(found.folder, found.name).open(name)

    # --- The nodes ---------------------------------------------------------------------------

    def _refresh(self) -> None:
        for node in self._nodes:
            node.ask()
        wait_for([node.asking for node in self._nodes])
        changed: set[int] = set()
        for node in self._nodes:
            changed |= node.refresh()
        self._strip.take([node.history for node in self._by_liveness], changed)

    @property
    def _by_liveness(self) -> list[WatchedNode]:
        """Running ones first."""
        return sorted(self._nodes, key=lambda node: not node.runs)

    @property
    def _witness(self) -> WatchedNode:
        """Whose view is shown where nodes may differ."""
        return self._by_liveness[0]

    def _named(self, name: str) -> WatchedNode | None:
        return next((node for node in self._nodes if node.name == name), None)

    # --- Sentences ---------------------------------------------------------------------------

    def _health(self) -> Health:
        records = self._records()
        if len(self._nodes) > 1:
            return health_of_all([_local(node) for node in self._nodes], records)
        node = self._nodes[0]
        if node.runs and node.status is not None:
            return health_of(node.status, records)
        return health_by_files(node.name, node.folder, node.status, node.history)

    def _members_health(self) -> Health:
        witness = self._witness
        if witness.runs and witness.status is not None:
            return members_health(witness.status)
        return self._health()

    def _records(self) -> list[MemberRecord] | None:
        came = (UpdateVerdict.KEPT, UpdateVerdict.LEFT_OUT)
        return [
            MemberRecord(
                name,
                counts[UpdateVerdict.LEFT_OUT],
                sum(counts[verdict] for verdict in came),
                self._strip.newest_left_out(name),
            )
            for name, counts in self._strip.counts.items()
        ] or None

    def _node_view(self, node: WatchedNode) -> NodeView:
        status = node.status
        process = _process(node)
        if status is None:
            return NodeView(name=node.name, runs=node.runs, process=process)
        proven = max((n for n, facts in node.history.rounds.items() if facts.proven), default=None)
        found = node.history.rounds[proven].proven if proven is not None else None
        phase = status.open_round.phases[-1:] if status.open_round is not None else []
        evaluation, latency, federation = status.evaluation, status.commit_ms, node.federation
        return NodeView(
            name=node.name,
            address=node.config.address,
            runs=node.runs,
            process=process,
            phase=phase[0].phase.value if phase and node.runs else "",
            doing=_doing(status, phase) if node.runs else "",
            round=status.round,
            model_round=status.round if status.model is not None else None,
            model=status.model,
            same_model=self._is_same(node),
            proven_round=proven,
            proven=None if found is None else found.digest,
            metrics={} if evaluation is None else evaluation.metrics,
            metrics_round=None if evaluation is None else evaluation.round,
            connected=sum(status.peers.values()) if node.runs else 0,
            peers=len(status.peers),
            commit_p50_ms=None if latency is None else latency.p50,
            commit_p99_ms=None if latency is None else latency.p99,
            sent_bytes=status.sent_bytes,
            received_bytes=status.received_bytes,
            memory_peak_bytes=status.memory_peak_bytes,
            disk_bytes=status.disk_bytes,
            disk_max_bytes=None if federation is None else requirements_of(federation).disk_bytes,
            training_failures=status.training_failures,
            worker_error=status.worker_error,
            evaluation_error=status.evaluation_error,
            view=status.view,
            height=status.height,
            epoch=status.epoch,
            role=status.role,
        )

    def _is_same(self, node: WatchedNode) -> bool | None:
        """Is its newest model that of the other nodes in the same round?"""
        mine = node.history.rounds.get(node.status.round) if node.status is not None else None
        if mine is None or mine.ready is None:
            return None
        others = (
            facts.ready.digest
            for other in self._nodes
            if other is not node
            and (facts := other.history.rounds.get(mine.number)) is not None
            and facts.ready is not None
        )
        known = list(others)
        return all(digest == mine.ready.digest for digest in known) if known else None


def _planned(node: WatchedNode) -> int:
    return node.federation.rounds if node.federation is not None else 0


def _local(node: WatchedNode) -> LocalNode:
    newest = nlargest(MODELS_COMPARED, node.history.rounds)
    models = {n: node.history.rounds[n].ready for n in newest}
    return LocalNode(
        node.name,
        str(node.folder),
        node.status if node.runs else None,
        models={n: ready.digest for n, ready in models.items() if ready is not None},
        finished=not node.runs and node.status is not None and node.status.finished,
    )


def _process(node: WatchedNode) -> str:
    starts = node.history.starts
    if not node.runs:
        return "finished" if node.status is not None and node.status.finished else "does not run"
    if len(starts) > 1:
        return f"runs, started again {strftime('%H:%M:%S', localtime(starts[-1].at))}"
    return "runs"


DOING = {
    Phase.PREPARE: "making the model",
    Phase.TRAIN: "training",
    Phase.CERTIFY: "certifying",
    Phase.FETCH: "fetching updates",
    Phase.AGGREGATE: "aggregating",
}


def _doing(status: NodeStatus, phases: Sequence[PhaseTime]) -> str:
    if status.finished:
        return "finished"
    open_round = status.open_round
    if open_round is None or not phases:
        return ""
    phase = phases[-1]
    if phase.phase is Phase.CLOSE:
        return f"waiting for {len(open_round.awaited)}"
    return f"{DOING[phase.phase]}, {seconds_text(max(0.0, open_round.open_s - phase.start_s))}"


def _open_round(witness: WatchedNode) -> OpenRoundView | None:
    status = witness.status
    if not witness.runs or status is None or status.open_round is None:
        return None
    now = status.open_round
    return OpenRoundView(
        number=now.round,
        seen_from=witness.name,
        open_s=now.open_s,
        sentence=opened_sentence(status),
        phases=now.phases,
        arrivals=now.arrivals,
        awaited=now.awaited,
        closes_s=now.closes_s,
        closes_text=closes_text(status),
    )
