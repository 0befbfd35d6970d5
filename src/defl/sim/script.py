"""Directed attack scripts: one honest replica on a stage; the script plays all other members.

A script names blocks and timeout certificates, then lists step by step what reaches the replica
and exactly what the replica must do: more, less or something else is a failure. Messages pass the
real verifier. Only durable state survives a restart. tests/scenarios/README.md explains the format.
"""

import tomllib
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from defl.committee import Rules
from defl.consensus.effects import ConsensusEffects
from defl.consensus.replica import Replica
from defl.consensus.rules import RULES, commit_target
from defl.errors import PeerFault, UserError
from defl.fields import bitmap_of
from defl.ids import Digest, Height, NodeId, View
from defl.messages import (
    QC,
    TC,
    Agg,
    Block,
    BlockRequest,
    Blocks,
    Certificates,
    Gossip,
    Header,
    Message,
    Proposal,
    Snapshot,
    Status,
    Timeout,
    Vote,
    genesis_qc,
    timeout_statement,
    transactions_root,
    vote_statement,
)
from defl.output import (
    Committed,
    Durable,
    Envelope,
    EvidenceFound,
    Notice,
    Observing,
    PeerMisbehaved,
    SafetyRecord,
)
from defl.sim.bare_replicas import LIVE, Tape, facts, mark
from defl.sim.signer import NoopScheme
from defl.verifier import Verifier

MEMBERS = 4
GENESIS = "genesis"
WRONG = Digest(b"\xff" * 32)


def leader_of(view: View) -> NodeId:
    """In scripts the members lead in turn, so that a reader can tell which one leads."""
    return NodeId(view % MEMBERS)


class BlockFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """What a script states about a block; the rest is as an honest leader would make it."""

    view: int
    on: str  # the block that its QC certifies
    tc: str | None = None
    author: int | None = None  # None: the view's leader
    parent: str | None = None  # None: the block that its QC certifies
    height: int | None = None
    committed: str | None = None  # c(b)
    state_root: Annotated[str, Meta(pattern="^wrong$")] | None = None
    mark: int = 0  # one transaction, to tell two blocks of one view and parent apart


class TcFacts(Struct, frozen=True, forbid_unknown_fields=True):
    view: int
    reports: dict[str, str]  # member -> the block whose QC it reports
    carries: str | None = None  # None: the newest of the reported QCs


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    attacks: str  # a description of the rule
    source: str
    node: int  # the honest replica
    steps: list[list[str]]  # what reaches it, then all that it does
    blocks: dict[str, BlockFacts] = {}
    tcs: dict[str, TcFacts] = {}
    rules: tuple[Rules, ...] = (Rules.HOTSTUFF, Rules.JOLTEON)
    story: str = ""


def read(text: str) -> Script:
    return msgspec.convert(tomllib.loads(text), Script)


