"""The matching loop: gradients of many batches at once, distances, optimizers, starts."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from adversaries import DLG
from fedsim import testing
from fedsim.gradients import (
    LBFGS,
    Adam,
    DummyGradients,
    Outer,
    Problem,
    Rules,
    alike,
    cosine_distance,
    l1_l2_distance,
    minimise,
    squared_distance,
)
from fedsim.metrics import METRICS
from fedsim.records import Spec, Truth
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models import as_architecture
from fedsim.victim import VictimModel
from tests.test_adversaries import digits

SHAPE, CLASSES = (1, 12, 12), 5


def victim(name: str, **settings: object) -> VictimModel:
    torch.manual_seed(3)
    module = as_architecture({"name": name, **settings}).build(SHAPE, CLASSES).double()
    return VictimModel(module, head="head", loss=cross_entropy)


def batches(rows: int, size: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(5)
    inputs = torch.rand((rows, size, *SHAPE), generator=rng, dtype=torch.float64)
    targets = torch.rand((rows, size, CLASSES), generator=rng, dtype=torch.float64)
    return inputs, targets.softmax(dim=2)


def dense(value: Tensor | Outer) -> Tensor:
    return value.dense if isinstance(value, Outer) else value


# gradients of many dummy batches


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    ("model", "together"),
    [
        ({"name": "cnn"}, True),
        ({"name": "lenet"}, True),
        ({"name": "resnet20", "activation": "sigmoid"}, False),  # batch statistics
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_every_batch_gets_the_gradient_it_would_have_alone(model, together, size):
    attacked = victim(**model)
    names = list(attacked.parameters())
    dummy = DummyGradients(attacked, names, shape=SHAPE, classes=CLASSES)
    assert dummy.batched is together
    inputs, targets = batches(2, size)
    found = dummy(inputs, targets)
    assert list(found) == names
    for row in range(2):
        alone = attacked.gradient(inputs[row], targets[row])
        for name in names:
            torch.testing.assert_close(dense(found[name])[row], alone[name], rtol=1e-9, atol=1e-12)


def test_one_can_differentiate_through_them():
    attacked = victim("cnn")
    names = list(attacked.parameters())
    inputs, targets = batches(2, 2)
    inputs.requires_grad_(True)

    def slope(gradients):
        total = sum(dense(value).square().sum() for value in gradients.values())
        return torch.autograd.grad(total, inputs)[0]

    dummy = DummyGradients(attacked, names, shape=SHAPE, classes=CLASSES)
    together = slope(dummy(inputs, targets))
    torch.testing.assert_close(together, slope(dummy._in_turn(inputs, targets)), rtol=1e-8, atol=0)


def test_only_the_wanted_parameters_are_answered():
    dummy = DummyGradients(victim("cnn"), ["head.bias"], shape=SHAPE, classes=CLASSES)
    assert {k: tuple(v.shape) for k, v in dummy(*batches(2, 1)).items()} == {"head.bias": (2, 5)}


class _Shared(nn.Module):
    """One layer used twice: its gradient is not one product."""

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Linear(144, 144)
        self.head = nn.Linear(144, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.sigmoid(self.same(inputs.flatten(1)))
        return self.head(torch.sigmoid(self.same(hidden)))


def test_a_layer_used_twice_is_found_out():
    model = VictimModel(_Shared().double(), head="head", loss=cross_entropy)
    dummy = DummyGradients(model, list(model.parameters()), shape=SHAPE, classes=CLASSES)
    assert not dummy.batched
    inputs, targets = batches(2, 1)
    alone = model.gradient(inputs[1], targets[1])["same.weight"]
    torch.testing.assert_close(dummy(inputs, targets)["same.weight"][1], alone)


def test_a_loss_that_is_a_sum_is_found_out():
    module = victim("cnn").module

    def summed(module, inputs, target, **_):
        return nn.functional.cross_entropy(module(inputs), target, reduction="sum")

    model = VictimModel(module, head="head", loss=summed)
    assert not DummyGradients(model, ["head.bias"], shape=SHAPE, classes=CLASSES).batched


# distances


@given(seed=st.integers(0, 2**31), near=st.floats(1e-6, 10))
def test_outer_products_are_as_far_apart_as_their_matrices(seed, near):
    rng = torch.Generator().manual_seed(seed)
    a, b, c, d = (torch.randn(2, n, generator=rng, dtype=torch.float64) for n in (4, 7, 4, 7))
    one, other = Outer(a, b), Outer(a + near * c, b + near * d)
    for distance in (squared_distance, cosine_distance):
        found = distance({"w": one}, {"w": other})
        expected = distance({"w": one.dense}, {"w": other.dense})
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-12)
    mixed = squared_distance({"w": one}, {"w": other.dense})
    torch.testing.assert_close(mixed, squared_distance({"w": one}, {"w": other}), rtol=1e-7, atol=0)


def test_a_near_match_of_outer_products_loses_no_digits():
    torch.manual_seed(0)
    left, right = torch.randn(1, 10), 50 * torch.rand(1, 768)
    apart = 1e-3 * torch.randn(1, 768)
    found = squared_distance({"w": Outer(left, right + apart)}, {"w": Outer(left, right)})
    expected = left.double().square().sum() * ((right + apart) - right).double().square().sum()
    assert float(found) == pytest.approx(float(expected), rel=1e-2)


def test_a_matrix_of_rank_one_is_factored_and_any_other_is_not():
    rng = torch.Generator().manual_seed(0)
    product = Outer(torch.randn(3, 4, generator=rng), torch.randn(3, 6, generator=rng))
    torch.testing.assert_close(Outer.of(product.dense).dense, product.dense)
    assert Outer.of(torch.randn(3, 4, 6, generator=rng)) is None
    assert Outer.of(torch.zeros(1, 4, 6)) is None


def test_distances_have_known_values():
    ours = {"a": torch.tensor([[3.0, 0.0]]), "b": torch.tensor([[4.0]])}
    theirs = {"a": torch.tensor([[0.0, 3.0]]), "b": torch.tensor([[4.0]])}
    assert float(squared_distance(ours, theirs)) == 18
    assert float(cosine_distance(ours, theirs)) == pytest.approx(1 - 16 / 25)
    assert float(l1_l2_distance(ours, theirs, l1=0.5)) == 18 + 3


# optimizers


def bowl(seed: int, rows: int, size: int = 12):
    """Quadratics of condition about 1e3, and where each is lowest, (rows, size)."""
    rng = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(rows, size, size, generator=rng, dtype=torch.float64))[0]
    spread = torch.logspace(0, 3, size, dtype=torch.float64)
    a = q @ torch.diag(spread) @ q.mT
    lowest = torch.randn(rows, size, generator=rng, dtype=torch.float64)

    def objective(points, victims):
        gap = points - lowest[victims]
        return 0.5 * torch.einsum("ri,rij,rj->r", gap, a[victims], gap)

    return objective, lowest


def lbfgs(starts):
    return LBFGS(starts, history=10)


def run(objective, rows, optimizer, rules=None, size=12, **settings):
    jobs = [testing.job(seed=row) for row in range(rows)]
    rules = rules or [Rules(iterations=30, matched=1e-16)] * rows

    def start(row):
        return torch.randn(size, generator=jobs[row].rng, dtype=torch.float64)

    return minimise(objective, start, jobs, optimizer, rules, **settings), jobs


def test_rows_find_their_own_minimum_side_by_side():
    objective, lowest = bowl(0, 4)
    found, jobs = run(objective, 4, lbfgs)
    for row, match in enumerate(found):
        torch.testing.assert_close(match.point, lowest[row], rtol=0, atol=1e-7)
        assert match.outcomes == ["matched"]
        assert jobs[row].iterations == -(-match.evaluations // 20)


def test_together_is_the_same_as_one_by_one():
    objective, _ = bowl(1, 3)
    together, _ = run(objective, 3, lbfgs)
    for row in range(3):

        def alone(points, victims, row=row):
            return objective(points, victims + row)

        job = testing.job(seed=row)
        (match,) = minimise(
            alone,
            lambda _, job=job: torch.randn(12, generator=job.rng, dtype=torch.float64),
            [job],
            lbfgs,
            [Rules(iterations=30, matched=1e-16)],
        )
        assert match.evaluations == together[row].evaluations
        torch.testing.assert_close(match.point, together[row].point, rtol=0, atol=1e-9)


def test_lbfgs_solves_a_quadratic_in_about_as_many_steps_as_dimensions():
    objective, _ = bowl(2, 1)
    (match,), _ = run(objective, 1, lambda starts: LBFGS(starts, history=20))
    assert match.evaluations < 100  # down the gradient it takes thousands


def test_backtracking_gets_through_where_steps_of_one_fly_off():
    def steep(points, victims):
        # Flat far out, so that the curvature seen there promises steps that are far too long.
        return torch.log1p(100 * points.square()).sum(dim=1) + 0.01 * points.square().sum(dim=1)

    careful, _ = run(steep, 3, lbfgs)
    bold, _ = run(steep, 3, lambda s: LBFGS(s, history=10, backtracking=False))
    assert all(match.outcomes == ["matched"] for match in careful)
    assert min(match.value for match in bold) > max(match.value for match in careful)


@pytest.mark.parametrize("signed", [False, True])
def test_adam_goes_down_too(signed):
    def round_bowl(points, victims):
        return (points - 3.0 * (1 + victims[:, None])).square().sum(dim=1)

    found, _ = run(
        round_bowl,
        2,
        lambda s: Adam(s, lr=0.1, signed=signed, schedule=lambda step: 0.995**step),
        [Rules(iterations=60, patience=100)] * 2,
        size=4,
    )
    for row, match in enumerate(found):
        assert match.evaluations == 1200
        target = torch.full((4,), 3.0 * (1 + row), dtype=torch.float64)
        torch.testing.assert_close(match.point, target, rtol=0, atol=0.05)


def test_adam_keeps_what_is_clamped_within_its_range():
    def away(points, victims):
        return -points.sum(dim=1)

    found, _ = run(
        away,
        1,
        lambda s: Adam(s, lr=0.5, schedule=lambda _: 1.0, low=0.0, high=1.0, clamped=2),
        [Rules(iterations=1, evaluations=50)],
        size=3,
    )
    point = found[0].point
    assert point[:2].tolist() == [1, 1]
    assert point[2] > 10


# starts


def test_a_start_that_stalls_gives_way_to_a_new_one_and_the_lowest_is_kept():
    drawn = []

    def start(row):
        drawn.append(1.0 + len(drawn))
        return torch.tensor([drawn[-1]], dtype=torch.float64)

    def flat(points, victims):
        return (points.detach() + 0 * points).sum(dim=1)

    rules = [Rules(iterations=50, patience=3)]
    (match,) = minimise(flat, start, [testing.job()], lbfgs, rules, restarts=2)
    assert match.outcomes == ["stalled"] * 3
    assert drawn == [1, 2, 3]
    assert match.value == 1


def test_with_all_starts_every_one_is_run_and_the_lowest_wins():
    def start(row):
        return torch.randn(1, generator=job.rng, dtype=torch.float64)

    def wavy(points, victims):
        x = points[:, 0]
        return x.square() / 50 + 1 - torch.cos(3 * x)

    job = testing.job(seed=2)
    rules = [Rules(iterations=20)]
    (match,) = minimise(wavy, start, [job], lbfgs, rules, restarts=5, all_starts=True)
    assert len(match.outcomes) == 6
    assert match.value < 1e-6


def test_what_is_undefined_from_the_start_diverges():
    def nowhere(points, victims):
        return points.sum(dim=1) * float("nan")

    rules = [Rules(iterations=5)]
    (match,) = minimise(
        nowhere, lambda _: torch.zeros(2), [testing.job()], lbfgs, rules, restarts=1
    )
    assert match.outcomes == ["diverged"] * 2
    assert match.value == float("inf")


def test_one_hopeless_victim_costs_the_others_nothing():
    objective, _ = bowl(4, 3)

    def mixed(points, victims):
        broken = torch.where(victims == 1, float("nan"), 1.0)
        return objective(points, victims) * broken

    found, _ = run(mixed, 3, lbfgs)
    assert [match.outcomes for match in found] == [["matched"], ["diverged"], ["matched"]]


def test_budgets_are_kept_a_victim():
    objective, _ = bowl(5, 2)
    jobs = [testing.job(budget=1), testing.job(budget=0)]
    found = minimise(
        objective,
        lambda row: torch.ones(12, dtype=torch.float64),
        jobs,
        lbfgs,
        [Rules(iterations=30, evaluations=5)] * 2,
    )
    assert [match.outcomes for match in found] == [["budget"], ["budget"]]
    assert [match.evaluations for match in found] == [5, 0]


def test_blocks_take_turns():
    moved = []

    def watched(points, victims):
        moved.append(points.detach()[0].clone())
        return (points - 3).square().sum(dim=1)

    blocks = torch.tensor([[True, True, False, False], [False, False, True, True]])
    rules = [Rules(iterations=4, evaluations=6, matched=1e-12)]
    (match,) = minimise(
        watched,
        lambda _: torch.zeros(4, dtype=torch.float64),
        [testing.job()],
        lbfgs,
        rules,
        blocks=blocks,
    )
    assert torch.equal(moved[5][2:], torch.zeros(2, dtype=torch.float64))
    assert bool((moved[5][:2] > 2.9).all())
    torch.testing.assert_close(match.point, torch.full((4,), 3.0, dtype=torch.float64))


# the problem, and DLG on it


def problem(**settings):
    seen = testing.example()
    given = {"size": 1, "labels": [None], **settings}
    return Problem(seen.model, [seen.gradient], seen.spec, **given)


def test_the_distance_is_zero_at_the_truth():
    for size in (1, 2):
        seen, truth = digits(0, size=size)
        matched = Problem(seen.model, [seen.gradient], seen.spec, size=size, labels=[truth.labels])
        point = torch.stack(list(truth.inputs)).flatten().double()[None]
        at_truth = float(matched(point, torch.tensor([0])).detach())
        assert at_truth < 1e-12 * matched.norms[0]
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


def test_spec_is_needed():
    seen = testing.example()
    with pytest.raises(ValueError, match="fixed shape"):
        Problem(seen.model, [seen.gradient], Spec(classes=10), size=1, labels=[None])
