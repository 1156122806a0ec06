"""repeated-gradients matches several rounds at once, which beats each of them under noise."""

import dataclasses

import pytest
import torch
from pydantic import ValidationError

from adversaries import DLG, RepeatedGradients
from fedsim import testing
from fedsim.metrics import METRICS
from fedsim.records import Observation, Truth

SIGMA = 0.01


def noisy(seed: int, round: int, sigma: float = SIGMA) -> Observation:
    """Image `seed` behind its gradient at the model of a round, with noise."""
    model = testing.network(100 + round)
    seen = testing.example(1, seed, model)
    rng = torch.Generator().manual_seed(1000 * seed + round)
    gradient = {
        name: value + sigma * torch.randn(value.shape, generator=rng)
        for name, value in seen.gradient.items()
    }
    return dataclasses.replace(seen, gradient=gradient)


def shown(seed: int, rounds: int, sigma: float = SIGMA) -> Observation:
    """The last of some rounds that hold image `seed`, with the others as its history."""
    *earlier, last = (noisy(seed, round, sigma) for round in range(rounds))
    return dataclasses.replace(last, history=tuple(earlier))


def error(claimed, seed: int) -> float:
    batch = testing.batch(1, seed)
    truth = Truth(inputs=list(batch.inputs), labels=batch.labels)
    return METRICS["mse"].score(claimed, truth, testing.SPEC)


def attack(seen: Observation, **settings):
    settings = {"iterations": 60, "restarts": 0, **settings}
    return RepeatedGradients(**settings).reconstruct(seen, testing.job())


def test_under_noise_it_beats_every_single_round():
    seeds, rounds = range(3), 4
    single = DLG(iterations=25, restarts=0, labels_from="given")
    alone = torch.tensor(
        [
            [error(single.reconstruct(noisy(seed, round), testing.job()), seed) for seed in seeds]
            for round in range(rounds)
        ]
    )
    together = torch.tensor(
        [
            error(attack(shown(seed, rounds), labels_from="given", iterations=25), seed)
            for seed in seeds
        ]
    )
    assert together.mean() < 0.5 * alone.mean(dim=1).min()


def test_one_clean_round_is_recovered_as_by_dlg():
    seen = shown(3, 1, sigma=0.0)
    claimed = attack(seen, labels_from="idlg")
    assert error(claimed, 3) < 1e-3
    assert torch.equal(claimed.labels, seen.labels)
    assert claimed.outcomes == ("matched",)
    assert claimed.diagnostics["rounds"] == 1


def test_only_rounds_with_the_same_labels_are_matched_where_asked():
    labels = [int(testing.batch(1, seed).labels) for seed in range(3)]
    assert len({*labels}) == 3
    order = [0, 1, 2, 0]
    *earlier, last = (noisy(seed, round, 0.0) for round, seed in enumerate(order))
    seen = dataclasses.replace(last, history=tuple(earlier))
    claimed = attack(seen, recur="labels", labels_from="idlg")
    assert claimed.diagnostics["rounds"] == 2
    assert error(claimed, 0) < 1e-3
    assert attack(seen, labels_from="idlg", iterations=1).diagnostics["rounds"] == 4


def test_the_latest_rounds_of_as_many_examples_are_matched():
    seen = shown(1, 5)
    other = dataclasses.replace(seen.history[3], num_examples=2)
    seen = dataclasses.replace(seen, history=(*seen.history[:3], other))
    assert attack(seen, iterations=1).diagnostics["rounds"] == 4
    assert attack(seen, iterations=1, window=3).diagnostics["rounds"] == 3
    assert attack(seen, iterations=1, window=1).diagnostics["rounds"] == 1


def test_victims_are_attacked_together_with_the_same_result():
    seen = [shown(1, 3), shown(2, 3), shown(3, 2)]
    method = RepeatedGradients(iterations=4, restarts=0)
    together = method.reconstruct_many(seen, [testing.job(seed=n) for n in range(3)])
    for number, (one, claimed) in enumerate(zip(seen, together, strict=True)):
        alone = method.reconstruct(one, testing.job(seed=number))
        assert torch.allclose(alone.inputs[0], claimed.inputs[0], atol=1e-3)
        assert claimed.diagnostics["rounds"] == len(one.history) + 1


def test_labels_of_earlier_rounds_have_to_be_inferred():
    for source in ("none", "given"):
        with pytest.raises(ValidationError, match="name an adversary that infers them"):
            RepeatedGradients(recur="labels", labels_from=source)


def test_an_earlier_update_that_shows_no_label_is_left_out():
    seen = shown(1, 2)
    zero = {name: torch.zeros_like(value) for name, value in seen.gradient.items()}
    lost = dataclasses.replace(seen.history[0], gradient=zero)
    seen = dataclasses.replace(seen, history=(lost, *seen.history))
    claimed = attack(seen, recur="labels", labels_from="idlg", iterations=2)
    assert claimed.diagnostics["rounds"] == 2


@pytest.mark.parametrize("value", [float("nan"), 0.0])
def test_an_earlier_round_that_shows_nothing_is_left_out(value):
    seen = shown(0, 3, sigma=0.0)
    first, second = seen.history
    spoilt = {name: torch.full_like(one, value) for name, one in first.gradient.items()}
    history = (dataclasses.replace(first, gradient=spoilt), second)
    claimed = attack(dataclasses.replace(seen, history=history), labels_from="given")
    assert claimed.diagnostics["rounds"] == 2
    assert error(claimed, 0) < 1e-3
