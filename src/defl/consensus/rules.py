"""The rules of chained HotStuff and of Jolteon, as short pure functions.

HotStuff: Yin, Malkhi, Reiter, Golan Gueta, Abraham, PODC 2019 (three-chain).
Jolteon: Gelashvili, Kokoris-Kogias, Sonnino, Spiegelman, Xiang, FC 2022 (two-chain, and the
time-out certificates that both rule sets use here).

Nothing here has state; `get` finds a block by its id.
"""

from collections.abc import Callable
from dataclasses import dataclass

from defl.committee import Rules
from defl.ids import Digest, NodeId
from defl.messages import QC, Block, Header

Get = Callable[[Digest], Block | None]


@dataclass(frozen=True, slots=True)
class ChainRules:
    """The two points in which three-chain and two-chain rules differ."""

    chain_length: int  # blocks in consecutive views, the last one certified, that commit the first
    checks_lock: bool  # three-chain: safeNode; two-chain: the TC rule alone is the condition

    def lock_after_vote(self, block: Block, parent: Block) -> QC:
        """The QC that a vote for `block` locks on.

        HotStuff, Algorithm 4: the QC inside the block's parent (a two-chain below the vote).
        Jolteon, section 3.2: the block's own QC.
        """
        return parent.qc if self.chain_length == 3 else block.qc

    def safe_to_vote(self, block: Block, lock: QC, *, extends_lock: bool) -> bool:
        """HotStuff, Algorithm 1, safeNode: the block extends the lock, or a newer QC frees it."""
        if not self.checks_lock:
            return True
        return extends_lock or block.qc.view > lock.view

    def committed_by_qc_on(self, block: Block, get: Get) -> Block | None:
        """The block that a QC on `block` commits: the start of a chain of consecutive views.

        HotStuff, Algorithm 4 (DECIDE) with `chain_length` 3; Jolteon, section 3.2, with 2.
        """
        first: Block | None = block
        for _ in range(self.chain_length - 1):
            if first is None or first.height == 0:
                return None
            parent = get(first.parent)
            if parent is None or parent.view + 1 != first.view:
                return None
            first = parent
        return first


RULES: dict[Rules, ChainRules] = {
    Rules.HOTSTUFF: ChainRules(chain_length=3, checks_lock=True),
    Rules.JOLTEON: ChainRules(chain_length=2, checks_lock=False),
}


def admissible(header: Header, leader: NodeId) -> bool:
    """May this proposal be considered in its view at all? (Jolteon, section 3.2)

    It must come from the leader and show either the QC of the view before, or a TC of that view
    and a QC at least as new as the newest that any of the TC's signers had.
    """
    if header.author != leader:
        return False
    if header.qc.view == header.view - 1:
        return header.tc is None
    tc = header.tc
    if tc is None or tc.view != header.view - 1:
        return False
    return header.qc.view >= max(tc.high_views)


def commit_target(block: Block, rules: ChainRules, get: Get) -> Digest:
    """c(b) of any child b of `block`: what the QCs inside b and its ancestors commit.

    `block` is certified, so its own c(b) was checked by honest voters.
    """
    if block.height == 0:
        return block.id
    committed = rules.committed_by_qc_on(block, get)
    return committed.id if committed is not None else block.header.committed
