"""Parts of a module are what torch finds, also after the module was changed."""

import gc
import weakref

import pytest
import torch
from torch import nn

from fedsim.parts import PURE, is_pure, parts, training_mode


def tied():
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    module[2].weight = module[0].weight
    module.register_buffer("shown", torch.zeros(1))
    module.register_buffer("hidden", torch.zeros(1), persistent=False)
    return module


def agree(module):
    found = parts(module)
    for ours, theirs in (
        (found.parameters, dict(module.named_parameters())),
        (found.buffers, dict(module.named_buffers())),
        (found.state, module.state_dict(keep_vars=True)),
    ):
        assert list(ours) == list(theirs)
        assert all(ours[name] is value for name, value in theirs.items())


def replaced_parameter(module):
    module[0].bias = nn.Parameter(torch.ones(3))


def replaced_buffer(module):
    module.shown = module.shown + 1


def replaced_submodule(module):
    module[2] = nn.Linear(3, 5)


def added(module):
    module.append(nn.Linear(3, 1))


def removed(module):
    module[2].bias = None


@pytest.mark.parametrize(
    "change", [replaced_parameter, replaced_buffer, replaced_submodule, added, removed]
)
def test_parts_are_found_again_where_a_module_was_changed(change):
    module = tied()
    agree(module)
    known = parts(module)
    assert parts(module) is known
    change(module)
    agree(module)


def test_training_mode_is_set_where_a_part_is_not_in_it():
    module = tied()
    module[1].eval()
    training_mode(module)
    assert all(part.training for part in module.modules())
    module.eval()
    training_mode(module)
    assert all(part.training for part in module.modules())


def test_a_module_that_nobody_uses_any_more_is_forgotten():
    module = tied()
    parts(module)
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None


def test_a_scripted_module_has_its_parts():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
    for _ in range(2):
        assert set(parts(scripted).parameters) == {"0.weight", "0.bias"}


def chain(*more):
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3), *more)


class Own(nn.Linear):
    pass


class OwnParameter(nn.Parameter):
    pass


def with_change(change):
    module = chain()
    change(module)
    return module


IMPURE = {
    "dropout": lambda: chain(nn.Dropout()),
    "buffers": lambda: chain(nn.BatchNorm1d(3)),
    "own layer": lambda: chain(Own(3, 3)),
    "hook": lambda: with_change(lambda m: m[0].register_forward_hook(print)),
    "hook before": lambda: with_change(lambda m: m.register_forward_pre_hook(print)),
    "hook of the gradient": lambda: with_change(lambda m: m[3].register_full_backward_hook(print)),
    "hook of a parameter": lambda: with_change(lambda m: m[3].weight.register_hook(print)),
    "own forward": lambda: with_change(lambda m: setattr(m[1], "forward", torch.rand_like)),
    "a buffer": lambda: with_change(lambda m: m[1].register_buffer("seen", torch.zeros(1))),
    "own kind of parameter": lambda: with_change(
        lambda m: setattr(m[3], "weight", OwnParameter(torch.ones(3, 8)))
    ),
    "parametrised": lambda: with_change(
        lambda m: nn.utils.parametrizations.weight_norm(m[3], "weight")
    ),
}


@pytest.mark.parametrize("made", IMPURE.values(), ids=IMPURE)
def test_what_may_draw_or_change_something_is_not_pure(made):
    assert is_pure(chain())
    assert not is_pure(made())


def test_nothing_is_pure_under_a_hook_of_all_modules():
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not is_pure(chain())
    finally:
        handle.remove()
    assert is_pure(chain())


@pytest.mark.parametrize("kind", sorted(PURE - {nn.Sequential}, key=lambda one: one.__name__))
def test_pure_layers_change_nothing_and_draw_nothing(kind):
    layer, shape = GIVEN.get(kind.__name__, (kind, (4, 2, 6, 6)))
    module = layer().train()
    assert is_pure(module)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state, inputs = torch.get_rng_state(), torch.ones(shape, requires_grad=True)
    first, again = module(inputs), module(inputs)
    assert torch.equal(first, again)
    wanted = [inputs, *module.parameters()]
    slopes = [torch.autograd.grad(one.square().sum(), wanted) for one in (first, again)]
    assert all(map(torch.equal, *slopes))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_module_with_a_train_of_its_own_is_asked_although_all_its_layers_train():
    class Frozen(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].eval()
            return self

    module = Frozen(nn.Linear(3, 3), nn.BatchNorm1d(3))
    assert module[1].training
    training_mode(module)
    assert module[0].training
    assert not module[1].training


GIVEN = {
    "Linear": (lambda: nn.Linear(6, 2), (4, 6)),
    "Conv1d": (lambda: nn.Conv1d(2, 3, 2), (4, 2, 6)),
    "Conv2d": (lambda: nn.Conv2d(2, 3, 2), (4, 2, 6, 6)),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2), (4, 2, 6, 6, 6)),
    "Unflatten": (lambda: nn.Unflatten(1, (3, 2)), (4, 6)),
    "ZeroPad2d": (lambda: nn.ZeroPad2d(1), (4, 2, 6, 6)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (4, 2, 6, 6)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), (4, 2, 6, 6)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(1), (4, 2, 6, 6)),
    "LayerNorm": (lambda: nn.LayerNorm(6), (4, 6)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 2), (4, 2, 6)),
}
"""Layers that need arguments, and the shape of an input."""
