"""Every built-in metric and task keeps its contract; a wrong one is told what is wrong."""

import math
import threading

import pytest
import torch
from pydantic import PrivateAttr
from support.tiny import scenario
from torch import nn

from fedsim import testing
from fedsim.metric import Measure, Metric
from fedsim.metrics import installed
from fedsim.plugin import find, names
from fedsim.records import Batch, Reconstruction
from fedsim.spec import Spec
from fedsim.task import Task
from fedsim.tasks.images import Images
from fedsim.tasks.speech import Speech
from fedsim.testing import metrics
from fedsim.testing.metrics import metric_complaints, true_claim

SPEAKERS = Speech(clients=2, speakers=24, utterances=4, auxiliary_fraction=0.5)


def test_tests_compute_where_the_environment_says(monkeypatch):
    monkeypatch.delenv("FEDSIM_TEST_DEVICE", raising=False)
    assert (testing.job().device, scenario().engine.device) == (torch.device("cpu"), "auto")
    monkeypatch.setenv("FEDSIM_TEST_DEVICE", "cuda:1")
    assert (testing.job().device, scenario().engine.device) == (torch.device("cuda:1"), "cuda:1")
    assert scenario(engine={"workers": 1, "vectorize": 2}).engine.device == "cuda:1"
    # A test's own device counts more, and Ray and Flower have their workers on theirs.
    assert scenario(engine={"workers": 1, "device": "cpu"}).engine.device == "cpu"
    for elsewhere in ({"name": "ray", "workers": 1}, {"workers": 2}, {"name": "flower"}):
        assert scenario(engine=elsewhere).engine.device == "auto"


@pytest.mark.parametrize("name", [n for n in installed() if n not in ("lpips", "speaker_top5")])
def test_every_built_in_metric_keeps_its_contract(name):
    assert testing.conformance(type(installed()[name])) == []


def test_metrics_that_suit_few_tasks_keep_their_contract_on_one_of_these():
    for name in ("speaker_top1", "speaker_top5", "speaker_mrr", "wer", "mae"):
        assert installed()[name].suits(SPEAKERS.spec), name
        assert testing.conformance(type(installed()[name]), SPEAKERS) == []
    (said,) = testing.conformance(type(installed()["ssim"]), SPEAKERS)
    assert "it does not suit the sample" in said


@pytest.mark.parametrize("name", names("tasks"))
def test_every_built_in_task_keeps_its_contract(name):
    assert testing.conformance(find("tasks", name)) == []


def test_the_claim_of_the_truth_names_every_field():
    truth = Images().truth([0], 1, batch_size=4, steps=1)
    claimed = true_claim(truth, Images().spec)
    assert sum(claimed.label_counts.values()) == len(claimed.labels) == claimed.num_labels == 4
    assert claimed.inputs is truth.inputs


# --- metrics --------------------------------------------------------------------------------

GOOD = Measure("Labels found", "Labels that were named.", "{share} of {n} updates", kind="share")


def metric(
    shown: Measure = GOOD, fields=("labels",), name="labels-found", **methods
) -> type[Metric]:
    """A metric made of these."""
    body = {"__doc__": "Share of labels.", "name": name, "fields": fields, "shown": shown}
    return type("Made", (Metric,), {"__module__": __name__, **body, **methods})


def found(self, claimed, truth, spec) -> float:
    left = truth.labels.tolist()
    for label in claimed.labels.tolist() if claimed.labels is not None else ():
        if label in left:
            left.remove(label)
    return 1 - len(left) / len(truth.labels)


def missed(self, claimed, truth, spec) -> float:
    return 1 - found(self, claimed, truth, spec)


def in_order(self, claimed, truth, spec) -> float:
    if claimed.labels.shape != truth.labels.shape:
        return 0.0
    return float((claimed.labels == truth.labels).double().mean())


def spoils(self, claimed, truth, spec) -> float:
    score = found(self, claimed, truth, spec)
    claimed.labels.zero_()
    return score


def drawn(self, claimed, truth, spec) -> float:
    return found(self, claimed, truth, spec) * (1 - 0.01 * float(torch.rand(())))


def divided(self, claimed, truth, spec) -> float:
    return found(self, claimed, truth, spec) / math.copysign(1, len(claimed.labels) - 0.5) or 1 // 0


def test_a_good_metric_has_no_complaints():
    assert testing.conformance(metric(compute=lambda *a: torch.tensor(found(*a)))) == []
    assert testing.conformance(metric(compute=found)) == []
    lower = Measure("Missed", "Labels missed.", "{share} missed", kind="share", lower=True)
    assert testing.conformance(metric(lower, compute=missed)) == []


