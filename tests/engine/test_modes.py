"""What scripts and notebooks do: other modes of torch, and scenarios that are none."""

import contextlib

import pytest
import torch
from support.tiny import scenario, timeless
from torch import nn

from adversaries import DLG
from fedsim import attack, diagnose, invert, simulate, train
from fedsim.errors import ScenarioError

pytestmark = pytest.mark.usefixtures("unreported")


@contextlib.contextmanager
def other_modes():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"), torch.inference_mode(), torch.autocast("cpu"):
            yield
    finally:
        torch.set_default_dtype(before)


def test_modes_that_a_notebook_has_set_change_no_run(tmp_path):
    adversaries = [{"name": "dlg", "iterations": 3, "restarts": 1}, {"name": "llg"}]
    run = scenario(adversaries=adversaries)
    simulate(run, tmp_path / "plain")
    with other_modes():
        simulate(run, tmp_path / "live")
        train(run, tmp_path / "later")
        attack(tmp_path / "later")
        found = diagnose(tmp_path / "later")
        assert torch.is_inference_mode_enabled()
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_default_dtype() == torch.float64
        assert torch.ones(1).device.type == "meta"
    assert timeless(tmp_path / "live") == timeless(tmp_path / "plain")
    assert timeless(tmp_path / "later") == timeless(tmp_path / "plain")
    assert found.equals(diagnose(tmp_path / "later"))


def test_one_update_can_be_inverted_where_gradients_are_off():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), torch.rand(1, 1, 4, 4)
    loss = nn.functional.cross_entropy(net(x), torch.tensor([1]))
    names = [name for name, _ in net.named_parameters()]
    gradient = dict(zip(names, torch.autograd.grad(loss, list(net.parameters())), strict=True))
    with torch.no_grad():
        claimed = invert(gradient, net, DLG(iterations=20), shape=(1, 4, 4))
    assert claimed.inputs is not None


@pytest.mark.parametrize("found", [{"seed": 1}, "quickstart.toml"])
def test_what_is_no_scenario_is_refused_with_the_way_to_make_one(found, tmp_path):
    for command in (simulate, train):
        with pytest.raises(ScenarioError, match=r"expected a Scenario, such as Scenario\.load"):
            command(found, tmp_path / "run")
