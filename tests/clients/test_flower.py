"""Unmodified Flower projects as clients: run by real nodes, or refused with the reason.

This file runs on two releases of Flower; the Makefile says which.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flower_apps import (
    BOTH,
    CLIENT_ONLY,
    MESSAGE_CLIENT,
    MESSAGE_SERVER,
    NUMPY_CLIENT,
    NUMPY_SERVER,
    START_LINE,
    small_project,
)

from defl.aggregation.memory import ENTRY
from defl.clients.flower import FlowerClient, shareable
from defl.clients.flower_project import FlowerStart, read_project, read_start
from defl.clients.flower_start import LOG_FILE, find_start
from defl.clients.protocol import Training, roles_of, schema_of
from defl.errors import UserError, WeightsError
from defl.ids import Round
from defl.node.report.model_file import read_model
from defl.node.work.first_weights import first_weights
from defl.schema import Role

PROJECTS = Path(__file__).parent.parent / "flower_projects"
NODE_1_OF_4 = {"DEFL_NODE": "1", "DEFL_NODES": "4"}


@pytest.fixture(autouse=True)
def _modules_of_one_project_only() -> Iterator[None]:
    """Projects share a package name, but a node's process loads only one of them."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.split(".")[0] == "small":
            del sys.modules[name]


def defl_run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "defl.cli.main", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


# --- Whole projects, by real nodes -------------------------------------------------------------


