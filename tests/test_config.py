"""node.toml and federation.toml: their contents, and the message for each mistake."""

import re
import stat
from pathlib import Path

import msgspec
import pytest

from defl.committee import Rules
from defl.errors import UserError
from defl.ids import Digest, digest_of
from defl.node.setup.agreement import federation_text, read_federation
from defl.node.setup.config import (
    LogFormat,
    NodeConfig,
    create_node,
    node_text,
    read_identity,
    read_node,
)
from defl.node.setup.fingerprint import fingerprint
from defl.node.setup.identity import make_card, make_identity
from defl.node.setup.typed_toml import quoted
from support.founding import agree, init_nodes


@pytest.fixture(scope="module")
def agreed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("agreed")
    return agree(folder, init_nodes(folder)).text.decode()


def rewritten(agreed: str, folder: Path, old: str, new: str) -> Path:
    assert agreed.count(old) >= 1, old
    path = folder / "federation.toml"
    path.write_text(agreed.replace(old, new, 1), encoding="utf-8")
    return path


def line_with(text: str, words: str) -> int:
    return next(i for i, line in enumerate(text.splitlines(), 1) if words in line)


# --- federation.toml -----------------------------------------------------------------------------


def test_a_federation_file_round_trips_to_the_same_bytes(tmp_path: Path) -> None:
    agreement = agree(
        tmp_path, init_nodes(tmp_path), "--rules", "jolteon", "--tau", 3, "--rounds", 7
    )
    facts = agreement.federation

    assert (facts.rules, facts.tau, facts.rounds) == (Rules.JOLTEON, 3, 7)
    assert [member.name for member in facts.members] == ["alice", "bob", "carol", "dan"]
    assert tuple(member.key for member in facts.members) == tuple(c.key for c in agreement.cards)
    assert federation_text(facts, agreement.cards).encode() == agreement.text


def test_the_id_covers_every_byte_of_the_file(agreed: str, tmp_path: Path) -> None:
    one = read_federation(rewritten(agreed, tmp_path, "# What", "# What")).federation
    other = read_federation(rewritten(agreed, tmp_path, "# What", "# what")).federation

    assert one.document == digest_of(agreed.encode())
    assert msgspec.structs.replace(one.charter, document=other.document) == other.charter
    assert one.membership == other.membership
    assert one.chain != other.chain
    assert fingerprint(one.chain) != fingerprint(other.chain)


def test_a_fingerprint_is_eight_groups_of_four() -> None:
    assert fingerprint(Digest(bytes(range(32)))) == "0001 0203 0405 0607 0809 0a0b 0c0d 0e0f"


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        ("tau = 2", 'tau = "two"', r"line \d+: tau: Expected `int`, got `str`"),
        ("tau = 2", "taus = 2", r"line \d+: there is no key 'taus'; did you mean 'tau'\?"),
        ("grace_s =", "grace =", r"line \d+: there is no key 'grace'; did you mean 'grace_s'\?"),
        ("tau = 2", "", r"the key 'tau' is missing"),
        ('rules = "hotstuff"', 'rules = "pbft"', r"line \d+: rules: .*are: hotstuff, jolteon"),
        ('role = "trainable"', 'role = "train"', r"line \d+: .*role: .*there are: trainable"),
        ("tau = 2", "tau = 1", "tau is 1, but 2 to 32 rounds can be kept"),
        ("tau = 2", "tau = ", r"not TOML: .*line 7"),
        ("faults_max = 1", "faults_max = 2", "tolerates at most 1"),
        ('"adaptive"', '"mean"', "no aggregation rule is named 'mean'; there are: fed_avg"),
        ("shape = [164]", "shape = [163]", r"role memory and the shape \[164\]; defl"),
        ("view_base_s = 1.0", "view_base_s = nan", "timing.view_base_s must be a number"),
        ("grace_s = 60.0", "grace_s = inf", "timing.grace_s must be a number of seconds"),
        ('initial = "', 'initial = "0', "line .*: model.initial: "),
        ('name = "bob"', 'name = "bobby"', "member 2: .*was altered"),
        ("serial = 0", "serial = false", "member 1: 'serial' must be a int"),
    ],
)  # fmt: skip
def test_a_mistake_in_federation_toml_is_reported_with_its_line(
    agreed: str, tmp_path: Path, old: str, new: str, answer: str
) -> None:
    path = rewritten(agreed, tmp_path, old, new)

    with pytest.raises(UserError, match=answer) as refused:
        read_federation(path)

    assert str(path) in str(refused.value)
    if line := re.search(r", line (\d+):", str(refused.value)):
        assert int(line[1]) == line_with(path.read_text(encoding="utf-8"), new)


