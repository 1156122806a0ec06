"""What a task's evaluation may return, and what happens where it fails."""

import json

import pytest
import torch
from support.tiny import rows, scenario

from fedsim.engine.simulate import simulate
from fedsim.errors import ClientError, PluginError
from fedsim.tasks.images import Images

PLAIN = Images.evaluate


def evaluating(monkeypatch, more, *, server=False):
    """Let clients (or the server) also return `more`, or raise it; gives a run of two rounds."""

    def evaluate(self, module, client=None):
        found = PLAIN(self, module, client)
        if (client is None) != server:
            return found
        if isinstance(more, Exception):
            raise more
        return found | more if isinstance(more, dict) else more

    monkeypatch.setattr(Images, "evaluate", evaluate)
    return scenario(training={"rounds": 2, "evaluate_clients": 2})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"round": 5.0}, "named 'round'"),
        ({"point": 5.0}, "named 'point'"),
        ({3: 5.0}, "named 3"),
        ({"f1": "high"}, "'high' as 'f1'"),
        ({"f1": torch.ones(2)}, "as 'f1'; expected a number"),
        (None, "returned None"),
        (RuntimeError("it broke"), "raised RuntimeError: it broke"),
    ],
)
@pytest.mark.usefixtures("unreported")
def test_what_is_no_utility_is_an_error_of_the_task(more, said, monkeypatch, tmp_path):
    with pytest.raises(PluginError, match=r"evaluate\(\) of task 'images'") as raised:
        simulate(evaluating(monkeypatch, more, server=True), tmp_path)
    assert said in str(raised.value)


@pytest.mark.parametrize("value", [torch.tensor(0.5), True, 3])
@pytest.mark.usefixtures("unreported")
def test_numbers_of_clients_are_taken_as_the_servers_are(value, monkeypatch, tmp_path):
    simulate(evaluating(monkeypatch, {"f1": value}), tmp_path)
    found = [row["value"] for row in rows(tmp_path, "utility.csv") if row["metric"] == "client_f1"]
    assert [float(one) for one in found] == [float(value)] * 2


@pytest.mark.parametrize("more", [RuntimeError("it broke"), {"num_examples": 0}])
@pytest.mark.usefixtures("unreported")
def test_a_client_that_cannot_evaluate_ends_the_run_or_is_told_of(more, monkeypatch, tmp_path):
    run = evaluating(monkeypatch, more)
    with pytest.raises(ClientError, match="evaluation of round 1: 2 of 2 clients failed"):
        simulate(run, tmp_path / "stop")
    training = run.training.model_copy(update={"on_failure": "drop"})
    simulate(run.model_copy(update={"training": training}), tmp_path / "drop")
    log = [json.loads(one) for one in (tmp_path / "drop/log.jsonl").read_text("utf-8").splitlines()]
    said = [one["text"] for one in log if "evaluation of round" in one.get("text", "")]
    assert len(said) == 2
    assert "2 clients" in said[0]
