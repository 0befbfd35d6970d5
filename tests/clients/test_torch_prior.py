"""The class prior of PyTorch classifiers: found by a probe, added in training and prediction."""

import random
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from defl.clients.prior import PRIOR_ENTRY, log_odds
from defl.clients.protocol import Training, class_counts_of, initial_row, roles_of, schema_of
from defl.clients.torch import Settings
from defl.clients.torch_supervised import SupervisedClient, supervised
from defl.clients.torchrun import TorchrunClient
from defl.errors import UserError
from defl.ids import Round

torch.set_num_threads(1)
CLASSES = 3


def site(shares: list[float], count: int = 300, seed: int = 1) -> TensorDataset:
    """Classes look the same at every site; only their shares differ."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(shares), size=count, p=shares)
    inputs = rng.standard_normal((count, 4)) + np.eye(len(shares), 4)[labels] * 2
    return TensorDataset(torch.from_numpy(inputs).float(), torch.from_numpy(labels))


def client_of(data: Any, **options: Any) -> SupervisedClient:
    given: dict[str, Any] = {
        "loss": functional.cross_entropy,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "train": data if isinstance(data, DataLoader | list) else DataLoader(data, batch_size=20),
        "settings": Settings(device="cpu"),
    }
    model = options.pop("model", lambda: nn.Linear(4, CLASSES))
    return supervised(model, **(given | options))


def after_rounds(client: SupervisedClient, rounds: int = 5) -> tuple[Training, Any]:
    schema = schema_of(client.initial_weights(), roles_of(client))
    training, row = Training(client, schema), initial_row(client, schema)
    for round_ in range(1, rounds + 1):
        row, _ = training.train(row, Round(round_))
    return training, row


# --- Which losses are corrected ----------------------------------------------------------------


def with_log_softmax() -> nn.Module:
    return nn.Sequential(nn.Linear(4, CLASSES), nn.LogSoftmax(dim=1))


def of_probabilities(output: Tensor, targets: Tensor) -> Tensor:
    return -output.softmax(1)[torch.arange(len(targets)), targets].clamp(min=0.1).log().mean()


@pytest.mark.parametrize(
    ("loss", "model"),
    [
        (functional.cross_entropy, nn.Linear(4, CLASSES)),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3])), nn.Linear(4, CLASSES)),
        (nn.CrossEntropyLoss(label_smoothing=0.1), nn.Linear(4, CLASSES)),
        (functional.nll_loss, with_log_softmax()),
        (nn.NLLLoss(weight=torch.tensor([1.0, 2, 3])), with_log_softmax()),
        (of_probabilities, nn.Linear(4, CLASSES)),
    ],
)
def test_a_loss_of_logits_or_log_probabilities_is_corrected(loss: Any, model: nn.Module) -> None:
    data = site([0.7, 0.2, 0.1])

    client = client_of(data, loss=loss, model=model)

    expected = np.bincount(data.tensors[1], minlength=CLASSES)
    assert class_counts_of(client) == expected.tolist()
    smoothed = (expected + 1) / (expected + 1).sum()
    assert np.exp(client.initial_weights()[PRIOR_ENTRY]) == pytest.approx(smoothed)
    assert roles_of(client)[PRIOR_ENTRY] == "local"


def dense(data: TensorDataset, wide: bool) -> TensorDataset:
    targets = data.tensors[1].float()
    return TensorDataset(data.tensors[0], targets[:, None] if wide else targets)


@pytest.mark.parametrize("wide", [True, False])
def test_one_logit_of_two_classes_gets_the_log_odds(wide: bool) -> None:
    data = dense(site([0.2, 0.8]), wide)
    model = nn.Linear(4, 1) if wide else nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))

    client = client_of(data, loss=functional.binary_cross_entropy_with_logits, model=model)

    prior = client.initial_weights()[PRIOR_ENTRY]
    training, row = after_rounds(client)
    site_model = client.model(training._weights(row))
    inputs, targets = data.tensors
    with torch.no_grad():
        own, shared = site_model(inputs), site_model.module(inputs)
    assert (own - shared).numpy() == pytest.approx(log_odds(prior)[1], abs=1e-5)
    metrics = training.evaluate(row)
    assert metrics["accuracy"] == pytest.approx(float(((own > 0) == (targets > 0)).float().mean()))
    assert {"loss", "examples", "macro_recall", "auc"} <= set(metrics)


NUMBERS = torch.arange(40) % CLASSES
FEATURES = torch.ones(40, 4)
WITHOUT_CORRECTION = {
    "a regression": (functional.mse_loss, nn.Linear(4, 1), torch.rand(40, 1)),
    "probabilities": (
        functional.binary_cross_entropy,
        nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()),
        (NUMBERS[:, None] > 0).float(),
    ),
    "several labels per example": (
        functional.binary_cross_entropy_with_logits,
        nn.Linear(4, CLASSES),
        functional.one_hot(NUMBERS).float(),
    ),
    "class probabilities as targets": (
        functional.cross_entropy,
        nn.Linear(4, CLASSES),
        functional.one_hot(NUMBERS).float(),
    ),
    "a sequence": (
        functional.cross_entropy,
        nn.Sequential(nn.Linear(4, CLASSES * 2), nn.Unflatten(1, (CLASSES, 2))),
        NUMBERS[:, None].repeat(1, 2),
    ),
    "log probabilities that are not normalised": (
        functional.nll_loss, nn.Linear(4, CLASSES), NUMBERS,
    ),
    "labels beyond the classes": (
        lambda output, targets: functional.cross_entropy(output, targets % 2),
        nn.Linear(4, 2), NUMBERS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT_CORRECTION)
def test_other_losses_and_targets_are_not_corrected_and_say_why_if_asked(name: str) -> None:
    loss, model, targets = WITHOUT_CORRECTION[name]
    data = TensorDataset(FEATURES, targets)

    client = client_of(data, loss=loss, model=model)

    assert PRIOR_ENTRY not in client.initial_weights()
    client.train(client.initial_weights(), Round(1))
    with pytest.raises(UserError, match="prior='corrected' needs class numbers as targets"):
        client_of(data, loss=loss, model=model, prior="corrected")


def test_a_misspelt_prior_is_refused_with_the_choices() -> None:
    with pytest.raises(UserError, match="prior is 'corected'; choose one of: corrected, none"):
        client_of(site([0.5, 0.3, 0.2]), prior="corected")


def test_a_stream_is_not_corrected_and_is_not_read_in_advance() -> None:
    read = []

    class Stream:
        def __iter__(self) -> Any:
            read.append(1)
            yield FEATURES[:4], NUMBERS[:4]

    client = client_of(DataLoader(TensorDataset(FEATURES, NUMBERS)), train=Stream())

    assert read == []
    assert PRIOR_ENTRY not in client.initial_weights()


# --- Counting ----------------------------------------------------------------------------------


class Listed(Dataset):  # type: ignore[type-arg]
    """A data set like torchvision's: `targets` are the labels before the transform."""

    def __init__(self, transform: Any = None) -> None:
        self.targets = NUMBERS.tolist()
        self.target_transform = transform
        self.reads = 0

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.reads += 1
        label = self.targets[index]
        return FEATURES[index], self.target_transform(label) if self.target_transform else label


