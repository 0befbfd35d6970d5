"""Models: exact parameter counts, shapes, and what must not travel."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the models are PyTorch's (extra `paper`)")

from defl.errors import UserError  # noqa: E402
from defl.lab.datasets.words import PADDING  # noqa: E402 - torch may be missing
from defl.lab.models.bilstm import AttentionBiLSTM  # noqa: E402
from defl.lab.models.densenet import DenseNetBC  # noqa: E402
from defl.lab.models.seeded import parameters, seeded  # noqa: E402
from defl.lab.models.sentences import mean_vectors  # noqa: E402
from defl.lab.models.small import MLP, SmallCNN, SmallResNet, SmallText  # noqa: E402

WORDS = 50


def vectors(size: int) -> "torch.Tensor":
    made = torch.randn(WORDS, size, generator=torch.Generator().manual_seed(1))
    made[PADDING] = 0
    return made


def texts(*lengths: int, length: int = 60) -> "torch.Tensor":
    words = torch.randint(
        2, WORDS, (len(lengths), length), generator=torch.Generator().manual_seed(2)
    )
    for row, end in zip(words, lengths, strict=True):
        row[end:] = PADDING
    return words


@pytest.mark.parametrize(
    ("depth", "count"), [(100, 769_162), (40, 176_122), (22, 71_686), (10, 20_902)]
)
def test_densenet_bc_has_the_published_number_of_parameters(depth: int, count: int) -> None:
    """Depth 100 and growth 12: 0.8 M (Huang et al. 2017, table 2)."""
    assert parameters(DenseNetBC(depth=depth)) == count


def test_transition_halves_the_channels() -> None:
    """24 channels and 12 more from each of 3 layers, then half: 24, 60, 30, 66, 33, 69."""
    model = DenseNetBC(depth=22)

    assert model.head.in_features == 69
    assert model.features(torch.zeros(1, 3, 32, 32)).shape == (1, 69, 8, 8)


@pytest.mark.parametrize("depth", [5, 23, 98])
def test_depth_not_divisible_among_three_blocks_is_refused(depth: int) -> None:
    with pytest.raises(UserError, match="6k \\+ 4"):
        DenseNetBC(depth=depth)


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (SmallCNN, 57_130),
        (SmallResNet, 290_378),
        (MLP, 394_634),
        (lambda: DenseNetBC(depth=10), 20_902),
    ],
)
def test_image_models_give_one_logit_for_each_class(build: type, count: int) -> None:
    model = build()

    assert parameters(model) == count
    assert model(torch.zeros(5, 3, 32, 32)).shape == (5, 10)


def test_small_models_have_configurable_sizes() -> None:
    assert SmallCNN(channels=1, width=8, classes=4)(torch.zeros(2, 1, 28, 28)).shape == (2, 4)
    deep = MLP(shape=(8, 8), hidden=(16, 12), classes=3)
    assert parameters(deep) == 65 * 16 + 17 * 12 + 13 * 3
    assert deep(torch.zeros(2, 8, 8)).shape == (2, 3)


def test_bi_lstm_has_the_papers_sizes() -> None:
    units, heads, key = 128, 4, 256
    lstm = 2 * 4 * units * (300 + units + 2)  # four gates, two biases each, two directions
    attention = 3 * (2 * units + 1) * heads * key + (heads * key + 1) * 2 * units
    norm_and_head = 2 * 2 * units + 2 * units + 1

    model = AttentionBiLSTM(vectors(300))

    assert parameters(model) == lstm + attention + norm_and_head == 1_492_993
    assert model(texts(60, 3, 1)).shape == (3,)


def test_small_text_model_has_one_hidden_layer() -> None:
    model = SmallText(100)

    assert parameters(model) == 101 * 64 + 65 == 6_529
    assert model(torch.zeros(3, 100)).shape == (3,)


def test_mean_word_vector_ignores_padding_and_exists_for_an_empty_text() -> None:
    known = vectors(20).numpy()
    batch = texts(7, 30, 0).numpy().astype(np.int32)

    means = mean_vectors(batch, known, chunk=2)

    np.testing.assert_allclose(means[0], known[batch[0, :7]].mean(axis=0), rtol=1e-4)
    np.testing.assert_array_equal(means[0], mean_vectors(batch[:1, :7], known)[0])
    np.testing.assert_array_equal(means[2], known[0])
    assert (batch[2] == 0).all()  # and the texts are left as they were


def test_word_vectors_are_not_shared() -> None:
    model = AttentionBiLSTM(vectors(20))

    shapes = [tuple(array.shape) for array in model.state_dict().values()]

    assert (WORDS, 20) not in shapes
    assert all(not name.startswith("embedding") for name in model.state_dict())


def test_padding_does_not_change_the_output() -> None:
    """Neither more padding of the same text, nor a longer text in the same batch."""
    model = AttentionBiLSTM(vectors(20)).eval()
    batch = texts(7, 30, 1)

    together = model(batch)
    alone = torch.cat([model(batch[:1, :7]), model(batch[1:2, :40]), model(batch[2:])])

    torch.testing.assert_close(together, alone)


def test_empty_text_gives_a_finite_logit() -> None:
    model = AttentionBiLSTM(vectors(20)).eval()
    batch = texts(5, 0)

    assert model(batch).isfinite().all()
    assert model(batch[1:]).isfinite().all()
    assert (batch == texts(5, 0)).all()  # and the batch is left as it was


def test_attention_sees_other_words_and_their_order_through_the_lstm() -> None:
    model = AttentionBiLSTM(vectors(20)).eval()
    words = texts(6, length=6)

    assert not torch.allclose(model(words), model(words.flip(1)))


def test_dropout_is_active_in_training_only() -> None:
    model = AttentionBiLSTM(vectors(20))
    words = texts(6, 6, 6, 6)

    assert not torch.equal(model(words), model(words))
    model.eval()
    assert torch.equal(model(words), model(words))


@pytest.mark.parametrize(
    ("build", "inputs"),
    [
        (SmallCNN, torch.rand(20, 3, 32, 32, generator=torch.Generator().manual_seed(3))),
        (lambda: AttentionBiLSTM(vectors(20), units=8, heads=2, key_size=4), texts(*range(1, 21))),
    ],
    ids=["images", "texts"],
)
def test_every_parameter_is_trained(build: type, inputs: "torch.Tensor") -> None:
    model = seeded(1, build)

    model(inputs).square().sum().backward()

    untrained = [name for name, p in model.named_parameters() if p.grad is None]
    assert untrained == []


def test_seeded_build_leaves_the_global_generator_untouched() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()

    one, same, other = (seeded(seed, SmallCNN).state_dict() for seed in (1, 1, 2))

    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])
    assert torch.equal(before, torch.random.get_rng_state())
