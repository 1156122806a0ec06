"""RLG on gradients that say too little, or are of another kind of model."""

import dataclasses

import pytest
import torch
from support import recognised, spellers
from support.rlg_heads import attacked, gradient
from torch import nn

from adversaries.labels.rlg import RLG, tied
from fedsim import testing
from fedsim.knowledge import Knowledge
from fedsim.records import Spec
from fedsim.victim import VictimModel

ACTIVATIONS = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "swish": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "none": lambda x: x,
}


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

    monkeypatch.setattr("scipy.optimize.linprog", lambda *_, **__: Broken())
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
        dataclasses.replace(seen, spec=dataclasses.replace(seen.spec, pieces=())),
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
