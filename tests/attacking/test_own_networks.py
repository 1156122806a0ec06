"""Attacks that differentiate twice, on networks that torch computes by kernels of its own."""

import pytest
from support.own_code import beside, fresh
from support.tiny import rows

from fedsim.engine.simulate import simulate
from fedsim.scenario import Scenario

TRANSFORMER = """
import torch
from torch import nn


class Transformer(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.patches = nn.Conv2d(shape[0], 8, 4, 4)
        self.layer = nn.TransformerEncoderLayer(8, 2, 8, 0.0, activation="gelu", batch_first=True)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.head = nn.Linear(8, classes)

    def forward(self, inputs):
        tokens = self.patches(inputs).flatten(2).transpose(1, 2)
        return self.head(self.scale * self.layer(tokens).mean(dim=1))
"""

SCENARIO = """
[task]
name = "images"
data = "digits"
model = "{module}:Transformer"
test_examples = 10
[training]
algorithm = "fedsgd"
rounds = 1
clients = 2
batch_size = 1
[threat]
grants = "white-box"
victims = 1
isolation = "{isolation}"
[[adversaries]]
name = "dlg"
iterations = 3
restarts = 0
[engine]
workers = 1
"""


@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.usefixtures("unreported")
def test_attention_and_a_factor_are_differentiated_twice(tmp_path, isolation):
    module = fresh()
    text = SCENARIO.format(module=module, isolation=isolation)
    path = beside(tmp_path, text, **{module: TRANSFORMER})
    simulate(Scenario.load(path), tmp_path / "run")
    assert {(row["status"], row["error"]) for row in rows(tmp_path / "run")} == {("ok", "")}
