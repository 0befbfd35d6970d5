"""The epochs of a run: the facts of each, and which machine is which member in it.

Machines are numbered for ever, in the order in which they are set up. Members have the ids of their
epoch: when a key is replaced, one id goes from one machine to another.
"""

from dataclasses import dataclass
from itertools import pairwise

from defl.committee import Federation
from defl.ids import OUTSIDER, NodeId


@dataclass(frozen=True, slots=True)
class Boundary:
    """What one boundary changed."""

    epoch: int  # that begins
    first_round: int
    members: int  # in it
    joined: int
    left: int
    replaced: int  # keys, also of members that return
    rounds: int  # the last round

    @classmethod
    def between(cls, before: Federation, after: Federation) -> "Boundary":
        replaced = sum(
            one.key != other.key for one, other in zip(before.members, after.members, strict=False)
        )
        left = sum(
            one.active and not other.active
            for one, other in zip(before.members, after.members, strict=False)
        )
        return cls(
            epoch=after.epoch,
            first_round=after.first_round,
            members=after.committee.size,
            joined=len(after.members) - len(before.members),
            left=left,
            replaced=replaced,
            rounds=after.rounds,
        )


class EpochFacts:
    def __init__(self, origin: Federation) -> None:
        self._machines = {member.key: NodeId(i) for i, member in enumerate(origin.members)}
        self._federations: dict[int, Federation] = {}
        self._members: dict[int, dict[NodeId, NodeId]] = {}  # epoch -> machine -> member
        self.newest = origin
        self.add(origin)

    def add_machine(self, machine: NodeId, key: bytes) -> None:
        self._machines[key] = machine

    def add(self, federation: Federation) -> Federation:
        """The facts of this epoch: those that were given first."""
        epoch = federation.epoch
        known = self._federations.get(epoch)
        if known is not None:
            return known
        self._federations[epoch] = federation
        committee = federation.committee
        places = ((self._machines.get(committee.keys[id_]), id_) for id_ in committee.members)
        self._members[epoch] = {
            machine: member for machine, member in places if machine is not None
        }
        self.newest = max(self.newest, federation, key=lambda facts: facts.epoch)
        return federation

    def federation(self, epoch: int) -> Federation:
        return self._federations[epoch]

    @property
    def all(self) -> tuple[Federation, ...]:
        return tuple(self._federations[epoch] for epoch in sorted(self._federations))

    def members(self, epoch: int) -> dict[NodeId, NodeId]:
        """The members of this epoch that have a machine, by machine."""
        return self._members[epoch]

    def member_of(self, machine: NodeId, epoch: int) -> NodeId:
        """What the machine calls itself in this epoch."""
        return self._members[epoch].get(machine, OUTSIDER)

    def machine_of(self, member: NodeId, epoch: int) -> NodeId | None:
        committee = self._federations[epoch].committee
        return self._machines.get(committee.keys[member]) if committee.has(member) else None

    @property
    def boundaries(self) -> "list[Boundary]":
        return [Boundary.between(before, after) for before, after in pairwise(self.all)]

    def was_member(self, machine: NodeId) -> bool:
        """Is it a member in any epoch?"""
        return any(machine in members for members in self._members.values())
