"""The known blocks, how far they are committed, and what a new block must state about both.

Joins the tree (links), the executed states and the rule set; knows no views, votes or peers.
"""

from typing import Generic

from defl.committee import Federation
from defl.consensus.rules import ChainRules, commit_target
from defl.consensus.states import Application, ExecutedStates, S
from defl.consensus.tree import Tree
from defl.errors import LocalFault
from defl.ids import Digest, Height, NodeId, View
from defl.messages import (
    BLOCKS_PER_ANSWER_MAX,
    QC,
    TC,
    Block,
    BlockRequest,
    Blocks,
    Header,
    Snapshot,
    Transaction,
    genesis_header,
    transactions_root,
)
from defl.output import Committed, Durable
from defl.wire import FRAME_BYTES_BASE, encode


class Fork(Exception):
    """A certificate commits a block that does not extend the committed one."""


# An answer to a lagging peer stays well within one frame.
ANSWER_BYTES_MAX = FRAME_BYTES_BASE // 2


def genesis_of(federation: Federation, application: Application[S]) -> Block:
    root = application.root_of(application.encode(application.genesis()))
    return Block(genesis_header(federation.chain, federation.epoch, root), ())


class Chain(Generic[S]):
    def __init__(
        self, rules: ChainRules, application: Application[S], genesis: Block, durable: Durable
    ) -> None:
        self._rules = rules
        self._states = ExecutedStates(application, genesis, application.genesis())
        if durable.snapshot is not None and self._states.install(durable.snapshot) is None:
            raise LocalFault("the stored snapshot is not the state that its proof names")
        root = self._states.head
        above = [block for block in durable.blocks if block.height > root.height]
        self._tree = Tree(root, above)
        self._durable = {block.id for block in above}
        # The newest block executed here that had transactions; an installed snapshot is above it.
        self._last_filled = Height(0)

    def __len__(self) -> int:
        return len(self._tree)

    @property
    def state(self) -> S:
        return self._states.state

    @property
    def head(self) -> Block:
        """The newest committed block."""
        return self._states.head

    @property
    def root(self) -> Block:
        """The newest block whose state a certified header shows; all below it is forgotten."""
        return self._tree.root

    @property
    def snapshot(self) -> Snapshot | None:
        return self._states.snapshot

    @property
    def shows_all(self) -> bool:
        """Does a certified header show the state after every committed transaction?"""
        return self._last_filled <= self._tree.root.height

    def get(self, block_id: Digest) -> Block | None:
        return self._tree.get(block_id)

    def add(self, block: Block) -> bool:
        """False if the block claims an impossible height."""
        return self._tree.add(block)

    def missing_below(self, block: Block) -> QC | None:
        """The QC on the nearest missing ancestor; None if none is missing."""
        path, lowest = self._tree.path(block, self.head)
        return path[0].qc if lowest is None and path else None

    def extends_committed(self, block: Block) -> bool:
        return self._tree.extends(block, self.head)

    def extends(self, block: Block, ancestor_id: Digest) -> bool:
        ancestor = self._tree.get(ancestor_id)
        return ancestor is not None and self._tree.extends(block, ancestor)

    def commitment_above(self, parent: Block) -> tuple[Digest, Digest | None]:
        """c(b) and its state root for a child b of the certified `parent`.

        The root is None while this node cannot know it; until then it neither votes nor proposes.
        """
        target = commit_target(parent, self._rules, self._tree.get)
        if parent.height == 0 or target == parent.header.committed:
            return target, parent.header.state_root
        return target, self._states.root_after(target)

    def commitment_right(self, header: Header, parent: Block) -> bool:
        return (header.committed, header.state_root) == self.commitment_above(parent)

    def new_block(
        self,
        parent: Block,
        *,
        view: View,
        qc: QC,
        tc: TC | None,
        transactions: tuple[Transaction, ...],
        author: NodeId,
    ) -> Block | None:
        """A child of the certified `parent`; None while its state root is unknown here."""
        committed, state_root = self.commitment_above(parent)
        if state_root is None:
            return None
        header = Header(
            epoch=parent.header.epoch,
            view=view,
            height=Height(parent.height + 1),
            parent=parent.id,
            qc=qc,
            tc=tc,
            transactions_root=transactions_root(transactions),
            committed=committed,
            state_root=state_root,
            author=author,
        )
        return Block(header, transactions)

    def uncommitted(self, tip: Block) -> list[Transaction]:
        path, _ = self._tree.path(tip, self.head)
        return [transaction for block in path for transaction in block.transactions]

    def commit(self, certified: Block) -> list[Committed]:
        """Execute what a QC on `certified` commits, ancestors first, oldest first."""
        target = self._tree.get(commit_target(certified, self._rules, self._tree.get))
        if target is None or target.height <= self.head.height:
            return []
        path, lowest = self._tree.path(target, self.head)
        if lowest is None:
            return []  # an ancestor is missing; sync brings it
        if lowest.id != self.head.id:
            raise Fork(f"view {certified.view} commits a fork below height {self.head.height}")
        committed = []
        for block in path:
            committed.append(self._states.execute(block))
            if block.transactions:
                self._last_filled = block.height
        return committed

    def drop_forks(self, certified: Block) -> None:
        self._tree.drop_forks(certified)

    def move_snapshot(self, certified: Block, qc: QC) -> bool:
        """Delete everything below the newest state that a certified header shows."""
        root = self._states.take_snapshot(certified.header, qc)
        if root is None:
            return False
        self._tree.set_root(root)
        self._durable = {block_id for block_id in self._durable if block_id in self._tree}
        return True

    def install(self, snapshot: Snapshot) -> bool:
        if snapshot.block.height <= self.head.height:
            return False
        block = self._states.install(snapshot)
        if block is None:
            return False
        self._tree.set_root(block)
        self._tree.drop_forks(block)
        return True

    def not_yet_durable(self, tip: Block) -> list[Block]:
        """`tip` and its ancestors above the snapshot that no persist has included yet."""
        path, _ = self._tree.path(tip, self._tree.root)
        new = [block for block in path if block.id not in self._durable]
        self._durable.update(block.id for block in new)
        return new

    def answer(self, request: BlockRequest) -> Blocks | Snapshot | None:
        """The requested block and its ancestors, as many as fit; or the snapshot above them."""
        snapshot = self._states.snapshot
        if snapshot is not None and request.height < snapshot.block.height:
            return snapshot
        blocks: list[Block] = []
        room = ANSWER_BYTES_MAX
        block = self._tree.get(request.block)
        while block is not None and block.height > request.height:
            room -= len(encode(Blocks((block,))))
            if blocks and (room < 0 or len(blocks) == BLOCKS_PER_ANSWER_MAX):
                break
            blocks.append(block)
            block = self._tree.get(block.parent)
        return Blocks(tuple(blocks)) if blocks else None
