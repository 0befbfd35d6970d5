"""ARCHITECTURE.md's table "The life of an update", followed through a run.

A profiler records every call of the functions that the table names, in a simulated federation. One
update must pass through all of them in the table's order, at its author and at one other member
that fetches it. Calls that name another update do not count.
"""

import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec
import pytest

from defl.ids import DIGEST_BYTES, NodeId, Round, digest_of
from defl.messages import Manifest
from defl.node.work.worker_process import (
    AggregateTask,
    Runner,
    SetUp,
    TrainTask,
    ValidateTask,
)
from defl.output import Aggregate, Reference
from defl.participant import Participant
from defl.sim import task
from defl.sim.conditions import Conditions
from defl.sim.scenario import cluster_of
from defl.work import inputs_of
from support.builders import Small, name
from test_docs import architecture, rows_after

SMALL = Small(real=False)
TITLE = "## The life of an update"
# Where the profiler learns which node is at work.
DRIVERS = {Participant.handle.__code__, task.done.__code__}


@dataclass
class Call:
    place: str
    node: NodeId | None
    names: set[bytes] = field(default_factory=set)  # digests among its arguments and its result


def steps_of(document: str) -> list[tuple[str, str]]:
    """(step, place) for each function that the table names, in the table's order."""
    return [
        (step, place)
        for step, where in rows_after(document, TITLE)
        for place in re.findall(r"`([\w/]+\.py:[\w.]+)`", where)
    ]


def code_of(place: str) -> CodeType:
    file, _, path = place.partition(":")
    target: Any = importlib.import_module(f"defl.{file.removesuffix('.py').replace('/', '.')}")
    for part in path.split("."):
        target = getattr(target, part)
    code = target.__code__
    assert isinstance(code, CodeType)
    return code


def digests_in(value: object) -> Iterator[bytes]:
    """Every digest in a value, however deeply nested, and the digest of every longer byte string:
    a blob of one chunk is recognised by its payload too."""
    match value:
        case bytes() | memoryview():
            yield bytes(value) if len(value) == DIGEST_BYTES else digest_of(value)
        case Manifest():
            yield value.digest
            yield from value.chunks
        case msgspec.Struct():
            for name_ in value.__struct_fields__:
                yield from digests_in(getattr(value, name_))
        case tuple() | list():
            for item in value:
                yield from digests_in(item)


@contextmanager
def recorded(places: Iterable[str]) -> Iterator[list[Call]]:
    """The calls of these functions in this thread, in the order in which they begin."""
    place_of = {code_of(place): place for place in places}
    calls: list[Call] = []
    nodes: list[NodeId] = []
    open_calls: dict[FrameType, Call] = {}

    def profile(frame: FrameType, event: str, result: object) -> None:
        code = frame.f_code
        if code in DRIVERS:
            if event == "call":
                local = frame.f_locals
                nodes.append(local["node"] if "node" in local else local["self"].me)
            elif event == "return":
                nodes.pop()
        if code not in place_of:
            return
        if event == "call":
            call = Call(place_of[code], nodes[-1] if nodes else None)
            arguments = [value for key, value in frame.f_locals.items() if key != "self"]
            call.names.update(digests_in(arguments))
            open_calls[frame] = call
            calls.append(call)
        elif event == "return":
            open_calls.pop(frame).names.update(digests_in(result))

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@dataclass(frozen=True)
class Life:
    """A run's calls, and one update in it."""

    calls: list[Call]
    author: NodeId
    holder: NodeId
    update: Manifest
    others: set[bytes]  # digests that belong to other updates

    def violations(self, steps: list[tuple[str, str]]) -> list[str]:
        """The steps that this update did not take, or took in another order.

        Each step happens at the node of the previous step, unless only the other node takes it. A
        node takes a step for an update when it first calls the function for it.
        """
        own = {self.update.digest, *self.update.chunks}
        # A function that is called with any update must be called with this one.
        identifying = {call.place for call in self.calls if call.names & (own | self.others)}
        node, other, at = self.author, self.holder, -1
        broken = []
        for step, place in steps:
            matches = [
                (index, call.node)
                for index, call in enumerate(self.calls)
                if call.place == place and (place not in identifying or call.names & own)
            ]
            moves = not any(where == node for _, where in matches)
            if moves:
                node, other = other, node
            here = [index for index, where in matches if where == node]
            first_counts = place in identifying and not moves
            later = [index for index in (here[:1] if first_counts else here) if index > at]
            if later:
                at = later[0]
            else:
                broken.append(f"{step}: {place}")
        return broken


