"""A federation of the text task: what is sent, and what attacks find in it."""

import pytest
import torch
from support.sequence_tasks import DP_SGD, clips_one_by_one, sent_and_computed
from support.small_text import scenario, small
from support.tiny import meaning, rows, same, sent

from fedsim.engine.preflight import preflight
from fedsim.engine.simulate import simulate
from fedsim.errors import ScenarioError
from fedsim.scenario import Scenario
from fedsim.training.local import local_training


@pytest.fixture(scope="module")
def task():
    return small()


@pytest.mark.parametrize("kind", ["classification", "masked-lm"])
def test_fedsgd_sends_the_gradient_of_the_padded_batch(kind):
    run = scenario(task={"task": kind, "parameters": "lamp"})
    task = run.build_task()
    reply, gradient = sent_and_computed(run, 2, task.trained(task.module()))
    assert same(sent(reply), gradient)
    assert meaning(reply)["reduction"] == ("token" if kind == "masked-lm" else "example")
    assert meaning(reply)["num_examples"] == 3


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_a_run_finds_topics_and_tells_its_utility(tmp_path, algorithm):
    steps = {"fedsgd": 1, "fedavg": 2}[algorithm]
    run = scenario(training={"algorithm": algorithm, "local_steps": steps, "batch_size": 1})
    simulate(run, tmp_path / "run")
    found = {row["metric"]: row for row in rows(tmp_path / "run")}
    assert {row["status"] for row in found.values()} == {"ok"}
    assert float(found["label_precision"]["value"]) == 1
    utility = {row["metric"] for row in rows(tmp_path / "run", "utility.csv")}
    assert utility >= {"loss", "accuracy", "mcc"}


def test_dp_sgd_clips_text_by_text(task):
    clips_one_by_one(scenario(defenses=[DP_SGD]), task)
    run = scenario(defenses=[{**DP_SGD, "per_example": "opacus"}])
    module, batches = task.module(), task.batches(1, 0, batch_size=3, steps=1)
    defenses = run.build_defenses()
    training = local_training(run, task, module, batches, torch.Generator(), defenses)
    with pytest.raises(ScenarioError, match="gradient of each example"):
        training.gradient(module, batches[0])


def test_the_shipped_scenario_holds():
    run = Scenario.load("text")
    built, cautions = preflight(run)
    task = built.task
    assert (task.spec.classes, task.spec.vocabulary) == (4, 1000)
    assert cautions == []
