"""Founding turns a draft charter, the members and the initial weights into agreed facts."""

import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import defl
from defl.aggregation.memory import with_memory
from defl.committee import Charter, Federation, Membership
from defl.errors import UserError
from defl.founding import check_founded, found, schema_with_rule
from defl.ids import NO_DIGEST
from defl.schema import Entry, Role, Schema
from defl.sim.scenario import members_of, signers_of
from defl.work import model_row

MODEL = Schema((Entry("weights", (3, 4)), Entry("bias", (4,))))
WEIGHTS = np.arange(16, dtype=np.float32)
MEMBERSHIP = Membership(rounds=3, members=members_of(signers_of(7, seed=1, real=False)[0]))


@pytest.mark.parametrize("aggregation", ["fed_avg", "multi_krum", "adaptive"])
def test_the_initial_digest_names_the_weights_that_members_store(aggregation: str) -> None:
    founding = found(Charter(MODEL, aggregation=aggregation, chunk_bytes=256), MEMBERSHIP, WEIGHTS)
    manifest, payload = founding.initial

    assert founding.federation.initial == manifest.digest != NO_DIGEST
    assert manifest.schema == founding.federation.schema.digest
    assert np.array_equal(model_row(founding.federation, payload), founding.weights)
    assert np.array_equal(founding.weights[: WEIGHTS.size], WEIGHTS)


def test_a_rule_that_remembers_gets_an_empty_memory() -> None:
    founding = found(Charter(MODEL, aggregation="adaptive"), MEMBERSHIP, WEIGHTS)

    assert founding.federation.schema == with_memory(MODEL)
    assert founding.federation.schema.entries[-1].role is Role.MEMORY
    assert not founding.weights[WEIGHTS.size :].any()
    check_founded(founding.federation)


def test_a_rule_without_memory_leaves_the_schema_as_it_is() -> None:
    assert schema_with_rule(MODEL, "multi_krum") == MODEL


def test_founding_keeps_every_other_fact_of_the_draft() -> None:
    draft = Charter(MODEL, tau=5, aggregation="multi_krum", faults_max=1, chunk_bytes=512)

    federation = found(draft, MEMBERSHIP, WEIGHTS).federation

    assert federation.membership == MEMBERSHIP
    assert replace(federation.charter, initial=NO_DIGEST) == draft


def test_an_unknown_rule_is_refused_by_founders_and_by_readers() -> None:
    draft = Charter(MODEL, aggregation="majority")

    with pytest.raises(UserError, match="no aggregation rule is named 'majority'"):
        found(draft, MEMBERSHIP, WEIGHTS)
    with pytest.raises(UserError, match="no aggregation rule is named 'majority'"):
        check_founded(Federation(draft, MEMBERSHIP))


def test_facts_with_a_memory_for_too_few_members_are_refused() -> None:
    memory = Entry("defl.memory", (2 * 7 + MODEL.values,), role=Role.MEMORY)
    charter = Charter(Schema((*MODEL.entries, memory)), aggregation="adaptive")

    with pytest.raises(UserError, match="the aggregation rule remembers"):
        check_founded(Federation(charter, MEMBERSHIP))


def test_f_is_computed_in_one_place() -> None:
    source = Path(defl.__file__).parent
    places = [
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if re.search(r"- 1\) // 3", path.read_text(encoding="utf-8"))
    ]

    assert places == ["committee.py"]
