"""The client follows the protocol, and its model learns from this hospital's patients alone."""

from client import client

from defl.clients.protocol import Training, initial_row, roles_of, schema_of


def test_the_model_learns():
    mine = client()
    schema = schema_of(mine.initial_weights(), roles_of(mine))
    training = Training(mine, schema)
    row = initial_row(mine, schema)
    before = training.evaluate(row)
    for round_ in range(1, 4):
        row, metrics = training.train(row, round_)

    after = training.evaluate(row)
    assert after["accuracy"] > before["accuracy"]
    assert after["auc"] > 0.8
    assert metrics["loss"] < 0.6