@pytest.mark.parametrize(
    ("project", "accuracy", "names"),
    [
        ("numpy_client", "accuracy", {"0", "1"}),
        ("message_api", "eval_acc", {"fc.weight", "fc.bias"}),
    ],
)
def test_a_quick_start_project_is_trained_by_real_nodes_with_no_server(
    project: str, accuracy: str, names: set[str], tmp_path: Path
) -> None:
    place = PROJECTS / project
    before = {path: path.read_bytes() for path in place.rglob("*.[pt]*") if path.is_file()}

    done = defl_run("--flower", str(place), "--out", str(tmp_path / "out"), "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["digests_equal"]
    assert report["rounds_closed"] == read_project(place).rounds == 3
    accuracies = [entry["metrics"][accuracy] for entry in report["evaluation"].values()]
    assert len(accuracies) == 4
    assert min(accuracies) > 0.7, "chance is 0.1 for ten classes"
    assert "its FedAvg is not run: DeFL aggregates by adaptive" in done.stderr
    arrays, _ = read_model(tmp_path / "out" / "node-0" / "model.safetensors")
    assert set(arrays) == {*names, ENTRY}
    assert {path: path.read_bytes() for path in before} == before


# --- What reaches the app ----------------------------------------------------------------------


def test_a_message_api_app_receives_its_config_dtypes_state_and_partition() -> None:
    client = FlowerClient(PROJECTS / "message_api", NODE_1_OF_4)
    weights = client.initial_weights()
    schema = schema_of(weights)
    training, row = Training(client, schema), schema.flatten(weights)

    reports = []
    for number in (1, 2):
        row, metrics = training.train(row, Round(number))
        reports.append(metrics)

    roles = {entry.name: entry.role for entry in schema.entries}
    assert roles == {
        "fc.weight": Role.TRAINABLE,
        "fc.bias": Role.TRAINABLE,  # float64 in the app, which asserts it
        "fc.steps": Role.LOCAL,  # int32 in the app, which asserts it
    }
    assert [metrics["server-round"] for metrics in reports] == [1, 2]
    assert [metrics["trained-before"] for metrics in reports] == [0, 1], "context.state is kept"
    assert [metrics["partition"] for metrics in reports] == [1, 1]
    assert reports[1]["train_loss"] < reports[0]["train_loss"]
    assert training.local["fc.steps"] == 40
    assert set(training.evaluate(row)) == {"eval_loss", "eval_acc", "num-examples"}


def test_a_numpy_client_receives_its_list_and_the_round(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = FlowerClient(PROJECTS / "numpy_client", NODE_1_OF_4)
    weights = client.initial_weights()
    training = Training(client, schema_of(weights))

    row, first = training.train(schema_of(weights).flatten(weights), Round(1))
    row, second = training.train(row, Round(2))

    assert {name: array.shape for name, array in weights.items()} == {"0": (10, 64), "1": (10,)}
    assert first == {"num_examples": 359, "server-round-seen": 1}, "text is no metric"
    assert second["server-round-seen"] == 2
    assert set(training.evaluate(row)) == {"loss", "num_examples", "accuracy"}
    said = capsys.readouterr().out
    assert said.count("This site trained on 359 examples. How much it counts is its agreed") == 1


def test_batch_norm_statistics_of_a_pytorch_app_are_shared_but_not_judged() -> None:
    pytest.importorskip("torch")
    client = FlowerClient(PROJECTS / "pytorch", NODE_1_OF_4)
    weights = client.initial_weights()
    schema = schema_of(weights, roles_of(client))
    training, row = Training(client, schema), schema.flatten(weights)

    for number in (1, 2, 3):
        row, _ = training.train(row, Round(number))

    roles = {entry.name: entry.role for entry in schema.entries if "bn1" in entry.name}
    assert roles == {
        "bn1.weight": Role.TRAINABLE,
        "bn1.bias": Role.TRAINABLE,
        "bn1.running_mean": Role.STATISTIC,
        "bn1.running_var": Role.VARIANCE,
        "bn1.num_batches_tracked": Role.LOCAL,
    }
    assert training.local["bn1.num_batches_tracked"] == 33
    assert training.evaluate(row)["eval_acc"] > 0.6


def test_a_client_mod_runs_with_the_client(tmp_path: Path) -> None:
    private = "from flwr.client.mod import LocalDpMod\n" + NUMPY_CLIENT.replace(
        "client_fn=client_fn", "client_fn, mods=[LocalDpMod(1.0, 1.0, 1.0, 1e-5)]"
    )
    project = small_project(tmp_path / "app", client=private, server=NUMPY_SERVER)
    client = FlowerClient(project, NODE_1_OF_4)

    trained, _ = client.train(client.initial_weights(), Round(1))

    assert len(set(trained["0"].tolist())) == 3, "each of the three equal values has its own noise"


def test_overrides_replace_values_of_the_projects_run_config(tmp_path: Path) -> None:
    project = small_project(tmp_path / "app")
    client = FlowerClient(project, {**NODE_1_OF_4, "DEFL_FLOWER_RUN_CONFIG": "lr=0.25"})

    trained, metrics = client.train(client.initial_weights(), Round(1))

    assert metrics["lr"] == 0.25
    assert trained["w"].tolist() == [1, 1, 1]
    own = {"num-server-rounds": 2, "lr": 0.5, "data.folder": "here"}
    assert read_project(project).run_config == own
    other = read_project(project, "lr=1.5 data.folder='there is'")
    assert other.run_config == {**own, "lr": 1.5, "data.folder": "there is"}


def test_the_node_config_is_the_partition_and_the_organisations_settings(tmp_path: Path) -> None:
    client = MESSAGE_CLIENT.replace('"num-examples": 1', "**context.node_config")
    project = small_project(tmp_path / "app", client=client)
    environment = {**NODE_1_OF_4, "DEFL_FLOWER_NODE_CONFIG": "partition-id=7 beds=120"}
    client = FlowerClient(project, environment)

    _, metrics = client.train(client.initial_weights(), Round(1))

    assert metrics == {"partition-id": 7, "num-partitions": 4, "beds": 120, "lr": 0.5}


# --- Where the initial weights come from -------------------------------------------------------


def start_of(project: Path, folder: Path) -> tuple[FlowerStart, dict[str, "np.ndarray"]]:
    find_start(project, folder, nodes=4)
    return read_start(folder)


def test_a_strategy_without_initial_parameters_asks_the_first_client(tmp_path: Path) -> None:
    project = small_project(tmp_path / "app", client=NUMPY_CLIENT, server=NUMPY_SERVER)

    start, arrays = start_of(project, tmp_path / "start")

    assert (start.arrays_key, start.names) == ("fitins.parameters", ("0",))
    assert arrays["0"].tolist() == [0, 0, 0], "the first partition's, always"


def test_without_a_server_app_a_numpy_client_supplies_the_initial_weights(tmp_path: Path) -> None:
    project = small_project(tmp_path / "app", client=NUMPY_CLIENT, components=CLIENT_ONLY)

    start, arrays = start_of(project, tmp_path / "start")

    assert start.strategies == ()
    assert arrays["0"].tolist() == [0, 0, 0]


def test_federation_create_reads_the_initial_weights_from_the_projects_folder(
    tmp_path: Path,
) -> None:
    """As `defl federation create --model defl.clients.flower:client --project PATH` does."""
    project = small_project(tmp_path / "app")

    weights, roles = first_weights("defl.clients.flower:client", project, os.environ)

    assert {name: array.tolist() for name, array in weights.items()} == {"w": [0, 0, 0]}
    assert roles == {}


@pytest.mark.parametrize("style", ["message", "numpy"])
def test_a_strategy_that_requires_more_nodes_than_exist_does_not_block(
    style: str, tmp_path: Path
) -> None:
    if style == "message":
        server = MESSAGE_SERVER.replace("FedAvg()", "FedAvg(min_available_nodes=9)")
        project = small_project(tmp_path / "app", server=server)
    else:
        server = NUMPY_SERVER.replace("FedAvg()", "FedAvg(min_available_clients=9)")
        project = small_project(tmp_path / "app", client=NUMPY_CLIENT, server=server)

    start, _ = start_of(project, tmp_path / "start")

    assert start.strategies == ("FedAvg",)


# --- What DeFL cannot run ----------------------------------------------------------------------


def after_the_arrays(lines: str) -> str:
    return MESSAGE_SERVER.replace(START_LINE, lines)


REFUSED = {
    "a missing package": (
        {"client": "import flwr_datasets_of_nobody\n" + MESSAGE_CLIENT},
        "needs the module 'flwr_datasets_of_nobody', which is not installed; install what",
    ),
    "a module that this release of Flower does not have": (
        {"client": "from flwr.client.removed_module import Anything\n" + MESSAGE_CLIENT},
        r"imports 'flwr.client.removed_module', which the installed flwr \d+\.\d+\S* does not have",
    ),
    "a module that the project itself lacks": (
        {"client": "from small.task import load\n" + MESSAGE_CLIENT},
        "imports 'small.task', which the project does not have; is a file missing",
    ),
    "an error while the ClientApp is imported": (
        {"client": "raise ValueError('no licence')\n"},
        r"its ClientApp 'small.client_app:app' failed: ValueError: no licence \(.*app.py, line 1\)",
    ),
    "an error while the ServerApp is imported": (
        {"server": "def broken(:\n"},
        "(?s)importing its ServerApp 'small.server_app:app' failed: .*SyntaxError",
    ),
    "a name that is no app": (
        {"components": BOTH.replace("client_app:app", "client_app:train")},
        "'small.client_app:train' of .* is not a ClientApp",
    ),
    "a ClientApp that cannot train": (
        {"client": "from flwr.clientapp import ClientApp\napp = ClientApp()\n"},
        "its ClientApp 'small.client_app:app' has no train function",
    ),
    "a data set that must be downloaded": (
        {"server": after_the_arrays("    raise ConnectionError('no route to the hub')\n")},
        r"it sent weights to train: ConnectionError: no route to the hub \(.*app.py, line \d+\)",
    ),
    "questions to the nodes before the first training": (
        {
            "server": after_the_arrays(
                "    ask = Message(RecordDict(), dst_node_id=2, message_type='query')\n"
                "    replies = list(grid.send_and_receive([ask]))\n"
            )
        },
        "sends a message of type 'query' and needs the nodes' replies",
    ),
    "a training without arrays": (
        {
            "server": after_the_arrays(
                "    ask = Message(RecordDict(), dst_node_id=2, message_type='train')\n"
                "    grid.push_messages([ask])\n"
            )
        },
        "first sends 0 array records for training",
    ),
    "a ServerApp that trains nothing": (
        {"server": after_the_arrays("    print(arrays)\n")},
        "its ServerApp ended without sending weights to train",
    ),
    "a ServerApp that ends its process": (
        {"server": after_the_arrays("    raise SystemExit('enough')\n")},
        "its ServerApp ended its process before it sent weights to train:\nenough",
    ),
    "arrays without floats": (
        {"server": MESSAGE_SERVER.replace("float32", "uint8")},
        "none of its arrays holds floats",
    ),
    "no initial weights anywhere": (
        {"client": NUMPY_CLIENT.replace("get_parameters", "other"), "server": NUMPY_SERVER},
        "it has no initial weights: neither the strategy",
    ),
    "no ServerApp in the Message API": (
        {"components": CLIENT_ONLY},
        "names no ServerApp, and a ClientApp of the Message API has no",
    ),
    "a mod of secure aggregation": (
        {
            "client": "from flwr.client.mod import secaggplus_mod\n"
            + NUMPY_CLIENT.replace("client_fn=client_fn", "client_fn, mods=[secaggplus_mod]"),
            "server": NUMPY_SERVER,
        },
        "it uses secure aggregation",
    ),
    "a workflow of secure aggregation": (
        {
            "client": NUMPY_CLIENT,
            "server": (
                "from flwr.common import ndarrays_to_parameters\n"
                "from flwr.server import LegacyContext, ServerApp, ServerConfig\n"
                "from flwr.server.strategy import FedAvg\n"
                "from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow\n"
                "import numpy as np\n"
                "app = ServerApp()\n"
                "@app.main()\n"
                "def main(grid, context):\n"
                "    start = ndarrays_to_parameters([np.zeros(3, np.float32)])\n"
                "    strategy = FedAvg(initial_parameters=start)\n"
                "    legacy = LegacyContext(context, ServerConfig(num_rounds=1), strategy)\n"
                "    workflow = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)\n"
                "    DefaultWorkflow(fit_workflow=workflow)(grid, legacy)\n"
            ),
        },
        "it uses secure aggregation",
    ),
    "noise that only the server adds": (
        {
            "server": MESSAGE_SERVER.replace(
                "FedAvg().start", "Private(FedAvg(), 1.0, 1.0, 4).start"
            ).replace(
                "strategy import FedAvg",
                "strategy import FedAvg, DifferentialPrivacyServerSideFixedClipping as Private",
            )
        },
        "its strategy is DifferentialPrivacyServerSideFixedClipping, which adds the noise",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_unsupported_project_is_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    parts, sentence = REFUSED[case]
    project = small_project(tmp_path / "app", **parts)

    with pytest.raises(UserError, match=sentence):
        find_start(project, tmp_path / "start", nodes=4)


def test_a_folder_without_a_flower_project_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a Flower project: it has no pyproject.toml"):
        read_project(tmp_path)

    small_project(tmp_path / "app", components='serverapp = "small.server_app:app"')
    with pytest.raises(UserError, match=r'names no ClientApp; .* clientapp = "my_app'):
        read_project(tmp_path / "app")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ("speed=1", "run config: Key 'speed' is not present"),
        ("lr=fast", "'lr=fast' cannot be read"),
        ("lr", "'lr' sets nothing; write it as"),
        ("absent.toml", "'absent.toml' cannot be read: .*No such file"),
    ],
)
def test_invalid_overrides_are_refused(overrides: str, sentence: str, tmp_path: Path) -> None:
    project = small_project(tmp_path / "app")

    with pytest.raises(UserError, match=sentence):
        read_project(project, overrides)


def test_the_command_prints_the_reason_and_exits_with_status_2(tmp_path: Path) -> None:
    project = small_project(tmp_path / "app", components="")

    out = tmp_path / "out"

    refused = defl_run("--flower", str(project), "--out", str(out))
    both = defl_run(str(project), "--flower", str(project))

    assert (refused.returncode, both.returncode) == (2, 2)
    assert "Error: " in refused.stderr
    assert "names no ClientApp" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "name one project" in both.stderr
    assert not out.exists()


def test_a_download_that_fails_at_every_client_ends_the_run_with_the_apps_error(
    tmp_path: Path,
) -> None:
    offline = MESSAGE_CLIENT.replace(
        "    arrays =", "    raise ConnectionError('no hub')\n    arrays ="
    )
    project = small_project(tmp_path / "app", client=offline)

    done = defl_run("--flower", str(project), "--out", str(tmp_path / "out"))

    assert done.returncode != 0
    assert "training for round 1 failed: ConnectionError: no hub" in done.stdout
    assert "without them no round can close" in done.stderr
    assert "client_app.py" in done.stderr


# --- What an app may answer --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("    return Message(content=content, reply_to=msg)\n", ""), "with a NoneType; end the"),
        (("ArrayRecord(arrays)", "MetricRecord()"), "with 0 array records"),
        (('"arrays": Array', '"other": Array'), None),
        (
            ("Message(content=content", "Message(Error(1, 'out of memory')"),
            "with an error: .*out of memory",
        ),
    ],
)
def test_an_invalid_reply_to_a_training_is_refused_with_the_reason(
    change: tuple[str, str], sentence: str | None, tmp_path: Path
) -> None:
    """None: any key of the record is accepted."""
    text = MESSAGE_CLIENT.replace(*change).replace("import Array,", "import Error, Array,")
    client = FlowerClient(small_project(tmp_path / "app", client=text), NODE_1_OF_4)
    weights = client.initial_weights()

    if sentence is None:
        assert client.train(weights, Round(1))[0]["w"].tolist() == [1, 1, 1]
        return
    with pytest.raises(UserError, match=sentence):
        client.train(weights, Round(1))


