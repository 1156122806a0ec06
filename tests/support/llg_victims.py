"""Updates of unbalanced batches of digits, and LLG on them."""

from typing import Any

import torch

from adversaries import LLG
from fedsim import testing
from fedsim.records import Observation, Reconstruction, Spec, Truth
from fedsim.tasks.images import Images

DIGITS = Spec(classes=10, input_shape=(1, 8, 8), input_range=(0.0, 1.0))


def victim(
    seed: int, batch: int, steps: int = 1, *, trained: bool = False, **task: Any
) -> tuple[Observation, Truth]:
    """`steps` unbalanced batches of digits on LLG's untrained CNN, at lr 0.1 where it trains."""
    images = Images(seed=seed, **{"composition": "unbalanced", **task})
    model = images.victim({})
    local = model.copy()
    total = {name: torch.zeros_like(p) for name, p in local.parameters().items()}
    batches = images.batches(0, 1, batch_size=batch, steps=steps)
    for one in batches:
        for name, value in local.gradient(one.inputs, one.labels).items():
            total[name] += value.detach()
            if trained:
                local.parameters()[name].data -= 0.1 * value
    seen = testing.observation(
        gradient={name: value / steps for name, value in total.items()},
        spec=images.spec,
        head=images.head,
        exact=steps == 1,
        model=model,
        num_examples=batch * steps,
        steps=steps,
        lr=0.1,
        auxiliary=images.auxiliary(),
    )
    return seen, Truth(labels=torch.cat([one.labels for one in batches]))


def attacked(seen: Observation, variant: str = "llg", **given: Any) -> Reconstruction:
    """What LLG claims."""
    return LLG(variant=variant, **given).reconstruct(seen, testing.job(seed=1))
