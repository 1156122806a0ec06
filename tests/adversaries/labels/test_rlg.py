"""RLG: known answers on made-up and real gradients, under perturbations, and on bad input."""

import dataclasses

import numpy as np
import pytest
import torch
from support import recognised, spellers
from torch import Tensor, nn

from adversaries.labels.rlg import RLG, separability, tied
from defenses.quantize import HalfPrecision, Int8
from defenses.sign import Sign
from defenses.sparsify import GradDrop
from fedsim import testing
from fedsim.defense import Defense
from fedsim.errors import NotGranted
from fedsim.gradients import to_gradient
from fedsim.knowledge import Knowledge
from fedsim.records import Reconstruction, Spec, Update
from fedsim.tasks.images import cross_entropy
from fedsim.victim import VictimModel

ACTIVATIONS = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "swish": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "none": lambda x: x,
}


def gradient(
    seed: int = 0,
    *,
    classes: int = 200,
    size: int = 20,
    features: int = 64,
    activation: str = "tanh",
    repeats: bool = False,
) -> tuple[Tensor, set[int]]:
    """dW (classes, features) float32 of an untrained head, and its labels."""
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(classes, generator=rng)
    labels = order[torch.randint(size // 2, (size,), generator=rng)] if repeats else order[:size]
    h = ACTIVATIONS[activation](torch.randn(size, features, generator=rng))
    w = (2 * torch.rand(classes, features, generator=rng) - 1) / features**0.5
    p = torch.softmax(h @ w.T, dim=1)
    p[torch.arange(size), labels] -= 1
    return p.T @ h / size, set(labels.tolist())


def attacked(weight: Tensor, attack: RLG | None = None, **known) -> Reconstruction:
    seen = testing.observation(gradient={"out.proj.weight": weight}, head="out.proj", **known)
    return (attack or RLG()).reconstruct(seen, testing.job())


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
    spec = Spec(classes=len(weight), vocabulary=len(weight))
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


# Bad input


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.zeros(4, 3), "zero"),
        (torch.full((4, 3), float("nan")), "NaN"),
        (torch.ones(4), "matrix"),
        (torch.ones(5, 3), "matrix"),
        (torch.ones(4, 3, dtype=torch.int8), "is int8, expected floating point"),
    ],
)
def test_a_gradient_that_says_nothing_is_refused(weight, message):
    with pytest.raises(ValueError, match=message):
        attacked(weight, classes=4)


@pytest.mark.parametrize("size", [32, 50])
def test_more_labels_than_the_rank_shows_are_warned_of_and_solved(size):
    weight, _ = gradient(classes=60, size=size, features=32)
    claimed = attacked(weight, RLG(rank_mode="oracle"), num_examples=size)
    assert f"S = {size} labels with d = 32 features and C = 60" in claimed.diagnostics["note"]
    assert claimed.label_set is not None


def test_a_rank_that_is_full_has_two_causes_and_both_are_named():
    weight, _ = gradient(classes=60, size=40, features=32)
    note = attacked(weight).diagnostics["note"]
    assert "full rank at d = 32 features and C = 60 classes" in note
    assert "perturbed, or of min(d, C - 1) = 32 labels or more" in note


def test_an_error_of_the_solver_is_told(monkeypatch):
    class Broken:
        status, x, message = 4, None, "numerical difficulties"

    monkeypatch.setattr(separability, "linprog", lambda *_, **__: Broken())
    claimed = attacked(gradient(classes=60, size=5)[0], RLG(solver="lp"))
    assert claimed.label_set == frozenset()
    assert claimed.diagnostics["failed"] == list(range(60))
    assert "error on 60 classes" in claimed.diagnostics["note"]


def test_ctc_whose_rows_are_frames_is_cautioned_of_and_its_labels_are_not_counted():
    model = recognised.recogniser()
    assert "CTC" in RLG().cautions(model)[0]
    assert RLG().cautions(spellers.recogniser()) == []
    seen = recognised.observed(model, recognised.voice(0, 20))
    for told in (
        dataclasses.replace(seen, model=None),
        dataclasses.replace(seen, spec=dataclasses.replace(seen.spec, pieces=None)),
    ):
        assert "CTC" in RLG().reconstruct(told, testing.job()).diagnostics["note"]
        with pytest.raises(ValueError, match="rows of dW are frames"):
            RLG(rank_mode="oracle").reconstruct(told, testing.job())


def test_with_two_classes_both_are_separable():
    weight, _ = gradient(classes=2, size=1, features=8)
    claimed = attacked(weight)
    assert claimed.label_set == {0, 1}
    assert "S = 1 labels" in claimed.diagnostics["note"]
    assert claimed.num_labels == 1


@pytest.mark.parametrize("seed", range(4))
def test_two_perturbed_classes_are_no_reason_to_fail(seed):
    weight, _ = gradient(seed, classes=2, size=1, features=8)
    for changed in (weight.sign(), weight + 0.03 * torch.randn_like(weight), torch.ones(5, 7)):
        assert attacked(changed, RLG(accept="margin")).label_set <= set(range(len(changed)))


def test_twin_columns_are_no_labels():
    weight, labels = gradient(8)
    background = sorted(set(range(200)) - labels)
    weight[background[0]] = weight[background[1]]
    claimed = attacked(weight)
    assert not set(background) & claimed.label_set


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bias", [True, False])
def test_a_delta_taken_for_a_gradient_is_noticed(bias, seed):
    model, examples = testing.network(seed), testing.batch(4, seed)
    found = {k: v.detach() for k, v in model.gradient(examples.inputs, examples.labels).items()}
    if not bias:  # told by the weight alone, as the features are sigmoids'
        found = {k: v for k, v in found.items() if k != "head.bias"}
    plain, turned = (
        RLG().reconstruct(testing.observation(gradient=one), testing.job())
        for one in (found, {k: -v for k, v in found.items()})
    )
    assert "a delta" not in plain.diagnostics.get("note", "")
    assert "a delta was taken for a gradient" in turned.diagnostics["note"]
    assert turned.label_set == plain.label_set


def language_model() -> VictimModel:
    torch.manual_seed(0)
    module = nn.Module()
    module.embed = nn.Embedding(40, 16)
    module.out = nn.Linear(16, 40, bias=False)
    module.out.weight = module.embed.weight

    def loss(module, inputs, target, **_):
        return nn.functional.cross_entropy(module.out(torch.tanh(module.embed(inputs))), target)

    return VictimModel(module, head="out", loss=loss)


def test_tied_embeddings_are_seen_in_the_model_and_in_the_gradient():
    model = language_model()
    assert tied(model) == ["embed.weight"]
    assert "embed.weight" in RLG().cautions(model)[0]
    found = model.module.out.weight
    model.loss(torch.tensor([3, 9]), torch.tensor([5, 7])).backward()
    seen = {"gradient": {"out.weight": found.grad}, "head": "out", "spec": Spec(classes=40)}
    for known, words in [({}, "instead of zero"), ({"model": model}, "both layers")]:
        observed = testing.observation(**seen, **known)
        claimed = RLG().reconstruct(observed, testing.job())
        assert words in claimed.diagnostics["note"]


def test_an_ordinary_head_has_no_doubts():
    assert "note" not in attacked(gradient()[0]).diagnostics
    assert RLG().cautions(testing.network()) == []


def test_needs_grow_with_the_oracle_alone():
    assert RLG().requires() == Knowledge.HEAD_GRADIENT
    assert RLG(rank_mode="oracle").requires() == Knowledge.HEAD_GRADIENT | Knowledge.BATCH_SIZE
