"""Blocks by id, from the snapshot block upward.

Only links between blocks are known here; what may be voted for or committed is not.
"""

from defl.ids import Digest, Height
from defl.messages import Block

# Below the snapshot block only what a late proposal's commit rule may look at is kept.
KEPT_BELOW_ROOT = 3
# Chains that do not commit grow with the views that a network loses; 4096 is hours of back-off.
BLOCKS_MAX = 4096


class Tree:
    def __init__(self, root: Block) -> None:
        self._blocks: dict[Digest, Block] = {root.id: root}
        self.root = root

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block_id: Digest) -> bool:
        return block_id in self._blocks

    def get(self, block_id: Digest) -> Block | None:
        return self._blocks.get(block_id)

    def add(self, block: Block) -> bool:
        """False if there is no room; the caller goes on without the block."""
        if block.id not in self._blocks and len(self._blocks) >= BLOCKS_MAX:
            return False
        self._blocks[block.id] = block
        return True

    def path(self, tip: Block, ancestor: Block) -> tuple[list[Block], Block | None]:
        """The blocks above `ancestor` up to `tip`, oldest first, and the lowest one reached.

        The lowest is `ancestor` itself if tip extends it; None if a block is missing on the way
        (then the list's first element names the missing parent); any other block is a fork.
        """
        blocks: list[Block] = []
        block: Block | None = tip
        while block is not None and block.height > ancestor.height:
            blocks.append(block)
            block = self._blocks.get(block.parent)
        blocks.reverse()
        return blocks, block

    def extends(self, tip: Block, ancestor: Block) -> bool:
        _, lowest = self.path(tip, ancestor)
        return lowest is not None and lowest.id == ancestor.id

    def set_root(self, root: Block) -> None:
        """Move the root up and drop what lies too far below it."""
        self.root = root
        self._blocks[root.id] = root
        lowest = Height(root.height - KEPT_BELOW_ROOT)
        for block_id in [b.id for b in self._blocks.values() if b.height < lowest]:
            del self._blocks[block_id]

    def drop_forks(self, head: Block) -> None:
        """Blocks no higher than the committed head that are not its ancestors are dead."""
        kept = {head.id}
        block = self._blocks.get(head.parent)
        while block is not None:
            kept.add(block.id)
            block = self._blocks.get(block.parent)
        dead = [b.id for b in self._blocks.values() if b.height <= head.height and b.id not in kept]
        for block_id in dead:
            del self._blocks[block_id]
