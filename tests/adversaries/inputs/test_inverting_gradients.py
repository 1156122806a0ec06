"""inverting-gradients recovers what it should, simulates local steps, and says when it cannot."""

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from adversaries import InvertingGradients
from adversaries.inputs import input_matching
from fedsim import testing
from fedsim.errors import NotGranted
from fedsim.gradients import kept_values, to_gradient, unrolled_gradient
from fedsim.knowledge import Knowledge
from fedsim.metrics import METRICS
from fedsim.records import Observation, Reconstruction, Spec, Truth, Update
from fedsim.scenario import Scenario
from fedsim.spec import ImageSpec
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models import as_architecture
from fedsim.victim import VictimModel

SIDE = 10
SPEC = Spec(classes=10, input_shape=(1, SIDE, SIDE), input_range=(0.0, 1.0))


def digits(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Real handwritten digits (count, 1, 10, 10) in [0, 1], and their labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    chosen = torch.randperm(1797, generator=torch.Generator().manual_seed(seed))[:count]
    small = torch.tensor(data.images / 16, dtype=torch.float32)[chosen, None]
    images = functional.interpolate(small, (SIDE, SIDE), mode="bilinear", align_corners=False)
    return images, torch.tensor(data.target)[chosen]


def network(name: str, seed: int = 0) -> VictimModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = as_architecture(name).build((1, SIDE, SIDE), 10)
    return VictimModel(module, head="head", loss=cross_entropy)


def case(
    name: str, size: int = 1, seed: int = 0, steps: int = 1, lr: float = 0.1
) -> tuple[Observation, Truth]:
    """Digits behind a gradient, or behind the weights that `steps` real local steps leave."""
    (images, labels), model = digits(size, seed), network(name)
    if steps == 1:
        gradient, exact = dict(model.gradient(images, labels)), True
    else:
        before = {k: p.detach().clone() for k, p in model.parameters().items()}
        client = model.copy()
        optimizer = torch.optim.SGD(client.module.parameters(), lr=lr)
        parts = zip(images.tensor_split(steps), labels.tensor_split(steps), strict=True)
        for inputs, targets in parts:
            optimizer.zero_grad()
            client.loss(inputs, targets).backward()
            optimizer.step()
        after = {k: p.detach() for k, p in client.parameters().items()}
        update = Update(after, "weights", lr=lr, steps=steps, num_examples=size)
        gradient, exact = to_gradient(update, before, lr=lr, steps=steps)
    seen = testing.observation(
        gradient={k: v.detach() for k, v in gradient.items()},
        exact=exact,
        spec=SPEC,
        model=model,
        num_examples=size,
        labels=labels,
        steps=steps,
        lr=lr,
    )
    return seen, Truth(inputs=list(images), labels=labels)


def attacked(seen: Observation, seed: int = 0, **settings: Any) -> Reconstruction:
    return InvertingGradients(**settings).reconstruct(seen, testing.job(seed=seed))


def error(claimed: Reconstruction, truth: Truth) -> float:
    return METRICS["mse"].score(claimed, truth, SPEC)


@pytest.mark.parametrize("name", ["lenet-sigmoid", "cnn"])
def test_recovers_a_digit_from_a_smooth_network(name):
    seen, truth = case(name, seed=1)
    claimed = attacked(seen, iterations=250, restarts=0)
    assert error(claimed, truth) < 2e-3
    assert torch.equal(claimed.labels, truth.labels)
    image = claimed.inputs[0]
    assert image.dtype == torch.float32
    assert 0 <= image.min() <= image.max() <= 1
    assert claimed.trace[-1][1] == claimed.objective
    assert claimed.outcomes == ("steps",)


def test_comes_near_a_digit_behind_relu_and_max_pooling():
    seen, truth = case("lenet", seed=1)
    claimed = attacked(seen, iterations=250, restarts=0, tv=1e-2)
    blank = Reconstruction(inputs=[torch.zeros(1, SIDE, SIDE)])
    assert error(claimed, truth) < 0.3 * error(blank, truth)


def test_needs_only_the_gradients_direction():
    seen, truth = case("lenet-sigmoid", seed=1)
    scaled = {name: 7 * value for name, value in seen.gradient.items()}
    claimed = attacked(dataclasses.replace(seen, gradient=scaled), iterations=250, restarts=0)
    assert error(claimed, truth) < 2e-3


@pytest.mark.parametrize("distance", ["l2", "l1+l2"])
def test_other_distances_fall_too(distance):
    seen, truth = case("lenet-sigmoid", seed=1)
    claimed = attacked(seen, iterations=200, restarts=0, distance=distance)
    assert claimed.objective < 0.1 * claimed.trace[0][1]
    assert error(claimed, truth) < 0.05


def test_all_restarts_are_run_and_the_lowest_objective_is_claimed():
    seen, _ = case("lenet-sigmoid", seed=1)
    job = testing.job(seed=0)
    claimed = InvertingGradients(iterations=20, restarts=2).reconstruct(seen, job)
    assert claimed.outcomes == ("steps",) * 3
    assert claimed.diagnostics["closures"] == job.iterations == 60
    assert claimed.objective == min(value for _, value in claimed.trace)


def test_many_at_once_are_as_one_by_one():
    cases = [case("lenet-sigmoid", seed=seed) for seed in (1, 2)]
    cases.append(case("lenet-sigmoid", size=2, seed=3, steps=2))
    attack = InvertingGradients(iterations=30, restarts=1, precision="float64")
    jobs = [testing.job(seed=seed) for seed in range(3)]
    together = attack.reconstruct_many([seen for seen, _ in cases], jobs)
    for seed, ((seen, _), claimed) in enumerate(zip(cases, together, strict=True)):
        alone = attack.reconstruct(seen, testing.job(seed=seed))
        assert alone.objective == pytest.approx(claimed.objective, rel=1e-6)
        for one, other in zip(alone.inputs, claimed.inputs, strict=True):
            assert torch.allclose(one, other, atol=1e-4)


def test_victims_whose_passes_do_not_fit_into_memory_together_are_attacked_apart(monkeypatch):
    cases = [case("lenet-sigmoid", seed=seed) for seed in (1, 2, 3)]
    model = cases[0][0].model
    weights = sum(weight.numel() for weight in model.parameters().values())
    kept = kept_values(model, SPEC.input_shape, SPEC.classes)
    attack = InvertingGradients(iterations=20, restarts=1, precision="float64")
    assert attack.at_once(cases[0][0]) == attack.group
    # 8 bytes, held 8 times for each of 2 starts: two victims and a half.
    monkeypatch.setattr(input_matching, "HELD", 320 * (weights + kept))
    assert attack.at_once(cases[0][0]) == 2
    sizes, match = [], InvertingGradients.match

    def counted(self, problem, jobs, *args):
        sizes.append(len(jobs))
        return match(self, problem, jobs, *args)

    monkeypatch.setattr(InvertingGradients, "match", counted)
    jobs = [testing.job(seed=seed) for seed in range(3)]
    found = attack.reconstruct_many([seen for seen, _ in cases], jobs)
    assert sizes == [2, 1]
    for seed, ((seen, _), claimed) in enumerate(zip(cases, found, strict=True)):
        alone = attack.reconstruct(seen, testing.job(seed=seed))
        assert alone.objective == pytest.approx(claimed.objective, rel=1e-6)


def test_inputs_stay_in_a_range_of_their_own():
    images, labels = digits(1, 1)
    model = network("lenet-sigmoid")
    shifted = 4 * images - 2
    seen = testing.observation(
        gradient={k: v.detach() for k, v in model.gradient(shifted, labels).items()},
        spec=Spec(10, (1, SIDE, SIDE), (-2.0, 2.0)),
        model=model,
        num_examples=1,
    )
    (image,) = attacked(seen, iterations=250, restarts=0).inputs
    assert -2 <= image.min() < -1 < 1 < image.max() <= 2
    assert float((image - shifted[0]).square().mean()) < 0.05


# Local steps


def test_unrolled_steps_fit_where_one_batch_does_not():
    seen, truth = case("lenet-sigmoid", size=2, seed=2, steps=2, lr=1.0)
    found = {
        unroll: attacked(seen, unroll=unroll, iterations=60, restarts=3, labels_from="given")
        for unroll in ("auto", False)
    }
    assert found["auto"].diagnostics["unrolled_steps"] == 2
    assert found[False].diagnostics["unrolled_steps"] == 1
    assert found["auto"].objective < 0.5 * found[False].objective
    assert error(found["auto"], truth) < error(found[False], truth)


def test_every_start_deals_the_labels_out_anew_and_the_best_is_claimed_with_its_own():
    seen, truth = case("lenet-sigmoid", size=2, seed=2, steps=2, lr=1.0)
    bag = dataclasses.replace(seen, labels=truth.labels.sort().values)
    assert truth.labels.tolist() == [3, 1]
    settings = {"iterations": 60, "restarts": 0, "labels_from": "given"}
    once = attacked(bag, **settings, orders=1)
    assert once.labels.tolist() == [1, 3]  # an unlucky start
    for more in ({"orders": 1, "restarts": 3}, {"orders": 8}):
        found = attacked(bag, **settings | more)
        assert found.labels.tolist() == [3, 1]
        assert found.objective < 0.1 * once.objective
        assert error(found, truth) < 0.5 * error(once, truth)


def test_a_claimed_input_has_the_label_that_it_was_matched_with():
    seen, truth = case("lenet-sigmoid", size=4, seed=2, steps=2, lr=1.0)
    settings = {"iterations": 20, "restarts": 2, "orders": 1, "precision": "float64", "tv": 0.0}
    found = attacked(seen, labels_from="given", **settings)
    model, inputs = seen.model.copy(), torch.stack(list(found.inputs)).double()
    model.module.double()
    objectives = {}
    for labels in itertools.permutations(truth.labels.tolist()):
        gradient = unrolled_gradient(model, inputs, torch.tensor(labels), lr=1.0, steps=2)
        ours = torch.cat([one.detach().flatten() for one in gradient.values()])
        theirs = torch.cat([seen.gradient[name].double().flatten() for name in gradient])
        objectives[labels] = 1 - float(functional.cosine_similarity(ours, theirs, dim=0))
    claimed = tuple(found.labels.tolist())
    assert claimed != tuple(truth.labels.tolist())
    assert found.objective == pytest.approx(objectives[claimed], rel=1e-4)
    apart = {labels: abs(value - found.objective) for labels, value in objectives.items()}
    assert min(apart, key=apart.__getitem__) == claimed


def test_one_step_needs_no_order():
    seen, truth = case("lenet-sigmoid", size=4, seed=1)
    found = attacked(seen, iterations=2, restarts=3, labels_from="given")
    assert torch.equal(found.labels, truth.labels)


def test_what_unrolling_needs_depends_on_the_setting():
    steps = Knowledge.LOCAL_STEPS | Knowledge.LEARNING_RATE
    alone = InvertingGradients().requires()
    assert not alone & steps
    assert InvertingGradients(unroll=True).requires() == alone | steps
    seen, _ = case("lenet-sigmoid", size=2, steps=2)
    blind = dataclasses.replace(seen, granted=seen.granted & ~steps, steps=None, lr=None)
    claimed = attacked(blind, iterations=2, restarts=0)
    assert claimed.diagnostics["unrolled_steps"] == 1
    with pytest.raises(NotGranted, match="LOCAL_STEPS"):
        attacked(blind, iterations=2, unroll=True)


def test_a_single_step_needs_no_unrolling():
    seen, _ = case("lenet-sigmoid")
    claimed = attacked(seen, iterations=2, restarts=0, unroll=True)
    assert claimed.diagnostics["unrolled_steps"] == 1


# Labels and parameters


def test_labels_may_be_given_inferred_or_searched_for():
    base = InvertingGradients(labels_from=None).requires()
    assert Knowledge.HEAD_GRADIENT not in base
    assert InvertingGradients().requires() == base | Knowledge.HEAD_GRADIENT
    assert InvertingGradients(labels_from="given").requires() == base | Knowledge.LABELS
    assert InvertingGradients(labels_from="none") == InvertingGradients(labels_from=None)
    seen, truth = case("lenet-sigmoid", seed=1)
    claimed = attacked(seen, labels_from=None, iterations=200, restarts=0)
    assert torch.equal(claimed.labels, truth.labels)


def test_a_part_of_the_parameters_will_do():
    seen, truth = case("lenet-sigmoid", seed=1)
    part = {k: v for k, v in seen.gradient.items() if not k.startswith("features.0")}
    claimed = attacked(
        dataclasses.replace(seen, gradient=part),
        parameters={"head.*": 2.0, "features.*": 1.0},
        iterations=250,
        restarts=0,
    )
    assert error(claimed, truth) < 0.02
    with pytest.raises(ValueError, match=r"'hed\.\*' fits none.*head\.weight"):
        attacked(seen, parameters={"hed.*": 1.0})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spec": Spec(classes=10)}, "fixed shape"),
        ({"spec": Spec(classes=10, input_shape=(64,))}, "set tv = 0"),
        ({"gradient": {"other.weight": torch.ones(2)}}, "names none"),
        ({"gradient": {"head.weight": torch.zeros(10, 108)}}, "zero"),
        ({"gradient": {"head.weight": torch.full((10, 108), float("inf"))}}, "Inf"),
    ],
)
def test_refuses_what_it_cannot_match(changes, message):
    seen = dataclasses.replace(case("lenet-sigmoid")[0], **changes)
    with pytest.raises(ValueError, match=message):
        attacked(seen, labels_from="given")


