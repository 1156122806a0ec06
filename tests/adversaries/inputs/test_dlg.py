"""DLG, and the problem that it and others of its kind solve."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adversaries import DLG, LLG, RLG
from fedsim import testing
from fedsim.errors import FedsimError, PluginError
from fedsim.gradients import Comparison, Problem
from fedsim.gradients.problem import alike
from fedsim.knowledge import Knowledge
from fedsim.metrics import METRICS
from fedsim.records import Observation, Spec, Truth
from fedsim.tasks.images import cross_entropy
from fedsim.victim import VictimModel


class Sigmoids(nn.Module):
    """DLG's LeNet: three 5x5 convolutions of 12 channels with sigmoids, weights U(-.5, .5)."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inward, 12, 5, stride=stride, padding=2)
            for inward, stride in ((1, 2), (12, 2), (12, 1))
        )
        self.head = nn.Linear(12 * (side // 4) ** 2, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        for convolution in self.convolutions:
            inputs = torch.sigmoid(convolution(inputs))
        return self.head(inputs.flatten(1))


def digits(index: int, size: int = 1, side: int = 16) -> tuple[Observation, Truth]:
    """Real handwritten digits, their gradient on a fresh LeNet, and the white-box grants."""
    from sklearn.datasets import load_digits

    data = load_digits()
    chosen = slice(index * size, (index + 1) * size)
    small = torch.tensor(data.images[chosen] / 16, dtype=torch.float32)[:, None]
    images = nn.functional.interpolate(small, (side, side), mode="bilinear", align_corners=False)
    labels = torch.tensor(data.target[chosen])
    module = Sigmoids(side)
    rng = torch.Generator().manual_seed(index)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5, generator=rng)

    def loss(module: nn.Module, inputs: Tensor, target: Tensor, **_: Any) -> Tensor:
        return nn.functional.cross_entropy(module(inputs), target)

    model = VictimModel(module, head="head", loss=loss)
    seen = testing.observation(
        gradient={k: v.detach() for k, v in model.gradient(images, labels).items()},
        granted=Knowledge.GRADIENT | Knowledge.MODEL | Knowledge.BATCH_SIZE | Knowledge.LABELS,
        spec=Spec(classes=10, input_shape=(1, side, side), input_range=(0.0, 1.0)),
        model=model,
        num_examples=size,
        labels=labels,
    )
    return seen, Truth(inputs=list(images), labels=labels)


@pytest.mark.parametrize(
    "given",
    [{}, {"line_search": "none"}, {"labels_from": "idlg"}, {"precision": "float32"}],
    ids=str,
)
def test_dlg_recovers_a_real_digit(given):
    seen, truth = digits(3)
    claimed = DLG(**given).reconstruct(seen, testing.job(seed=1))
    assert METRICS["mse"].score(claimed, truth, seen.spec) < 1e-3
    assert torch.equal(claimed.labels, truth.labels)
    assert claimed.inputs[0].dtype == torch.float32
    assert claimed.objective < 4e-6
    assert claimed.trace[-1][1] == claimed.objective


def test_dlg_goes_on_until_a_small_gradient_is_matched_too():
    # A gradient this small is nearer than 4e-6 to zero: an absolute tolerance would stop at once.
    seen, truth = digits(3)
    loss = seen.model._loss
    model = VictimModel(seen.model.module, head="head", loss=lambda *a, **k: 1e-4 * loss(*a, **k))
    small = {name: 1e-4 * value for name, value in seen.gradient.items()}
    assert sum(float(value.square().sum()) for value in small.values()) < 4e-6
    seen = dataclasses.replace(seen, gradient=small, model=model)
    claimed = DLG().reconstruct(seen, testing.job(seed=1))
    assert METRICS["mse"].score(claimed, truth, seen.spec) < 1e-3


@pytest.mark.parametrize(
    "given",
    [{"parameters": {"*": 1e-5}}, {"parameters": {"*": 1e4}}, {"distance": "l1+l2"}],
    ids=str,
)
@pytest.mark.parametrize("factor", [1.0, 1e-3])
def test_dlg_knows_a_match_in_the_units_of_its_distance(given, factor):
    seen, truth = digits(3, side=8)
    loss = seen.model._loss
    model = VictimModel(seen.model.module, head="head", loss=lambda *a, **k: factor * loss(*a, **k))
    small = {name: factor * value for name, value in seen.gradient.items()}
    seen = dataclasses.replace(seen, gradient=small, model=model)
    claimed = DLG(labels_from="idlg", **given).reconstruct(seen, testing.job(seed=1))
    assert claimed.outcomes[-1] == "matched"
    assert METRICS["mse"].score(claimed, truth, seen.spec) < 1e-4


def test_dlg_recovers_two_digits_at_once():
    seen, truth = digits(1, size=2)
    claimed = DLG(labels_from="given", restarts=2).reconstruct(seen, testing.job(seed=0))
    assert METRICS["recovered"].score(claimed, truth, seen.spec) == 1


def test_dlg_keeps_to_its_budget():
    job = testing.job(budget=2)
    claimed = DLG().reconstruct(digits(0)[0], job)
    assert job.iterations == 2
    assert claimed.outcomes == ("budget",)
    nothing = DLG().reconstruct(digits(0)[0], testing.job(budget=0))
    assert nothing.objective == float("inf")
    assert len(nothing.inputs) == 1


def test_dlg_starts_again_when_hopeless_and_keeps_the_best_start():
    seen = testing.example()
    static = {k: torch.randn_like(v) for k, v in seen.gradient.items()}
    seen = dataclasses.replace(seen, gradient=static)
    attack = DLG(iterations=12, restarts=2, diverged=1e-3)
    claimed = attack.reconstruct(seen, testing.job())
    assert claimed.outcomes == ("diverged",) * 3
    assert claimed.objective == min(value for _, value in claimed.trace)


def test_noise_in_the_gradient_is_no_divergence():
    """Its energy stays between the gradients however close the inputs come."""
    seen = testing.example()
    rng = torch.Generator().manual_seed(0)
    energy = sum(float(v.square().sum()) for v in seen.gradient.values())
    sigma = (0.5 * energy / sum(v.numel() for v in seen.gradient.values())) ** 0.5
    noisy = {k: v + sigma * torch.randn(v.shape, generator=rng) for k, v in seen.gradient.items()}
    seen = dataclasses.replace(seen, gradient={k: 100 * v for k, v in noisy.items()})
    claimed = DLG(iterations=12, restarts=0).reconstruct(seen, testing.job())
    assert claimed.objective > 10
    assert claimed.outcomes == ("steps",)


def test_dlg_survives_an_overflow():
    seen = testing.example()
    huge = {k: torch.full_like(v, 1e25) for k, v in seen.gradient.items()}
    claimed = DLG(restarts=1, precision="float32").reconstruct(
        dataclasses.replace(seen, gradient=huge), testing.job()
    )
    assert claimed.outcomes == ("diverged", "diverged")
    assert claimed.objective == float("inf")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spec": Spec(classes=10)}, "fixed shape"),
        ({"gradient": {"other.weight": torch.ones(2)}}, "names none"),
        ({"gradient": {"head.weight": torch.zeros(10, 27)}}, "zero"),
        ({"gradient": {"head.weight": torch.full((10, 27), float("inf"))}}, "Inf"),
    ],
)
def test_dlg_refuses_what_it_cannot_match(changes, message):
    seen = dataclasses.replace(testing.example(), **changes)
    with pytest.raises(ValueError, match=message):
        DLG().reconstruct(seen, testing.job())


