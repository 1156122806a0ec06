"""What a gradient leaves open of a batch, counted for networks whose numbers are known."""

import math
from collections import OrderedDict

import torch
from torch import nn

from fedsim import ImageSpec, VictimModel
from fedsim.diagnosis.counting import counted, cuts
from fedsim.tasks.classification import cross_entropy
from fedsim.tasks.models import as_architecture


def test_the_gradient_of_dlg_s_network_determines_one_photograph():
    module = as_architecture("lenet-sigmoid").build((3, 32, 32), 100)
    spec = ImageSpec(classes=100, input_shape=(3, 32, 32))
    victim = VictimModel(module, head="head", loss=cross_entropy, spec=spec)
    # What stands above the second convolution tells its 768 outputs, and nothing else of an image.
    below = 12 * 75 + 12 + 12 * 300 + 12
    found = [counted(victim, examples)["unknowns"] for examples in (1, 2)]
    assert found == [n * (3072 - 768) / below for n in (1, 2)]
    assert counted(victim, None) == {"unknowns": None, "determined": 1}
    zeros = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    assert counted(victim, 1, zeros) == {
        "unknowns": math.inf,
        "determined": 0,
    }  # nothing was sent that tells of an input
    all_below = below + 12 * 300 + 12
    open_at_head = (1000 * 3072 - 100 * 768) / all_below  # features of a hundred examples alone
    assert counted(victim, 1000)["unknowns"] == max(open_at_head, 1000 * (3072 - 768) / below)


class Shortcut(nn.Module):
    """A narrow layer that a shortcut passes by."""

    def __init__(self):
        super().__init__()
        self.narrow = nn.Linear(16, 4)
        self.wide = nn.Linear(4, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, inputs):
        flat = inputs.flatten(1)
        return self.head(flat + self.wide(torch.tanh(self.narrow(flat))))


def test_a_layer_that_a_shortcut_passes_by_hides_nothing():
    spec = ImageSpec(classes=3, input_shape=(1, 4, 4))
    victim = VictimModel(Shortcut(), head="head", loss=cross_entropy, spec=spec)
    assert not cuts(victim, 16)
    # Beyond three classes further examples' features are not known: 148 weights, 48 features.
    assert counted(victim, 3) == {"unknowns": 0, "determined": (148 + 48) // 16}
    assert counted(victim, 12)["unknowns"] <= 1 < counted(victim, 13)["unknowns"]
    plain = nn.Sequential(
        OrderedDict(
            flat=nn.Flatten(), narrow=nn.Linear(16, 4), wide=nn.Linear(4, 16), head=nn.Linear(16, 3)
        )
    )
    victim = VictimModel(plain, head="head", loss=cross_entropy, spec=spec)
    assert [(cut.layer, cut.width) for cut in cuts(victim, 16)] == [("narrow", 4)]
    assert cuts(victim, 16)[0].below == {"narrow.weight", "narrow.bias"}
    assert counted(victim, 1) == {"unknowns": 12 / 68, "determined": 5}


class InPlace(nn.Module):
    """A narrow layer before an activation in place, beside parts that return no features."""

    def __init__(self, inplace):
        super().__init__()
        self.narrow = nn.Linear(16, 4)
        self.relu = nn.ReLU(inplace=inplace)
        self.penalty, self.chosen = Penalty(), Chosen()
        self.head = nn.Linear(4, 3)

    def forward(self, inputs):
        features = self.relu(self.narrow(inputs.flatten(1)))
        self.chosen(features)
        return self.head(features) + self.penalty(features)


class Penalty(nn.Module):
    """A part that returns a scalar."""

    def forward(self, features):
        return features.square().mean()


class Chosen(nn.Module):
    """A part that returns integers."""

    def forward(self, features):
        return features.argmax(dim=1, keepdim=True)


def test_activations_in_place_and_parts_without_features_are_counted_as_any_others():
    spec = ImageSpec(classes=3, input_shape=(1, 4, 4))
    found = [
        cuts(VictimModel(InPlace(inplace), head="head", loss=cross_entropy, spec=spec), 16)
        for inplace in (False, True)
    ]
    assert found[0] == found[1]
    assert {"narrow", "relu"} <= {cut.layer for cut in found[0]}


class Tied(nn.Module):
    """A weight that is used below its narrow outputs and, turned, above them."""

    def __init__(self):
        super().__init__()
        self.narrow = nn.Linear(16, 4)
        self.head = nn.Linear(16, 3)

    def forward(self, inputs):
        hidden = torch.tanh(self.narrow(inputs.flatten(1)))
        return self.head(torch.tanh(hidden @ self.narrow.weight))


def test_a_weight_that_is_used_on_both_sides_of_a_layer_counts_below_it():
    spec = ImageSpec(classes=3, input_shape=(1, 4, 4))
    victim = VictimModel(Tied(), head="head", loss=cross_entropy, spec=spec)
    assert {cut.below for cut in cuts(victim, 16)} == {frozenset({"narrow.weight", "narrow.bias"})}
    assert counted(victim, 2)["unknowns"] == 2 * (16 - 4) / (4 * 16 + 4)
