"""digits-np: a Flower app."""

import warnings

from sklearn.metrics import log_loss

from digits_np.task import (
    get_model,
    get_model_params,
    load_data,
    set_initial_params,
    set_model_params,
)
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context


class FlowerClient(NumPyClient):
    def __init__(self, model, X_train, X_test, y_train, y_test):
        self.model = model
        self.X_train = X_train
        self.X_test = X_test
        self.y_train = y_train
        self.y_test = y_test

    def fit(self, parameters, config):
        set_model_params(self.model, parameters)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model.fit(self.X_train, self.y_train)
        metrics = {"server-round-seen": config["server_round"], "note": "text is no metric"}
        return get_model_params(self.model), len(self.X_train), metrics

    def evaluate(self, parameters, config):
        set_model_params(self.model, parameters)
        loss = log_loss(
            self.y_test, self.model.predict_proba(self.X_test), labels=self.model.classes_
        )
        accuracy = self.model.score(self.X_test, self.y_test)
        return loss, len(self.X_test), {"accuracy": accuracy}


def client_fn(context: Context):
    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    X_train, X_test, y_train, y_test = load_data(partition_id, num_partitions)

    local_epochs = context.run_config["local-epochs"]
    model = get_model(local_epochs)
    set_initial_params(model)

    return FlowerClient(model, X_train, X_test, y_train, y_test).to_client()


app = ClientApp(client_fn=client_fn)