def test_dlg_inherits_the_needs_of_its_parts():
    alone = DLG().requires()
    assert Knowledge.HEAD_GRADIENT not in alone
    assert DLG(labels_from="idlg").requires() == alone | Knowledge.HEAD_GRADIENT
    assert DLG(labels_from="given").requires() == alone | Knowledge.LABELS
    with pytest.raises(PluginError, match="llg"):
        DLG(labels_from="lgl").requires()


def test_a_part_takes_settings_of_its_own():
    composed = DLG(labels_from={"name": "llg", "variant": "llg+"})
    assert composed.source("labels_from") == "llg"
    assert composed.parts()["labels_from"] == LLG(variant="llg+")
    assert Knowledge.AUXILIARY in composed.requires()
    assert Knowledge.AUXILIARY not in DLG(labels_from="llg").requires()


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"name": "llg", "varient": "llg+"}, "labels_from.varient: unknown key. .*'variant'"),
        ({"name": "llg", "batches": 0}, "labels_from.batches: .*greater than or equal to 1"),
        ({"variant": "llg+"}, 'expected a name, or a table such as {name = "llg", variant'),
        ({"name": "given"}, "no 'given' among the adversaries"),
    ],
)
def test_a_part_that_cannot_be_is_refused_before_any_training(part, message):
    with pytest.raises(FedsimError, match=message):
        DLG(labels_from=part).requires()


def test_dlg_refuses_labels_that_do_not_fit_the_batch():
    with pytest.raises(ValueError, match="1 labels; the update holds 3"):
        DLG(labels_from="idlg").reconstruct(testing.example(3), testing.job())


# the problem, and DLG on it


def problem(parameters=None, **settings):
    seen = testing.example()
    comparison = Comparison(parameters=parameters)
    given = {"size": 1, "labels": [None], "comparison": comparison, **settings}
    return Problem(seen.model, [seen.gradient], seen.spec, **given)


def test_the_distance_is_zero_at_the_truth():
    for size in (1, 2):
        seen, truth = digits(0, size=size)
        matched = Problem(seen.model, [seen.gradient], seen.spec, size=size, labels=[truth.labels])
        point = torch.stack(list(truth.inputs)).flatten().double()[None]
        at_truth = float(matched(point, torch.tensor([0])).detach())
        assert at_truth < 1e-12 * matched.scales[0]
        assert float(matched(point + 0.1, torch.tensor([0])).detach()) > 1e6 * at_truth


