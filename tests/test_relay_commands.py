"""`defl relay`, and what `defl federation` says about relays."""

import io
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from defl.cards import RELAY_ORIGIN, Reach
from defl.errors import UserError
from defl.node.relay.dependence import RelayDependence
from defl.node.relay.file_watch import FileWatch
from defl.node.relay.files import read_relay, served_members
from defl.node.report.lineage_file import lineage_bytes
from defl.node.setup.agreement import read_federation
from defl.node.setup.config import read_card_file, read_identity
from defl.node.setup.identity import JOINER, card_text, make_card, make_identity
from support.founding import create, defl, init_nodes
from support.lineages import ExportedLife
from support.logs import log_to


def init_relay(folder: Path, name: str = "r", port: int = 7450) -> Path:
    made = defl(
        "relay", "init", folder / name, "--name", name, "--address", f"127.0.0.1:{port}", "--json"
    )
    assert made.code == 0, made.text
    return Path(made.json["card"])


def dialling_node(folder: Path, name: str) -> Path:
    made = defl("node", "init", folder / name, "--name", name, "--reach", "dial", "--json")
    assert made.code == 0, made.text
    return Path(made.json["card"])


def cards_with(folder: Path, dialling: tuple[str, ...]) -> list[Path]:
    cards = init_nodes(folder / "public")[: 4 - len(dialling)]
    return [*cards, *(dialling_node(folder, name) for name in dialling)]


def test_init_makes_an_identity_and_a_card_that_a_federation_can_name(tmp_path: Path) -> None:
    card = read_card_file(init_relay(tmp_path), RELAY_ORIGIN)

    assert (card.name, card.address, card.reach) == ("r", "127.0.0.1:7450", Reach.BOTH)
    assert card.relay
    config = read_relay(tmp_path / "r")
    assert config.listen_at == ("127.0.0.1", 7450)
    assert read_identity(tmp_path / "r", "r").public_key == card.key


def test_init_never_overwrites_a_relay(tmp_path: Path) -> None:
    init_relay(tmp_path)
    again = defl("relay", "init", tmp_path / "r", "--name", "r", "--address", "127.0.0.1:1")

    assert again.code == 2
    assert "is not overwritten" in again.text


def test_start_says_which_file_is_missing(tmp_path: Path) -> None:
    init_relay(tmp_path)
    missing = defl("relay", "start", tmp_path / "r", "--federation", tmp_path / "none.toml")
    nowhere = defl("relay", "start", tmp_path / "q", "--federation", tmp_path / "none.toml")

    assert (missing.code, nowhere.code) == (2, 2)
    assert "none.toml" in missing.text
    assert "defl relay init" in nowhere.text


def test_a_federation_names_its_relays_and_says_what_hangs_on_a_single_one(tmp_path: Path) -> None:
    cards = cards_with(tmp_path, ("carol", "dan", "eve"))
    made = create(tmp_path, cards, "--relay", init_relay(tmp_path))
    agreement = read_federation(tmp_path / "federation.toml")
    shown = defl("federation", "show", tmp_path / "federation.toml")
    as_json = defl("federation", "show", tmp_path / "federation.toml", "--json").json

    assert [card.name for card in agreement.relays] == ["r"]
    assert shown.text in made.text
    assert "relays       r, which connects 3 pairs of members that only dial" in shown.text
    assert "it is the only one: it can stop these pairs, never read or change" in shown.text
    assert "without it 2 of 4 members are all connected" in shown.text
    assert "no quorum (q = 3)" in shown.text
    assert as_json["relays"][0]["name"] == "r"
    assert as_json["relayed"] == {
        "only_dial": ["carol", "dan", "eve"],
        "relays": ["r"],
        "pairs": [["carol", "dan"], ["carol", "eve"], ["dan", "eve"]],
        "connected_without_relays": 2,
        "quorum_without_relays": False,
    }


def test_without_a_relay_the_file_says_which_pairs_cannot_be_connected(tmp_path: Path) -> None:
    made = create(tmp_path, cards_with(tmp_path, ("carol", "dan")))

    assert made.code == 0
    assert "none, but 1 pair of members that only dial cannot be connected" in made.text
    assert "3 of 4 members are all connected with each other, a quorum" in made.text


def test_a_relays_card_is_no_members_and_a_members_no_relays(tmp_path: Path) -> None:
    cards = cards_with(tmp_path, ("dan",))
    relay = init_relay(tmp_path)
    unreachable = tmp_path / "unreachable.relay.toml"
    identity = read_identity(tmp_path / "r", "r")
    card = make_card(identity, "", origin=RELAY_ORIGIN, reach=Reach.DIAL)
    unreachable.write_text(card_text(card), encoding="utf-8")
    refused = {
        "it is a member's card": create(tmp_path, cards, "--relay", cards[0]),
        "it is a relay's card, and a relay is no member": create(tmp_path, [*cards, relay]),
        "r.relay.toml are cards of one name (r)": create(
            tmp_path, cards, "--relay", relay, "--relay", relay
        ),
        "a relay's card says relay = true": create(tmp_path, cards, "--relay", unreachable),
    }

    for words, result in refused.items():
        assert result.code == 2
        assert words in result.text
    assert not (tmp_path / "federation.toml").exists()


