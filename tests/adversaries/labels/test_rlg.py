"""RLG: known answers on made-up and real gradients, under perturbations, and on bad input."""

import numpy as np
import pytest
import torch
from support.rlg_heads import attacked, gradient
from torch import Tensor, nn

from adversaries.labels.rlg import RLG
from defenses.quantize import HalfPrecision, Int8
from defenses.sign import Sign
from defenses.sparsify import GradDrop
from fedsim import testing
from fedsim.defense import Defense
from fedsim.errors import NotGranted
from fedsim.gradients import to_gradient
from fedsim.records import Update
from fedsim.spec import SpeechSpec
from fedsim.tasks.images import cross_entropy
from fedsim.victim import VictimModel

ACTIVATIONS = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "swish": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "none": lambda x: x,
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("repeats", [False, True])
def test_any_activation_before_the_head(activation, repeats):
    weight, labels = gradient(activation=activation, repeats=repeats)
    claimed = attacked(weight)
    assert claimed.label_set == labels
    assert claimed.num_labels == 20
    assert claimed.diagnostics["undecided"] == []


@pytest.mark.parametrize("factor", [-1.0, 1e-6, 1e4])
def test_neither_sign_nor_scale_matters(factor):
    weight, labels = gradient(1, repeats=True)
    claimed = attacked(factor * weight)
    assert claimed.label_set == labels
    assert claimed.num_labels == 20


@pytest.mark.parametrize("sent", [torch.float32, torch.float16, torch.bfloat16])
def test_rounding_is_no_reason_to_doubt(sent):
    weight, labels = gradient(3)
    claimed = attacked(weight.to(sent))
    assert claimed.label_set == labels
    assert "sum to" not in claimed.diagnostics.get("note", "")
    weight[0] *= 1.5
    assert "sum to" in attacked(weight).diagnostics["note"]


def test_a_transposed_head():
    weight, labels = gradient(2)
    assert attacked(weight.T.contiguous(), classes=200).label_set == labels


@pytest.mark.parametrize("solver", ["spanning", "lp", "perceptron+lp"])
def test_every_solver_finds_a_small_batch(solver):
    weight, labels = gradient(3, classes=60, size=5)
    assert attacked(weight, RLG(solver=solver)).label_set == labels


@pytest.mark.parametrize(("size", "features"), [(31, 32), (49, 64)])
def test_as_many_labels_as_the_rank_can_show(size, features):
    weight, labels = gradient(classes=300, size=size, features=features)
    claimed = attacked(weight)
    assert claimed.label_set == labels
    assert claimed.num_labels == size


def test_the_number_of_labels_can_be_told():
    weight, labels = gradient(4)
    with pytest.raises(NotGranted, match="BATCH_SIZE"):
        attacked(weight, RLG(rank_mode="oracle"))
    claimed = attacked(weight, RLG(rank_mode="oracle"), num_examples=20)
    assert claimed.label_set == labels


def test_of_sequences_the_number_of_labels_is_that_of_all_of_them():
    weight, labels = gradient(4)
    pieces = tuple(map(str, range(len(weight))))
    spec = SpeechSpec(len(pieces), features=40, sample_rate=16_000, pieces=pieces)
    with pytest.raises(NotGranted, match="LABELS"):
        attacked(weight, RLG(rank_mode="oracle"), spec=spec, num_examples=2)
    rows = torch.full((2, 12), 1)
    rows[1, 8:] = -100
    told = attacked(weight, RLG(rank_mode="oracle"), spec=spec, num_examples=2, labels=rows)
    assert told.num_labels == 20
    assert told.label_set == labels


@pytest.mark.parametrize("mode", ["gap", "tolerance"])
def test_the_rank_is_that_of_the_examples_and_not_of_the_labels(mode):
    weight, labels = gradient(5, size=30, repeats=True)
    claimed = attacked(weight, RLG(rank_mode=mode))
    assert claimed.num_labels == 30
    assert len(labels) < 20


def test_the_longest_columns_can_do_to_separate_from():
    weight, labels = gradient(6, classes=900, size=10)
    assert attacked(weight, RLG(columns="top_norm")).label_set == labels


@pytest.mark.parametrize("steps", [1, 4])
def test_weights_after_local_steps(steps):
    model = testing.network(3)
    examples = testing.batch(4, 3)
    before = {k: v.detach().clone() for k, v in model.module.state_dict().items()}
    optimizer = torch.optim.SGD(model.module.parameters(), lr=0.1)
    size = 4 // steps
    for inputs, labels in zip(
        examples.inputs.split(size), examples.labels.split(size), strict=True
    ):
        optimizer.zero_grad()
        model.loss(inputs, labels).backward()
        optimizer.step()
    after = {k: v.detach() for k, v in model.module.state_dict().items()}
    update = Update(after, "weights", lr=0.1, steps=steps, num_examples=4)
    seen = testing.observation(gradient=to_gradient(update, before)[0], num_examples=4)
    claimed = RLG(rank_mode="oracle").reconstruct(seen, testing.job())
    assert set(examples.labels.tolist()) == claimed.label_set


