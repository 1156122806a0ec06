"""DLG side by side: the plugin, many images in one optimisation, and the authors' loop.

    python benchmarks/dlg.py [--images 20] [--more 60] [--data DIR]
    python benchmarks/dlg.py --batches 1 2 4 8 [--trials 2] [--together] [--outer 300] [--data DIR]

LeNet with sigmoids, 32 x 32 images, float32, one thread. First `--images` images by
`benchmarks/dlg_plain.py` (one start of 300 outer steps an image, no line search) and by the plugin
(backtracking, new starts for those that fail), then `--more` images by the plugin alone, for its
success rate; 0 of either leaves that part out. Success: MSE < 1e-3, of the start with the lowest
gradient distance. CPU seconds.

With `--batches`, batches of each of these sizes are attacked instead, `--trials` of each: one start
of `--outer` outer steps on both sides, in turns, and one batch at a time, or the plugin on all of
them `--together`. All images of a batch move at once (`batch_rule = "joint"`), and are compared in
the order that fits best.
"""

import argparse
import os
import time
from dataclasses import dataclass

import torch
from dlg_plain import OUTER, SUCCESS, attack, errors, gradient, network, pictures, victim
from torch import Tensor

from adversaries import DLG
from fedsim import testing
from fedsim.records import Observation, Spec
from fedsim.seeds import torch_generator
from fedsim.tasks.images import cross_entropy
from fedsim.victim import VictimModel

TOGETHER = 20
HISTORY = 100
"""Pairs that L-BFGS keeps on both sides."""


@dataclass
class Tally:
    """CPU seconds, evaluations of the distance and recovered images of one side."""

    seconds: float = 0.0
    closures: int = 0
    hits: int = 0

    def add(self, seconds: float, closures: int, hits: int) -> None:
        self.seconds += seconds
        self.closures += closures
        self.hits += hits

    @property
    def closure(self) -> float:
        """CPU seconds of an evaluation, with the step that it belongs to."""
        return self.seconds / self.closures

    @property
    def success(self) -> float:
        """CPU seconds of a recovered image."""
        return self.seconds / max(1, self.hits)


class Comparison:
    """The attacked network and its images."""

    def __init__(self, data: str | None, seed: int = 7, history: int = HISTORY) -> None:
        self.name, self.images = pictures(data)
        self.seed = seed
        self.history = history
        self.module = network(self.images, seed)
        self.spec = Spec(self.images.classes, self.images.shape, (0.0, 1.0))
        self.model = VictimModel(self.module, head="head", loss=cross_entropy)

    def _seen(self, inputs: Tensor, labels: Tensor) -> Observation:
        sent = gradient(self.module, inputs, labels)
        return testing.observation(
            gradient=dict(zip(self.model.parameters(), sent, strict=True)),
            model=self.model,
            spec=self.spec,
            num_examples=len(labels),
        )

    def plain(self, indices: range) -> Tally:
        """The authors' loop, one image at a time."""
        tally = Tally()
        for index in indices:
            inputs, label = victim(self.images, index)
            observed = gradient(self.module, inputs, label)
            rng = torch_generator(self.seed, "plain", index)
            one = attack(self.module, observed, inputs, self.images.classes, rng)
            tally.add(one.seconds, one.closures, int(one.mse < SUCCESS))
            print(f"  plain {index + 1 - indices.start} of {len(indices)}", end="\r", flush=True)
        print(" " * 30, end="\r")
        return tally

    def plugin(self, indices: range) -> tuple[Tally, int]:
        """`TOGETHER` images at a time, and how many starts they took."""
        dlg = DLG(precision="float32", history=self.history)
        tally, starts = Tally(), 0
        for first in range(indices.start, indices.stop, TOGETHER):
            chosen = range(first, min(first + TOGETHER, indices.stop))
            seen = [self._seen(*victim(self.images, index)) for index in chosen]
            jobs = [testing.job(seed=self.seed * 10_000 + index) for index in chosen]
            started = time.process_time()
            claims = dlg.reconstruct_many(seen, jobs)
            tally.add(time.process_time() - started, 0, 0)
            for claim, index in zip(claims, chosen, strict=True):
                original = victim(self.images, index)[0][0]
                mse = float((claim.inputs[0].clamp(0, 1) - original).square().mean())
                tally.add(0.0, claim.diagnostics["closures"], int(mse < SUCCESS))
                starts += len(claim.outcomes)
        return tally, starts

    def batches(
        self, size: int, trials: int, outer: int, *, together: bool = False
    ) -> tuple[Tally, Tally]:
        """The authors' loop and the plugin on batches of one size.

        In turns, a batch at a time; or the authors' loop on one batch after the other, and then
        the plugin on all of them together.
        """
        dlg = DLG(precision="float32", history=self.history, iterations=outer, restarts=0)
        theirs, ours = Tally(), Tally()
        groups = [range(trials)] if together else [range(one, one + 1) for one in range(trials)]
        for group in groups:
            victims = [victim(self.images, trial * size, size) for trial in group]
            for trial, (inputs, labels) in zip(group, victims, strict=True):
                rng = torch_generator(self.seed, "plain", trial)
                sent = gradient(self.module, inputs, labels)
                one = attack(self.module, sent, inputs, self.images.classes, rng, outer=outer)
                theirs.add(one.seconds, one.closures, one.hits)
            seen = [self._seen(*each) for each in victims]
            jobs = [testing.job(seed=self.seed * 10_000 + trial) for trial in group]
            started = time.process_time()
            claims = dlg.reconstruct_many(seen, jobs)
            ours.add(time.process_time() - started, 0, 0)
            for claim, (inputs, _) in zip(claims, victims, strict=True):
                apart = errors(torch.stack([*claim.inputs]), inputs)
                ours.add(0.0, claim.diagnostics["closures"], int((apart < SUCCESS).sum()))
        return theirs, ours


