"""A machine is killed at every step of its switch to the next epoch, and starts again."""

import pytest

from defl.changes import Remove
from defl.duty import Action
from defl.ids import NodeId
from defl.messages import Message, Vote
from defl.output import SafetyBroken
from defl.sim.conditions import Conditions, WriteTimes
from defl.sim.disk import Disk
from support.epochs import Churn

STAYS, LEAVES, JOINS = 0, 3, 5
ROUNDS = 5
# Writes take time, so a kill may fall between the decision and the write, and after it.
SLOW_WRITES = Conditions(writes=WriteTimes(record_s=0.02))
# More steps than any machine takes from the end of its epoch to its first statements in the next.
STEPS = 24


def boundary(seed: int, off: tuple[int, ...] = ()) -> Churn:
    """Five members; one is about to leave while another machine takes a place."""
    churn = Churn(5, rounds=ROUNDS, seed=seed, conditions=SLOW_WRITES)
    joiner = churn.add_machine("joiner")
    assert joiner == JOINS
    churn.switch_off(*off)
    churn.run_until_round(1)
    churn.change(churn.add(joiner, "eve"), Remove(NodeId(LEAVES)))
    return churn


class Killer:
    """Kills a machine before one of its actions, counted from when it knows of the end."""

    def __init__(self, churn: Churn, machine: int, step: int) -> None:
        self.churn, self.machine, self.steps_left = churn, machine, step
        self.struck = False
        self._carry_out = churn.node(machine).driver._do

    def __call__(self, action: Action) -> None:
        participant = self.churn.participant(self.machine)
        if not self.struck and (participant.state.ended or participant.epoch > 0):
            self.steps_left -= 1
            if self.steps_left < 0:
                self.struck = True
                self.churn.cluster.crash(NodeId(self.machine), downtime_s=1.0, power=False)
                return
        self._carry_out(action)


def is_of_one_epoch(disk: Disk) -> bool:
    """Blocks, snapshot and record are of the epoch whose facts are on the disk."""
    epoch = 0 if disk.switch is None else disk.switch.membership.epoch
    blocks = [block.header.epoch for block in disk.blocks.values()]
    snapshot = [] if disk.snapshot is None else [disk.snapshot.block.epoch]
    record = [] if disk.record is None else [disk.record.epoch]
    return {epoch} == {epoch, *blocks, *snapshot, *record}


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize("machine", [STAYS, LEAVES, JOINS])
def test_a_machine_killed_at_any_step_of_the_switch_ends_in_the_next_epoch(
    monkeypatch: pytest.MonkeyPatch, machine: int, step: int
) -> None:
    churn = boundary(seed=step)
    killer = Killer(churn, machine, step)
    monkeypatch.setattr(churn.node(machine).driver, "_do", killer)

    churn.run_until(lambda: killer.struck)
    assert is_of_one_epoch(churn.node(machine).disk)
    churn.finish()

    assert churn.participant(machine).epoch == 1
    assert churn.newest.state.round == ROUNDS
    assert all(is_of_one_epoch(node.disk) for node in churn.cluster.nodes)
    assert not churn.observers
    assert not churn.notices_of(SafetyBroken)
    assert churn.one_history()


@pytest.mark.parametrize("step", range(0, STEPS, 2))
@pytest.mark.parametrize("machine", [STAYS, LEAVES, JOINS])
def test_a_bare_quorum_goes_on_when_one_of_it_was_killed_during_the_switch(
    monkeypatch: pytest.MonkeyPatch, machine: int, step: int
) -> None:
    """Member 2 is off. Both epochs need all the others, so they wait for the killed one."""
    live = (0, 1, 4, JOINS)
    churn = boundary(seed=step, off=(2,))
    killer = Killer(churn, machine, step)
    monkeypatch.setattr(churn.node(machine).driver, "_do", killer)
    churn.run_until(lambda: killer.struck)
    churn.run_until_round(ROUNDS, *live)

    assert {churn.participant(one).epoch for one in live} == {1}
    assert churn.cluster.checker.violations == []
    assert churn.one_history()


@pytest.mark.parametrize("arrived", range(1, 6))
def test_all_machines_lose_power_while_some_have_switched(arrived: int) -> None:
    """So many of the five next members are in the next epoch when the lights go out."""
    churn = boundary(seed=arrived)
    next_members = [machine for machine in range(6) if machine != LEAVES]

    def in_next_epoch() -> int:
        return sum(churn.participant(machine).epoch == 1 for machine in next_members)

    churn.run_until(lambda: in_next_epoch() >= arrived)
    for machine in churn.machines:
        churn.cluster.crash(NodeId(machine), downtime_s=1.0, power=True)
    churn.finish()

    assert {churn.participant(machine).epoch for machine in churn.machines} == {1}
    assert not churn.observers
    assert churn.one_history()


@pytest.mark.parametrize("known_to", range(1, 6))
def test_all_machines_lose_power_while_some_know_the_end(known_to: int) -> None:
    """So many of the five members have executed the end of their epoch; none has proven it."""
    churn = boundary(seed=known_to)

    def no_votes(source: NodeId, _target: NodeId, message: Message) -> bool:
        return isinstance(message, Vote) and churn.participant(source).state.ended

    churn.cluster.traffic.censor = no_votes
    churn.run_until(
        lambda: sum(churn.participant(machine).state.ended for machine in range(5)) >= known_to
    )
    for machine in churn.machines:
        churn.cluster.crash(NodeId(machine), downtime_s=1.0, power=True)
    churn.cluster.traffic.censor = None
    churn.finish()

    assert {churn.participant(machine).epoch for machine in churn.machines} == {1}
    assert not churn.observers
    assert churn.one_history()


def test_all_members_lose_power_when_a_leaver_has_gone() -> None:
    """Only the leaver had synced its last update, so it stays until the others have synced the
    model that was made of it."""
    leaver = 4
    slow_syncs = Conditions(writes=WriteTimes(sync_s=1.0), work_s=3.0)
    churn = Churn(5, rounds=ROUNDS, conditions=slow_syncs)
    churn.run_until_round(2)
    churn.propose(leaver, Remove(NodeId(leaver)))
    churn.run_until(lambda: churn.participant(leaver).departed and not churn.node(leaver).alive)
    for machine in range(4):
        churn.cluster.crash(NodeId(machine), downtime_s=1.0, power=True)
    churn.finish()

    assert churn.one_history()
