"""Files that outlive members: a new federation from an old one's model, and a joiner's lineage."""

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from defl.committee import Federation, Rules
from defl.crypto import Ed25519Scheme
from defl.errors import UserError
from defl.lineage import federations_of
from defl.node.report.lineage_file import lineage_bytes, read_lineage
from defl.node.report.model_file import read_model
from defl.node.setup.agreement import read_federation
from defl.node.setup.fingerprint import fingerprint
from defl.node.setup.joining import awaited_chain, lineage_handovers
from defl.schema import Role
from support.founding import CommandResult, cards_in, defl
from support.in_process_node import InProcessNode, until
from support.lineages import ROUNDS, lived


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation whose members have changed three times, and its lineage."""
    folder = tmp_path_factory.mktemp("old")
    lived(folder)
    exported = defl("export", folder / "alice", folder / "lineage.json", "--lineage")
    assert exported.code == 0, exported.text
    return folder


def epochs_of(old: Path) -> tuple[Federation, ...]:
    origin = read_federation(old / "federation.toml").federation
    handovers = read_lineage(old / "lineage.json").handovers
    return federations_of(origin, handovers, Ed25519Scheme())


# --- defl federation create --from -----------------------------------------------------------


def create_from(
    old: Path, output: Path, *options: object, round_: int = ROUNDS, certificate: int = ROUNDS
) -> CommandResult:
    return defl(
        "federation", "create", *cards_in(old), "-o", output / "federation.toml", "--from",
        old / "alice" / f"model-{round_}.safetensors",
        old / "alice" / "certificates" / f"round-{certificate}.json",
        old / "federation.toml", *options,
    )  # fmt: skip


def test_a_new_federation_goes_on_from_the_last_proven_model(old: Path, tmp_path: Path) -> None:
    created = create_from(old, tmp_path, "--lineage", old / "lineage.json", "--rounds", 7)

    assert created.code == 0, created.text
    before, _ = read_model(old / "alice" / f"model-{ROUNDS}.safetensors")
    after, _ = read_model(tmp_path / "initial.safetensors")
    np.testing.assert_array_equal(after["point"], before["point"])
    assert not np.any(after["defl.memory"]), "the memory is about other members"
    new = read_federation(tmp_path / "federation.toml").federation
    assert new.rounds == 7
    assert new.epoch == 0
    assert [entry.role for entry in new.schema.entries] == [Role.TRAINABLE, Role.MEMORY]


def test_facts_that_are_not_named_are_the_old_federations(old: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    lineage = ("--lineage", old / "lineage.json")
    create_from(old, first, *lineage, "--tau", 5, "--rules", "jolteon", "--grace-s", 9)

    new = read_federation(first / "federation.toml").federation

    assert (new.tau, new.rules, new.timing.grace_s) == (5, Rules.JOLTEON, 9.0)
    assert new.timing.view_base_s == epochs_of(old)[0].timing.view_base_s
    assert new.aggregation == epochs_of(old)[0].aggregation


def test_no_federation_starts_from_a_model_that_is_not_proven(old: Path, tmp_path: Path) -> None:
    other = create_from(old, tmp_path, round_=ROUNDS - 1)
    unknown_members = create_from(old, tmp_path)

    for refused in (other, unknown_members):
        assert refused.code == 2
        assert "is not proven, so no federation starts from it" in refused.text
    assert not (tmp_path / "federation.toml").exists()


def test_the_initial_weights_are_named_once(old: Path, tmp_path: Path) -> None:
    both = create_from(old, tmp_path, "--model", old / "start.npz")
    none = defl("federation", "create", *cards_in(old), "-o", tmp_path / "federation.toml")
    roles = create_from(old, tmp_path, "--role", "point=statistic")

    assert "either --model or --from" in both.text
    assert "either --model or --from" in none.text
    assert "--role goes with --model" in roles.text


# --- defl node join --lineage ------------------------------------------------------------------


def join(old: Path, folder: Path, told: str, lineage: Path) -> CommandResult:
    made = defl("node", "init", folder, "--name", "frank", "--address", "127.0.0.1:7499")
    assert made.code == 0, made.text
    return defl("node", "join", folder, old / "federation.toml", "--fingerprint", told,
                "--lineage", lineage)  # fmt: skip


def test_a_joiner_brings_the_lineage_that_leads_to_its_fingerprint(
    old: Path, tmp_path: Path
) -> None:
    frank, origin = tmp_path / "frank", epochs_of(old)[0]

    joined = join(old, frank, fingerprint(epochs_of(old)[-1].chain), old / "lineage.json")

    assert joined.code == 0, joined.text
    assert len(lineage_handovers(frank, origin)) == 3
    assert awaited_chain(frank, origin, []) == epochs_of(old)[-1].chain[:16]
    assert awaited_chain(frank, origin, lineage_handovers(frank, origin)) == b""


def test_a_joiner_with_a_lineage_knows_the_members_though_no_founder_answers(
    old: Path, tmp_path: Path
) -> None:
    frank = tmp_path / "frank"
    join(old, frank, fingerprint(epochs_of(old)[-1].chain), old / "lineage.json")

    async def scenario() -> None:
        here = InProcessNode(frank)
        async with here.running():
            await until(lambda: here.node.storage.records.handover(2) is not None)
            assert here.node.federation == epochs_of(old)[-1]
            assert here.node.participant.awaits_chain == b""

    asyncio.run(scenario())
    assert defl("federation", "show", frank, "--json").json["epoch"] == 3  # from its disk


def test_the_check_of_a_joiner_says_that_it_asks_for_a_place(old: Path, tmp_path: Path) -> None:
    frank = tmp_path / "frank"
    join(old, frank, fingerprint(epochs_of(old)[-1].chain), old / "lineage.json")
    (frank / "initial.safetensors").unlink()  # a joiner needs none

    checked = defl("node", "check", frank, "--json")

    [federation] = [line for line in checked.json["checks"] if line["check"] == "federation"]
    assert federation["holds"]
    assert "asks for a place" in federation["detail"]
    assert all("peer" not in line["check"] for line in checked.json["checks"])


def test_the_check_of_a_member_that_has_left_says_so(old: Path, tmp_path: Path) -> None:
    dan = tmp_path / "dan"
    shutil.copytree(old / "dan", dan)
    for name in ("federation.toml", "initial.safetensors"):
        shutil.copy(old / name, dan)
    shutil.copy(old / "lineage.json", dan / "lineage.json")

    async def scenario() -> None:
        here = InProcessNode(dan)
        async with here.running():
            await until(lambda: here.node.storage.records.handover(2) is not None)

    asyncio.run(scenario())

    checked = defl("node", "check", dan)
    assert "NO  federation: this node has left it; epoch 3 is present" in checked.text


def test_a_lineage_that_was_changed_is_refused_at_the_start(old: Path, tmp_path: Path) -> None:
    frank = tmp_path / "frank"
    join(old, frank, fingerprint(epochs_of(old)[-1].chain), old / "lineage.json")
    lineage = read_lineage(frank / "lineage.json")
    shorter = replace(lineage, handovers=lineage.handovers[1:])
    (frank / "lineage.json").write_bytes(lineage_bytes(shorter))

    with pytest.raises(UserError, match="join again with a new one"):
        InProcessNode(frank)


def test_a_lineage_that_leads_elsewhere_is_refused(old: Path, tmp_path: Path) -> None:
    refused = join(old, tmp_path / "frank", "00" * 16, old / "lineage.json")

    assert refused.code == 2
    assert "does not lead to the fingerprint that you typed" in refused.text
    assert not (tmp_path / "frank" / "join.toml").exists()


def test_a_file_that_is_no_lineage_is_refused(old: Path, tmp_path: Path) -> None:
    refused = join(old, tmp_path / "frank", "00" * 16, old / "federation.toml")

    assert refused.code == 2
    assert "not a lineage" in refused.text
