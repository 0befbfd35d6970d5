"""Small Flower projects, created from the lines in which they differ."""

from pathlib import Path

PYPROJECT = """\
[project]
name = "small"
version = "1.0.0"

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
{components}

[tool.flwr.app.config]
num-server-rounds = 2
lr = 0.5
data.folder = "here"
"""
BOTH = 'serverapp = "small.server_app:app"\nclientapp = "small.client_app:app"'
CLIENT_ONLY = 'clientapp = "small.client_app:app"'

MESSAGE_CLIENT = """\
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(msg, context):
    arrays = {k: Array(v.numpy() + 1) for k, v in msg.content["arrays"].items()}
    metrics = MetricRecord({"num-examples": 1, "lr": context.run_config["lr"]})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return Message(content=content, reply_to=msg)
"""
MESSAGE_SERVER = """\
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context) -> None:
    arrays = ArrayRecord({"w": Array(np.zeros(3, dtype=np.float32))})
    FedAvg().start(grid=grid, initial_arrays=arrays, num_rounds=2)
"""
START_LINE = "    FedAvg().start(grid=grid, initial_arrays=arrays, num_rounds=2)\n"

NUMPY_CLIENT = """\
import numpy as np
from flwr.client import ClientApp, NumPyClient


class Client(NumPyClient):
    def __init__(self, partition):
        self.partition = partition

    def get_parameters(self, config):
        return [np.full(3, self.partition, dtype=np.float64)]

    def fit(self, parameters, config):
        return [p + 1 for p in parameters], 1, {}


def client_fn(context):
    return Client(context.node_config["partition-id"]).to_client()


app = ClientApp(client_fn=client_fn)
"""
NUMPY_SERVER = """\
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg


def server_fn(context):
    return ServerAppComponents(strategy=FedAvg(), config=ServerConfig(num_rounds=2))


app = ServerApp(server_fn=server_fn)
"""


def small_project(
    folder: Path,
    *,
    client: str = MESSAGE_CLIENT,
    server: str = MESSAGE_SERVER,
    components: str = BOTH,
) -> Path:
    package = folder / "small"
    package.mkdir(parents=True)
    pyproject = PYPROJECT.format(components=components)
    (folder / "pyproject.toml").write_text(pyproject, encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "client_app.py").write_text(client, encoding="utf-8")
    (package / "server_app.py").write_text(server, encoding="utf-8")
    return folder
