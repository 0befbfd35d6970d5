"""digits-msg: a Flower app."""

from digits_msg.task import Net, load_data
from digits_msg.task import test as test_fn
from digits_msg.task import train as train_fn
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

# Flower ClientApp
app = ClientApp()


def _load(msg: Message) -> Net:
    model = Net()
    model.load_state_dict({k: v.numpy() for k, v in msg.content["arrays"].items()})
    return model


@app.train()
def train(msg: Message, context: Context):
    """Train the model on local data."""
    model = _load(msg)
    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    trainset, _ = load_data(partition_id, num_partitions)

    train_loss = train_fn(
        model,
        trainset,
        context.run_config["local-epochs"],
        msg.content["config"]["lr"],
    )

    # How often this node has trained is kept in the context
    seen = context.state.config_records.get("history", ConfigRecord({"trained": 0}))
    context.state["history"] = ConfigRecord({"trained": seen["trained"] + 1})

    model_record = ArrayRecord({k: Array(v) for k, v in model.state_dict().items()})
    metrics = {
        "train_loss": train_loss,
        "num-examples": len(trainset[1]),
        "server-round": msg.content["config"]["server-round"],
        "trained-before": seen["trained"],
        "partition": partition_id,
    }
    content = RecordDict({"arrays": model_record, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Evaluate the model on local data."""
    model = _load(msg)
    partition_id = context.node_config["partition-id"]
    num_partitions = context.node_config["num-partitions"]
    _, testset = load_data(partition_id, num_partitions)

    eval_loss, eval_acc = test_fn(model, testset)

    metrics = {"eval_loss": eval_loss, "eval_acc": eval_acc, "num-examples": len(testset[1])}
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)
