"""The commands that set up a federation, and the error for each mistake."""

import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from defl.cli.main import cli
from defl.node.report.model_file import read_model
from defl.node.setup.agreement import read_federation
from defl.node.setup.config import create_node, read_identity, read_node
from defl.node.setup.identity import Identity, make_card
from defl.schema import Entry, Role
from support.founding import agree, cards_in, create, defl, init_nodes

# --- defl node init ------------------------------------------------------------------------------


def test_node_init_creates_all_files_and_prints_the_next_step(tmp_path: Path) -> None:
    result = defl(
        "node", "init", tmp_path / "a", "--name", "alice", "--address", "a.example.org:7400"
    )

    assert result.code == 0
    assert "defl federation create" in result.text
    assert {path.name for path in (tmp_path / "a").iterdir()} == {
        "node.key", "node.crt", "node.toml", "alice.card.toml", "birth",
    }  # fmt: skip
    assert (tmp_path / "a" / "node.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("address", "listen"),
    [
        ("a.example.org:7400", "0.0.0.0:7400"),
        ("203.0.113.5:7400", "0.0.0.0:7400"),
        ("127.0.0.1:7400", "127.0.0.1:7400"),
        ("localhost:7400", "127.0.0.1:7400"),
        ("[2001:db8::1]:7400", "[::]:7400"),
        ("[::1]:65000", "[::1]:65000"),
    ],
)
def test_a_node_listens_where_its_address_is_reachable(
    tmp_path: Path, address: str, listen: str
) -> None:
    assert defl("node", "init", tmp_path / "a", "--name", "a", "--address", address).code == 0

    assert read_node(tmp_path / "a").listen == listen


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    init_nodes(tmp_path)
    key = (tmp_path / "alice" / "node.key").read_bytes()

    result = defl("node", "init", tmp_path / "alice", "--name", "alice", "--address", "a:7400")

    assert result.code == 2
    assert "exists and is not overwritten" in result.text
    assert (tmp_path / "alice" / "node.key").read_bytes() == key


@pytest.mark.parametrize(
    ("name", "address", "answer"),
    [
        ("alice", "a.example.org", "is not an address: write host:port"),
        ("alice", "a.example.org:99999", "is not an address"),
        ("", "a.example.org:7400", "a name has 1 to 64"),
        ("x" * 65, "a.example.org:7400", "a name has 1 to 64"),
    ],
)
def test_an_invalid_name_or_address_creates_nothing(
    tmp_path: Path, name: str, address: str, answer: str
) -> None:
    result = defl("node", "init", tmp_path / "a", "--name", name, "--address", address)

    assert result.code == 2
    assert answer in result.text
    assert not (tmp_path / "a").exists()


def test_a_name_with_separators_or_accents_gives_a_card_inside_the_folder(tmp_path: Path) -> None:
    result = defl("node", "init", tmp_path / "a", "--name", "../Ünïversity / 2", "--address", "a:1",
                "--json")  # fmt: skip

    card = Path(result.json["card"])
    assert card.parent == tmp_path / "a"
    assert card.is_file()


# --- defl federation create ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("founded")
    init_nodes(folder)
    return folder


