"""Agreed weights from the file to the mean: who sets them, and that nobody can raise its own."""

from pathlib import Path

import numpy as np
import pytest
from msgspec import ValidationError, msgpack
from msgspec.structs import replace

import defl as api
from defl.cards import Card
from defl.changes import Add, Operation, Remove, ReplaceKey
from defl.committee import WEIGHS_MEMBERS, Federation
from defl.errors import UserError
from defl.fields import WEIGHT_MAX
from defl.ids import Digest, NodeId, Round, digest_of
from defl.node.setup.agreement import read_federation
from defl.node.setup.assemble import weights_by_name
from defl.node.setup.facts_text import share_of_newcomer, shares_of_all
from defl.sim.scenario import federation_of, signers_of
from defl.succession import PendingChange, ReadyKey, next_membership, refusal
from support.epochs import Churn
from support.founding import create, defl, init_nodes

CLOSING = Round(4)


def federation(weights: tuple[int, ...] = (), aggregation: str = "adaptive") -> Federation:
    signers, _ = signers_of(7, seed=1, real=False)
    facts, _ = federation_of(signers, rounds=9, weights=weights, aggregation=aggregation)
    return facts


def card(name: str, key: str = "new machine") -> Card:
    return Card(name, digest_of(key.encode()), b"", "", 0, bytes(64))


def after(facts: Federation, *operations: Operation) -> Federation:
    change = PendingChange(
        Round(1), NodeId(0), Digest(bytes(32)), operations, facts.committee.members
    )
    keys = [op.card.key for op in operations if isinstance(op, Add | ReplaceKey)]
    ready = tuple(ReadyKey(key, CLOSING) for key in keys)
    membership = next_membership(facts, CLOSING, (change,), ready)
    assert membership is not None
    return Federation(facts.charter, membership)


def weights_of(facts: Federation) -> list[int]:
    return [member.weight for member in facts.members]


# --- The facts -------------------------------------------------------------------------------


def test_other_weights_are_another_federation() -> None:
    chains = {federation(weights).chain for weights in [(), (2, 1, 1, 1, 1, 1, 1), (3,) * 7]}
    assert len(chains) == 3
    assert federation((1,) * 7).chain == federation().chain


@pytest.mark.parametrize("weight", [0, -1, WEIGHT_MAX + 1, 1.5, True])
def test_a_weight_is_a_whole_number_from_1_to_1000(weight: object) -> None:
    with pytest.raises(UserError, match="whole number from 1 to 1000"):
        federation((weight, 1, 1, 1, 1, 1, 1))  # type: ignore[arg-type]
    if weight is not True:
        frame = msgpack.encode(Add(card("eve"), weight))  # type: ignore[arg-type]
        with pytest.raises(ValidationError):
            msgpack.decode(frame, type=Add)


def test_rules_without_a_mean_of_whole_updates_refuse_unequal_weights() -> None:
    for rule in ("coordinate_median", "krum", "geometric_median"):
        assert rule not in WEIGHS_MEMBERS
        assert federation((5,) * 7, rule).aggregation == rule
        with pytest.raises(UserError, match=f"{rule} ignores weights"):
            federation((5, 1, 1, 1, 1, 1, 1), rule)
        facts = federation((5,) * 7, rule)
        assert refusal(facts, CLOSING, [Add(card("eve"), 5)]) is None
        assert "ignores weights" in (refusal(facts, CLOSING, [Add(card("eve"))]) or "")


# --- Epochs ----------------------------------------------------------------------------------

WEIGHTS = (7, 2, 1, 7, 2, 1, 7)


def test_a_new_member_has_the_weight_that_the_members_approved_and_not_more() -> None:
    facts = federation(WEIGHTS)
    assert weights_of(after(facts, Add(card("eve"), 9))) == [*WEIGHTS, 9]
    assert weights_of(after(facts, Add(card("eve")))) == [*WEIGHTS, 1]
    assert Add(card("eve"), 9) != Add(card("eve"), 10), "a CHANGE's digest covers the weight"


def test_an_approver_sees_the_share_that_follows_from_the_whole_change() -> None:
    """A liar that removes the largest member along with its own addition shows what it gains."""
    facts = federation((1000, 1, 1, 1, 1, 1, 1))
    eve, other = Add(card("eve"), 1000), Remove(NodeId(0))
    nobody = ReplaceKey(NodeId(90), card("dan", "another"))

    assert float(shares_of_all(after(facts, other, eve))[-1]) == 0.2
    for change, share in ([eve], "16.7"), ([other, eve], "20.0"), ([nobody, eve], "16.7"):
        assert share_of_newcomer(facts, change, eve) == f"its share of the mean: {share} %"


def test_no_change_alters_the_weight_of_a_member() -> None:
    facts = federation(WEIGHTS)
    name = facts.members[0].name
    assert weights_of(after(facts, ReplaceKey(NodeId(0), card(name)))) == [*WEIGHTS]
    gone = after(facts, Remove(NodeId(0)))
    assert weights_of(gone) == [*WEIGHTS]
    change = ReplaceKey(NodeId(0), card(name))
    assert weights_of(after(gone, change)) == [*WEIGHTS], "it returns as heavy as it left"


