"""Parts of a module are what torch finds, also after the module was changed."""

import gc
import weakref

import pytest
import torch
from torch import nn

from fedsim.parts import parts, training_mode


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
