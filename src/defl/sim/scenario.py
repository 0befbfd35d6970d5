"""A federation with keys, facts and first weights, ready to be simulated."""

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from defl.aggregation.memory import with_memory
from defl.aggregation.rules import rule_named
from defl.committee import Federation, Member, Rules, Timing
from defl.crypto import Ed25519Scheme, Ed25519Signer, Scheme, Signer
from defl.ids import NodeId
from defl.messages import Manifest
from defl.output import Notice
from defl.pool.weights import FP32, encode, manifest_of
from defl.sim import task
from defl.sim.cluster import Cluster, Wrap
from defl.sim.conditions import Conditions
from defl.sim.signer import NoopScheme, NoopSigner
from defl.sim.transcript import Transcript


def signers_of(nodes: int, *, seed: int, real: bool) -> tuple[tuple[Signer, ...], Scheme]:
    keys = [sha256(f"defl/sim/{seed}/{node}".encode()).digest() for node in range(nodes)]
    if real:
        return tuple(Ed25519Signer(key) for key in keys), Ed25519Scheme()
    return tuple(NoopSigner(key) for key in keys), NoopScheme()


def federation_of(
    signers: tuple[Signer, ...],
    *,
    rounds: int,
    rules: Rules = Rules.HOTSTUFF,
    tau: int = 2,
    values: int = 64,
    chunk_bytes: int = 4096,
    timing: Timing = Timing(),  # noqa: B008 - frozen; as it ships
    **facts: Any,
) -> tuple[Federation, tuple[Manifest, bytes]]:
    schema = task.schema_of(values)
    if "aggregation" in facts and rule_named(facts["aggregation"]).remembers:
        schema = with_memory(schema, len(signers))
    payload = bytes(encode(task.initial_row(schema.values), schema, FP32))
    initial = manifest_of(payload, schema, FP32, chunk_bytes)
    members = tuple(Member(f"node-{i}", signer.public_key) for i, signer in enumerate(signers))
    federation = Federation(
        members=members,
        schema=schema,
        initial=initial.digest,
        rounds=rounds,
        tau=tau,
        rules=rules,
        chunk_bytes=chunk_bytes,
        timing=timing,
        **facts,
    )
    return federation, (initial, payload)


def cluster_of(
    nodes: int,
    *,
    rounds: int = 3,
    seed: int = 1,
    rules: Rules = Rules.HOTSTUFF,
    conditions: Conditions = Conditions(),  # noqa: B008 - frozen
    byzantine: Mapping[NodeId, Wrap] | None = None,
    real_signatures: bool = False,
    transcript: Transcript | None = None,
    on_notice: Callable[[NodeId, Notice], None] | None = None,
    **facts: Any,
) -> Cluster:
    signers, scheme = signers_of(nodes, seed=seed, real=real_signatures)
    federation, initial = federation_of(signers, rounds=rounds, rules=rules, **facts)
    return Cluster(
        federation,
        signers,
        scheme,
        initial,
        seed=seed,
        conditions=conditions,
        byzantine=byzantine,
        transcript=transcript,
        on_notice=on_notice,
    )