def test_weights_survive_joins_leaves_and_keys_in_a_whole_federation() -> None:
    """Every model is computed by the members' own weights, across three boundaries."""
    churn = Churn(5, rounds=14, weights=(7, 2, 1, 7, 2))
    joiner, machine = churn.add_machine("joiner"), churn.add_machine("new machine")
    churn.run_until_round(1)
    churn.change(replace(churn.add(joiner, "eve"), weight=900))
    churn.run_until_epoch(1)
    churn.change(churn.replace_key(0, machine))
    churn.run_until_epoch(2)
    churn.change(Remove(NodeId(3)), by=1)
    churn.run_until_epoch(3)
    churn.finish()

    assert weights_of(churn.newest.federation) == [7, 2, 1, 7, 2, 900]
    assert churn.one_history()


# --- The mean --------------------------------------------------------------------------------


class Site:
    """Always sends the same model, so that a round's mean shows the shares."""

    def __init__(self, number: int) -> None:
        self.number = number

    def initial_weights(self) -> dict[str, np.ndarray]:
        return {"place": np.zeros(4, dtype=np.float32)}

    def train(self, weights, round_):
        del weights, round_
        sent = np.zeros(4, dtype=np.float32)
        sent[self.number] = 1
        return {"place": sent}, {}

    def evaluate(self, weights):
        del weights
        return {}


@pytest.mark.parametrize(
    ("aggregation", "faults_max", "shares"),
    [
        ("fed_avg", None, [1 / 3, 1 / 3, 1 / 6, 1 / 6]),
        ("fed_avg", 0, [0.7, 0.1, 0.1, 0.1]),
    ],
)
def test_a_simulated_federation_weighs_as_agreed_at_every_node(
    aggregation: str, faults_max: int | None, shares: list[float]
) -> None:
    weights = (7, 1, 1, 1) if faults_max == 0 else (7, 2, 1, 1)
    result = api.simulate(
        [Site(i) for i in range(4)],
        rounds=2,
        weights=weights,
        aggregation=aggregation,
        faults_max=faults_max,
        progress=False,
    )
    assert result.agreed
    np.testing.assert_array_equal(result.weights["place"], np.float32(shares))


@pytest.mark.parametrize(
    ("weights", "answer"),
    [([1, 2], "a list of 4 numbers"), ([1, 2, 3, 0], "the weight of node-3 is 0"), (7, "a list")],
)
def test_simulate_refuses_wrong_weights(weights: object, answer: str) -> None:
    with pytest.raises(UserError, match=answer):
        api.simulate([Site(i) for i in range(4)], rounds=1, weights=weights)  # type: ignore[arg-type]


# --- The file and the commands ---------------------------------------------------------------


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return init_nodes(tmp_path_factory.mktemp("nodes"))


def test_create_writes_the_agreed_weights_and_show_says_what_they_mean(
    cards: list[Path], tmp_path: Path
) -> None:
    made = create(tmp_path, cards, "--weight", "alice=7", "--weight", "bob=2")
    agreed = read_federation(tmp_path / "federation.toml").federation
    shown = defl("federation", "show", tmp_path / "federation.toml")

    assert made.code == 0, made.text
    assert weights_of(agreed) == [7, 2, 1, 1]
    assert "alice: 33.3 % (weight 7, capped: 63.6 % by weight alone)" in shown.text
    assert "bob: 33.3 % (weight 2)" in shown.text
    assert "with 3 or fewer kept, all count the same" in shown.text
    as_json = defl("federation", "show", tmp_path / "federation.toml", "--json").json["members"]
    assert [member["weight"] for member in as_json] == [7, 2, 1, 1]
    assert [round(member["share"], 3) for member in as_json] == [0.333, 0.333, 0.167, 0.167]


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (["--weight", "eve=2"], "no member has this name; there are: alice, bob, carol, dan"),
        (["--weight", "alice=0"], "the weight of alice is 0"),
        (["--weight", "alice=1001"], "from 1 to 1000"),
        (["--weight", "alice=2.5"], "--weight takes NAME=N"),
        (["--weight", "alice"], "--weight takes NAME=N"),
        (["--weight", "alice=2", "--weight", "alice=3"], "names 'alice' twice"),
        (["--weight", "alice=2", "--aggregation", "krum", "--faults-max", "0"], "ignores weights"),
    ],
)
def test_a_wrong_weight_writes_nothing(
    cards: list[Path], tmp_path: Path, options: list[str], answer: str
) -> None:
    result = create(tmp_path, cards, *options)

    assert result.code == 2
    assert answer in result.text
    assert not (tmp_path / "federation.toml").exists()


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("weight = 0", "member 2 is 0"),
        ("weight = 1001", "from 1 to 1000"),
        ("weight = true", "from 1 to 1000"),
        ('weight = "7"', "from 1 to 1000"),
        ("", "the key 'weight' is missing"),
    ],
)
def test_a_file_with_a_wrong_weight_is_refused(
    cards: list[Path], tmp_path: Path, line: str, answer: str
) -> None:
    assert create(tmp_path, cards, "--weight", "bob=2").code == 0
    path = tmp_path / "federation.toml"
    path.write_text(path.read_text().replace("weight = 2\n", f"{line}\n"))

    with pytest.raises(UserError, match=answer):
        read_federation(path)


def test_a_card_cannot_state_a_weight(tmp_path: Path) -> None:
    cards = init_nodes(tmp_path)
    cards[0].write_text(cards[0].read_text() + "weight = 1000\n")

    result = create(tmp_path, cards)

    assert result.code == 2
    assert "a card has no 'weight'" in result.text


def test_names_with_an_equals_sign_can_be_weighed() -> None:
    assert weights_by_name(["site=1=20"]) == {"site=1": 20}