def test_parameters_are_chosen_and_weighed_by_pattern():
    assert problem(parameters={"head.*": 2.0}).weights == {"head.weight": 2.0, "head.bias": 2.0}
    chosen = problem(parameters={"head.bias": 0.0, "*": 1.0}).names
    assert chosen == ["conv.weight", "conv.bias", "head.weight"]
    with pytest.raises(ValueError, match=r"'tail.\*' fits none"):
        problem(parameters={"tail.*": 1.0})
    with pytest.raises(ValueError, match="nothing is left"):
        problem(parameters={"*": 0.0})


def test_labels_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="expected 1 labels from 0 to 9"):
        problem(labels=[torch.tensor([10])])
    with pytest.raises(ValueError, match="for a batch of 1"):
        problem(labels=[torch.tensor([1, 2])])


def test_victims_with_one_model_and_size_fit_together():
    a, b = testing.network(0), testing.network(1)
    assert alike([a, b, a.copy(), a], [1, 1, 1, 2]) == [[0, 2], [1], [3]]


def test_dlg_answers_many_victims_as_it_does_one():
    first, truth = digits(3, side=8)
    rng = torch.Generator().manual_seed(0)
    image = torch.rand((1, 1, 8, 8), generator=rng)
    label = torch.tensor([7])
    gradient = {k: v.detach() for k, v in first.model.gradient(image, label).items()}
    second = dataclasses.replace(first, gradient=gradient, labels=label)
    elsewhere, far = digits(5, side=8)  # another model: attacked in a group of its own
    seen, truths = [first, second, elsewhere], [truth, Truth(list(image), label), far]
    together = DLG().reconstruct_many(seen, [testing.job(seed=i + 1) for i in range(3)])
    for index, (one, known) in enumerate(zip(seen, truths, strict=True)):
        alone = DLG().reconstruct(one, testing.job(seed=index + 1))
        assert METRICS["mse"].score(together[index], known, one.spec) < 1e-6
        torch.testing.assert_close(together[index].inputs[0], alone.inputs[0], rtol=0, atol=1e-2)
        assert torch.equal(together[index].labels, alone.labels)


@pytest.mark.parametrize("rule", ["joint", "cyclic"])
def test_two_batches_take_the_same_steps_together_as_alone(rule):
    first, _ = digits(1, size=2, side=8)
    rng = torch.Generator().manual_seed(0)
    images, labels = torch.rand((2, 1, 8, 8), generator=rng), torch.tensor([7, 2])
    gradient = {k: v.detach() for k, v in first.model.gradient(images, labels).items()}
    seen = [first, dataclasses.replace(first, gradient=gradient, labels=labels)]
    attack = DLG(iterations=2, restarts=0, batch_rule=rule)
    together = attack.reconstruct_many(seen, [testing.job(seed=i) for i in range(2)])
    for index, one in enumerate(seen):
        alone = attack.reconstruct(one, testing.job(seed=index))
        for ours, theirs in zip(together[index].inputs, alone.inputs, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
        assert together[index].objective == pytest.approx(alone.objective, rel=1e-9)


def test_the_cyclic_rule_recovers_a_batch_too():
    seen, truth = digits(1, size=2, side=8)
    attack = DLG(labels_from="given", batch_rule="cyclic", restarts=2)
    claimed = attack.reconstruct(seen, testing.job(seed=0))
    assert METRICS["recovered"].score(claimed, truth, seen.spec) == 1


@pytest.mark.parametrize("distance", ["cosine", "l1+l2"])
def test_dlg_matches_by_other_distances(distance):
    seen, truth = digits(3, side=8)
    attack = DLG(distance=distance, labels_from="idlg", restarts=1, iterations=100)
    claimed = attack.reconstruct(seen, testing.job(seed=1))
    assert METRICS["mse"].score(claimed, truth, seen.spec) < 0.01


def test_dlg_warns_of_what_has_no_second_derivative():
    class Pooled(nn.Sequential):
        pass

    module = Pooled(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    model = VictimModel(module, head="head", loss=cross_entropy)
    relu, pooling = DLG().cautions(model)
    assert "ReLU" in relu
    assert "inverting-gradients" in relu
    assert "MaxPool2d" in pooling
    assert DLG().cautions(testing.network()) == []
    tied = testing.network()
    tied.module.again = nn.Linear(1, 1)
    tied.module.again.weight = tied.module.get_parameter("head.weight")
    assert DLG(labels_from="rlg").cautions(tied) == RLG().cautions(tied) != []


def test_a_pattern_that_fits_no_parameter_is_warned_of_before_a_run():
    (caution,) = DLG(parameters={"hed.*": 1.0}).cautions(testing.network())
    assert "'hed.*' fits none of the parameters" in caution
    assert not DLG(parameters={"head.*": 1.0}).cautions(testing.network())


def test_spec_is_needed():
    seen = testing.example()
    with pytest.raises(ValueError, match="fixed shape"):
        Problem(seen.model, [seen.gradient], Spec(classes=10), size=1, labels=[None])
