"""Running statistics of BatchNorm layers give the statistics of the batch that moved them."""

import pytest
import torch
from torch import nn

from fedsim.gradients import StatisticsDistance, batch_statistics, layer_calls
from fedsim.victim import VictimModel


def model(**settings) -> VictimModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, **settings), nn.Flatten(), nn.Linear(64, 3)
        )
        if module[1].running_mean is not None:
            module[1].running_mean.normal_()
            module[1].running_var.uniform_(0.5, 2)
    return VictimModel(
        module.train(), head="3", loss=lambda module, inputs, *_, **__: module(inputs)
    )


def images(seed: int, size: int = 4) -> torch.Tensor:
    return torch.rand(size, 1, 6, 6, generator=torch.Generator().manual_seed(seed))


def trained(victim: VictimModel, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    """The buffers after a step on a batch."""
    client = victim.copy().module
    client(batch)
    return {name: value.clone() for name, value in client.named_buffers()}


@pytest.mark.parametrize("momentum", [0.1, 0.7, 1.0])
def test_the_batchs_mean_and_variance_come_back(momentum):
    victim = model(momentum=momentum)
    found = batch_statistics(victim, trained(victim, images(1)))
    assert [*found] == ["1"]
    entered = victim.module[0](images(1)).transpose(0, 1).flatten(1)
    mean, var = found["1"]
    assert torch.allclose(mean.float(), entered.mean(dim=1), atol=1e-5)
    assert torch.allclose(var.float(), entered.var(dim=1), atol=1e-5)


def test_layers_whose_statistics_do_not_follow_the_batch_are_left_out():
    victim = model()
    after = trained(victim, images(1))
    untouched = {name: value.clone() for name, value in victim.module.named_buffers()}
    assert batch_statistics(victim, untouched) == {}
    assert batch_statistics(victim, {}) == {}
    frozen = victim.copy()
    frozen.module.eval()
    assert batch_statistics(frozen, after) == {}
    cumulative = model(momentum=None)
    assert batch_statistics(cumulative, trained(cumulative, images(1))) == {}
    without = model(track_running_stats=False)
    assert batch_statistics(without, trained(without, images(1))) == {}


def test_the_distance_is_zero_at_the_batch_itself_and_each_victims_own():
    victim = model()
    observed = [batch_statistics(victim, trained(victim, images(seed))) for seed in (1, 2)]
    distance = StatisticsDistance(victim, observed)

    def apart(batches: list[torch.Tensor], victims: list[int]) -> torch.Tensor:
        with layer_calls(distance.layers) as calls:
            for batch in batches:
                victim.module(batch)
        return distance(calls, torch.tensor(victims))

    own = apart([images(1), images(2)], [0, 1])
    crossed = apart([images(1), images(2)], [1, 0])
    assert own.max() < 1e-8
    assert crossed.min() > 1e-3
    dummy = images(3).requires_grad_()
    (slope,) = torch.autograd.grad(apart([dummy], [0]).sum(), dummy)
    assert slope.abs().max() > 0


def test_a_layer_that_a_batch_passes_twice_is_not_compared():
    victim = model()
    distance = StatisticsDistance(victim, [batch_statistics(victim, trained(victim, images(1)))])
    with layer_calls(distance.layers) as calls:
        victim.module(images(1))
        victim.module(images(2))
    assert distance(calls, torch.tensor([0])).tolist() == [0.0]