def test_a_file_that_lacks_a_member_is_refused(agreed: str, tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(agreed[: agreed.rindex("[[members]]")], encoding="utf-8")

    with pytest.raises(UserError, match="has 4 to 100 members, not 3"):
        read_federation(path)


def test_two_members_of_one_address_are_refused_when_the_file_is_read(tmp_path: Path) -> None:
    agreement = agree(tmp_path, init_nodes(tmp_path))
    moved = make_card(read_identity(tmp_path / "dan", "dan"), agreement.cards[0].address.upper())
    path = tmp_path / "federation.toml"
    path.write_text(federation_text(agreement.federation, [*agreement.cards[:3], moved]), "utf-8")

    with pytest.raises(UserError, match=r"member 1 and .*member 4 are cards of one address \(127"):
        read_federation(path)


def test_a_missing_file_is_reported_with_its_source(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file; .*ask another member"):
        read_federation(tmp_path / "federation.toml")


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(UserError, match="not TOML"):
        read_federation(path)


@pytest.mark.parametrize("name", ['"', "\\", "a\nb", "\x7f", "layer.0", "é", "\U0001f600"])
def test_any_entry_name_can_be_written(name: str) -> None:
    assert msgspec.toml.decode(f"name = {quoted(name)}") == {"name": name}


# --- node.toml and the identity ------------------------------------------------------------------

CONFIG = NodeConfig(
    name="alice",
    address="alice.example.org:7400",
    listen="127.0.0.1:7400",
    client="task:client",
    log_format=LogFormat.JSON,
    telemetry_port=8400,
)


def write_node(folder: Path) -> None:
    identity = make_identity("alice")
    create_node(folder, CONFIG, identity, make_card(identity, CONFIG.address))


def test_node_toml_round_trips_with_its_comments(tmp_path: Path) -> None:
    write_node(tmp_path / "alice")

    assert read_node(tmp_path / "alice") == CONFIG
    assert CONFIG.listen_at == ("127.0.0.1", 7400)
    assert node_text(CONFIG).count("#") >= 8


def test_the_identity_round_trips_and_its_key_is_private(tmp_path: Path) -> None:
    identity = make_identity("alice")
    create_node(tmp_path / "a", CONFIG, identity, make_card(identity, CONFIG.address))

    assert read_identity(tmp_path / "a", "alice") == identity
    assert stat.S_IMODE((tmp_path / "a" / "node.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


@pytest.mark.parametrize("file", ["node.key", "node.crt", "node.toml"])
def test_nothing_that_exists_is_overwritten(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("precious", encoding="utf-8")

    with pytest.raises(UserError, match="exists and is not overwritten"):
        write_node(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == [file]
    assert (tmp_path / file).read_text(encoding="utf-8") == "precious"


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        ("log_level =", "loglevel =", r"node.toml, line \d+: .*did you mean 'log_level'\?"),
        ('"json"', '"xml"', r"line \d+: log_format: .*there are: text, json"),
        ("telemetry_port = 8400", "telemetry_port = 99999", r"line \d+: telemetry_port: "),
        ("work_time_max_s = 3600.0", "work_time_max_s = 0", r"line \d+: work_time_max_s: "),
        ("work_time_max_s = 3600.0", "work_time_max_s = inf", "work_time_max_s: .* <= 1000000000"),
        ('listen = "127.0.0.1:7400"', 'listen = "7400"', "listen: '7400' is not an address"),
        ('"task:client"', '"task.py"', "client: 'task.py' is not a client: write module:attribute"),
    ],
)
def test_a_mistake_in_node_toml_is_reported_with_its_line(
    tmp_path: Path, old: str, new: str, answer: str
) -> None:
    text = node_text(CONFIG)
    assert old in text
    (tmp_path / "node.toml").write_text(text.replace(old, new), encoding="utf-8")

    with pytest.raises(UserError, match=answer):
        read_node(tmp_path)


def test_a_folder_without_a_node_is_reported_with_the_command_that_creates_one(
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match="defl node init"):
        read_node(tmp_path)


@pytest.mark.parametrize("file", ["node.key", "node.crt"])
def test_a_malformed_identity_file_is_reported(tmp_path: Path, file: str) -> None:
    write_node(tmp_path / "a")
    (tmp_path / "a" / file).write_text("-----BEGIN NOTHING-----", encoding="utf-8")

    with pytest.raises(UserError, match=rf"{file}: not a .* in PEM form"):
        read_identity(tmp_path / "a", "alice")
