"""What a pass keeps for its derivatives is counted, and the model stays as it was."""

import torch
from torch import nn

from fedsim.gradients import kept_values
from fedsim.victim import VictimModel


def victim(*layers: nn.Module) -> VictimModel:
    module = nn.Sequential(*layers)

    def loss(module, inputs, target, **_):
        return nn.functional.cross_entropy(module(inputs), target)

    return VictimModel(module, head=str(len(layers) - 1), loss=loss)


def test_a_perceptron_keeps_its_inputs_activations_and_logits():
    # Of 12 inputs, 7 hidden units and 3 classes: the inputs, the sigmoid's output once although it
    # is kept by the sigmoid and the head, and of the loss probabilities and soft labels.
    model = victim(nn.Linear(12, 7), nn.Sigmoid(), nn.Linear(7, 3))
    assert kept_values(model, (12,), 3) == 12 + 7 + 3 + 3


def test_weights_do_not_count_and_layers_do():
    narrow = victim(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 2))
    deep = victim(*(nn.Linear(4, 4), nn.Sigmoid()) * 5, nn.Linear(4, 2))
    assert kept_values(deep, (4,), 2) < sum(w.numel() for w in deep.parameters().values())
    assert kept_values(deep, (4,), 2) > kept_values(narrow, (4,), 2)


def test_a_pass_changes_neither_the_model_nor_the_random_state():
    model = victim(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten(), nn.LazyLinear(2)
    )
    model.module(torch.zeros(2, 1, 5, 5))
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    torch.manual_seed(0)
    kept_values(model, (1, 5, 5), 2)
    assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(0))
    assert model.module.training
    for name, value in model.module.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(weight.grad is None for weight in model.parameters().values())
