"""PyTorch models as clients: their state as named arrays, and reproducible rounds."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from defl.clients.protocol import Training, initial_row, roles_of, schema_of
from defl.clients.torch import RoundContext, Settings, Statistics, TorchClient
from defl.clients.torch_supervised import supervised
from defl.errors import UserError, WeightsError
from defl.ids import Round
from defl.schema import DType, Role

torch.set_num_threads(1)  # tiny models: more threads would only slow them down
SGD = {"lr": 0.1, "momentum": 0.9}


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
        nn.Dropout(0.1), nn.Linear(4 * 4 * 4, 3),
    )  # fmt: skip


def images(count: int = 96) -> TensorDataset:
    """Three classes: a bright first, second or third row."""
    generator = torch.Generator().manual_seed(5)
    labels = torch.randint(0, 3, (count,), generator=generator)
    pixels = torch.randn(count, 1, 6, 6, generator=generator) * 0.5
    pixels[torch.arange(count), 0, labels] += 1.5
    return TensorDataset(pixels, labels)


def client_of(**options: Any) -> TorchClient:
    given: dict[str, Any] = {
        "loss": nn.functional.cross_entropy,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, **SGD),
        "train": DataLoader(images(), batch_size=16, shuffle=True),
        "settings": Settings(device="cpu"),
    }
    return supervised(network, **(given | options))


def same(first: Any, second: Any) -> bool:
    return all((first[name] == second[name]).all() for name in first)


# --- Learning --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        Settings(device="cpu"),
        Settings(device="cpu", channels_last=True),
        Settings(device="cpu", mixed_precision=True),
        Settings(device="cpu", channels_last=True, mixed_precision=True, statistics="shared"),
    ],
)
def test_a_model_learns_over_rounds_from_its_weights(settings: Settings) -> None:
    client = client_of(settings=settings)
    schema = schema_of(client.initial_weights(), roles_of(client))
    training = Training(client, schema)
    row = initial_row(client, schema)
    before = training.evaluate(row)
    for round_ in range(1, 5):
        row, metrics = training.train(row, Round(round_))

    after = training.evaluate(row)
    assert after["accuracy"] > 0.9 > before["accuracy"]
    assert after["loss"] < before["loss"]
    assert metrics["examples"] == 96


def test_a_schedule_scales_the_learning_rate_by_round() -> None:
    optimizers: list[torch.optim.Optimizer] = []

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        optimizers.append(torch.optim.SGD(parameters, lr=0.5))
        return optimizers[-1]

    client = client_of(optimizer=optimizer, schedule=lambda round_: 0.1**round_, steps=1)
    for round_ in (1, 2):
        client.train(client.initial_weights(), Round(round_))

    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    assert rates == pytest.approx([0.05, 0.005])


def test_mixed_precision_computes_in_half_precision_where_the_device_supports_it() -> None:
    observed = []

    def train(model: nn.Module, context: RoundContext) -> dict[str, float]:
        with context.autocast():
            observed.append((context.half, model(torch.zeros(2, 1, 6, 6)).dtype))
        return {}

    for mixed in (True, False):
        client = TorchClient(network, train, settings=Settings(device="cpu", mixed_precision=mixed))
        trained, _ = client.train(client.initial_weights(), Round(1))
        assert trained["0.weight"].dtype == np.float32

    assert observed == [(torch.bfloat16, torch.bfloat16), (None, torch.float32)]
    meta = RoundContext(Round(1), torch.device("meta"), Settings(mixed_precision=True))
    assert meta.half is None


def test_channels_last_reaches_weights_and_batches() -> None:
    observed = []

    def train(model: nn.Module, context: RoundContext) -> dict[str, float]:
        last = torch.channels_last
        batch = context.put({"image": torch.zeros(2, 3, 6, 6), "label": [torch.zeros(2)]})
        weight = next(model.parameters())
        observed.append(
            (weight.is_contiguous(memory_format=last), batch["image"].stride()[1], batch["label"])
        )
        return {}

    def wide() -> nn.Module:
        return nn.Conv2d(3, 4, 3)

    client = TorchClient(wide, train, settings=Settings(device="cpu", channels_last=True))
    trained, _ = client.train(client.initial_weights(), Round(1))

    (channels_last, stride, label) = observed[0]
    assert channels_last
    assert stride == 1
    assert label[0].shape == (2,)
    assert trained["weight"].flags.c_contiguous
    assert same(trained, client.initial_weights())


def test_a_users_functions_get_the_model_in_the_right_mode_the_round_and_the_device() -> None:
    def train(model: nn.Module, context: RoundContext) -> dict[str, float]:
        assert model.training
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(float(context.round))
        return {"device": float(context.device.type == "cpu")}

    def evaluate(model: nn.Module, context: RoundContext) -> dict[str, float]:
        assert not model.training
        assert not torch.is_grad_enabled()
        return {"first": float(next(model.parameters()).flatten()[0])}

    client = TorchClient(network, train, evaluate, settings=Settings(device="cpu"))
    trained, metrics = client.train(client.initial_weights(), Round(7))

    assert metrics == {"device": 1.0}
    assert (trained["0.weight"] == 7).all()
    assert client.evaluate(trained) == {"first": 7.0}
    assert client.evaluate(client.initial_weights())["first"] != 7.0
    assert (client.model(trained).state_dict()["0.weight"] == 7).all()


def test_steps_bound_a_round_across_epochs() -> None:
    for steps, examples in ((2, 32), (10, 160)):
        _, metrics = (client := client_of(steps=steps)).train(client.initial_weights(), Round(1))
        assert metrics["examples"] == examples


def test_a_regression_has_a_loss_and_no_accuracy() -> None:
    inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    client = supervised(
        nn.Linear(4, 1),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.1),
        train=[(inputs, inputs.sum(dim=1, keepdim=True))],
        epochs=50,
        settings=Settings(device="cpu"),
    )
    trained, _ = client.train(client.initial_weights(), Round(1))
    metrics = client.evaluate(trained)

    assert set(metrics) == {"loss", "examples"}
    assert metrics["loss"] < 0.5


# --- Repeating -------------------------------------------------------------------------------


@pytest.mark.parametrize("own_generator", [False, True])
def test_a_round_depends_only_on_its_weights_seed_and_number(
    own_generator: bool,
) -> None:
    def new_client() -> TorchClient:
        generator = torch.Generator() if own_generator else None
        loader = DataLoader(images(), batch_size=16, shuffle=True, generator=generator)
        return client_of(train=loader)

    first, second = new_client(), new_client()
    start = first.initial_weights()
    assert same(start, second.initial_weights())
    first.train(start, Round(1))
    torch.rand(3)

    again, _ = first.train(start, Round(2))
    alone, _ = second.train(start, Round(2))
    other, _ = second.train(start, Round(3))

    assert same(again, alone)
    assert not same(again, other)


def test_the_callers_random_state_is_not_changed() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    client = client_of(steps=1)
    client.train(client.initial_weights(), Round(1))

    assert torch.equal(torch.rand(2), expected)


# --- State and roles -------------------------------------------------------------------------


def test_batch_norm_statistics_stay_local_unless_the_settings_share_them() -> None:
    def roles(statistics: Statistics | str) -> dict[str, tuple[Role, DType]]:
        client = client_of(settings=Settings(device="cpu", statistics=statistics))
        schema = schema_of(client.initial_weights(), roles_of(client))
        return {entry.name: (entry.role, entry.dtype) for entry in schema.entries}

    local, shared = roles("local"), roles(Statistics.SHARED)

    assert local["1.weight"] == shared["1.weight"] == (Role.TRAINABLE, DType.FLOAT32)
    assert local["1.running_mean"] == local["1.running_var"] == (Role.LOCAL, DType.FLOAT32)
    assert shared["1.running_mean"] == (Role.STATISTIC, DType.FLOAT32)
    assert shared["1.running_var"] == (Role.VARIANCE, DType.FLOAT32)
    for entries in (local, shared):
        assert entries["1.num_batches_tracked"] == (Role.LOCAL, DType.INT64)


def test_local_statistics_continue_from_round_to_round_and_are_in_no_row() -> None:
    client = client_of()
    schema = schema_of(client.initial_weights(), roles_of(client))
    training = Training(client, schema)
    row = initial_row(client, schema)
    for round_ in (1, 2):
        row, _ = training.train(row, Round(round_))

    assert training.local["1.num_batches_tracked"] == 12
    assert (training.local["1.running_mean"] != 0).all()
    assert schema.values == sum(p.numel() for p in network().parameters())


def test_a_tensor_with_two_names_is_shared_once_and_loaded_under_both() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into = nn.Embedding(5, 3)
            self.out = nn.Linear(3, 5, bias=False)
            self.out.weight = self.into.weight

    def nothing(_: nn.Module, __: RoundContext) -> dict[str, float]:
        return {}

    client = TorchClient(Tied, nothing, settings=Settings(device="cpu"))
    weights = client.initial_weights()
    model = client.model({name: array * 0 + 2 for name, array in weights.items()})

    assert list(weights) == ["into.weight"]
    assert (model.state_dict()["out.weight"] == 2).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_of_another_precision_is_shared_as_float32(dtype: torch.dtype) -> None:
    def step(model: nn.Module, _: RoundContext) -> dict[str, float]:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
        return {}

    client = TorchClient(lambda: nn.Linear(2, 2).to(dtype), step, settings=Settings(device="cpu"))
    first = client.initial_weights()
    trained, _ = client.train(first, Round(1))

    assert first["weight"].dtype == trained["weight"].dtype == np.float32
    assert trained["weight"] == pytest.approx(first["weight"] + 1, abs=0.01)


def test_settings_override_the_role_of_an_entry_and_refuse_an_unknown_name() -> None:
    def entries(roles: dict[str, str]) -> dict[str, Role]:
        client = client_of(settings=Settings(device="cpu", roles=roles))
        schema = schema_of(client.initial_weights(), roles_of(client))
        return {entry.name: entry.role for entry in schema.entries}

    assert entries({"5.weight": "local"})["5.weight"] is Role.LOCAL
    with pytest.raises(WeightsError, match="roles name 'head', which the weights do not have"):
        entries({"head": "local"})


def test_frozen_parameters_stay_local_if_the_settings_say_so() -> None:
    def roles(**settings: Any) -> dict[str, Role]:
        def half_frozen() -> nn.Module:
            model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
            model[0].requires_grad_(False)
            return model

        def nothing(_: nn.Module, __: RoundContext) -> dict[str, float]:
            return {}

        client = TorchClient(half_frozen, nothing, settings=Settings(device="cpu", **settings))
        schema = schema_of(client.initial_weights(), roles_of(client))
        assert schema.model_bytes == 4 * (6 + 3 + 6 + 2)
        return {entry.name: entry.role for entry in schema.entries}

    assert set(roles().values()) == {Role.TRAINABLE}
    for statistics in Statistics:
        adapted = roles(frozen="local", statistics=statistics)
        assert adapted["0.weight"] is adapted["0.bias"] is Role.LOCAL
        assert adapted["1.weight"] is adapted["1.bias"] is Role.TRAINABLE
    assert roles(frozen="local", roles={"0.bias": "trainable"})["0.bias"] is Role.TRAINABLE


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"epochs": 0}, "at least one"),
        ({"steps": 0}, "at least one"),
        ({"train": []}, "no batch"),
        ({"train": [torch.zeros(2)]}, "a batch is a Tensor, not a pair"),
        ({"train": [{"x": 1}]}, "a batch is a dict, not a pair"),
    ],
)
def test_invalid_arguments_are_refused_with_the_reason(options: Any, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        (client := client_of(**options)).train(client.initial_weights(), Round(1))


def test_an_unknown_value_of_a_setting_is_refused() -> None:
    with pytest.raises(UserError, match="statistics is 'frozen'; choose one of: local, shared"):
        Settings(statistics="frozen")
    with pytest.raises(UserError, match="frozen is 'yes'; choose one of: local, shared"):
        Settings(frozen="yes")
