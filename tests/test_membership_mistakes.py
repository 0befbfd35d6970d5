"""Each mistake with the commands that change a membership is answered with what to do."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from defl.cards import Card
from defl.changes import OPERATIONS_MAX, Add
from defl.cli import running_node
from defl.crypto import Ed25519Signer
from defl.ids import NodeId
from defl.output import Propose
from support.founding import CommandResult, agree, defl, init_nodes
from support.simulated_operators import Operators


@pytest.fixture
def operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operators:
    operators = Operators(tmp_path, rounds=6)
    operators.install(monkeypatch)
    operators.pass_rounds(1)
    return operators


def refused(result: CommandResult, *reasons: str) -> None:
    assert result.code == 2, result.text
    for reason in reasons:
        assert reason in result.text


# --- Proposing ----------------------------------------------------------------------------------


def test_nothing_or_too_much_to_propose(operators: Operators) -> None:
    refused(operators.propose("alice"), "say what to propose")
    refused(operators.propose("alice", "--withdraw", "--rounds", 9), "--withdraw alone")
    refused(operators.propose("alice", "--withdraw"), "nothing to withdraw")


def test_a_node_that_does_not_run(operators: Operators) -> None:
    operators.down.add("alice")

    for command in (
        ("propose", "alice", "--rounds", 9),
        ("changes", "alice"),
        ("approve", "alice", "a"),
    ):
        refused(operators.run("federation", *command), "start it: defl node start alice")
    refused(operators.run("node", "leave", "alice", "--yes"), "start it: defl node start alice")


def test_a_folder_without_a_node(operators: Operators) -> None:
    refused(operators.run("federation", "changes", "nowhere"), "defl node init nowhere")


def test_an_unknown_member(operators: Operators) -> None:
    refused(
        operators.propose("alice", "--remove", "mallory"),
        "no member is named 'mallory'; there are: alice, bob, carol, dan",
    )


def test_too_many_leave_at_once(operators: Operators) -> None:
    refused(
        operators.propose("alice", "--remove", "bob", "--remove", "carol"),
        "this can never take effect",
        "2 members would be left",
    )


def test_two_operations_for_one_member(operators: Operators) -> None:
    operators.join("bob", folder="bob-2")

    refused(
        operators.propose("alice", "--remove", "bob", "--replace-key", "bob-2/bob.join.toml"),
        "it has two operations for one member",
    )


def test_too_many_operations(operators: Operators) -> None:
    for number in range(OPERATIONS_MAX + 1):
        operators.join(f"new-{number}")
    cards = [f"new-{number}/new-{number}.join.toml" for number in range(OPERATIONS_MAX + 1)]

    refused(
        operators.propose("alice", *(word for card in cards for word in ("--add", card))),
        "9 changes at once, at most 8",
    )
    refused(
        operators.propose("alice", "--add", cards[0], "--add", cards[1]),
        "at most 1 keys may be new at once among 6 members",
    )


def test_a_last_round_that_has_passed(operators: Operators) -> None:
    refused(operators.propose("alice", "--rounds", 1), "the last round must be later")


def test_a_federation_that_has_ended(operators: Operators) -> None:
    operators.pass_until(lambda: operators.participant("alice").state.round == 6)

    refused(
        operators.propose("alice", "--rounds", 9),
        "all 6 rounds are closed",
        "defl federation create --from",
    )


# --- Cards ----------------------------------------------------------------------------------------


def test_a_card_that_is_not_there(operators: Operators) -> None:
    refused(operators.propose("alice", "--add", "eve.join.toml"), "no such file", "defl node join")


def test_the_card_that_founds_federations(operators: Operators) -> None:
    operators.join("eve")

    refused(
        operators.propose("alice", "--add", "eve/eve.card.toml"),
        "the card of `defl node init`",
        "defl node join",
    )


def test_a_card_for_another_federation(operators: Operators, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    theirs = agree(other, init_nodes(other))
    defl("node", "init", "eve", "--name", "eve", "--address", "127.0.0.1:7499")
    joined = defl("node", "join", "eve", other / "federation.toml", "--fingerprint",
                  theirs.federation.chain[:16].hex())  # fmt: skip
    assert joined.code == 0, joined.text

    refused(
        operators.propose("alice", "--add", "eve/eve.join.toml"),
        "it asks for a place in another federation, or it was altered",
    )


def test_a_name_that_is_taken(operators: Operators) -> None:
    operators.join("bob", folder="bob-2")

    refused(
        operators.propose("alice", "--add", "bob-2/bob.join.toml"),
        "a member is or was named 'bob'; if this is its new machine, replace its key",
    )


def test_a_key_for_a_member_that_does_not_exist(operators: Operators) -> None:
    operators.join("eve")

    refused(
        operators.propose("alice", "--replace-key", "eve/eve.join.toml"),
        "no member is named 'eve'",
        "--add",
    )


# --- Approving ------------------------------------------------------------------------------------


def test_a_digest_that_matches_nothing_or_too_much(operators: Operators) -> None:
    refused(operators.run("federation", "approve", "bob", "ab", "--yes"), "no change is pending")
    operators.propose("alice", "--rounds", 9)
    operators.propose("bob", "--rounds", 10)

    refused(
        operators.run("federation", "approve", "carol", "xyz", "--yes"),
        "no pending change begins with 'xyz'; there are:",
        "train until round 9 instead of 6",
    )
    refused(
        operators.run("federation", "approve", "carol", "", "--yes"),
        "more than one change begins with ''",
        "train until round 10 instead of 6",
    )


def test_an_approval_that_was_given(operators: Operators) -> None:
    proposed = operators.propose("alice", "--rounds", 9)

    refused(
        operators.run("federation", "approve", "alice", proposed.json["digest"], "--yes"),
        "this member has approved it already",
    )


def test_json_does_not_ask(operators: Operators) -> None:
    refused(operators.run("federation", "approve", "bob", "ab", "--json"), "add --yes")
    refused(operators.run("node", "leave", "bob", "--json"), "add --yes")


def test_a_log_that_does_not_move_is_waited_for_and_reported(operators: Operators) -> None:
    operators.poll_takes_s = 0.0  # as if no other member were connected

    result = operators.run("federation", "propose", "alice", "--rounds", 9, "--timeout", 2)

    assert result.code == 1
    assert "waiting for the log (at most 2 s)" in result.text
    assert "the log has not recorded it yet" in result.text
    as_json = operators.run(
        "federation", "propose", "alice", "--rounds", 9, "--timeout", 2, "--json"
    )
    assert as_json.json["recorded"] is False


def test_a_node_that_ends_while_one_waits(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_node, "sleep", lambda _seconds: operators.down.add("alice"))

    result = operators.run("federation", "propose", "alice", "--rounds", 9)

    assert result.code == 1
    assert "the node has stopped answering before the log recorded it" in result.text


def test_a_proposal_lapses_when_another_change_takes_effect_first(operators: Operators) -> None:
    theirs = operators.propose("bob", "--rounds", 10)
    operators.approve(theirs, "carol", "dan")
    operators.poll_takes_s = 60.0

    ours = operators.run("federation", "propose", "alice", "--rounds", 9)

    assert ours.code == 1
    assert "a new epoch began before this was recorded" in ours.text


def test_a_node_that_signs_nothing(operators: Operators) -> None:
    operators.participant("alice").replica.observe("its state is lost")

    refused(
        operators.propose("alice", "--rounds", 9),
        "this node signs nothing (its state is lost)",
        "ask another member to propose a new key for it",
    )


def test_a_card_that_no_node_could_connect_to_is_not_approved(operators: Operators) -> None:
    """A liar's CHANGE passes the log, which checks signatures alone."""
    signer = Ed25519Signer(bytes(32))
    unsigned = Card("eve", signer.public_key, b"no certificate", "127.0.0.1:7499", 0, b"")
    signature = signer.sign(unsigned.statement(operators.federation.origin))
    operators.cluster.operator(NodeId(0), Propose((Add(replace(unsigned, signature=signature)),)))
    operators.pass_until(lambda: bool(operators.participant("bob").state.changes))
    digest = operators.pending("bob").digest.hex()

    refused(
        operators.run("federation", "approve", "bob", digest, "--yes"),
        "eve's card cannot be used: not an X.509 certificate",
    )


