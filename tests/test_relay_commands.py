"""`defl relay`, and what `defl federation` says about relays."""

import io
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from defl.cards import Reach
from defl.errors import UserError
from defl.node.relay.dependence import RelayDependence
from defl.node.relay.file_watch import FileWatch
from defl.node.relay.files import read_relay, served_members
from defl.node.report.lineage_file import lineage_bytes
from defl.node.setup.agreement import read_federation
from defl.node.setup.config import read_card_file, read_identity
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
    card = read_card_file(init_relay(tmp_path))

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


def test_a_relay_is_no_member_and_must_be_reachable(tmp_path: Path) -> None:
    cards = cards_with(tmp_path, ("dan",))
    twice = create(tmp_path, cards, "--relay", cards[0])
    unreachable = create(tmp_path, cards[:3], "--relay", cards[3])

    assert (twice.code, unreachable.code) == (2, 2)
    assert "only dials, so it cannot be a relay" in unreachable.text
    assert not (tmp_path / "federation.toml").exists()


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


def present_keys(exported: ExportedLife) -> set[bytes]:
    committee = exported.churn.newest.federation.committee
    return {committee.keys[member] for member in committee.members}


def test_a_lineage_proves_the_members_of_today_and_nobody_else(exported: ExportedLife) -> None:
    agreement, founders = served_members(exported.federation, None)
    _, members = served_members(exported.federation, exported.path)

    assert founders == agreement.cards
    assert {card.key for card in members} != {card.key for card in founders}
    assert {card.key for card in members} == present_keys(exported)


def test_a_lineage_that_proves_nothing_is_refused(exported: ExportedLife, tmp_path: Path) -> None:
    forged = tmp_path / "forged.json"
    text = exported.path.read_text(encoding="utf-8")
    forged.write_text(text.replace("defl-lineage-1", "defl-lineage-9"), encoding="utf-8")

    with pytest.raises(UserError, match="not a lineage"):
        served_members(exported.federation, forged)


def test_files_are_read_again_when_they_change_and_a_bad_one_changes_nothing(
    exported: ExportedLife, tmp_path: Path
) -> None:
    lines = io.StringIO()
    lineage = tmp_path / "lineage.json"
    shutil.copy(exported.path, lineage)
    watch = FileWatch(exported.federation, lineage, log_to(lines))
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
    watch = FileWatch(exported.federation, older, log_to(io.StringIO()))
    before = watch.members
    shutil.copy(exported.path, older)
    after = watch.reread()

    assert after is not None
    assert after != before
    assert {card.key for card in after} == present_keys(exported)