def test_a_scenario_may_set_it_up():
    table = {"name": "inverting-gradients", "unroll": "auto", "parameters": {"head.*": 2.0}}
    scenario = Scenario.parse({"threat": {"grants": "white-box"}, "adversaries": [table]})
    ((_, _, attack),) = scenario.build_adversaries()
    assert attack.parameters == {"head.*": 2.0}


@pytest.mark.parametrize("shape", [(1, 1, 16), (1, 16, 1), (16, 1, 1)])
def test_an_image_may_have_a_side_of_one_pixel(shape):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [torch.nn.Linear(16, 12), torch.nn.Sigmoid(), torch.nn.Linear(12, 4)]
        module = torch.nn.Sequential(torch.nn.Flatten(), *layers)
    model = VictimModel(module, head="3", loss=cross_entropy)
    image, label = torch.linspace(0, 1, 16).view(1, *shape), torch.tensor([2])
    gradient = {k: v.detach() for k, v in model.gradient(image, label).items()}
    spec = ImageSpec(4, shape, (0.0, 1.0))
    known = {"head": "3", "model": model, "num_examples": 1, "labels": label}
    seen = testing.observation(gradient=gradient, spec=spec, **known)
    claimed = attacked(seen, labels_from="given", iterations=200, restarts=0)
    assert error(claimed, Truth(inputs=list(image))) < 0.02
