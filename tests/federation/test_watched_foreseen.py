"""What is refused, and what is said of attacks, before someone's own project is attacked."""

import logging
from functools import partial

import pytest
from flwr.serverapp.strategy import FedAvg
from support.watched import audited
from torch import nn, optim

from adversaries import IDLG, LLG
from fedsim import HonestButCurious, reveal
from fedsim.errors import RunFolderError, ScenarioError
from fedsim.spec import Spec
from fedsim.tasks.images import Images


def train(net, loader):
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    for x, y in reveal(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


def test_an_attack_that_should_find_nothing_is_named_before_it_is_made(
    tmp_path, caplog, monkeypatch
):
    class Audit(HonestButCurious):
        def __init__(self, strategy, adversaries, **settings):
            super().__init__(strategy, [IDLG()], **settings)

    monkeypatch.setattr("support.watched.HonestButCurious", Audit)
    caplog.set_level(logging.INFO, logger="flwr")
    audited(tmp_path, train, train)
    said = "idlg is expected to find nothing: 32 examples; it needs a single example"
    assert caplog.text.count(said) == 1
    assert caplog.text.index(said) < caplog.text.index("attacks to make")


def test_settings_are_refused_before_any_client_trains(tmp_path):
    class Clouds(Spec):
        modality = "clouds of points"

    class Elsewhere(LLG):
        name = "elsewhere"
        suits = (Clouds,)

    (tmp_path / "used").mkdir()
    (tmp_path / "used/note").touch()
    task = Images(data="digits", clients=2)
    for settings, error, complaint in (
        ({"out": tmp_path / "used"}, RunFolderError, "not empty and holds no run"),
        ({"threat": {"grants": "everything"}}, ScenarioError, "everything"),
        ({"adversaries": [Elsewhere()]}, ScenarioError, "elsewhere"),
        ({"task": task}, ScenarioError, "model= and a task"),
        ({"model": None, "task": task, "loss": len}, ScenarioError, "belong to a model"),
        ({"example": "cat"}, ScenarioError, "example: expected a batch"),
        ({"model": nn.Linear(4, 2)}, ScenarioError, "model is Linear .* expected what makes"),
        ({"model": "Net"}, ScenarioError, "model is str 'Net'; expected what makes"),
        ({"loss": "mse"}, ScenarioError, "loss is 'mse'; expected a function of the model"),
        ({"budget_s": "x"}, ScenarioError, "budget_s is 'x'; expected seconds"),
    ):
        with pytest.raises(error, match=complaint):
            HonestButCurious(
                FedAvg(), **{"model": partial(nn.Linear, 4, 2), "out": tmp_path / "run", **settings}
            )
    assert not (tmp_path / "run").exists()