def test_a_numpy_client_without_evaluate_is_reported(tmp_path: Path) -> None:
    project = small_project(tmp_path / "app", client=NUMPY_CLIENT, server=NUMPY_SERVER)
    client = FlowerClient(project, NODE_1_OF_4)
    weights = client.initial_weights()

    assert client.train(weights, Round(1))[0]["0"].tolist() == [1, 1, 1]
    with pytest.raises(UserError, match="the Flower client cannot evaluate"):
        client.evaluate(weights)


def test_a_float64_beyond_float32_is_refused_by_its_name(tmp_path: Path) -> None:
    huge = NUMPY_CLIENT.replace("p + 1", "p + 1e200")
    project = small_project(tmp_path / "app", client=huge, server=NUMPY_SERVER)
    client = FlowerClient(project, NODE_1_OF_4)
    schema = schema_of(client.initial_weights())
    training = Training(client, schema)

    with pytest.raises(WeightsError, match="entry '0' with NaN, infinity or a value beyond"):
        training.train(schema.flatten(client.initial_weights()), Round(1))


def test_integers_of_every_dtype_survive_the_schema() -> None:
    for dtype in (np.int8, np.uint16, np.int64, np.uint64):
        edges = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype=dtype)
        assert shareable(edges).dtype == np.int64
        assert shareable(edges).astype(dtype).tolist() == edges.tolist()


def test_flowers_telemetry_is_switched_off() -> None:
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"


def test_the_server_apps_output_is_kept_in_a_log(tmp_path: Path) -> None:
    server = after_the_arrays("    print('loading')\n" + START_LINE)
    project = small_project(tmp_path / "app", server=server)

    find_start(project, tmp_path / "start", nodes=4)

    assert "loading" in (tmp_path / "start" / LOG_FILE).read_text(encoding="utf-8")
