"""What LLG's probes cost: one forward pass for all of them beside one backward pass for each.

    python benchmarks/llg_probes.py

LLG's CNN on 28 x 28 images, ten classes, ten batches of auxiliary images a class as in the paper
(none of them twice at the attacked batch size), one thread. Both sides draw the same probes and
their impact and offsets are asserted equal; the fastest of several turns counts, so that a busy
machine slows both alike. "All" differentiates by every parameter, as the shared gradient is made;
"head" by the head's weight alone, the least that autograd can do.
"""

import argparse

import torch
from timing import fastest
from torch import Tensor

from adversaries import LLG
from adversaries.labels.llg.probes import by_label, draw
from fedsim import testing
from fedsim.engine.process import one_thread
from fedsim.records import Batch, Observation, Spec
from fedsim.seeds import isolated, torch_generator
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models.cnn import CNN
from fedsim.victim import VictimModel

SPEC = Spec(classes=10, input_shape=(1, 28, 28), input_range=(0.0, 1.0))
SIZES = (8, 128)
BATCHES = 10


def observed(size: int) -> Observation:
    """The gradient of `size` random images on an untrained CNN, with a model and auxiliary data."""
    with isolated(0, "benchmark"):
        model = VictimModel(CNN().build((1, 28, 28), 10), head="head", loss=cross_entropy)
    rng = torch_generator(0, "benchmark")
    auxiliary = BATCHES * size * SPEC.classes
    gradient = model.gradient(
        torch.rand(size, 1, 28, 28, generator=rng), torch.randint(10, (size,), generator=rng)
    )
    return testing.observation(
        gradient={name: value.detach() for name, value in gradient.items()},
        spec=SPEC,
        model=model,
        num_examples=size,
        steps=1,
        auxiliary=Batch(
            torch.rand(auxiliary, 1, 28, 28, generator=rng), torch.arange(auxiliary) % 10
        ),
    )


def plain(seen: Observation, attack: LLG, names: list[str]) -> tuple[float, Tensor]:
    """m of Eq. 19 and s of Eq. 20 from the attack's probes, one backward pass each."""
    size, n, model = seen.num_examples, SPEC.classes, seen.model
    largest, constant = size, attack.variant == "llg*"
    if constant:
        images = torch.zeros(largest, *SPEC.input_shape)
        held = dict.fromkeys(range(n), torch.arange(largest))
    else:
        images, held = seen.auxiliary.inputs, by_label(seen.auxiliary.labels, n)
    sizes = [largest]
    if attack.fidelity == "paper":
        sizes += [2**k for k in range(1, 8) if 2**k < largest]
    rng = testing.job().rng
    own: list[list[Tensor]] = [[] for _ in range(n)]
    others: list[list[Tensor]] = [[] for _ in range(n)]
    for each in sizes:
        probes = draw(held, each, BATCHES, rng)
        for label, members in zip(probes.labels.tolist(), probes.members, strict=True):
            target = torch.full((each,), label)
            g = model.gradient(images[members], target, names=names)["head.weight"].sum(dim=1)
            for i in range(n):
                if i != label:
                    others[i].append(g[i])
                elif each == largest:
                    own[i].append(g[i])
    means = torch.stack([torch.stack(one).double().mean() for one in own])
    m = float(means.sum()) / (n * size) * (1 + 1 / n)
    return m, torch.stack([torch.stack(one).double().mean() for one in others])


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    print("| Attack | Probes | B | fedsim, ms | all, ms | ratio | head, ms | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with one_thread():
        for variant in ("llg*", "llg+"):
            for fidelity in ("authors", "paper"):
                for size in SIZES:
                    attack = LLG(variant=variant, fidelity=fidelity, batches=BATCHES)
                    print(row(attack, observed(size)), flush=True)


def row(attack: LLG, seen: Observation) -> str:
    """One line of the table; raises where the two sides differ."""
    parameters = list(seen.model.parameters())
    claimed = attack.reconstruct(seen, testing.job())
    m, s = plain(seen, attack, ["head.weight"])
    g = seen.gradient["head.weight"].sum(dim=1).double()
    assert claimed.diagnostics["probes"] == "pooled"
    torch.testing.assert_close(claimed.diagnostics["impact"], m, rtol=1e-6, atol=0)
    scale = float((g - s).abs().max() / abs(m))
    torch.testing.assert_close(claimed.label_scores, (g - s) / m, rtol=0, atol=1e-5 * scale)
    ours = fastest(lambda: attack.reconstruct(seen, testing.job()))
    whole = fastest(lambda: plain(seen, attack, parameters))
    head = fastest(lambda: plain(seen, attack, ["head.weight"]))
    cells = [f"{1000 * ours:.1f}", f"{1000 * whole:.0f}", f"{whole / ours:.1f}"]
    cells += [f"{1000 * head:.0f}", f"{head / ours:.1f}"]
    where = [attack.variant, attack.fidelity, str(seen.num_examples)]
    return f"| {' | '.join(where + cells)} |"


if __name__ == "__main__":
    main()