def test_a_relay_that_the_file_does_not_name_does_not_start(tmp_path: Path) -> None:
    made = create(tmp_path, cards_with(tmp_path, ("dan",)), "--relay", init_relay(tmp_path))
    init_relay(tmp_path, "other", 7451)
    federation = tmp_path / "federation.toml"
    started = defl("relay", "start", tmp_path / "other", "--federation", federation)

    assert made.code == 0
    assert started.code == 2
    assert "does not name the relay other, so no member would dial it" in started.text


def test_a_relay_says_that_a_card_is_no_federations_file(tmp_path: Path) -> None:
    card = init_relay(tmp_path)
    started = defl("relay", "start", tmp_path / "r", "--federation", card)

    assert started.code == 2
    assert "there is no key 'name'; remove it, or is it another file?" in started.text


@pytest.mark.parametrize(
    ("dialling", "relays", "relaying_members", "connected"),
    [
        ((), (), 0, 4),
        (("d",), (), 0, 4),
        (("c", "d"), ("r",), 0, 3),
        (("c", "d"), ("r", "q"), 0, 3),
        (("c", "d"), ("a",), 1, 2),  # the member that relays is gone too
        (("a", "b", "c", "d"), ("r",), 0, 1),
    ],
)
def test_how_many_members_are_connected_without_the_relays(
    dialling: tuple[str, ...], relays: tuple[str, ...], relaying_members: int, connected: int
) -> None:
    assert RelayDependence(4, 3, dialling, relays, relaying_members).connected_without == connected


# --- Whom a relay serves -------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> ExportedLife:
    return ExportedLife(tmp_path_factory.mktemp("exported"))


# A relay's folder without cards of guests.
NO_GUESTS = Path("nowhere")


def present_keys(exported: ExportedLife) -> set[bytes]:
    committee = exported.churn.newest.federation.committee
    return {committee.keys[member] for member in committee.members}


def test_a_lineage_proves_the_members_of_today_and_nobody_else(exported: ExportedLife) -> None:
    agreement, founders = served_members(NO_GUESTS, exported.federation, None)
    _, members = served_members(NO_GUESTS, exported.federation, exported.path)

    assert founders == agreement.cards
    assert {card.key for card in members} != {card.key for card in founders}
    assert {card.key for card in members} == present_keys(exported)


def test_a_lineage_that_proves_nothing_is_refused(exported: ExportedLife, tmp_path: Path) -> None:
    forged = tmp_path / "forged.json"
    text = exported.path.read_text(encoding="utf-8")
    forged.write_text(text.replace("defl-lineage-1", "defl-lineage-9"), encoding="utf-8")

    with pytest.raises(UserError, match="not a lineage"):
        served_members(NO_GUESTS, exported.federation, forged)


def test_files_are_read_again_when_they_change_and_a_bad_one_changes_nothing(
    exported: ExportedLife, tmp_path: Path
) -> None:
    lines = io.StringIO()
    lineage = tmp_path / "lineage.json"
    shutil.copy(exported.path, lineage)
    watch = FileWatch(NO_GUESTS, exported.federation, lineage, log_to(lines))
    members = watch.members

    assert watch.reread() is None
    lineage.write_text("nonsense", encoding="utf-8")
    assert watch.reread() is None
    assert "cannot be read; nothing changes" in lines.getvalue()
    assert watch.members == members
    lineage.unlink()
    assert watch.reread() is None


def test_a_newer_lineage_changes_whom_the_relay_serves(
    exported: ExportedLife, tmp_path: Path
) -> None:
    older = tmp_path / "lineage.json"
    earlier = replace(exported.lineage, handovers=exported.lineage.handovers[:1])
    older.write_bytes(lineage_bytes(earlier))
    watch = FileWatch(NO_GUESTS, exported.federation, older, log_to(io.StringIO()))
    before = watch.members
    shutil.copy(exported.path, older)
    after = watch.reread()

    assert after is not None
    assert after != before
    assert {card.key for card in after} == present_keys(exported)


def test_a_guest_is_served_while_its_card_is_in_the_relays_folder(
    exported: ExportedLife, tmp_path: Path
) -> None:
    guest = make_identity("guest")
    origin = read_federation(exported.federation).federation.origin
    watch = FileWatch(tmp_path, exported.federation, exported.path, log_to(io.StringIO()))
    path = tmp_path / "cards" / "guest.join.toml"
    path.parent.mkdir()
    path.write_text(
        card_text(make_card(guest, "", origin=origin, reach=Reach.DIAL), JOINER), encoding="utf-8"
    )
    with_guest = watch.reread()
    path.unlink()
    without = watch.reread()

    assert with_guest is not None
    assert {card.key for card in with_guest} == present_keys(exported) | {guest.public_key}
    assert without is not None
    assert {card.key for card in without} == present_keys(exported)


def test_a_founders_card_lets_no_guest_in(exported: ExportedLife, tmp_path: Path) -> None:
    path = tmp_path / "cards" / "guest.join.toml"
    path.parent.mkdir()
    path.write_text(card_text(make_card(make_identity("guest"), "a:1")), encoding="utf-8")

    with pytest.raises(UserError, match="which founds federations"):
        served_members(tmp_path, exported.federation, exported.path)
