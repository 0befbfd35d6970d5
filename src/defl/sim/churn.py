"""Operators that change the membership while a simulated federation runs.

In each round, by chance, one of them proposes something: a new machine, to leave, to expel another,
a new key for a member whose machine may be gone, other rounds. The others approve whatever leaves
no more faulty members than the next epoch tolerates: more than that nobody promises anything about.
Some of them withdraw their approval for a while.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from random import Random

from msgspec.structs import replace

from defl.cards import Card
from defl.changes import Add, Operation, Remove, ReplaceKey, Rounds
from defl.committee import MEMBERS_MIN, WEIGHS_MEMBERS, Federation, faults_of
from defl.crypto import Signer
from defl.duty import Report
from defl.ids import OUTSIDER, Digest, NodeId, Round
from defl.output import ApproveChange, Departed, Propose, RoundClosed
from defl.participant import Participant
from defl.sim.cluster import Cluster
from defl.sim.sim_node import SimNode
from defl.succession import PendingChange, refusal

# Operators answer after this long on average, and again if the node has forgotten it.
ANSWER_S = 0.5
ANSWER_AGAIN_S = 10.0
# Share of approvals that are withdrawn after a while; the operator agrees again later.
WITHDRAWN_SHARE = 0.1
# Nobody can take part in that many epochs that it would take longer to simulate.
MACHINES_MAX = 40
# Share of proposals that break a limit, and do nothing.
RECKLESS_SHARE = 0.1
# Share of keys that are replaced because their machine is gone.
LOST_SHARE = 0.5
# New members have one of so many weights, where the rule weighs members.
WEIGHTS = 3


class Churn:
    def __init__(self, cluster: Cluster, signer_of: Callable[[int], Signer]) -> None:
        """`signer_of`: the key of a machine, by its number."""
        self._cluster = cluster
        self._signer_of = signer_of
        self._rng = Random(f"{cluster.seed}/churn")
        self._rate = cluster.conditions.churn
        self._rounds_max = 2 * cluster.federation.rounds
        self._members_max = 2 * cluster.federation.committee.size
        self._round = Round(0)
        self._asked: dict[tuple[NodeId, Digest], float] = {}
        self._names = (f"guest-{number}" for number in count())
        cluster.watchers.append(self._watch)

    def _watch(self, node: SimNode, report: Report) -> None:
        if not node.honest:
            return
        for notice in report.notices:
            if isinstance(notice, RoundClosed) and notice.round > self._round:
                self._round = notice.round
                self._cluster.after(self._rng.random(), self._propose)
            elif isinstance(notice, Departed):
                self._cluster.after(0.0, partial(self._cluster.stop, node.id))
        if report.committed:
            self._answer(node)

    # --- Approving -------------------------------------------------------------------------

    def _answer(self, node: SimNode) -> None:
        participant = node.behaviour.participant
        if participant.me == OUTSIDER:
            return
        now = self._cluster.now
        for change in participant.state.changes:
            asked = self._asked.get((node.id, change.digest))
            if participant.me in change.approvals or not self._approves(participant, change):
                continue
            if asked is None or now > asked + ANSWER_AGAIN_S:
                self._asked[node.id, change.digest] = now
                answer = partial(self._cluster.operator, node.id, ApproveChange(change.digest))
                after_s = self._rng.expovariate(1.0) * ANSWER_S
                self._cluster.after(after_s, answer)
                if self._rng.random() < WITHDRAWN_SHARE:
                    doubt = ApproveChange(change.digest, agrees=False)
                    after_s += self._rng.expovariate(1.0) * ANSWER_S
                    self._cluster.after(after_s, partial(self._cluster.operator, node.id, doubt))

    def _approves(self, participant: Participant, change: PendingChange) -> bool:
        return self.is_safe(participant.federation, change.operations)

    def is_safe(self, federation: Federation, operations: tuple[Operation, ...]) -> bool:
        """Are at most f of the members faulty who would be there afterwards? Machines that nobody
        has set up count among them."""
        members = list(federation.members)
        for operation in operations:
            match operation:
                case Remove(member=member) if member < len(members):
                    members[member] = replace(members[member], active=False)
                case ReplaceKey(member=member, card=card) if member < len(members):
                    members[member] = replace(members[member], key=card.key, active=True)
                case Add(card=card):
                    members.append(replace(members[0], name=card.name, key=card.key, active=True))
        keys = [member.key for member in members if member.active]
        reliable = {node.key for node in self._cluster.nodes if self._is_reliable(node)}
        return sum(key not in reliable for key in keys) <= faults_of(len(keys))

    def _is_reliable(self, node: SimNode) -> bool:
        cluster = self._cluster
        return node.honest and not node.stopped and node.id not in cluster.checker.rolled_back

    # --- Proposing -------------------------------------------------------------------------

    def _propose(self) -> None:
        members = [node for node in self._cluster.honest if self._is_member(node)]
        if not members or self._rng.random() >= self._rate:
            return
        node = self._rng.choice(members)
        participant = node.behaviour.participant
        operations = tuple(self._operations(node, participant.federation))
        closing = Round(participant.state.round + 1)
        reckless = self._rng.random() < RECKLESS_SHARE
        if not reckless and refusal(participant.federation, closing, list(operations)) is not None:
            return
        if self.is_safe(participant.federation, operations):
            self._cluster.operator(node.id, Propose(operations))

    def _is_member(self, node: SimNode) -> bool:
        return node.alive and node.behaviour.participant.me != OUTSIDER

    def _operations(self, node: SimNode, federation: Federation) -> Iterator[Operation]:
        kinds = ["add", "leave", "expel", "replace", "rounds", "swap"]
        kind = self._rng.choice(kinds)
        if federation.committee.size <= MEMBERS_MIN and kind in ("leave", "expel"):
            kind = "add"
        lost = self._lost_member(federation)
        if lost is not None:
            yield from self._replacing(federation, lost)
            return
        match kind:
            case "add":
                yield from self._adding(federation)
            case "leave":
                yield Remove(node.behaviour.participant.me)
            case "expel":
                yield Remove(self._rng.choice(federation.committee.members))
            case "replace":
                member = NodeId(self._rng.randrange(federation.committee.slots))
                self._lose_machine(federation, member)
                yield from self._replacing(federation, member)
            case "rounds":
                last = self._round + self._rng.randint(2, 8)
                yield Rounds(Round(min(self._rounds_max, last)))
            case "swap":
                yield Remove(self._rng.choice(federation.committee.members))
                yield from self._adding(federation)

    def _adding(self, federation: Federation) -> Iterator[Operation]:
        room = len(self._cluster.nodes) < MACHINES_MAX
        if room and federation.committee.size < self._members_max:
            machines = len(self._cluster.nodes)
            weight = 1 + machines % WEIGHTS if federation.aggregation in WEIGHS_MEMBERS else 1
            yield Add(self._card(federation, next(self._names)), weight)

    def _replacing(self, federation: Federation, member: NodeId) -> Iterator[Operation]:
        if len(self._cluster.nodes) < MACHINES_MAX:
            card = self._card(federation, federation.members[member].name)
            yield ReplaceKey(member, card)

    def _card(self, federation: Federation, name: str) -> Card:
        """Of a new machine, which is set up at once."""
        signer = self._signer_of(len(self._cluster.nodes))
        self._cluster.add_machine(signer)
        card = Card(name, signer.public_key, b"", "", 0, b"")
        return replace(card, signature=signer.sign(card.statement(federation.origin)))

    # --- Machines that are gone --------------------------------------------------------------

    def _machine_of(self, federation: Federation, member: NodeId) -> SimNode | None:
        machine = self._cluster.checker.facts.machine_of(member, federation.epoch)
        return None if machine is None else self._cluster.nodes[machine]

    def _lost_member(self, federation: Federation) -> NodeId | None:
        """A member whose machine is gone, and that needs a new key."""
        machines = (
            (id_, self._machine_of(federation, id_)) for id_ in federation.committee.members
        )
        return next((id_ for id_, node in machines if node is not None and node.stopped), None)

    def _lose_machine(self, federation: Federation, member: NodeId) -> None:
        """By chance, and if it is one of the f that may fail, its machine is gone for ever."""
        node = self._machine_of(federation, member)
        if node is None or not node.honest or self._rng.random() >= LOST_SHARE:
            return
        committee = federation.committee
        machines = [self._machine_of(federation, id_) for id_ in committee.members]
        known = [machine for machine in machines if machine is not None]
        if any(map(_expects_change, known)):
            return  # that change was judged safe with this machine
        reliable = [m for m in known if self._is_reliable(m) and m is not node]
        if len(reliable) >= committee.quorum:
            self._cluster.stop(node.id)


def _expects_change(node: SimNode) -> bool:
    participant = node.behaviour.participant
    return bool(participant.state.changes) or participant.changes_unsent
