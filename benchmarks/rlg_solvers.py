"""What separability costs: certificates and projections beside one linear program a class.

    python benchmarks/rlg_solvers.py

Gradients of an untrained head on random features behind a tanh, float32, one thread, CPU seconds of
the fastest of three turns. "Whole" is the attack from the gradient on, "solver" what comes after
the leading dimensions. "Products" is the whole attack in products of dW with 64 columns in float64,
one of which any method needs that decides rank and separability from all of dW. The LP is timed on
at least 100 random classes (fewer where `--classes` says so) and every accepted one, and
extrapolated to all; on all of these its answer must be the same, or the run fails; classes on which
the LP's solver ends in an error are counted. `--classes N` and `--features D` play smaller or
larger parts.
"""

import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch
from timing import fastest
from torch import Tensor

from adversaries import RLG
from adversaries.labels.rlg.separability import by_lp, normalised
from adversaries.labels.rlg.spanning import by_spanning
from adversaries.labels.rlg.subspace import leading
from fedsim import testing
from fedsim.engine.process import one_thread


def gradient(classes: int, size: int, features: int, repeats: bool) -> Tensor:
    """dW (classes, features) of `size` labels; with repeats, drawn from half as many."""
    rng = torch.Generator().manual_seed(classes + size + repeats)
    order = torch.randperm(classes, generator=rng)
    labels = order[torch.randint(size // 2, (size,), generator=rng)] if repeats else order[:size]
    h = torch.tanh(torch.randn(size, features, generator=rng))
    w = (2 * torch.rand(classes, features, generator=rng) - 1) / features**0.5
    p = torch.softmax(h @ w.T, dim=1)
    p[torch.arange(size), labels] -= 1
    return p.T @ h / size


@dataclass(frozen=True)
class Solved:
    """CPU seconds of a linear program for each class, of the solver, of the whole attack and of the
    products; accepted classes, those that needed a linear program, and errors of the LP's solver.
    """

    lp: float
    solver: float
    whole: float
    product: float
    accepted: int
    lps: int
    errors: int


def measure(classes: int, size: int, features: int, repeats: bool, sampled: int) -> Solved:
    """Both sides on one gradient; raises where the LP answers otherwise."""
    weight = gradient(classes, size, features, repeats)
    seen = testing.observation(gradient={"head.weight": weight})
    found = leading(weight, "gap", testing.job().rng, label_count=None, tolerance=1e-5)
    assert found.size == size
    q, lengths = normalised(found.whitened), np.linalg.norm(found.whitened, axis=0)
    verdict = by_spanning(q, lengths)
    chosen = np.random.default_rng(0).permutation(classes)[:sampled].tolist()
    started = time.process_time()
    reference = by_lp(q, chosen)
    lp = (time.process_time() - started) / len(chosen) * classes
    everywhere = by_lp(q, verdict.accepted)
    failed = reference.failed | everywhere.failed
    assert reference.accepted == (verdict.accepted & set(chosen)) - failed
    assert everywhere.accepted == verdict.accepted - failed
    columns = torch.eye(features, 64, dtype=torch.float64)
    return Solved(
        lp=lp,
        solver=fastest(lambda: by_spanning(q, lengths)),
        whole=fastest(lambda: RLG().reconstruct(seen, testing.job())),
        product=fastest(lambda: [part.double() @ columns for part in torch.split(weight, 256)]),
        accepted=len(verdict.accepted),
        lps=verdict.lps,
        errors=len(failed),
    )


def row(classes: int, size: int, features: int, repeats: bool, sampled: int) -> str:
    """One line of the table."""
    it = measure(classes, size, features, repeats, sampled)
    names = f"{size} | {classes:,} | {features:,} | {'yes' if repeats else 'no'}"
    return (
        f"| {names} | {it.lp:,.0f} | {it.solver:.3f} | {it.lp / it.solver:,.0f} | {it.whole:.3f} | "
        f"{it.whole / it.product:.1f} | {it.accepted} | {it.lps} | {it.errors} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, nargs="*", default=[1000, 16000])
    parser.add_argument("--features", type=int, nargs="*", default=[512, 3072])
    parser.add_argument("--labels", type=int, nargs="*", default=[10, 50])
    parser.add_argument("--sampled", type=int, default=100, help="classes the LP is timed on")
    given = parser.parse_args()
    print(
        "| S | C | d | repeats | LP, s | solver, s | ratio | whole, s | products | accepted | "
        "LPs | errors |"
    )
    print("|" + 12 * " --- |")
    with one_thread():
        for features in given.features:
            for classes in given.classes:
                for size in given.labels:
                    for repeats in (False, True):
                        print(row(classes, size, features, repeats, given.sampled), flush=True)


if __name__ == "__main__":
    main()