@cache
def life() -> Life:
    """An update for round 1 in a run of two rounds; the holder is the first to acknowledge it."""
    steps = steps_of(architecture())
    author = NodeId(0)
    # Its author trains faster than the others, so the update is committed before the round closes.
    conditions = Conditions(work_sigma=0.1, work_factors=((author, 0.1),))
    cluster = cluster_of(4, rounds=2, seed=3, conditions=conditions)
    with recorded({place for _, place in steps} | {"pool/pool.py:Pool.publish"}) as calls:
        cluster.run()
    assert cluster.conclude() == []
    offers = {
        (offer.round, node.id): offer
        for node in cluster.nodes
        for offer in node.behaviour.participant.pool._offers.values()
        if offer.author == node.id
    }
    update = offers[Round(1), author].manifest
    others = {
        digest
        for slot, offer in offers.items()
        if slot != (1, author)
        for digest in (offer.manifest.digest, *offer.manifest.chunks)
    }
    holder = next(
        call.node
        for call in calls
        if call.place == "pool/certify.py:Certifier.sign_ack"
        and update.digest in call.names
        and call.node not in (author, None)
    )
    assert holder is not None
    return Life(calls, author, holder, update, others)


def test_an_update_takes_the_steps_of_the_table_in_its_order() -> None:
    steps = steps_of(architecture())

    assert len(steps) > 15
    assert life().violations(steps) == []


def test_a_function_that_is_not_called_is_reported() -> None:
    unused = "pool/pool.py:Pool.refetch"

    violations = life().violations([*steps_of(architecture()), ("merge", unused)])

    assert violations == [f"merge: {unused}"]


STEPS = [row[0] for row in rows_after(architecture(), TITLE)]


@pytest.mark.parametrize("first", STEPS[:-1])
def test_two_steps_in_the_wrong_order_are_reported(first: str) -> None:
    rows = rows_after(architecture(), TITLE)
    at = STEPS.index(first)
    lines = [f"| {row[0]} | {row[1]} |" for row in rows]
    lines[at], lines[at + 1] = lines[at + 1], lines[at]
    swapped = f"\n{TITLE}\n\n| step | where |\n|---|---|\n" + "\n".join(lines) + "\n"

    assert life().violations(steps_of(swapped)) != []


IDLE_CLIENT = """
import numpy as np

class Client:
    def initial_weights(self):
        return {"point": np.zeros(100, np.float32)}

    def train(self, weights, round_):
        return weights, {}

    def evaluate(self, weights):
        return {}
"""


def opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY)


def test_the_workers_of_a_real_node_call_the_functions_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node and simulator share the state machine; only the work of child processes may differ."""
    places = [place for _, place in steps_of(architecture()) if place.startswith("work.py:")]
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "idle_client.py").write_text(IDLE_CLIENT)
    base, update, model = tmp_path / "base", tmp_path / "update", tmp_path / "model"
    base.write_bytes(SMALL.initial_payload)
    initial = SMALL.initial.digest
    state = str(tmp_path / "state")
    runner = Runner(SetUp(SMALL.federation, "idle_client:Client", str(tmp_path), state))

    with recorded(places) as calls:
        trained = runner.do(TrainTask(Round(1), initial, str(update)), [opened(base)])
        runner.do(ValidateTask(), [opened(update)])
        manifest = trained.manifest
        updates = tuple(
            Reference(member, manifest.digest, manifest.size, initial, b"", b"")
            for member in SMALL.federation.committee.members
        )
        work = Aggregate(Round(1), initial, updates, name("block"), faults_max=1)
        aggregating = AggregateTask(work, inputs_of(work), str(model))
        runner.do(aggregating, [opened(base), *(opened(update) for _ in updates)])

    assert [call.place for call in calls] == places
    assert update.read_bytes() == model.read_bytes() == SMALL.initial_payload
