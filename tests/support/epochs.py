"""For tests of epochs: a simulated federation whose members come and go.

A machine is known by its number in the simulator, which it keeps for ever; its member id may differ
after its key was replaced, and is OUTSIDER while it is no member.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, TypeVar

from msgspec.structs import replace

from defl.cards import Card
from defl.changes import Add, Operation, ReplaceKey
from defl.crypto import Signer
from defl.ids import Digest, NodeId
from defl.messages import Message
from defl.output import (
    ApproveChange,
    Departed,
    EpochBegan,
    Notice,
    Observing,
    PeerMisbehaved,
    Propose,
)
from defl.participant import Participant
from defl.sim.conditions import Conditions
from defl.sim.scenario import cluster_of
from defl.sim.signer import NoopSigner
from defl.sim.sim_node import SimNode, Wrap

N = TypeVar("N")

NEVER_S = 1e9

# Whether the network loses a message from one machine to another.
Censor = Callable[[NodeId, NodeId, Message], bool]


def signed_card(signer: Signer, name: str, origin: Digest) -> Card:
    """A joiner's card: its key signs it over the federation's origin."""
    unsigned = Card(name, signer.public_key, b"", "", 0, b"")
    return replace(unsigned, signature=signer.sign(unsigned.statement(origin)))


class Churn:
    """A cluster, its machines by number, and all that they reported."""

    def __init__(
        self,
        members: int = 4,
        *,
        rounds: int = 12,
        seed: int = 1,
        conditions: Conditions = Conditions(),  # noqa: B008 - frozen
        byzantine: Mapping[NodeId, Wrap] | None = None,
        **facts: Any,
    ) -> None:
        self.notices: list[tuple[NodeId, Notice]] = []
        self.accused: dict[int, set[int]] = {}  # by each machine: the machines that it accused
        self.cluster = cluster_of(
            members,
            rounds=rounds,
            seed=seed,
            conditions=conditions,
            byzantine=byzantine,
            on_notice=self._note,
            **facts,
        )

    def _note(self, machine: NodeId, notice: Notice) -> None:
        self.notices.append((machine, notice))
        if isinstance(notice, PeerMisbehaved):
            accused = self.cluster.traffic.machine(self.node(machine), notice.peer)
            assert accused is not None
            self.accused.setdefault(machine, set()).add(accused)
        if isinstance(notice, Departed) and self.node(machine).honest:
            self.switch_off(machine)  # it says that nobody needs it any more; a liar stays

    # --- Machines --------------------------------------------------------------------------

    def switch_off(self, *machines: int) -> None:
        """Until `switch_on`, which may never come."""
        for machine in machines:
            self.cluster.crash(NodeId(machine), downtime_s=NEVER_S, power=False)

    def switch_on(self, *machines: int) -> None:
        for machine in machines:
            self.cluster.restart(NodeId(machine))

    def node(self, machine: int) -> SimNode:
        return self.cluster.nodes[machine]

    def participant(self, machine: int) -> Participant:
        return self.node(machine).behaviour.participant

    @property
    def machines(self) -> list[int]:
        return [node.id for node in self.cluster.nodes]

    def add_machine(self, text: str) -> int:
        """A machine with a new key, of which no member knows yet; its number."""
        node = self.cluster.add_machine(NoopSigner(sha256(text.encode()).digest()))
        return node.id

    def card(self, machine: int, name: str) -> Card:
        signer = self.cluster.signers[machine]
        return signed_card(signer, name, self.cluster.federation.origin)

    def add(self, machine: int, name: str) -> Add:
        return Add(self.card(machine, name))

    def replace_key(self, member: int, machine: int) -> ReplaceKey:
        """The machine takes this member's place."""
        name = self.newest.federation.members[member].name
        return ReplaceKey(NodeId(member), self.card(machine, name))

    @property
    def newest(self) -> Participant:
        """A participant of the newest epoch, with the longest log."""
        return max(
            (self.participant(machine) for machine in self.machines),
            key=lambda one: (one.epoch, one.replica.head.height),
        )

    # --- Changes ---------------------------------------------------------------------------

    def propose(self, machine: int, *operations: Operation) -> Digest:
        """Its operator proposes this change; returns once the ledger records it."""
        self.cluster.operator(NodeId(machine), Propose(operations))
        participant = self.participant(machine)

        def recorded() -> bool:
            own = participant.state.change_of(participant.me)
            return own is not None and own.operations == operations

        self.run_until(recorded)
        own = participant.state.change_of(participant.me)
        assert own is not None
        return own.digest

    def approve(self, digest: Digest, *machines: int) -> None:
        """Their operators approve; returns at once, the ledger records it later."""
        for machine in machines:
            self.run_until(lambda m=machine: self.participant(m).state.change(digest) is not None)
            self.cluster.operator(NodeId(machine), ApproveChange(digest))

    def withdraw(self, digest: Digest, *machines: int) -> None:
        """Their operators withdraw their approval; returns at once."""
        for machine in machines:
            self.cluster.operator(NodeId(machine), ApproveChange(digest, agrees=False))

    def change(self, *operations: Operation, by: int = 0, approvers: tuple[int, ...] = ()) -> None:
        """Propose a change and approve it: by default as many of the other members as needed."""
        digest = self.propose(by, *operations)
        proposer = self.participant(by)
        others = [m for m in self.members if m != by]
        needed = proposer.federation.committee.quorum - 1
        self.approve(digest, *(approvers or others[:needed]))

    @property
    def members(self) -> list[int]:
        """The machines that are active members of the newest epoch, and have not been killed."""
        committee = self.newest.federation.committee
        keys = {committee.keys[member] for member in committee.members}
        up = (node for node in self.cluster.nodes if node.alive or node.ended)
        return [node.id for node in up if node.key in keys]

    # --- Running ---------------------------------------------------------------------------

    def run_until(self, condition: Callable[[], bool]) -> None:
        self.cluster.run(until=condition)
        assert condition(), f"stuck at second {self.cluster.now:.1f}: {self.where}"

    def run_until_epoch(self, epoch: int, *machines: int) -> None:
        """Until these machines (by default: all members) are in this epoch or a later one."""
        self.run_until(
            lambda: (
                all(self.participant(m).epoch >= epoch for m in machines or self.members)
                and self.newest.epoch >= epoch
            )
        )

    def run_until_round(self, round_: int, *machines: int) -> None:
        """Until these machines (by default: all members) have seen this round close."""
        self.run_until(
            lambda: all(self.participant(m).state.round >= round_ for m in machines or self.members)
        )

    def run_for(self, seconds: float) -> None:
        end = self.cluster.now + seconds
        self.cluster.run(until=lambda: self.cluster.now >= end)

    def finish(self) -> None:
        """Run to the last round, and judge the whole run."""
        self.run_until(
            lambda: bool(self.members) and all(self.participant(m).finished for m in self.members)
        )
        assert self.cluster.conclude() == []

    # --- Seeing ----------------------------------------------------------------------------

    @property
    def where(self) -> list[tuple[int, int, int, int]]:
        """Of each machine: number, member id, epoch, newest closed round."""
        return [
            (m, one.me, one.epoch, one.state.round)
            for m in self.machines
            for one in [self.participant(m)]
        ]

    def notices_of(self, kind: type[N], *machines: int) -> list[tuple[int, N]]:
        """What machines (by default: all) reported of this kind."""
        return [
            (machine, notice)
            for machine, notice in self.notices
            if isinstance(notice, kind) and (not machines or machine in machines)
        ]

    def epochs_begun(self, machine: int) -> list[int]:
        return [began.federation.epoch for _, began in self.notices_of(EpochBegan, machine)]

    @property
    def accusations(self) -> list[tuple[int, PeerMisbehaved]]:
        return self.notices_of(PeerMisbehaved)

    @property
    def observers(self) -> list[tuple[int, Observing]]:
        return self.notices_of(Observing)

    def one_history(self) -> bool:
        """Whoever is in an epoch is in the same one, and closed rounds are the same rounds."""
        chains: dict[int, set[Digest]] = {}
        rounds: dict[int, set[Digest]] = {}
        for machine in self.machines:
            one = self.participant(machine)
            chains.setdefault(one.epoch, set()).add(one.federation.chain)
            for closed in one.state.closed:
                rounds.setdefault(closed.round, set()).add(closed.block)
        return all(len(same) == 1 for same in (*chains.values(), *rounds.values()))