class Unlisted(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return len(NUMBERS)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return FEATURES[index], int(NUMBERS[index])


def tensors(labels: Tensor) -> TensorDataset:
    return TensorDataset(torch.ones(len(labels), 4), labels)


def loader(dataset: Any, **options: Any) -> Any:
    return DataLoader(dataset, batch_size=8, **options)


@pytest.mark.parametrize(
    ("train", "counts"),
    [
        (loader(tensors(NUMBERS), shuffle=True), [14, 13, 13]),
        (loader(Listed()), [14, 13, 13]),
        (loader(Listed(lambda label: 2 - label)), [13, 13, 14]),
        (loader(Unlisted()), [14, 13, 13]),
        (loader(Subset(Listed(), [0, 3, 6, 1])), [3, 1, 0]),
        (loader(ConcatDataset([Listed(), tensors(torch.tensor([2, 2]))])), [14, 13, 15]),
        (loader(tensors(NUMBERS), sampler=SubsetRandomSampler([0, 1, 3])), [2, 1, 0]),
        ([(FEATURES[:4], torch.tensor([0, 1, 1, -100]))], [1, 2, 0]),
    ],
)
def test_labels_are_counted_as_training_sees_them(train: Any, counts: list[int]) -> None:
    assert class_counts_of(client_of(train)) == counts


def test_listed_labels_need_no_pass_over_the_data() -> None:
    data = Listed()
    client_of(loader(data))

    assert data.reads < len(data)


def test_a_sampler_that_balances_classes_balances_the_prior() -> None:
    labels = torch.tensor([0] * 900 + [1] * 50 + [2] * 50)
    weights = 1 / torch.bincount(labels).float()[labels]
    sampler = WeightedRandomSampler(weights.tolist(), 1000)

    counts = class_counts_of(client_of(loader(tensors(labels), sampler=sampler)))

    assert min(counts) > 250


# --- Training and prediction -------------------------------------------------------------------


def test_sites_with_other_frequencies_send_closer_updates_with_the_correction() -> None:
    def distance(prior: str) -> float:
        first, second = (
            after_rounds(client_of(site(shares, 1500), prior=prior))[1]
            for shares in ([0.9, 0.05, 0.05], [0.05, 0.05, 0.9])
        )
        return float(np.linalg.norm(first - second))

    assert distance("corrected") < 0.5 * distance("none")


def test_predictions_and_metrics_are_those_of_the_shared_model_plus_the_sites_prior() -> None:
    data = site([0.8, 0.1, 0.1])
    client = client_of(data)
    training, row = after_rounds(client)
    weights = training._weights(row)
    inputs, labels = data.tensors

    plain = nn.Linear(4, CLASSES)
    own = {name: torch.from_numpy(weights[name]) for name in ("weight", "bias")}
    plain.load_state_dict(own, strict=True)
    logits = plain(inputs).detach() + torch.from_numpy(weights[PRIOR_ENTRY])

    assert torch.equal(client.model(weights)(inputs), logits)
    metrics = training.evaluate(row)
    assert metrics["loss"] == pytest.approx(float(functional.cross_entropy(logits, labels)), 1e-5)
    assert metrics["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).float().mean()))


def test_log_probabilities_stay_normalised() -> None:
    client = client_of(site([0.8, 0.1, 0.1]), loss=functional.nll_loss, model=with_log_softmax)
    output = client.model(client.initial_weights())(FEATURES)

    assert output.exp().sum(1).detach().numpy() == pytest.approx(1, abs=1e-5)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, CLASSES)
    )


