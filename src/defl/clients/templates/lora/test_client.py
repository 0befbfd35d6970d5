"""The client follows the protocol, and its adapters learn from this organisation's data alone."""

from client import client

from defl.clients.protocol import Training, initial_row, roles_of, schema_of


def test_the_adapters_learn():
    mine = client()
    schema = schema_of(mine.initial_weights(), roles_of(mine))
    training = Training(mine, schema)
    row = initial_row(mine, schema)
    before = training.evaluate(row)
    base = training.local
    for round_ in range(1, 6):
        row, _ = training.train(row, round_)

    after = training.evaluate(row)
    assert after["accuracy"] > before["accuracy"] + 0.2
    assert all((array == base[name]).all() for name, array in training.local.items())
    assert schema.values * 20 < sum(entry.size for entry in schema.entries)
