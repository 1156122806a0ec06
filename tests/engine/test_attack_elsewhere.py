"""A run that was recorded on a machine with a GPU is attacked on one without."""

import re

import pytest
import torch
from support.tiny import rows, scenario

from adversaries import IDLG
from fedsim.engine.attack import attack
from fedsim.engine.simulate import simulate
from fedsim.errors import ScenarioError

needs_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@needs_cpu
def test_a_gpu_that_is_not_there_is_an_error_and_no_failed_attacks(tmp_path):
    simulate(scenario(training={"rounds": 1}, adversaries=[]), tmp_path)
    settled = tmp_path / "scenario.toml"
    text = settled.read_text()
    settled.write_text(re.sub(r'device = ".*"', 'device = "cuda"', text))
    assert settled.read_text() != text
    with pytest.raises(
        ScenarioError, match=r'engine\.device = "cuda", .*Set engine\.device = "cpu"'
    ):
        attack(tmp_path, [IDLG()])
    with pytest.raises(ScenarioError, match=r"needs a GPU \(engine\.gpus_per_attack = 0\.5\)"):
        attack(tmp_path, [IDLG()], changes={"engine": {"device": "auto", "gpus_per_attack": 0.5}})
    assert rows(tmp_path, empty=True) == []
    attack(tmp_path, [IDLG()], changes={"engine": {"device": "cpu"}})
    assert {row["status"] for row in rows(tmp_path)} == {"ok"}
