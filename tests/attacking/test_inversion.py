"""One gradient is attacked in one call, without a federation."""

import copy

import pytest
import torch
from torch import nn

import fedsim
from adversaries import DAGER, DLG, LLG, FirstLinear, InvertingGradients
from fedsim.errors import NotGranted, ScenarioError
from fedsim.gradients.head import head_gradient
from fedsim.records import Reconstruction, Update


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Sigmoid(), nn.Linear(24, 4))


@pytest.fixture(scope="module")
def image():
    return torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def gradient(net, inputs, labels):
    loss = nn.functional.cross_entropy(net(inputs), labels)
    names, parameters = zip(*net.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def test_an_image_and_its_label_come_back(net, image):
    before = copy.deepcopy(net.state_dict())
    found = gradient(net, image, torch.tensor([2]))
    claimed = fedsim.invert(found, net, DLG(iterations=60), shape=(1, 8, 8))
    assert (claimed.inputs[0] - image[0]).square().mean() < 1e-6
    assert claimed.labels.tolist() == [2]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    again = fedsim.invert(found, net, DLG(iterations=60), shape=(1, 8, 8))
    assert torch.equal(claimed.inputs[0], again.inputs[0])


def test_new_weights_are_an_update(net, image):
    found = gradient(net, image, torch.tensor([3]))
    after = {name: p.detach() - 0.1 * found[name] for name, p in net.named_parameters()}
    update = Update(tensors=after, kind="weights", lr=0.1)
    assert fedsim.invert(update, net, LLG(), shape=(1, 8, 8)).label_set == {3}
    (claimed,) = fedsim.invert(update, net, FirstLinear(), shape=(1, 8, 8)).inputs
    assert (claimed - image[0]).square().mean() < 1e-6


def test_known_labels_are_used(net, image):
    found = gradient(net, image, torch.tensor([1]))
    adversary = InvertingGradients(labels_from="given", iterations=2, restarts=0)
    with pytest.raises(NotGranted, match="give labels="):
        fedsim.invert(found, net, adversary, shape=(1, 8, 8))
    claimed = fedsim.invert(found, net, adversary, shape=(1, 8, 8), labels=[1], budget=2)
    assert claimed.labels.tolist() == [1]


def test_what_does_not_fit_is_refused_in_a_sentence(net, image):
    found = gradient(net, image, torch.tensor([1]))
    with pytest.raises(ScenarioError, match="cannot take the clients' inputs"):
        fedsim.invert(found, net, LLG(), shape=(1, 9, 9))
    turned = found | {"1.weight": found["1.weight"].T}
    with pytest.raises(ScenarioError, match=r"'1\.weight' has shape \(64, 24\)"):
        fedsim.invert(turned, net, LLG(), shape=(1, 8, 8))
    del found["3.bias"]
    with pytest.raises(ScenarioError, match=r"update: '3\.bias' is the name of a tensor"):
        fedsim.invert(found, net, LLG(), shape=(1, 8, 8))
    with pytest.raises(ScenarioError, match="dager"):
        fedsim.invert(found, net, DAGER(), shape=(1, 8, 8))
    found = gradient(net, image, torch.tensor([1]))
    with pytest.raises(NotGranted, match="needs AUXILIARY, which one update does not come with"):
        fedsim.invert(found, net, LLG(variant="llg+"), shape=(1, 8, 8))


def test_a_layer_alone_is_a_model(image):
    net = nn.Linear(64, 10)
    found = gradient(net, image.flatten(1), torch.tensor([2]))
    assert fedsim.invert(found, net, LLG(), shape=(64,)).label_set == {2}
    (claimed,) = fedsim.invert(found, net, FirstLinear(), shape=(64,)).inputs
    assert (claimed - image.flatten()).abs().max() < 1e-5
    with pytest.raises(ValueError, match=r"make it nn\.Sequential"):
        head_gradient(found, "", 10)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"adversary": LLG}, r"adversary: found .*LLG.*expected an object, such as LLG\(\)"),
        ({"adversary": "llg"}, "adversary: found 'llg'"),
        ({"update": []}, "update: found list; expected tensors by parameter name"),
        ({"num_examples": 0}, "num_examples: found 0; expected 1 or more"),
        ({"budget": 0}, "budget: found 0; expected 1 or more"),
        ({"labels": [4]}, r"labels: found \[4\]; expected classes from 0 to 3"),
        ({"labels": []}, r"labels: found \[\]; expected classes from 0 to 3, one for each"),
        ({"labels": [1.5]}, r"labels: found \[1.5\]; expected classes"),
        ({"labels": torch.eye(4)[[1]]}, r"labels: found \[\[0.0, 1.0, 0.0, 0.0\]\]; expected"),
        (
            {"adversary": DLG(), "shape": (1, 1, 8, 8)},
            r"shape: found \(1, 1, 8, 8\); expected that of one input without the batch dimension",
        ),
        ({"device": "cuda"}, 'device: found "cuda", and this PyTorch .*(CPUs alone|no GPU)'),
    ],
)
def test_arguments_of_another_type_or_out_of_range_are_refused(
    changed, said, net, image, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    given = {"update": gradient(net, image, torch.tensor([1])), "adversary": LLG()}
    with pytest.raises(ScenarioError, match=said):
        fedsim.invert(**given | {"model": net, "shape": (1, 8, 8)} | changed)


def test_each_layer_keeps_its_mode(image):
    class Modes(LLG):
        name = "modes"

        def reconstruct(self, seen, job):
            modes = {name: one.training for name, one in seen.model.module.named_modules()}
            return Reconstruction(diagnostics=modes)

    layers = [nn.Flatten(), nn.Linear(64, 24), nn.BatchNorm1d(24), nn.Linear(24, 4)]
    net = nn.Sequential(*layers)
    net[2].eval()  # as in fine-tuning
    found = gradient(net, torch.cat([image, image]), torch.tensor([2, 1]))
    claimed = fedsim.invert(found, net, Modes(), shape=(1, 8, 8), num_examples=2)
    assert claimed.diagnostics == {name: one.training for name, one in net.named_modules()}
    assert not claimed.diagnostics["2"]


def test_a_model_and_its_update_may_be_in_float64(net, image):
    exact, inputs, label = copy.deepcopy(net).double(), image.double(), torch.tensor([2])
    found = gradient(exact, inputs, label)
    attack = DLG(iterations=60)
    claimed = fedsim.invert(found, exact, attack, shape=(1, 8, 8))
    assert (claimed.inputs[0] - inputs[0]).square().mean() < 1e-6
    after = {name: p.detach() - 1e-4 * found[name] for name, p in exact.named_parameters()}
    update = Update(tensors=after, kind="weights", lr=1e-4)
    (claimed,) = fedsim.invert(update, exact, FirstLinear(), shape=(1, 8, 8)).inputs
    assert (claimed - inputs[0]).square().mean() < 1e-12
    assert exact[1].weight.dtype == torch.float64


def test_arrays_of_numpy_and_a_single_label_are_taken(net, image):
    found = gradient(net, image, torch.tensor([1]))
    given = {"model": net, "adversary": FirstLinear(), "shape": (1, 8, 8), "labels": 1}
    arrays = {name: value.numpy() for name, value in found.items()}
    claimed, expected = fedsim.invert(arrays, **given), fedsim.invert(found, **given)
    assert torch.equal(claimed.inputs[0], expected.inputs[0])
