"""Blocks by id, from the snapshot block upward.

Only links between blocks belong here; what may be voted for or committed does not.
"""

from collections.abc import Iterable

from defl.ids import Digest
from defl.messages import Block

# While no view is certified, each failed view leaves one block; at the longest back-off this many
# take most of a day. Then the oldest block goes: a full tree refuses nothing.
BLOCKS_MAX = 1024


class Tree:
    def __init__(self, root: Block, stored: Iterable[Block] = ()) -> None:
        """`stored` blocks come from disk; an excess is dropped when the next block is added."""
        self._blocks: dict[Digest, Block] = {root.id: root}
        self._blocks.update((block.id, block) for block in stored)
        self.root = root
        self.tip = root  # the newest certified block whose ancestors are all here

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block_id: Digest) -> bool:
        return block_id in self._blocks

    def get(self, block_id: Digest) -> Block | None:
        return self._blocks.get(block_id)

    def add(self, block: Block) -> bool:
        """False if its height is impossible: nothing would ever remove such a block."""
        if block.id in self._blocks:
            return True
        parent = self._blocks.get(block.parent)
        if parent is not None and block.height != parent.height + 1:
            return False
        if block.height > block.view:  # each height has a view of its own
            return False
        if len(self._blocks) >= BLOCKS_MAX:
            self._make_room()
        self._blocks[block.id] = block
        return True

    def _make_room(self) -> None:
        """Drop the oldest blocks that no certificate here names.

        Every block carries the QC on its parent, so only blocks without children can go. If all
        have children, the tree exceeds its bound by blocks that q members certified, which no liar
        can bring about.
        """
        certified = {self.tip.id, self.root.id, *(b.parent for b in self._blocks.values())}
        childless = [b for b in self._blocks.values() if b.id not in certified]
        too_many = len(self._blocks) - BLOCKS_MAX + 1
        for block in sorted(childless, key=lambda block: block.view)[:too_many]:
            del self._blocks[block.id]

    def path(self, tip: Block, ancestor: Block) -> tuple[list[Block], Block | None]:
        """The blocks above `ancestor` up to `tip`, oldest first, and the lowest one reached.

        The lowest is `ancestor` itself if tip extends it; None if a block is missing on the way
        (then the list's first element names the missing parent); any other block is a fork.
        """
        blocks: list[Block] = []
        block: Block | None = tip
        height = ancestor.height
        while block is not None and block.header.height > height:
            blocks.append(block)
            block = self._blocks.get(block.header.parent)
        blocks.reverse()
        return blocks, block

    def extends(self, tip: Block, ancestor: Block) -> bool:
        _, lowest = self.path(tip, ancestor)
        return lowest is not None and lowest.id == ancestor.id

    def set_root(self, root: Block) -> None:
        """Move the root up and drop all below it: no proposal's commit rule looks there."""
        self.root = root
        if self.tip.height < root.height:
            self.tip = root
        self._blocks[root.id] = root
        for block_id in [b.id for b in self._blocks.values() if b.height < root.height]:
            del self._blocks[block_id]

    def drop_forks(self, tip: Block) -> None:
        """`tip` has the highest QC: drop blocks of its view or older that neither it nor a newer
        block extends.

        They are not committed, and no node needs to build on them: a node that does not know this
        QC yet will be shown it. A newer block may be certified next, so whoever voted for it keeps
        what it extends. While ancestors of `tip` are missing, forks cannot be identified.
        """
        path, lowest = self.path(tip, self.root)
        if lowest is None or lowest.id != self.root.id:
            return
        self.tip = tip
        kept = {self.root.id, *(block.id for block in path)}
        if len(kept) == len(self._blocks):
            return
        for newer in [block for block in self._blocks.values() if block.view > tip.view]:
            path, lowest = self.path(newer, self.root)
            is_dead = lowest is not None and lowest.id != self.root.id
            kept.update(block.id for block in ([newer] if is_dead else path))
        for block_id in [block_id for block_id in self._blocks if block_id not in kept]:
            del self._blocks[block_id]