WRONG = [
    (metric(compute=missed), "nothing scores 1, better than the truth itself (0)"),
    (metric(compute=missed), "a claim of the truth scores 0, and by `shown` the best value is 1"),
    (metric(compute=lambda *_: 1.0), "nothing scores 1, no worse than the truth"),
    (metric(compute=lambda *a: 5 * found(*a)), "the best value is 1"),
    (metric(compute=in_order), "the truth in another order scores"),
    (metric(compute=spoils), "it changes the claim or the truth"),
    (metric(compute=drawn), "it draws from a global generator"),
    (metric(compute=divided), "it raises ZeroDivisionError"),
    (metric(compute=lambda *_: math.nan), "it is not defined (NaN) for a claim of the truth"),
    (
        metric(compute=lambda *_: torch.ones(2)),
        "returned Tensor tensor([1., 1.]), expected a number",
    ),
    (metric(compute=lambda *_: None), "returned NoneType None, expected a number"),
    (metric(compute=found, fields=("labels", "inputs")), "inputs alone scores 0, not 1"),
    (metric(compute=found, chance=lambda *_: 2.0), "a random guess scores 2, outside the range"),
    (metric(compute=found, suits=lambda self, spec: spec.size > 3), "suits() raises"),
    (metric(compute=found, fields=("lables",)), "fields names ['lables']"),
    (metric(compute=found, fields=()), "fields is not declared"),
    (metric(compute=found, fields=("sequences",)), "say in suits() which tasks have it"),
    (metric(None, compute=found), "shown is not declared"),
    (
        metric(Measure("A", "B.", "{mean} of {n}"), compute=found),
        "the phrase of shown has ['mean']",
    ),
    (metric(Measure("", "B.", "{value}"), compute=found), "shown has no title"),
    (metric(Measure("A", "B.", "{value}", kind="big"), compute=found), "metrics.json"),
    (metric(Measure("A", "B.", "{value}", rank=math.nan), compute=found), "metrics.json"),
    (metric(compute=found, name="Labels Found"), "name is 'Labels Found'"),
    (metric(), "Made() fails"),
]


@pytest.mark.parametrize(("cls", "words"), WRONG, ids=[words for _, words in WRONG])
def test_a_wrong_metric_is_told_what_is_wrong(cls, words):
    complaints = testing.conformance(cls)
    assert any(words in complaint for complaint in complaints), complaints


def test_an_installed_task_that_cannot_be_made_is_no_complaint_about_a_metric(monkeypatch):
    monkeypatch.setattr(metrics, "names", lambda kind: [f"{__name__}:Needy", *names(kind)])
    assert testing.conformance(metric(compute=found)) == []


class Needy(Images):
    """Cannot be made without a setting."""

    name = "needy"
    scanner: int


def test_a_metric_whose_values_are_open_ended_must_still_put_the_truth_first():
    shown = Measure("Nearness", "Higher is nearer.", "{value} over {n} updates")
    assert testing.conformance(metric(shown, compute=lambda *a: 7 * found(*a) - 3)) == []
    away = testing.conformance(metric(shown, compute=lambda *a: -found(*a)))
    assert any("as `shown` says that higher is better" in one for one in away), away


def test_a_metric_of_an_attacks_own_search_is_not_held_against_chance():
    shown = Measure("Steps", "Steps taken.", "{value} over {n} updates", leaks=False)
    own = metric(shown, ("objective",), compute=lambda self, claimed, *_: claimed.objective)
    assert testing.conformance(own) == []
    assert metric_complaints(own(), Images(clients=2)) == []


# --- tasks ----------------------------------------------------------------------------------


def mean_loss(module, inputs, target, *, lengths=None, at="input"):
    return nn.functional.cross_entropy(module(inputs), target)


def summed_loss(module, inputs, target, *, lengths=None, at="input"):
    return nn.functional.cross_entropy(module(inputs), target, reduction="sum")


def detached_loss(module, inputs, target, *, lengths=None, at="input"):
    return nn.functional.cross_entropy(module(inputs.detach()), target)


def float_loss(module, inputs, target, *, lengths=None, at="input"):
    return 1.0


def vector_loss(module, inputs, target, *, lengths=None, at="input"):
    return nn.functional.cross_entropy(module(inputs), target, reduction="none")


class Points(Task):
    """Points in the plane, labelled by their quadrant."""

    name = "points"

    @property
    def spec(self):
        return Spec(4, (2,), (-1.0, 1.0))

    def batches(self, client, round, *, batch_size, steps):
        rng = torch.Generator().manual_seed(1000 * self.seed + 100 * client + round)
        inputs = torch.rand(steps, batch_size, 2, generator=rng) * 2 - 1
        return [Batch(one, (one[:, 0] > 0).long() + 2 * (one[:, 1] > 0)) for one in inputs]

    def num_examples(self, client):
        return 100

    def fingerprint(self):
        return "points"

    def build(self):
        return nn.Sequential(nn.Linear(2, 8), nn.Sigmoid(), nn.Linear(8, 4))

    @property
    def head(self):
        return "2"

    @property
    def loss(self):
        return mean_loss

    def evaluate(self, module, client=None):
        (batch,) = self.batches(0, 999, batch_size=50, steps=1)
        with torch.no_grad():
            loss = float(mean_loss(module, batch.inputs, batch.labels))
        return {"loss": loss, "num_examples": 50}

    def guess(self, truth, rng, *, informed):
        count = truth.num_examples
        return Reconstruction(
            labels=torch.randint(4, (count,), generator=rng),
            inputs=list(torch.rand(count, 2, generator=rng) * 2 - 1),
        )


