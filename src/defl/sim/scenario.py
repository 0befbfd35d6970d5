"""A federation with keys, facts and first weights, ready to be simulated.

Its facts are those that a real federation gets (`committee.DEFAULTS`), unless others are chosen.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from defl.committee import DEFAULTS, Charter, Federation, Member, Membership
from defl.crypto import Ed25519Scheme, Ed25519Signer, Scheme, Signer
from defl.fields import WEIGHT_DEFAULT
from defl.founding import found
from defl.ids import NodeId
from defl.messages import Manifest
from defl.output import Notice
from defl.sim import task
from defl.sim.aggregates import SharedAggregates
from defl.sim.churn import Churn
from defl.sim.cluster import Cluster
from defl.sim.conditions import Conditions
from defl.sim.signer import NoopScheme, NoopSigner
from defl.sim.sim_node import Wrap
from defl.sim.transcript import Transcript

VALUES = 64  # of the model: enough for a rule to tell updates apart, few enough to be free


def signers_of(nodes: int, *, seed: int, real: bool) -> tuple[tuple[Signer, ...], Scheme]:
    signers = tuple(signer_of(node, seed=seed, real=real) for node in range(nodes))
    return signers, Ed25519Scheme() if real else NoopScheme()


def signer_of(node: int, *, seed: int, real: bool) -> Signer:
    key = sha256(f"defl/sim/{seed}/{node}".encode()).digest()
    return Ed25519Signer(key) if real else NoopSigner(key)


def members_of(signers: Sequence[Signer], weights: Sequence[int] = ()) -> tuple[Member, ...]:
    """`weights`: one per member; none: all the same."""
    weighed = zip(signers, weights or [WEIGHT_DEFAULT] * len(signers), strict=True)
    return tuple(
        Member(f"node-{i}", signer.public_key, weight=weight)
        for i, (signer, weight) in enumerate(weighed)
    )


def federation_of(
    signers: tuple[Signer, ...],
    *,
    rounds: int,
    epoch: int = 0,
    values: int = VALUES,
    charter: Charter = DEFAULTS,
    weights: Sequence[int] = (),
    **facts: Any,
) -> tuple[Federation, tuple[Manifest, bytes]]:
    """Of a model with so many values; `facts` replace the charter's."""
    draft = replace(charter, schema=task.schema_of(values), **facts)
    members = members_of(signers, weights)
    membership = Membership(epoch=epoch, rounds=rounds, members=members)
    founding = found(draft, membership, task.initial_row(values))
    manifest, payload = founding.initial
    return founding.federation, (manifest, bytes(payload))


def cluster_of(
    nodes: int,
    *,
    rounds: int = 3,
    seed: int = 1,
    conditions: Conditions = Conditions(),  # noqa: B008 - frozen
    byzantine: Mapping[NodeId, Wrap] | None = None,
    real_signatures: bool = False,
    transcript: Transcript | None = None,
    on_notice: Callable[[NodeId, Notice], None] | None = None,
    **facts: Any,
) -> Cluster:
    signers, scheme = signers_of(nodes, seed=seed, real=real_signatures)
    federation, initial = federation_of(signers, rounds=rounds, **facts)
    cluster = Cluster(
        federation,
        signers,
        scheme,
        initial,
        seed=seed,
        conditions=conditions,
        byzantine=byzantine,
        transcript=transcript,
        aggregating=SharedAggregates(),
        on_notice=on_notice,
    )
    if conditions.churn:
        Churn(cluster, partial(signer_of, seed=seed, real=real_signatures))
    return cluster
