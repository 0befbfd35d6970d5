"""The ClientApp: one organisation trains and evaluates on its own data."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits.task import accuracy, load_data
from digits.task import train as train_model

app = ClientApp()


def arrays_of(message: Message):
    return {name: array.numpy() for name, array in message.content["arrays"].items()}


def data_of(context: Context):
    return load_data(context.node_config["partition-id"], context.node_config["num-partitions"])


@app.train()
def train(message: Message, context: Context):
    (images, labels), _ = data_of(context)
    learning_rate = context.run_config["learning-rate"]
    arrays, loss = train_model(arrays_of(message), images, labels, learning_rate)
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(array) for name, array in arrays.items()}),
            "metrics": MetricRecord({"loss": loss, "num-examples": len(labels)}),
        }
    )
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context):
    _, (images, labels) = data_of(context)
    reached = accuracy(arrays_of(message), images, labels)
    metrics = MetricRecord({"accuracy": reached, "num-examples": len(labels)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