PERTURBED: dict[str, Defense | float] = {
    "noise 1 %": 1e-2,
    "noise 3 %": 3e-2,
    "drop 50": GradDrop(rate=0.5),
    "drop 90": GradDrop(rate=0.9),
    "sign": Sign(),
    "int8": Int8(),
    "half": HalfPrecision(),
}


def perturbed(weight: Tensor, by: Defense | float) -> Tensor:
    rng = torch.Generator().manual_seed(9)
    if isinstance(by, float):
        spread = by * weight.pow(2).mean().sqrt()
        return weight + spread * torch.randn(weight.shape, generator=rng)
    return by.protect(Update({"head": weight}, kind="gradient"), rng, {}).tensors["head"]


@pytest.mark.parametrize("by", PERTURBED)
@pytest.mark.parametrize("seed", range(3))
def test_the_margin_endures_what_the_paper_measures(by, seed):
    weight, labels = gradient(seed, classes=500, size=20, features=256)
    told = RLG(accept="margin", rank_mode="oracle")
    claimed = attacked(perturbed(weight, PERTURBED[by]), told, num_examples=20)
    assert claimed.label_set == labels


@pytest.mark.parametrize("seed", range(3))
def test_a_wide_gap_tells_labels_that_still_lie_towards_the_rest(seed):
    # Of an EfficientNet's signs the labels' columns agree with the others' in two of three.
    rng = torch.Generator().manual_seed(seed)
    flipped = torch.full((500, 256), 0.05)
    labels = torch.randperm(500, generator=rng)[:10]
    flipped[labels] = 0.35
    common = torch.randn(256, generator=rng).sign()
    weight = torch.where(torch.rand(500, 256, generator=rng) < flipped, -common, common)
    told = RLG(accept="margin", rank_mode="oracle")
    claimed = attacked(weight, told, num_examples=10)
    assert claimed.label_set == set(labels.tolist())


@pytest.mark.parametrize("by", ["noise 3 %", "sign"])
def test_separability_does_not_endure_it(by):
    weight, labels = gradient(0, classes=500, size=20, features=256)
    told = RLG(rank_mode="oracle")
    assert attacked(perturbed(weight, PERTURBED[by]), told, num_examples=20).label_set != labels


def test_the_margin_of_a_clean_gradient_is_separability():
    weight, labels = gradient(7, repeats=True)
    claimed = attacked(weight, RLG(accept="margin"))
    assert claimed.diagnostics["accept"] == "strict"
    assert claimed.label_set == labels


@pytest.mark.parametrize(
    ("data", "classes"), [("mnist", 10), ("cifar100", 100), ("tiny_imagenet_val", 200)]
)
@pytest.mark.parametrize("seed", range(3))
def test_real_images(real_data, data, classes, seed):
    with np.load(real_data / "images" / f"{data}.npz") as held:
        x, y = (held[k if k in held else f"{k}_train"] for k in ("x", "y"))
    rng = np.random.default_rng(seed)
    size = 4 if classes == 10 else 20
    chosen = rng.permutation(len(x))[:size]
    images = torch.from_numpy(x[chosen].astype(np.float32) / 255).flatten(1)
    labels = torch.from_numpy(y[chosen].astype(np.int64))
    torch.manual_seed(seed)
    module = nn.Sequential()
    module.add_module("body", nn.Sequential(nn.Linear(images.shape[1], 256), nn.Tanh()))
    module.add_module("out", nn.Linear(256, classes))
    model = VictimModel(module, head="out", loss=cross_entropy)
    found = {k: v.detach() for k, v in model.gradient(images, labels).items()}
    seen = testing.observation(gradient=found, head="out", classes=classes)
    claimed = RLG().reconstruct(seen, testing.job())
    assert claimed.label_set == set(labels.tolist())
    assert claimed.num_labels == size


@pytest.mark.parametrize("seed", range(3))
def test_more_examples_than_classes_leave_the_labels_before_the_largest_fall(seed):
    """As in a secure sum of many clients: rank C - 1, of which the last directions are small."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(14) % 7
    features = 1 + 0.3 * torch.randn(14, 48, generator=rng)
    head = 1e-3 * torch.randn(10, 48, generator=rng)
    errors = torch.softmax(features @ head.T, dim=1) - nn.functional.one_hot(labels, 10)
    claimed = attacked(errors.T @ features / 14)
    assert claimed.label_set == set(range(7))
    assert claimed.num_labels == 7