def points(**methods) -> type[Task]:
    body = {"__module__": __name__, "__doc__": Points.__doc__, **methods}
    made = type("Made", (Points,), body)
    globals()["Made"] = made  # pickle finds classes by name
    made.__qualname__ = "Made"
    return made


def outside(self, client, round, *, batch_size, steps):
    return [
        Batch(3 * one.inputs, one.labels + 1)
        for one in Points.batches(self, client, round, batch_size=batch_size, steps=steps)
    ]


def global_batches(self, client, round, *, batch_size, steps):
    return [Batch(torch.rand(batch_size, 2), torch.zeros(batch_size).long()) for _ in range(steps)]


def ragged(self, client, round, *, batch_size, steps):
    return [Batch(torch.rand(batch_size + 1, 3), torch.zeros(batch_size).long())] * steps


def one_step(self, client, round, *, batch_size, steps):
    return Points.batches(self, client, round, batch_size=batch_size, steps=1)


def knowing(self, truth, rng, *, informed):
    return Reconstruction(labels=truth.labels.clone())


def unwritten(self, truth, rng, *, informed):
    raise NotImplementedError


def training_evaluate(self, module, client=None):
    module.eval()
    return {"loss": 1.0, "num_examples": 5}


WRONG_TASKS = [
    ({"batches": outside}, "labels are int64 from 0 to 3"),
    ({"batches": outside}, "inputs leave spec.input_range"),
    ({"batches": global_batches}, "they draw from the global generator of torch"),
    ({"batches": global_batches}, "not a function of (seed, client, round)"),
    ({"batches": ragged}, "one label an example"),
    ({"batches": ragged}, "spec.input_shape is (2,)"),
    ({"batches": one_step}, "1 for steps = 2"),
    ({"batches": lambda self, *_, **__: None}, "NoneType; return a list with a Batch"),
    ({"batches": lambda self, *_, **__: [Batch([1], [1])] * 2}, "a Batch holds tensors"),
    ({"build": lambda self: None}, "build: NoneType; return a torch.nn.Module"),
    ({"loss": property(lambda self: float_loss)}, "float; return a tensor with one number"),
    ({"_lock": PrivateAttr(default_factory=threading.Lock)}, "cannot be sent to another process"),
    ({"num_examples": lambda self, client: 0}, "each holds one example or more"),
    ({"fingerprint": lambda self: ""}, "fingerprint: return a hash"),
    (
        {"head": property(lambda self: "classifier")},
        "'classifier' is no layer of the model; linear ones: 0, 2",
    ),
    ({"head": property(lambda self: "0")}, "'0' has 8 outputs, and spec.classes is 4"),
    ({"loss": property(lambda self: summed_loss)}, "take the mean over examples"),
    ({"loss": property(lambda self: vector_loss)}, "return one finite number"),
    ({"loss": property(lambda self: detached_loss)}, "does not reach the inputs"),
    ({"loss": lambda self, *a, **k: mean_loss(*a, **k)}, "write a plain function"),
    ({"evaluate": lambda self, module, client=None: {"accuracy": 1.0}}, "num_examples among them"),
    (
        {"evaluate": lambda self, module, client=None: {"accuracy": 1.0, "num_examples": 3}},
        "no finite loss",
    ),
    ({"evaluate": training_evaluate}, "it changes the module"),
    ({"guess": unwritten}, "guess: not written"),
    ({"guess": knowing}, "give another guess; use only shapes"),
    ({"spec": property(lambda self: Spec(1))}, "two classes or more"),
    ({"truth": lambda self, *_, **__: testing.batch()}, "truth: not the 8 examples"),
    ({"__doc__": ""}, "no docstring"),
]


def test_a_good_task_has_no_complaints():
    assert testing.conformance(points()) == []
    assert testing.conformance(Images, Images(clients=2, model="mlp", size=8)) == []


@pytest.mark.parametrize(("methods", "words"), WRONG_TASKS, ids=[w for _, w in WRONG_TASKS])
def test_a_wrong_task_is_told_what_is_wrong(methods, words):
    complaints = testing.conformance(points(**methods))
    assert any(words in complaint for complaint in complaints), complaints
