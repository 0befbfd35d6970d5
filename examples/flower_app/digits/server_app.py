"""The ServerApp, as a Flower project has it. On DeFL only its first weights are used: no server."""

from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits.task import initial_arrays

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    arrays = {name: Array(array) for name, array in initial_arrays().items()}
    FedAvg().start(
        grid=grid,
        initial_arrays=ArrayRecord(arrays),
        num_rounds=context.run_config["num-server-rounds"],
    )