def test_the_order_of_the_cards_does_not_change_the_file(founded: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()

    one = agree(tmp_path / "one", cards_in(founded))
    two = agree(tmp_path / "two", cards_in(founded)[::-1])

    assert one.text == two.text
    assert one.federation.chain == two.federation.chain


def test_the_initial_weights_are_written_beside_the_file(founded: Path, tmp_path: Path) -> None:
    agreement = agree(tmp_path, cards_in(founded))

    arrays, metadata = read_model(tmp_path / "initial.safetensors")

    assert metadata["digest"] == agreement.federation.initial.hex()
    assert metadata["round"] == "0"
    assert sorted(arrays) == ["defl.memory", "point"]


CLIENT = """
import numpy as np
class Client:
    def initial_weights(self):
        return {
            "dense": np.ones((3, 2), np.float32),
            "bn.running_mean": np.zeros(2, np.float32),
            "bn.running_var": np.ones(2, np.float32),
            "bn.steps": np.array(7),
        }
    def train(self, weights, round_): return weights, {}
    def evaluate(self, weights): return {}
client = Client()
nothing = object()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder, whose module is unloaded afterwards."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "setup_task.py").write_text(CLIENT, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "setup_task", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return folder


@pytest.mark.parametrize("attribute", ["client", "Client"])
def test_the_schema_follows_from_a_clients_weights_and_roles(
    founded: Path, tmp_path: Path, project: Path, attribute: str
) -> None:
    result = create(
        tmp_path, cards_in(founded), "--model", f"setup_task:{attribute}", "--project", project,
        "--role", "*running_mean=statistic", "--role", "*running_var=variance",
    )  # fmt: skip
    assert result.code == 0, result.text

    entries = read_federation(tmp_path / "federation.toml").federation.schema.entries

    assert [(entry.name, entry.role) for entry in entries] == [
        ("dense", Role.TRAINABLE),
        ("bn.running_mean", Role.STATISTIC),
        ("bn.running_var", Role.VARIANCE),
        ("bn.steps", Role.LOCAL),
        ("defl.memory", Role.MEMORY),
    ]
    shared = {entry.name for entry in entries if entry.role is not Role.LOCAL}
    assert set(load_file(tmp_path / "initial.safetensors")) == shared


def test_an_entrys_name_cannot_rewrite_the_fingerprint_on_the_screen(
    founded: Path, tmp_path: Path
) -> None:
    name = "\x1b[20A\rfingerprint  0000 0000\nfingerprint  1111\u202e"
    save_file({name: np.zeros(2, dtype=np.float32)}, tmp_path / "model.safetensors")
    create(tmp_path, cards_in(founded), "--model", tmp_path / "model.safetensors")

    shown = CliRunner().invoke(
        cli, ["federation", "show", str(tmp_path / "federation.toml")], color=True
    )

    assert shown.exit_code == 0
    assert all(line.isprintable() for line in shown.stdout.split("\n"))
    fingerprints = [line for line in shown.stdout.split("\n") if line.startswith("fingerprint")]
    assert len(fingerprints) == 1


def test_initial_weights_can_come_from_a_safetensors_file(founded: Path, tmp_path: Path) -> None:
    start = tmp_path / "start.safetensors"
    save_file({"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, start)

    assert create(tmp_path, cards_in(founded), "--model", start).code == 0

    schema = read_federation(tmp_path / "federation.toml").federation.schema
    assert [(entry.name, entry.shape) for entry in schema.entries[:-1]] == [("w", (2, 3))]
    assert load_file(tmp_path / "initial.safetensors")["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_new_federation_aggregates_adaptively_with_an_empty_memory(
    founded: Path, tmp_path: Path
) -> None:
    assert create(tmp_path, cards_in(founded)).code == 0

    federation = read_federation(tmp_path / "federation.toml").federation
    assert federation.aggregation == "adaptive"
    schema = federation.schema
    assert schema.entries[-1] == Entry("defl.memory", (100 + 64,), role=Role.MEMORY)
    assert load_file(tmp_path / "initial.safetensors")["defl.memory"].tolist() == [0] * 164


def test_the_memory_of_another_federations_model_is_left_out(founded: Path, tmp_path: Path) -> None:
    start = tmp_path / "start.safetensors"
    save_file({"w": np.ones(6, np.float32), "defl.memory": np.ones(9, np.float32)}, start)

    for rule, memory in (("adaptive", [np.zeros(100 + 6)]), ("multi_krum", [])):
        result = create(
            tmp_path, cards_in(founded), "--model", start, "--aggregation", rule, "--force"
        )
        assert result.code == 0, result.text

        arrays = load_file(tmp_path / "initial.safetensors")
        assert arrays.pop("w").tolist() == [1] * 6
        assert [array.tolist() for array in arrays.values()] == [m.tolist() for m in memory]


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (("--role", "point=memory"), "trainable, statistic, variance, local"),
        (("--tau", 1), "tau is 1, but 2 to 32"),
        (("--rounds", 0), "at least one round"),
        (("--faults-max", 2), "tolerates at most 1"),
        (("--gst-lt-min-s", 9, "--gst-lt-max-s", 2), "gst_lt_min_s <= gst_lt_max_s"),
        (("--grace-s", "inf"), "must be a number of seconds"),
        (("--chunk-bytes", 1), "256 to 67108864 are allowed"),
        (("--role", "point"), "--role takes NAME=ROLE"),
        (("--role", "point=heavy"), "trainable, statistic, variance, local"),
        (("--role", "nothing=local"), "matches no entry; there are: point"),
        (("--role", "point=local"), "shares nothing"),
        (("--model", "weights"), "name a .safetensors or .npz file, or a client"),
        (("--model", "gone.npz"), "gone.npz: no such file"),
        (("--model", "gone.safetensors"), "gone.safetensors: no such file"),
        (("--model", "no_such_module:client"), "no module named 'no_such_module'"),
        (("--model", "json:client"), "json has no 'client'"),
        (("--model", "json:decoder"), "has no initial_weights, train, evaluate"),
        (("--strict", "--aggregation", "multi_krum"), "DeFL's Multi-Krum needs m >= 3f + 3"),
        (("--strict", "--aggregation", "fed_avg"), "the mean tolerates no Byzantine row"),
        (("--aggregation", "krum"), "no neighbour is left to count"),
    ],
)
def test_invalid_options_are_refused_with_the_allowed_values_and_write_nothing(
    founded: Path, tmp_path: Path, options: tuple[object, ...], answer: str
) -> None:
    result = create(tmp_path, cards_in(founded), *options)

    assert result.code == 2
    assert answer in result.text
    assert not (tmp_path / "federation.toml").exists()
    assert not (tmp_path / "initial.safetensors").exists()


def test_pickled_weights_are_refused(founded: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", w=np.array([{"any": "object"}], dtype=object))
    (tmp_path / "text.npz").write_text("not a zip", encoding="utf-8")

    for name in ("bad.npz", "text.npz"):
        result = create(tmp_path, cards_in(founded), "--model", tmp_path / name)
        assert result.code == 2
        assert f"{name}: not an .npz file of plain arrays" in result.text


def test_too_few_members_are_refused(founded: Path, tmp_path: Path) -> None:
    result = create(tmp_path, cards_in(founded)[:3])

    assert result.code == 2
    assert "4 to 100 members, not 3" in result.text


def test_two_cards_of_one_name_are_refused_and_both_files_named(
    founded: Path, tmp_path: Path
) -> None:
    assert defl("node", "init", tmp_path / "x", "--name", "bob", "--address", "b:1").code == 0
    other = tmp_path / "x" / "bob.card.toml"

    result = create(tmp_path, [*cards_in(founded), other])

    assert result.code == 2
    assert f"{cards_in(founded)[1]} and {other} are cards of one name (bob)" in result.text


def test_two_cards_of_one_key_are_refused(founded: Path, tmp_path: Path) -> None:
    stolen = read_identity(founded / "bob", "bob")
    identity = Identity("eve", stolen.key, stolen.certificate)
    config = read_node(founded / "bob")
    create_node(tmp_path / "x", config, identity, make_card(identity, "e:1"))

    result = create(tmp_path, [*cards_in(founded), tmp_path / "x" / "bob.card.toml"])

    assert result.code == 2
    assert "are cards of one key" in result.text


def test_two_cards_of_one_address_are_refused_and_both_files_named(
    founded: Path, tmp_path: Path
) -> None:
    taken = read_node(founded / "bob").address
    assert defl("node", "init", tmp_path / "x", "--name", "eve", "--address", taken).code == 0
    other = tmp_path / "x" / "eve.card.toml"

    result = create(tmp_path, [*cards_in(founded), other])

    assert result.code == 2
    assert f"{cards_in(founded)[1]} and {other} are cards of one address ({taken})" in result.text


def test_a_card_that_was_altered_or_is_missing_is_refused(founded: Path, tmp_path: Path) -> None:
    altered = tmp_path / "bob.card.toml"
    text = cards_in(founded)[1].read_text(encoding="utf-8")
    altered.write_text(text.replace("127.0.0.1", "127.0.0.9"), encoding="utf-8")

    for card, answer in ((altered, "it was altered"), (tmp_path / "gone", "ask its owner for it")):
        result = create(tmp_path, [*cards_in(founded)[:1], card, *cards_in(founded)[2:]])
        assert result.code == 2
        assert str(card) in result.text
        assert answer in result.text


def test_an_agreed_file_is_overwritten_only_with_force(founded: Path, tmp_path: Path) -> None:
    first = agree(tmp_path, cards_in(founded))

    refused = create(tmp_path, cards_in(founded), "--rounds", 3)
    forced = create(tmp_path, cards_in(founded), "--rounds", 3, "--force")

    assert (refused.code, forced.code) == (2, 0)
    assert "--force" in refused.text
    assert read_federation(tmp_path / "federation.toml").text != first.text


# --- All commands --------------------------------------------------------------------------------


def test_errors_are_printed_with_an_exit_code_and_no_traceback(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("defl")

    done = subprocess.run(
        [command, "federation", "show", tmp_path / "gone.toml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "path", [("node", "init"), ("node", "check"), ("node", "card"), ("federation", "create"),
             ("federation", "show"), ("verify",)],
)  # fmt: skip
def test_every_command_has_help_an_example_and_a_json_option(path: tuple[str, ...]) -> None:
    command: click.Command | None = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(cli), name)
    assert command is not None

    page = defl(*path, "--help").text

    assert f"defl {' '.join(path)} " in page
    assert "Example" in page
    assert "--json" in page
    for option in command.params:
        assert not isinstance(option, click.Option) or option.help, option.name
