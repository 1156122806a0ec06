"""The matching loop: optimizers of many rows, starts, budgets."""

import pytest
import torch

from fedsim import testing
from fedsim.gradients import LBFGS, Adam, Checks, Restarts, Rules, minimise

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


def test_where_proof_is_asked_for_only_what_it_tells_is_a_match():
    objective, lowest = bowl(0, 2)

    def proof(points, victims):
        far = (points - lowest[victims]).norm(dim=1)
        told = (victims == 1) & (far < 3.0)
        return torch.where(told, objective(points, victims), torch.inf)

    rules = [Rules(iterations=30, matched=1e9, patience=30)] * 2
    unproved, proved = run(objective, 2, lbfgs, rules, checks=Checks(proof=proof))[0]
    assert "matched" not in unproved.outcomes
    assert unproved.value < 1e-9
    assert proved.outcomes == ["matched"]
    assert proved.evaluations < unproved.evaluations
    assert proved.value == float(objective(proved.point[None], torch.tensor([1])))


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
    (match,) = minimise(flat, start, [testing.job()], lbfgs, rules, restarts=Restarts(2))
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
    (match,) = minimise(wavy, start, [job], lbfgs, rules, restarts=Restarts(5, together=True))
    assert len(match.outcomes) == 6
    assert match.value < 1e-6


def test_where_starts_ended_is_found_instead_of_the_lowest_point_on_the_way():
    def start(row):
        return torch.tensor([0.1 + row], dtype=torch.float64)

    def sliding(points, victims):
        return points[:, 0].square()

    def bold(starts):
        return Adam(starts, lr=0.3, schedule=lambda step: 1.0)

    jobs = [testing.job(seed=seed) for seed in range(2)]
    rules = [Rules(iterations=1, evaluations=1)] * 2
    lowest = minimise(sliding, start, jobs, bold, rules)
    last = minimise(sliding, start, jobs, bold, rules, restarts=Restarts(ends=True))
    lone = bold(torch.stack([start(0), start(1)]))
    lone.tell(lone.point()[:, 0].square(), 2 * lone.point())
    for row, (low, end) in enumerate(zip(lowest, last, strict=True)):
        assert torch.equal(end.point, lone.at(row))
        assert end.value == float(end.point.square())
        assert low.outcomes == end.outcomes == ["steps"]
        assert torch.equal(torch.stack(low.ends), lone.at(row)[None])
    assert lowest[0].value < last[0].value

    # A start that has come as far as rounding lets it is looked at where it is, too.
    still = [Rules(iterations=50, evaluations=1, floor=1.0, patience=1, fall=0.999)]
    (match,) = minimise(sliding, start, jobs[:1], bold, still, restarts=Restarts(ends=True))
    assert match.outcomes == ["matched"]
    assert match.value == float(match.point.square()) < 1

    done = [Rules(iterations=50, evaluations=1, matched=1e-3)]
    (match,) = minimise(sliding, start, jobs[:1], bold, done, restarts=Restarts(ends=True))
    assert match.outcomes == ["matched"]
    assert match.value < 1e-3


def test_where_starts_ended_can_be_judged_by_something_else_than_what_is_descended():
    origins = iter([0.0, 5.0])

    def start(row):
        return torch.tensor([next(origins)], dtype=torch.float64)

    def flat(points, victims):
        return points[:, 0] + 1

    def far(points, victims):
        return (points[:, 0] - 5).abs()

    def still(starts):
        return Adam(starts, lr=1e-9, schedule=lambda step: 1.0)

    rules = [Rules(iterations=3, evaluations=1)]
    (match,) = minimise(
        flat,
        start,
        [testing.job()],
        still,
        rules,
        restarts=Restarts(1, together=True, ends=True),
        checks=Checks(judge=far),
    )
    assert float(match.point) == pytest.approx(5)
    assert match.value == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("after", "ends", "readings"), [(0, 31, (4, 2)), (30, 51, (3, 0))])
def test_a_start_ends_once_what_its_point_stands_for_stays_the_same(after, ends, readings):
    asked = []

    def height(points, victims):
        return points[:, 0]

    def read(points, victims):
        asked.append(victims.tolist())
        lowest = torch.tensor([-1.0, -100.0], dtype=points.dtype)
        return torch.maximum(points[:, 0], lowest[victims]).round()[:, None]

    def slope(starts):
        return Adam(starts, lr=0.1, schedule=lambda step: 1.0)

    matches = minimise(
        height,
        lambda _: torch.zeros(1, dtype=torch.float64),
        [testing.job(), testing.job()],
        slope,
        [Rules(iterations=60, evaluations=1, patience=60, unchanged=20)] * 2,
        checks=Checks(reading=read, every=10, after=after),
    )
    assert [match.outcomes for match in matches] == [["stalled"], ["steps"]]
    assert [match.evaluations for match in matches] == [ends, 60]
    assert asked == [[0, 1]] * readings[0] + [[1]] * readings[1]


def test_what_is_undefined_from_the_start_diverges():
    def nowhere(points, victims):
        return points.sum(dim=1) * float("nan")

    rules = [Rules(iterations=5)]
    (match,) = minimise(
        nowhere, lambda _: torch.zeros(2), [testing.job()], lbfgs, rules, restarts=Restarts(1)
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


def test_every_row_of_adam_may_have_a_step_length_of_its_own():
    rates, starts = [0.1, 0.5, 0.3], torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]])
    every = Adam(starts, lr=torch.tensor(rates), schedule=lambda step: 0.9**step)
    each = [
        Adam(one[None], lr=lr, schedule=lambda step: 0.9**step)
        for one, lr in zip(starts, rates, strict=True)
    ]
    for rows in ([0, 1, 2], [2, 0]):
        every.tell(torch.zeros(len(rows)), every.point().clone())
        for row in rows:
            each[row].tell(torch.zeros(1), each[row].point().clone())
        expected = torch.cat([each[row].point() for row in rows])
        torch.testing.assert_close(every.point(), expected)
        if len(rows) == 3:
            every.keep(torch.tensor([2, 0]))


def test_a_start_that_diverges_is_not_repeated_when_the_budget_is_used_up():
    job, rules = testing.job(budget=3), [Rules(30, evaluations=1)]

    def broken(points, _):
        return points.sum(dim=1) * torch.nan

    start = torch.ones(4, dtype=torch.float64)
    (match,) = minimise(broken, lambda _: start, [job], LBFGS, rules, restarts=Restarts(50))
    assert (job.iterations, len(match.outcomes)) == (3, 3)