class Cast:
    """Makes what the script names: blocks, certificates and signed messages of all members."""

    def __init__(self, script: Script, rules: Rules) -> None:
        self.federation, self._signers, self.record = facts(MEMBERS, rules)
        self._script = script
        self._rules = RULES[rules]
        self._tape = Tape()
        genesis = self._genesis()
        self._blocks: dict[str, Block] = {GENESIS: genesis}
        self._by_id: dict[Digest, Block] = {genesis.id: genesis}
        self._names: dict[Digest, str] = {genesis.id: GENESIS}
        self._states: dict[Digest, bytes] = {genesis.id: self._tape.genesis()}

    def _genesis(self) -> Block:
        replica = Replica(
            self.federation, NodeId(0), self._signers[0], self._tape, Durable(self.record)
        )
        return replica.head

    def replica(self, durable: Durable) -> Replica[bytes]:
        me = NodeId(self._script.node)
        return Replica(self.federation, me, self._signers[me], Tape(), durable, leader_of)

    def verifier(self) -> Verifier:
        return Verifier(self.federation, NoopScheme(), self._blocks[GENESIS].id)

    def learn(self, name: str, block: Block) -> Block:
        self._blocks[name], self._by_id[block.id], self._names[block.id] = block, block, name
        state = self._states[block.parent]
        if block.transactions:
            state, _ = self._tape.execute(state, block)
        self._states[block.id] = state
        return block

    def name_of(self, block_id: Digest) -> str:
        return self._names.get(block_id, "an unknown block")

    def block(self, name: str) -> Block:
        if name not in self._blocks:
            if name not in self._script.blocks:
                raise UserError(f"the script {self._script.title!r} names no block {name!r}")
            self.learn(name, self._block_from(self._script.blocks[name]))
        return self._blocks[name]

    def _block_from(self, spec: BlockFacts) -> Block:
        certified = self.block(spec.on)
        parent = self.block(spec.parent) if spec.parent is not None else certified
        view = View(spec.view)
        target = commit_target(parent, self._rules, self._by_id.get)
        root = self._tape.root_of(self._tape.encode(self._states[target]))
        transactions = (self._signed(mark(spec.mark)),) if spec.mark else ()
        author = spec.author if spec.author is not None else leader_of(view)
        header = Header(
            epoch=self.federation.epoch,
            view=view,
            height=Height(parent.height + 1 if spec.height is None else spec.height),
            parent=parent.id,
            qc=self.qc(spec.on),
            tc=self.tc(spec.tc) if spec.tc is not None else None,
            transactions_root=transactions_root(transactions),
            committed=self.block(spec.committed).id if spec.committed is not None else target,
            state_root=WRONG if spec.state_root is not None else root,
            author=NodeId(author),
        )
        return Block(header, transactions)

    def _signed(self, agg: Agg) -> Agg:
        message = agg.statement(self.federation.chain, self.federation.epoch)
        return msgspec.structs.replace(agg, signature=self._signers[agg.author].sign(message))

    def qc(self, name: str) -> QC:
        """Signed by all but the replica on the stage."""
        block = self.block(name)
        if block.height == 0:
            return genesis_qc(block.id)
        message = vote_statement(self.federation.chain, self.federation.epoch, block.view, block.id)
        signers = [m for m in self.federation.committee.members if m != self._script.node]
        signatures = tuple(self._signers[member].sign(message) for member in signers)
        return QC(block.view, block.id, bitmap_of(signers, MEMBERS), signatures)

    def tc(self, name: str) -> TC:
        spec = self._script.tcs[name]
        reports = {NodeId(int(member)): self.qc(on) for member, on in sorted(spec.reports.items())}
        newest = max(reports.values(), key=lambda qc: qc.view)
        view = View(spec.view)
        return TC(
            view=view,
            signers=bitmap_of(reports, MEMBERS),
            high_views=tuple(qc.view for qc in reports.values()),
            signatures=tuple(
                self._signers[member].sign(self._gives_up(view, qc))
                for member, qc in reports.items()
            ),
            qc=self.qc(spec.carries) if spec.carries is not None else newest,
        )

    def _gives_up(self, view: View, qc: QC) -> Digest:
        return timeout_statement(self.federation.chain, self.federation.epoch, view, qc.view)

    def proposal(self, name: str) -> Proposal:
        block = self.block(name)
        unsigned = Proposal(block, b"")
        signature = self._signers[block.header.author].sign(
            unsigned.statement(self.federation.chain)
        )
        return Proposal(block, signature)

    def vote(self, name: str, author: NodeId) -> Vote:
        block, epoch = self.block(name), self.federation.epoch
        message = vote_statement(self.federation.chain, epoch, block.view, block.id)
        signature = self._signers[author].sign(message)
        return Vote(epoch, block.view, block.id, author, signature, block.qc.view, View(0))

    def timeout(self, view: View, author: NodeId, on: str) -> Timeout:
        qc = self.qc(on)
        signature = self._signers[author].sign(self._gives_up(view, qc))
        return Timeout(self.federation.epoch, view, qc, None, author, signature)


