"""A federation of the speech task: what is sent, and what attacks find in it."""

import pytest
from support.sequence_tasks import DP_SGD, clips_one_by_one, sent_and_computed
from support.small_speech import TASK, scenario
from support.tiny import meaning, rows, same, sent, timeless

from fedsim.engine.preflight import preflight
from fedsim.engine.simulate import simulate
from fedsim.errors import ScenarioError
from fedsim.scenario import Scenario
from fedsim.tasks.speech import Speech

pytestmark = pytest.mark.usefixtures("unreported")


@pytest.fixture(scope="module")
def task():
    return Speech(seed=3, clients=4, **TASK)


def test_fedsgd_sends_the_gradient_of_the_padded_batch():
    reply, gradient = sent_and_computed(scenario(), 2)
    assert same(sent(reply), gradient)
    assert meaning(reply)["reduction"] == "token"
    assert meaning(reply)["num_examples"] == 2


def test_the_head_gradient_tells_what_was_said(task):
    """Its bias has the mean of p - y over all word pieces: negative only where one occurs."""
    (batch,) = task.batches(0, 0, batch_size=2, steps=1)
    gradient = task.victim({}).gradient(batch.inputs, batch.labels, lengths=batch.lengths)
    said = batch.labels[batch.labels != -100]
    negative = (gradient["speller.head.bias"] < 0).nonzero().flatten()
    assert set(negative.tolist()) == set(said.tolist())


@pytest.mark.reported
@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_a_run_finds_words_and_its_report_escapes_them(tmp_path, algorithm):
    steps = {"fedsgd": 1, "fedavg": 2}[algorithm]
    run = scenario(training={"algorithm": algorithm, "local_steps": steps})
    simulate(run, tmp_path / "run")
    found = {row["metric"]: row for row in rows(tmp_path / "run")}
    assert float(found["label_precision"]["value"]) == 1
    assert 0 < float(found["label_recall"]["value"]) <= 1
    assert {row["batch_size"] for row in found.values()} == {"2"}
    assert found["label_f1"]["artifact"].endswith("bias-signs/reconstruction.txt")
    assert {row["metric"] for row in rows(tmp_path / "run", "utility.csv")} >= {"loss", "wer"}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "&lt;end&gt;" in page
    assert "<end>" not in page


def test_engines_find_the_same(tmp_path, ray_session):
    training = {"algorithm": "fedavg", "local_steps": 2}
    for name, workers in (("inline", 1), ("ray", 2)):
        engine = {"name": name, "workers": workers}
        simulate(scenario(training=training, engine=engine), tmp_path / name)
    assert timeless(tmp_path / "inline") == timeless(tmp_path / "ray")


def test_dp_sgd_clips_utterance_by_utterance(task):
    clips_one_by_one(scenario(defenses=[DP_SGD]), task)
    refused = scenario(defenses=[{"name": "dp-sgd", "per_example": "opacus"}])
    with pytest.raises(ScenarioError, match="Opacus"):
        preflight(refused)


def test_the_shipped_scenario_holds():
    run = Scenario.load("speech")
    built, cautions = preflight(run)
    assert built.task.spec.classes == 256
    assert cautions == []