def test_the_probe_changes_no_weight_no_buffer_and_no_random_state() -> None:
    module = network()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    generator = torch.Generator().manual_seed(4)
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    seeded = generator.get_state()

    client_of(DataLoader(Unlisted(), batch_size=8, shuffle=True, generator=generator), model=module)

    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert random.getstate() == states[0]
    assert (np.random.get_state()[1] == states[1]).all()
    assert torch.equal(torch.get_rng_state(), states[2])
    assert torch.equal(generator.get_state(), seeded)
    assert module.training


def test_clients_may_share_one_module() -> None:
    module = nn.Linear(4, CLASSES)
    first, second = (
        client_of(site(shares), model=module) for shares in ([0.8, 0.1, 0.1], [0.1, 0.1, 0.8])
    )
    start = first.initial_weights()

    alone, _ = client_of(site([0.8, 0.1, 0.1])).train(start, Round(1))
    second.train(second.initial_weights(), Round(1))
    again, _ = first.train(start, Round(1))

    assert all((alone[name] == again[name]).all() for name in ("weight", "bias"))


def test_without_the_prior_the_model_is_the_users_own() -> None:
    module = nn.Linear(4, CLASSES)
    client = client_of(site([0.8, 0.1, 0.1]), model=module, prior="none")

    assert set(client.initial_weights()) == {"weight", "bias"}
    assert client.model(client.initial_weights()) is module
    assert class_counts_of(client) == []


def test_auc_and_macro_recall_are_those_of_all_batches() -> None:
    from sklearn.metrics import balanced_accuracy_score, roc_auc_score  # noqa: PLC0415

    data = site([0.8, 0.2])
    client = client_of(data, model=lambda: nn.Linear(4, 2), test=DataLoader(data, batch_size=7))
    training, row = after_rounds(client, 2)
    metrics = training.evaluate(row)
    inputs, labels = data.tensors
    with torch.no_grad():
        logits = client.model(training._weights(row))(inputs)

    assert metrics["auc"] == pytest.approx(roc_auc_score(labels, logits[:, 1] - logits[:, 0]))
    recall = balanced_accuracy_score(labels, logits.argmax(1))
    assert metrics["macro_recall"] == pytest.approx(recall)


# --- Several processes ---------------------------------------------------------------------------

SCRIPT = """
import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from defl.clients.torch import Settings
from defl.clients.torch_supervised import supervised
from defl.clients.torchrun_rank import serve

def make():
    whole = WHOLE
    rank = dist.get_rank()
    labels = torch.tensor([0] * 30 + [1] * 10) if whole else torch.tensor([rank] * (10 + 20 * rank))
    inputs = torch.ones(len(labels), 2) * labels[:, None]
    data = TensorDataset(inputs, labels)
    sampler = DistributedSampler(data) if whole else None
    test = [(inputs[rank::2], labels[rank::2])] if whole else [(inputs, labels)]
    return supervised(
        lambda: nn.Linear(2, 2), loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        train=DataLoader(data, batch_size=5, sampler=sampler), test=test, steps=2,
        settings=Settings(device="cpu"),
    )

serve(make)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("whole", "counts"), [(True, [30, 10]), (False, [10, 30])])
def test_all_processes_of_a_site_use_its_common_counts(
    tmp_path: Path, whole: bool, counts: list[int]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT).replace("WHOLE", str(whole)), encoding="utf-8")
    client = TorchrunClient(script, processes=2)
    try:
        weights = client.initial_weights()
        trained, metrics = client.train(weights, Round(1))
        evaluated = client.evaluate(trained)
    finally:
        client.close()

    expected = (np.array(counts) + 1) / (sum(counts) + 2)
    assert np.exp(weights[PRIOR_ENTRY]) == pytest.approx(expected)
    assert (trained[PRIOR_ENTRY] == weights[PRIOR_ENTRY]).all()
    assert metrics["classes"] == 2
    assert evaluated["examples"] == 40
    assert evaluated["auc"] in (0.0, 1.0)  # two kinds of inputs, one for each class