class Stage:
    """The replica with its disk, and what it does in the words of the script."""

    def __init__(self, script: Script, rules: Rules) -> None:
        self.cast = Cast(script, rules)
        self._script = script
        self._verifier = self.cast.verifier()
        self._now = 0.0
        self._record: SafetyRecord = self.cast.record
        self._durable_blocks: dict[Digest, Block] = {}
        self._snapshot: Snapshot | None = None
        self._signed_in: dict[tuple[type, View], Message] = {}
        self.replica = self._start()

    def play(self) -> list[tuple[str, list[str], list[str]]]:
        """Each step with what the script expects of it and what happened."""
        prefix = f"{self.cast.federation.rules}: "
        others = tuple(f"{rules}: " for rules in Rules)
        played = []
        for step, *expected in self._script.steps:
            mine = [word.removeprefix(prefix) for word in expected]
            played.append((step, [w for w in mine if not w.startswith(others)], self.do(step)))
        return played

    def do(self, step: str) -> list[str]:
        match step.split():
            case ["time", "passes"]:
                self._now = max(self._now, self.replica.wake_at or self._now)
                self.replica.tick(self._now)
            case ["restart"]:
                self.replica = self._start()
            case _:
                for peer, message in self._messages(step):
                    refusal = self._deliver(peer, message)
                    if refusal is not None:
                        return [refusal]
        return self._describe(self.replica.take())

    def _start(self) -> Replica[bytes]:
        blocks = tuple(self._durable_blocks.values())
        replica = self.cast.replica(Durable(self._record, self._snapshot, blocks))
        replica.resume(self._now)
        replica.submit(LIVE, self._now)  # its client has work, so that the timer runs
        return replica

    def _deliver(self, peer: NodeId, message: Message) -> str | None:
        try:
            self._verifier.verify(message)
        except PeerFault as fault:
            return f"refuse: {fault}"
        self.replica.receive(peer, message, self._now)
        return None

    def _messages(self, step: str) -> list[tuple[NodeId, Message]]:
        cast = self.cast
        peer = NodeId((self._script.node + 1) % MEMBERS)
        match step.split():
            case ["proposal", name]:
                proposal = cast.proposal(name)
                return [(proposal.block.header.author, proposal)]
            case ["vote", name, "from", *members]:
                return [(_member(m), cast.vote(name, _member(m))) for m in members]
            case ["timeout", view, "with", name, "from", *members]:
                failed = View(int(view))
                return [(_member(m), cast.timeout(failed, _member(m), name)) for m in members]
            case ["qc", name]:
                return [(peer, Certificates(cast.qc(name), None))]
            case ["tc", name]:
                tc = cast.tc(name)
                return [(peer, Certificates(tc.qc, tc))]
            case ["block", name]:
                return [(peer, Blocks((cast.block(name),)))]
            case ["status", "view", view, "qc", qc_view, "from", member]:
                return [(_member(member), Status(View(int(view)), View(int(qc_view))))]
            case _:
                raise UserError(f"the script {self._script.title!r} has no such step: {step!r}")

    # --- Descriptions of the replica's actions ---------------------------------------------

    def _describe(self, effects: ConsensusEffects) -> list[str]:
        if effects.record is not None:
            self._record = effects.record
        self._durable_blocks.update((block.id, block) for block in effects.blocks)
        if effects.snapshot is not None:
            self._snapshot = effects.snapshot
        lines = [self._sent(envelope) for envelope in effects.send]
        lines += [self._committed(committed) for committed in effects.committed]
        lines += [self._noticed(notice) for notice in effects.notices]
        return [word for word in lines if word]

    def _sent(self, envelope: Envelope) -> str:
        message, name_of = envelope.message, self.cast.name_of
        match message:
            case Proposal(block=block):
                self.cast.learn(f"mine{block.view}", block)
                after = f" after TC {block.header.tc.view}" if block.header.tc is not None else ""
                proposal = f"propose {block.view} on {name_of(block.parent)}{after}"
                return proposal + self._flaw(message, block.view, self._record.last_proposal)
            case Vote(view=view, block=block_id):
                flaw = self._flaw(message, view, self._record.last_vote)
                return f"vote {name_of(block_id)}" + flaw
            case Timeout(view=view, high_qc=qc):
                flaw = self._flaw(message, view, self._record.last_timeout)
                return f"timeout {view} with {name_of(qc.block)}" + flaw
            case Certificates(qc=qc, tc=tc):
                shown = f"qc {name_of(qc.block)}" + (f" tc {tc.view}" if tc is not None else "")
                return f"tell all {shown}" if envelope.to is None else f"answer {shown}"
            case BlockRequest(block=block_id):
                return f"ask for {name_of(block_id)}"
            case Gossip() | Status():
                return ""
            case _:
                return type(message).__name__

    def _flaw(self, message: Message, view: View, durable: Message | None) -> str:
        """Empty if the message is in the durable record and contradicts none before it."""
        if message != durable:
            return ", which is not in the record"
        if self._signed_in.setdefault((type(message), view), message) != message:
            return ", which contradicts what it signed before"
        return ""

    def _committed(self, committed: Committed) -> str:
        return f"commit {self.cast.name_of(committed.block.id)}"

    @staticmethod
    def _noticed(notice: Notice) -> str:
        match notice:
            case EvidenceFound(evidence=evidence):
                return f"evidence against {evidence.first.author}"
            case Observing():
                return "observe"
            case PeerMisbehaved(peer=peer):
                return f"fault of {peer}"
            case _:
                return type(notice).__name__


def _member(word: str) -> NodeId:
    return NodeId(int(word))
