"""DLG side by side: the plugin, many images in one optimisation, and the authors' loop.

    python benchmarks/dlg.py [--images 20] [--more 60] [--data DIR]
    python benchmarks/dlg.py --batches 1 2 4 8 [--trials 2] [--outer 300] [--data DIR]

LeNet with sigmoids, 32 x 32 images, float32, one thread. First `--images` images by
`benchmarks/dlg_plain.py` (one start of 300 outer steps an image, no line search) and by the plugin
(backtracking, new starts for those that fail), then `--more` images by the plugin alone, for its
success rate; 0 of either leaves that part out. Success: MSE < 1e-3, of the start with the lowest
gradient distance. CPU seconds.

With `--batches`, batches of each of these sizes are attacked instead, `--trials` of each: one start
of `--outer` outer steps on both sides, in turns, and one batch at a time. All images of a batch
move together (`batch_rule = "joint"`), and are compared in the order that fits best.
"""

import argparse
import os
import time
from statistics import mean

import torch
from dlg_plain import OUTER, SUCCESS, attack, errors, gradient, network, pictures, victim

from adversaries import DLG
from fedsim import testing
from fedsim.records import Spec
from fedsim.seeds import torch_generator
from fedsim.tasks.images import cross_entropy
from fedsim.victim import VictimModel

TOGETHER = 20

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--images", type=int, default=20)
parser.add_argument("--more", type=int, default=60)
parser.add_argument("--batches", type=int, nargs="+", default=[])
parser.add_argument("--trials", type=int, default=2)
parser.add_argument("--outer", type=int, default=OUTER)
parser.add_argument("--seed", type=int, default=7)
parser.add_argument("--history", type=int, default=100)
parser.add_argument("--data", default=os.environ.get("FEDSIM_DATA"))
options = parser.parse_args()
torch.set_num_threads(1)

name, images = pictures(options.data)
module = network(images, options.seed)
spec = Spec(images.classes, images.shape, (0.0, 1.0))
model = VictimModel(module, head="head", loss=cross_entropy)


def plain(indices: range) -> tuple[float, int, int]:
    """CPU seconds, closures, successes of the authors' loop."""
    attempts = []
    for index in indices:
        inputs, label = victim(images, index)
        observed = gradient(module, inputs, label)
        rng = torch_generator(options.seed, "plain", index)
        attempts.append(attack(module, observed, inputs, images.classes, rng))
        print(f"  plain {len(attempts)} of {len(indices)}", end="\r", flush=True)
    print(" " * 30, end="\r")
    return (
        sum(one.seconds for one in attempts),
        sum(one.closures for one in attempts),
        sum(one.mse < SUCCESS for one in attempts),
    )


def plugin(indices: range) -> tuple[float, list[int], list[int], list[bool]]:
    """CPU seconds; closures, starts and success of each image, `TOGETHER` images at a time."""
    dlg = DLG(precision="float32", history=options.history)
    closures, starts, hits, seconds = [], [], [], 0.0
    for first in range(indices.start, indices.stop, TOGETHER):
        chosen = range(first, min(first + TOGETHER, indices.stop))
        seen, originals = [], []
        for index in chosen:
            inputs, label = victim(images, index)
            sent = dict(zip(model.parameters(), gradient(module, inputs, label), strict=True))
            seen.append(testing.observation(gradient=sent, model=model, spec=spec, num_examples=1))
            originals.append(inputs[0])
        jobs = [testing.job(seed=options.seed * 10_000 + index) for index in chosen]
        started = time.process_time()
        claims = dlg.reconstruct_many(seen, jobs)
        seconds += time.process_time() - started
        for claim, original in zip(claims, originals, strict=True):
            closures.append(claim.diagnostics["closures"])
            starts.append(len(claim.outcomes))
            mse = float((claim.inputs[0].clamp(0, 1) - original).square().mean())
            hits.append(mse < SUCCESS)
    return seconds, closures, starts, hits


def batches(size: int) -> None:
    """Print what batches of one size come to on both sides."""
    dlg = DLG(precision="float32", history=options.history, iterations=options.outer, restarts=0)
    seconds, closures, hits = [0.0, 0.0], [0, 0], [0, 0]
    for trial in range(options.trials):
        inputs, labels = victim(images, trial * size, size)
        sent = gradient(module, inputs, labels)
        seen = testing.observation(
            gradient=dict(zip(model.parameters(), sent, strict=True)),
            model=model,
            spec=spec,
            num_examples=size,
        )
        rng = torch_generator(options.seed, "plain", trial)
        theirs = attack(module, sent, inputs, images.classes, rng, outer=options.outer)
        started = time.process_time()
        claim = dlg.reconstruct(seen, testing.job(seed=options.seed * 10_000 + trial))
        took = time.process_time() - started
        ours = errors(torch.stack([*claim.inputs]), inputs)
        for side, values in enumerate(
            (
                (theirs.seconds, theirs.closures, theirs.hits),
                (took, claim.diagnostics["closures"], int((ours < SUCCESS).sum())),
            )
        ):
            seconds[side] += values[0]
            closures[side] += values[1]
            hits[side] += values[2]
    each = [1000 * took / number for took, number in zip(seconds, closures, strict=True)]
    print(
        f"{size} images: plain {hits[0]} of {size * options.trials} images, {closures[0]} "
        f"closures of {each[0]:.2f} ms; plugin {hits[1]}, {closures[1]} closures of "
        f"{each[1]:.2f} ms; a closure x{each[0] / each[1]:.2f}",
        flush=True,
    )


print(f"{name}, 32 x 32, {sum(p.numel() for p in module.parameters()):,} parameters")
for size in options.batches:
    batches(size)
if options.batches:
    raise SystemExit
if options.images:
    chosen = range(options.images)
    ours, closures, starts, hits = plugin(chosen)
    theirs, their_closures, successes = plain(chosen)
    rows = [
        ("plain", theirs, their_closures, successes),
        ("plugin", ours, sum(closures), sum(hits)),
    ]
    print(f"{'':8}{'success':>10}{'closures an image':>20}{'ms a closure':>15}{'s a success':>14}")
    for label, seconds, count, good in rows:
        print(
            f"{label:8}{good:>4} of {options.images:<3}{count / options.images:>19.0f}"
            f"{1000 * seconds / count:>15.2f}{seconds / max(1, good):>14.1f}"
        )
    print(
        f"an image-step: x{theirs / their_closures / (ours / sum(closures)):.1f}; "
        f"a success: x{theirs / max(1, successes) / (ours / max(1, sum(hits))):.1f}"
    )
if options.more:
    _, closures, starts, hits = plugin(range(options.more))
    print(
        f"{sum(hits)} of {options.more} images ({100 * mean(hits):.0f} %); "
        f"{mean(starts):.2f} starts and {mean(closures):.0f} closures an image, restarts included; "
        f"the authors' budget is {OUTER} outer steps, up to {20 * OUTER}, for one start"
    )
