"""The commands that change a federation's members, keys and rounds.

Real files and keys; the nodes behind the commands are simulated.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from defl.cli.main import cli
from defl.ids import NodeId
from defl.node.setup.joining import awaited_chain
from support.simulated_operators import Operators


@pytest.fixture
def operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operators:
    operators = Operators(tmp_path)
    operators.install(monkeypatch)
    operators.pass_rounds(2)
    return operators


def in_epoch(operators: Operators, epoch: int, *names: str) -> Callable[[], bool]:
    return lambda: all(operators.participant(name).epoch >= epoch for name in names)


def test_a_new_machine_is_proposed_approved_ready_and_then_a_member(operators: Operators) -> None:
    joined = operators.join("eve")
    assert "--add eve.join.toml" in joined.text
    assert "--replace-key instead if eve joined before" in joined.text
    operators.start_guest("eve")

    proposed = operators.propose("alice", "--add", "eve/eve.join.toml", "--weight", 7)
    assert proposed.json["operations"][0].endswith("with weight 7")
    asked = operators.run("federation", "changes", "bob").text
    assert "its share of the mean: 33.3 %" in asked, "7 of 11, capped"
    operators.approve(proposed, "bob", "carol")
    operators.pass_until(in_epoch(operators, 1, "bob", "eve"))

    assert proposed.json["after"] == {"n": 5, "f": 1, "q": 4}
    shown = operators.run("federation", "show", "bob", "--json").json
    assert [member["name"] for member in shown["members"]][-1] == "eve"
    assert [member["weight"] for member in shown["members"]] == [1, 1, 1, 1, 7]
    assert shown["epoch"] == 1
    assert shown["fingerprint"] == operators.fingerprint("eve")
    assert operators.run("federation", "show", "federation.toml", "--json").json["epoch"] == 0


def test_an_approval_is_withdrawn_before_the_machine_is_ready(operators: Operators) -> None:
    operators.join("eve")
    proposed = operators.propose("alice", "--add", "eve/eve.join.toml")
    digest = proposed.json["digest"][:8]
    agreed = operators.run("federation", "approve", "bob", digest, "--yes")
    assert "your approval stands until you withdraw it" in agreed.text
    operators.approve(proposed, "carol")

    nothing = operators.run("federation", "approve", "dan", digest, "--withdraw")
    assert (nothing.code, "nothing to withdraw" in nothing.text) == (2, True)
    withdrawn = operators.run("federation", "approve", "bob", digest, "--withdraw", "--json")
    assert (withdrawn.code, withdrawn.json) == (0, {"withdrawn": True})
    text = operators.run("federation", "changes", "bob").text
    assert "approved by  alice, carol; 3 are needed" in text
    # The log forgets it when the round closes: then bob may agree again.
    assert ("withdrawn by bob" in text) == bool(operators.pending("bob").withdrawn)

    operators.start_guest("eve")
    operators.pass_rounds(3)
    assert operators.participant("alice").epoch == 0
    operators.approve(proposed, "bob")
    operators.pass_until(in_epoch(operators, 1, "bob", "eve"))


def test_a_change_says_what_it_lacks_until_it_takes_effect(operators: Operators) -> None:
    operators.join("eve")
    proposed = operators.propose("alice", "--add", "eve/eve.join.toml")

    assert proposed.json["missing"] == [
        "2 more approvals, of bob, carol or dan",
        "eve's machine is not ready: it must run, reach the members and catch up",
    ]
    operators.approve(proposed, "bob", "carol")
    operators.pass_until(lambda: len(operators.participant("dan").state.changes[0].approvals) == 3)
    [pending] = operators.run("federation", "changes", "dan", "--json").json["changes"]
    assert pending["missing"] == [
        "eve's machine is not ready: it must run, reach the members and catch up"
    ]
    assert pending["approvals"] == ["alice", "bob", "carol"]
    operators.start_guest("eve")
    operators.pass_until(lambda: bool(operators.participant("dan").state.ready))
    text = operators.run("federation", "changes", "dan").text
    assert "nothing: it takes effect when round" in text
    assert "n = 4, f = 1, quorum 3  ->  n = 5, f = 1, quorum 4" in text


def test_a_replaced_key_belongs_to_the_new_machine(operators: Operators) -> None:
    joined = operators.join("bob", folder="bob-2")
    assert "--replace-key bob.join.toml" in joined.text
    operators.start_guest("bob-2")
    operators.down.add("bob")

    proposed = operators.propose("alice", "--replace-key", "bob-2/bob.join.toml")
    operators.approve(proposed, "carol", "dan")
    operators.pass_until(in_epoch(operators, 1, "alice", "bob-2"))

    assert operators.participant("bob-2").me == NodeId(1)
    new = operators.run("federation", "show", "alice", "--json").json["members"][1]
    assert new["name"] == "bob"
    assert new["address"] == "127.0.0.1:7499"


def test_another_last_round_takes_effect_with_the_approvals_alone(operators: Operators) -> None:
    proposed = operators.propose("alice", "--rounds", 50)
    operators.approve(proposed, "bob", "carol")
    operators.pass_until(in_epoch(operators, 1, "alice"))

    assert operators.run("federation", "show", "alice", "--json").json["rounds"] == 50


def test_a_proposal_is_withdrawn(operators: Operators) -> None:
    proposed = operators.propose("alice", "--rounds", 50)
    assert proposed.code == 0

    withdrawn = operators.run("federation", "propose", "alice", "--withdraw")

    assert withdrawn.code == 0
    assert withdrawn.text.endswith("withdrawn\n")
    operators.pass_until(lambda: not operators.participant("bob").state.changes)
    assert "no change is pending" in operators.run("federation", "changes", "bob").text


def test_a_newer_proposal_replaces_the_members_older_one(operators: Operators) -> None:
    operators.propose("alice", "--rounds", 50)

    newer = operators.run("federation", "propose", "alice", "--rounds", 60)

    assert "earlier proposal is replaced when the open round closes" in newer.text
    [pending] = operators.run("federation", "changes", "alice", "--json").json["changes"]
    assert pending["operations"] == ["train until round 60 instead of 30"]


# --- Approving ---------------------------------------------------------------------------------


def test_approving_shows_members_cards_and_evidence_and_asks(operators: Operators) -> None:
    joined = operators.join("eve")
    card = joined.text.partition("fingerprint: ")[2].partition("\n")[0]
    proposed = operators.propose("alice", "--add", "eve/eve.join.toml", "--remove", "dan")
    arguments = ["federation", "approve", "bob", proposed.json["digest"][:6]]

    refused = CliRunner().invoke(cli, arguments, input="n\n")

    assert refused.exit_code == 1  # `main` turns an abort into 130
    assert f"its card: {card}; compare it on the phone" in refused.output
    assert "this node has no evidence against dan" in refused.output
    assert "n = 4, f = 1, quorum 3  ->  n = 4, f = 1, quorum 3" in refused.output
    assert operators.pending("bob").approvals == (NodeId(0),)

    agreed = CliRunner().invoke(cli, arguments, input="y\n")
    assert agreed.exit_code == 0
    assert operators.pending("bob").approvals == (NodeId(0), NodeId(1))


def test_a_change_that_takes_effect_while_one_waits_is_reported_so(operators: Operators) -> None:
    proposed = operators.propose("alice", "--rounds", 50)
    operators.approve(proposed, "bob")
    operators.poll_takes_s = 60.0

    last = operators.run("federation", "approve", "carol", proposed.json["digest"], "--yes")

    assert last.code == 0
    assert "it has taken effect: epoch 1 has begun, n = 4, f = 1, quorum 3" in last.text


# --- Leaving -----------------------------------------------------------------------------------


def grown(operators: Operators) -> None:
    """A federation of five."""
    operators.join("eve")
    operators.start_guest("eve")
    operators.approve(operators.propose("alice", "--add", "eve/eve.join.toml"), "bob", "carol")
    operators.pass_until(in_epoch(operators, 1, "alice", "bob", "carol", "dan", "eve"))


def test_a_member_leaves_without_approvals_if_f_stays_the_same(operators: Operators) -> None:
    grown(operators)

    left = operators.run("node", "leave", "dan", "--yes")
    operators.pass_until(in_epoch(operators, 2, "alice", "dan"))

    assert left.code == 0
    assert "nobody has to approve, since f stays the same" in left.text
    assert "ends by itself once a quorum of those that stay knows" in left.text
    assert operators.run("federation", "show", "alice", "--json").json["departed"] == ["dan"]
    refused = operators.run("federation", "propose", "dan", "--rounds", 99)
    assert refused.code == 2
    assert "this node is no member of the present epoch" in refused.text


def test_nobody_leaves_a_federation_of_four(operators: Operators) -> None:
    left = operators.run("node", "leave", "dan", "--yes")

    assert left.code == 2
    assert "3 members would be left, at least 4 are needed" in left.text


# --- A joiner and the history that it is shown ---------------------------------------------------


def test_a_joiner_awaits_the_epoch_that_it_was_told_of_and_remembers_it(
    operators: Operators,
) -> None:
    grown(operators)
    operators.join("frank")
    folder, origin = operators.folder / "frank", operators.federation
    told = bytes.fromhex(operators.fingerprint("alice").replace(" ", ""))
    handovers = operators.handovers("alice")

    assert awaited_chain(folder, origin, []) == told
    assert awaited_chain(folder, origin, handovers) == b""
    operators.approve(operators.propose("alice", "--rounds", 50), "bob", "carol", "dan")
    operators.pass_until(in_epoch(operators, 2, "alice"))
    assert awaited_chain(folder, origin, operators.handovers("alice")) == b""
    assert awaited_chain(operators.folder / "alice", origin, []) == b""  # a founder awaits nothing


def test_a_joiner_that_was_told_of_another_history_is_never_ready(operators: Operators) -> None:
    operators.join("eve", told="0000 " * 8)
    operators.start_guest("eve", awaits=True)
    operators.approve(operators.propose("alice", "--add", "eve/eve.join.toml"), "bob", "carol")

    operators.pass_rounds(4)

    assert operators.participant("alice").state.ready == ()
    assert operators.participant("alice").epoch == 0