# --- Joining --------------------------------------------------------------------------------------

FINGERPRINT = "c9b1 4b02 ccf4 19e1 c372 b5cc 3d3b 61f2"


def join(folder: str, file: object = "federation.toml", told: str = FINGERPRINT) -> CommandResult:
    return defl("node", "join", folder, file, "--fingerprint", told)


@pytest.fixture
def eve(operators: Operators) -> Path:
    assert defl("node", "init", "eve", "--name", "eve", "--address", "127.0.0.1:7499").code == 0
    return operators.folder / "eve"


@pytest.mark.parametrize(
    "told", ["", "c9b1 4b02", FINGERPRINT + " 0000", FINGERPRINT.replace("c", "g")]
)
def test_a_fingerprint_that_was_misheard(eve: Path, told: str) -> None:
    refused(join("eve", told=told), "is not a fingerprint: it has 8 groups of four digits")
    assert not (eve / "join.toml").exists()


@pytest.mark.parametrize("told", [FINGERPRINT.upper(), FINGERPRINT.replace(" ", ""), FINGERPRINT])
def test_a_fingerprint_may_be_typed_as_one_likes(eve: Path, told: str) -> None:
    assert join("eve", told=told).code == 0
    assert f'"{FINGERPRINT}"' in (eve / "join.toml").read_text()


def test_a_file_that_is_no_federations(eve: Path) -> None:
    refused(join("eve", "nowhere.toml"), "no such file")
    refused(join("eve", eve / "node.toml"), "there is no key")


def test_a_founder_need_not_join(operators: Operators) -> None:
    refused(join("alice"), "this node's key is a founder's", "defl node start alice")


def test_a_node_of_another_federation(eve: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    agree(other, init_nodes(other))
    assert join("eve", other / "federation.toml").code == 0

    refused(join("eve"), "is the file of another federation")


def test_joining_again_gives_the_same_card_and_another_address_a_newer_one(eve: Path) -> None:
    join("eve")
    card = (eve / "eve.join.toml").read_bytes()
    join("eve")
    assert (eve / "eve.join.toml").read_bytes() == card

    settings = eve / "node.toml"
    settings.write_text(settings.read_text().replace("127.0.0.1:7499", "127.0.0.1:7498"))
    join("eve")

    assert "serial = 1" in (eve / "eve.join.toml").read_text()
