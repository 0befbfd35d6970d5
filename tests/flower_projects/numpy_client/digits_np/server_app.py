"""digits-np: a Flower app."""

from digits_np.task import get_model, get_model_params, set_initial_params
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg


def fit_config(server_round: int):
    return {"server_round": server_round}


def server_fn(context: Context):
    num_rounds = context.run_config["num-server-rounds"]

    model = get_model(context.run_config["local-epochs"])
    set_initial_params(model)
    initial_parameters = ndarrays_to_parameters(get_model_params(model))

    strategy = FedAvg(
        fraction_fit=1.0,
        fraction_evaluate=1.0,
        min_available_clients=2,
        initial_parameters=initial_parameters,
        on_fit_config_fn=fit_config,
    )
    config = ServerConfig(num_rounds=num_rounds)
    return ServerAppComponents(strategy=strategy, config=config)


app = ServerApp(server_fn=server_fn)