def main() -> None:
    """Print what each side takes and recovers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--images", type=int, default=TOGETHER)
    parser.add_argument("--more", type=int, default=60)
    parser.add_argument("--batches", type=int, nargs="+", default=[])
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--together", action="store_true", help="all batches of a size at once")
    parser.add_argument("--outer", type=int, default=OUTER)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--history", type=int, default=HISTORY)
    parser.add_argument("--data", default=os.environ.get("FEDSIM_DATA"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    it = Comparison(options.data, options.seed, options.history)
    size = sum(p.numel() for p in it.module.parameters())
    print(f"{it.name}, 32 x 32, {size:,} parameters")
    for size in options.batches:
        theirs, ours = it.batches(size, options.trials, options.outer, together=options.together)
        print(
            f"{size} images: plain {theirs.hits} of {size * options.trials} images, "
            f"{theirs.closures} closures of {1000 * theirs.closure:.2f} ms; plugin {ours.hits}, "
            f"{ours.closures} closures of {1000 * ours.closure:.2f} ms; "
            f"a closure x{theirs.closure / ours.closure:.2f}",
            flush=True,
        )
    if options.batches:
        return
    if options.images:
        chosen = range(options.images)
        ours, _ = it.plugin(chosen)
        theirs = it.plain(chosen)
        print(
            f"{'':8}{'success':>10}{'closures an image':>20}{'ms a closure':>15}{'s a success':>14}"
        )
        for label, one in (("plain", theirs), ("plugin", ours)):
            print(
                f"{label:8}{one.hits:>4} of {options.images:<3}"
                f"{one.closures / options.images:>19.0f}"
                f"{1000 * one.closure:>15.2f}{one.success:>14.1f}"
            )
        print(
            f"an image-step: x{theirs.closure / ours.closure:.1f}; "
            f"a success: x{theirs.success / ours.success:.1f}"
        )
    if options.more:
        ours, starts = it.plugin(range(options.more))
        print(
            f"{ours.hits} of {options.more} images ({100 * ours.hits / options.more:.0f} %); "
            f"{starts / options.more:.2f} starts and {ours.closures / options.more:.0f} closures "
            f"an image, restarts included; the authors' budget is {OUTER} outer steps, up to "
            f"{20 * OUTER}, for one start"
        )


if __name__ == "__main__":
    main()
