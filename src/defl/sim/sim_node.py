"""One simulated node: its behaviour, its disk, and the process that runs on them."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from defl.contacts import Contacts
from defl.crypto import Signer
from defl.ids import NodeId
from defl.ingress import Ingress
from defl.output import Event, Output
from defl.participant import Participant
from defl.sim.disk import Disk
from defl.sim.driver import VirtualDriver
from defl.sim.durability import RecordCheck
from defl.sim.processor import Processor


class Behaviour(Protocol):
    """A node's behaviour: an honest participant, or a liar wrapped around one."""

    @property
    def participant(self) -> Participant: ...

    def handle(self, event: Event, now: float) -> Output: ...


class Honest:
    def __init__(self, participant: Participant) -> None:
        self.participant = participant

    def handle(self, event: Event, now: float) -> Output:
        return self.participant.handle(event, now)


class Unruly(Output, frozen=True):
    """A liar's output: messages, and frames that are not messages."""

    frames: tuple[tuple[NodeId, bytes], ...] = ()


Wrap = Callable[[Participant, Signer, random.Random], Behaviour]


@dataclass(slots=True)
class SimNode:
    id: NodeId  # the machine's; a member's id is the same unless keys are replaced
    key: bytes
    behaviour: Behaviour
    ingress: Ingress
    disk: Disk
    honest: bool
    rate: float = 1.0  # of its clock
    alive: bool = True
    stopped: bool = False  # for ever: it has left, or the machine is gone
    ended: bool = False  # its process has ended by itself
    incarnation: int = 0
    tick_at: float | None = None  # on the world's clock
    copies: deque[Disk] | None = None  # of its disk after each of the last writes
    processor: Processor = field(init=False)  # of the running process
    driver: VirtualDriver = field(init=False)  # of the running process
    records: RecordCheck | None = None
    contacts_seen: tuple[Contacts, int] | None = None  # those that it is connected to

    def handle(self, event: Event) -> None:
        """The running process hears of it."""
        self.driver.handle(event)
