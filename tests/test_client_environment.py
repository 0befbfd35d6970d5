"""Training code gets the environment variables that it needs, and no secrets of the service."""

import json
import os
import re
from pathlib import Path

import pytest

from defl.errors import UserError
from defl.ids import Round
from defl.lab.experiments.processes import Nodes
from defl.node.setup.config import CONFIG_FILE, read_node
from defl.node.work.environment import passed, unset_names
from defl.node.work.worker import WorkerFailed
from defl.output import Train
from support.founding import init_nodes
from support.in_process_node import InProcessNode
from support.workers import bench, run

DOCS = Path(__file__).parent.parent / "docs"
SECRETS = {
    "HTTPS_PROXY": "http://user:secret@proxy.example.org:3128",
    "https_proxy": "http://user:secret@proxy.example.org:3128",
    "all_proxy": "socks5://user:secret@proxy.example.org",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "WANDB_API_KEY": "secret",
    "MLFLOW_TRACKING_PASSWORD": "secret",
    "GITHUB_TOKEN": "secret",
    "HF_TOKEN": "secret",
    "HF_HUB_PASSWORD": "secret",
    "DEFL_TOKEN": "secret",
    "DATABASE_URL": "postgres://user:secret@db",
    "NOTIFY_SOCKET": "/run/systemd/notify",
    "CREDENTIALS_DIRECTORY": "/run/credentials/defl",
    "SSH_AUTH_SOCK": "/run/ssh/agent",
}
USUAL = {
    "PATH": "/usr/bin",
    "HOME": "/home/alice",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TMPDIR": "/data/tmp",
    "PYTHONPATH": "/opt/code",
    "OMP_NUM_THREADS": "4",
    "MKL_NUM_THREADS": "4",
    "CUDA_VISIBLE_DEVICES": "0",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NCCL_SOCKET_IFNAME": "lo",
    "HF_HOME": "/data/hf",
    "HF_HUB_OFFLINE": "1",
    "TORCH_HOME": "/data/torch",
    "XDG_CACHE_HOME": "/data/cache",
    "LD_LIBRARY_PATH": "/opt/cuda/lib64",
    "VIRTUAL_ENV": "/opt/venv",
    "DEFL_NODE": "3",
    "http_proxy": "http://proxy.example.org:3128",
    "no_proxy": "localhost",
    "SSL_CERT_FILE": "/etc/ssl/site.pem",
    "TOKENIZERS_PARALLELISM": "false",
}
CLIENT = """
import json, os
import numpy as np

class Client:
    def initial_weights(self):
        return {"point": np.zeros(100, dtype=np.float32)}

    def train(self, weights, round_):
        if round_ == 2:
            os.environ["DATA_FOLDER"]
        with open("seen.json", "w") as file:
            json.dump(dict(os.environ), file)
        return weights, {}

    def evaluate(self, weights):
        try:
            return {"port": float(os.environ["DATA_PORT"])}
        except KeyError as missing:
            raise RuntimeError("no data") from missing
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "my_client.py").write_text(CLIENT, encoding="utf-8")
    return folder


# --- Which variables -------------------------------------------------------------------------


def test_the_usual_variables_are_passed_on_and_secrets_are_not() -> None:
    assert passed({**USUAL, **SECRETS}) == USUAL


def test_an_operator_can_name_any_variable_or_all_that_begin_alike() -> None:
    environment = {**USUAL, **SECRETS}

    assert passed(environment, ["GITHUB_TOKEN"]).keys() - USUAL.keys() == {"GITHUB_TOKEN"}
    assert passed(environment, ["AWS_*", "HTTPS_PROXY"]).keys() - USUAL.keys() == {
        "AWS_SECRET_ACCESS_KEY",
        "HTTPS_PROXY",
    }
    assert passed(environment, ["*"]) == environment
    assert passed(environment, ["GITHUB"]) == USUAL, "a name is a whole name"


def test_names_that_are_not_set_are_found() -> None:
    assert unset_names(["HOME", "DATA_FOLDR", "AWS_*", "*"], USUAL) == ["DATA_FOLDR"]


def test_the_documents_name_what_is_passed_on() -> None:
    text = (DOCS / "CLIENTS.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^Your code gets these environment variables: (.*)$", text, re.M)
    names = re.findall(r"`(\w+\*?)`", listed)

    assert len(names) > 40
    for name in names:
        assert passed({name.replace("*", "X"): "1"}), name


# --- In a child process ----------------------------------------------------------------------


def environment_of(process: int) -> dict[str, str]:
    content = Path(f"/proc/{process}/environ").read_bytes().decode()
    return dict(entry.split("=", 1) for entry in content.split("\0") if entry)


def test_training_code_sees_no_secret_unless_it_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DATA_FOLDER", "/data")

    async def scenario() -> None:
        async with bench(project, "my_client:Client", client_environment=["DATA_FOLDER"]) as b:
            await b.worker.start()
            await b.worker.run(Train(Round(1), b.base), b.paths)
            for process in b.worker.pids:
                assert environment_of(process).keys().isdisjoint(SECRETS)
            arithmetic = environment_of(b.worker.pids[1])
            assert "DATA_FOLDER" not in arithmetic

    run(scenario())
    seen = json.loads((project / "seen.json").read_text(encoding="utf-8"))
    assert seen.keys().isdisjoint(SECRETS)
    assert seen["DATA_FOLDER"] == "/data"
    assert seen["PATH"] == os.environ["PATH"]


def test_code_that_misses_a_variable_is_told_how_to_get_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_FOLDER", "/data")

    async def scenario() -> None:
        async with bench(project, "my_client:Client") as b:
            with pytest.raises(WorkerFailed) as failed:
                await b.worker.run(Train(Round(2), b.base), b.paths)
            text = str(failed.value)
            assert "KeyError: 'DATA_FOLDER'" in text
            assert text.endswith('node.toml: client_environment = ["DATA_FOLDER"]')
            answer = await b.worker.evaluate(b.paths[b.base])
            assert answer.fault is not None
            assert 'client_environment = ["DATA_PORT"]' in answer.fault

    run(scenario())


def test_other_errors_of_user_code_have_no_such_advice(project: Path) -> None:
    text = CLIENT.replace('os.environ["DATA_FOLDER"]', '{}["DATA_FOLDER"]')
    (project / "my_client.py").write_text(text, encoding="utf-8")

    async def scenario() -> None:
        async with bench(project, "my_client:Client") as b:
            with pytest.raises(WorkerFailed) as failed:
                await b.worker.run(Train(Round(2), b.base), b.paths)
            assert "KeyError: 'DATA_FOLDER'" in str(failed.value)
            assert "client_environment" not in str(failed.value)

    run(scenario())


# --- Settings --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "A=B", "TWO WORDS", "*_KEY", "A*B", "1ST", "$HOME", "A-B"])
def test_a_name_that_no_variable_has_is_refused(tmp_path: Path, name: str) -> None:
    init_nodes(tmp_path)
    path = tmp_path / "alice" / CONFIG_FILE
    text = path.read_text(encoding="utf-8")
    assert "client_environment = []" in text
    named = json.dumps([name])
    path.write_text(
        text.replace("client_environment = []", f"client_environment = {named}"), encoding="utf-8"
    )

    with pytest.raises(UserError, match=r"client_environment: .* names no environment variable"):
        read_node(tmp_path / "alice")


def test_a_run_on_this_machine_gets_the_users_whole_environment(
    tmp_path: Path,
) -> None:
    """The shell and the code both belong to the user."""
    node = Nodes(tmp_path / "federation", 4, 1).local.nodes[0]
    assert read_node(node).client_environment == ("*",)

    path = node / CONFIG_FILE
    text = path.read_text(encoding="utf-8").replace('["*"]', '["HOME", "DATA_FOLDR", "AWS_*"]')
    path.write_text(text, encoding="utf-8")
    here = InProcessNode(node)
    here.node.storage.close()
    warned = here.logged("variables of client_environment are not set")
    assert [line["names"] for line in warned] == ["DATA_FOLDR"]
