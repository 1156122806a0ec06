"""Every registered defense keeps its contract; then what each is known to do."""

import pytest
import torch
from pydantic import ValidationError

from defenses import GaussianNoise, Sign
from fedsim import testing
from fedsim.defense import Defense
from fedsim.errors import ScenarioError
from fedsim.plugin import find, make, names
from fedsim.records import Update


@pytest.fixture
def update():
    rng = torch.Generator().manual_seed(0)
    tensors = {"head.weight": torch.randn(200, 100, generator=rng), "head.bias": torch.zeros(200)}
    return Update(tensors, "gradient", buffers={"mean": torch.ones(3)}, lr=0.1, num_examples=8)


def protect(defense, update, seed=0):
    return defense.protect(update, torch.Generator().manual_seed(seed), {})


@pytest.mark.parametrize("name", names("defenses"))
def test_keeps_its_contract(name):
    assert testing.conformance(find("defenses", name)) == []


@pytest.mark.parametrize("name", names("defenses"))
def test_leaves_everything_but_the_tensors_alone(name, update):
    after = protect(make("defenses", name, {}), update)
    assert after.replace(tensors=update.tensors, buffers=update.buffers).num_examples == 8
    assert torch.equal(after.buffers["mean"], update.buffers["mean"])


def test_noise_has_the_standard_deviation_asked_for(update):
    noisy = protect(GaussianNoise(sigma=0.5), update)
    noise = noisy.tensors["head.weight"] - update.tensors["head.weight"]
    assert float(noise.std()) == pytest.approx(0.5, rel=0.02)
    assert float(noise.mean()) == pytest.approx(0, abs=0.02)
    assert noisy.tensors["head.bias"].any()
    assert not torch.equal(protect(GaussianNoise(), update, 1).tensors["head.bias"], torch.zeros(9))


def test_no_noise_is_the_very_same_update(update):
    assert protect(GaussianNoise(sigma=0), update) is update


@pytest.mark.parametrize("sigma", [-1, float("nan"), float("inf")])
def test_noise_refuses_an_impossible_sigma(sigma):
    with pytest.raises(ScenarioError, match="sigma"):
        make("defenses", "gaussian-noise", {"sigma": sigma})


def test_signs_keep_the_mean_size_of_each_tensor(update):
    sent = protect(Sign(), update).tensors
    weight = update.tensors["head.weight"]
    assert sent["head.weight"].unique().numel() == 2
    assert torch.equal(sent["head.weight"].sign(), weight.sign())
    assert float(sent["head.weight"].abs().mean()) == pytest.approx(float(weight.abs().mean()))
    assert not sent["head.bias"].any()


def test_signs_of_a_fixed_size(update):
    sent = protect(Sign(scale=0.25), update).tensors
    assert set(sent["head.weight"].unique().tolist()) == {-0.25, 0.25}


@pytest.mark.parametrize("scale", [0, -1, "median", float("inf")])
def test_signs_refuse_an_impossible_scale(scale):
    with pytest.raises(ValidationError):
        Sign(scale=scale)


class Nothing(Defense):
    """Does nothing."""

    name = "nothing"


class Rough(Defense):
    """Breaks the rules at run time."""

    name = "rough"

    def protect(self, update, rng, state):
        update.tensors["head.bias"].add_(1)
        noise = torch.randn(())
        return update.replace(
            tensors={k: v[:1] + noise for k, v in update.tensors.items()}, kind="weights"
        )


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (Nothing, ["does nothing"]),
        (Rough, ["shape", "leave the kind", "changes the update", "global generator", "same seed"]),
    ],
)
def test_conformance_says_what_is_wrong(cls, words):
    complaints = testing.conformance(cls)
    for word in words:
        assert any(word in complaint for complaint in complaints), (word, complaints)
