"""Faults of one machine: which node they strike, by chance, and what they do to its disk.

Death, lost power, a full disk, rotten chunks, failed syncs, and the old copies to which a disk is
rolled back. The cluster carries out a death and the restart that follows.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random

from defl.committee import Committee
from defl.ids import NodeId
from defl.sim.checks import Checker
from defl.sim.conditions import Conditions
from defl.sim.sim_node import SimNode
from defl.sim.virtual_clock import VirtualClock


class MachineFaults:
    def __init__(
        self,
        committee: Committee,
        conditions: Conditions,
        rng: Random,
        clock: VirtualClock,
        checker: Checker,
        *,
        liars: bool,
        is_calm: Callable[[], bool],
    ) -> None:
        self._conditions = conditions
        self._rng = rng
        self._clock = clock
        self._checker = checker
        self._is_calm = is_calm
        self._rot_victims = self._choose_rot_victims(committee, liars=liars)

    def _choose_rot_victims(self, committee: Committee, *, liars: bool) -> frozenset[NodeId]:
        """Return the members whose chunks may rot: they lose bytes that they have synced.

        f + 1 honest members have synced each committed update, so f of them may lose it. With churn
        f more may leave at once: then one may, and none if there are Byzantine members or disks
        that are rolled back. Power cuts have no such limit: what is synced survives them.
        """
        victims = committee.faults
        if self._conditions.churn:
            victims = 0 if liars or self._conditions.rollbacks else 1
        return frozenset(self._rng.sample(committee.members, victims))

    def _strikes(self, node: SimNode, rate: float) -> bool:
        return rate > 0 and node.honest and not self._is_calm() and self._rng.random() < rate

    # --- The process -----------------------------------------------------------------------

    def dies(self, node: SimNode) -> bool:
        return self._strikes(node, self._conditions.crash_rate)

    def loses_power(self) -> bool:
        """Whether a node that dies, any node, also loses what was not synced."""
        return self._rng.random() < self._conditions.power_loss_share

    def downtime_s(self) -> float:
        return self._rng.expovariate(1.0) * self._conditions.downtime_s

    # --- The disk --------------------------------------------------------------------------

    def harm_disk(self, node: SimNode) -> None:
        """The node is about to write."""
        if self._strikes(node, self._conditions.disk_full_rate):
            self._fill_disk(node)
        if node.id in self._rot_victims and self._strikes(node, self._conditions.rot_rate):
            blobs = node.disk.blobs
            chunks = [(digest, index) for digest in sorted(blobs) for index in blobs[digest].chunks]
            if chunks:
                digest, index = self._rng.choice(chunks)
                blobs[digest].rotten.add(index)
                self._checker.away(node.id)

    def _fill_disk(self, node: SimNode) -> None:
        if node.disk.full:
            return
        node.disk.full = True
        self._checker.down(node.id)
        self._clock.after(self.downtime_s(), partial(self._free_disk, node, node.incarnation))

    def _free_disk(self, node: SimNode, incarnation: int) -> None:
        if node.incarnation == incarnation:
            node.disk.full = False
            self._checker.up(node.id)

    def sync_fails(self, node: SimNode) -> bool:
        failed = self._strikes(node, self._conditions.sync_failure_rate)
        if failed:
            self._checker.away(node.id)
        return failed

    def keep_copies(self, node: SimNode, writes: int) -> None:
        """From now on there is a copy of the disk as it was this many writes ago."""
        node.copies = deque([node.disk.copy()], maxlen=writes + 1)
        self._checker.rolled_back.add(node.id)

    def written(self, node: SimNode) -> None:
        if node.copies is not None:
            node.copies.append(node.disk.copy())
