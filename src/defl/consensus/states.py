"""Executed states: of the head, of blocks that a proposal may still name, and the snapshot.

The application (the ledger) is a pure function; its states are opaque here.
"""

from typing import Generic, Protocol, TypeVar

from defl.ids import Digest
from defl.messages import QC, Block, Header, Snapshot, Transaction
from defl.output import Committed, Response

S = TypeVar("S")


class Application(Protocol[S]):
    """The state machine that consensus orders transactions for."""

    def genesis(self) -> S: ...
    def execute(self, state: S, block: Block) -> tuple[S, tuple[Response, ...]]: ...
    def encode(self, state: S) -> bytes: ...
    def root_of(self, encoded: bytes) -> Digest: ...
    def decode(self, data: bytes) -> S: ...
    def live(self, state: S, transaction: Transaction) -> bool: ...
    def wanted(self, state: S, transaction: Transaction) -> bool: ...


class ExecutedStates(Generic[S]):
    def __init__(self, application: Application[S], head: Block, state: S) -> None:
        self._application = application
        self.head = head
        self.snapshot: Snapshot | None = None
        self._states: dict[Digest, tuple[Block, S, bytes, Digest]] = {}  # encoded, and its root
        self._remember(head, state)

    def _remember(self, block: Block, state: S) -> None:
        encoded = self._application.encode(state)
        self._states[block.id] = (block, state, encoded, self._application.root_of(encoded))

    @property
    def state(self) -> S:
        return self._states[self.head.id][1]

    def root_after(self, block_id: Digest) -> Digest | None:
        """The state root after a committed block, while a proposal may still name it."""
        executed = self._states.get(block_id)
        return executed[3] if executed is not None else None

    def execute(self, block: Block) -> Committed:
        if not block.transactions:
            self._states[block.id] = (block, *self._states[self.head.id][1:])
            self.head = block
            return Committed(block, ())
        state, responses = self._application.execute(self.state, block)
        self._remember(block, state)
        self.head = block
        return Committed(block, responses)

    def take_snapshot(self, proof: Header, proof_qc: QC) -> Block | None:
        """Make the certified header's c(b) the snapshot, if it is newer; return its block."""
        executed = self._states.get(proof.committed)
        if executed is None:
            return None
        block, _, encoded, _ = executed
        if self.snapshot is not None and block.height <= self.snapshot.block.height:
            return None
        if block.height == 0:
            return None
        self.snapshot = Snapshot(block.header, encoded, proof, proof_qc)
        self._forget_below(block)
        return block

    def install(self, snapshot: Snapshot) -> Block | None:
        """Jump to a proven state; None if its bytes are not those that the proof names."""
        # Hash first: bytes that a quorum vouches for are the encoding of a state.
        if self._application.root_of(snapshot.state) != snapshot.proof.state_root:
            return None
        state = self._application.decode(snapshot.state)
        block = Block(snapshot.block, ())
        self.head = block
        self.snapshot = snapshot
        self._states.clear()
        self._remember(block, state)
        return block

    def _forget_below(self, root: Block) -> None:
        # No later proposal names an older state: the voters for the certified block report the QC
        # on its parent or a newer one, so proposals extend that parent.
        for block_id in [b.id for b, *_ in self._states.values() if b.height < root.height]:
            del self._states[block_id]
