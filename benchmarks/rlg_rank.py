"""Why RLG counts too few word pieces: singular values of the gradient in float32 and float64.

    python benchmarks/rlg_rank.py [rlg/librispeech] --data DIR [--utterances 28]

RLG takes the rank of the head's gradient as the number of word pieces (Remark 2). Each utterance of
a figure is given to the untrained recogniser of that figure in both precisions. Printed are how
many pieces come again in an utterance, the range of the smallest singular value that belongs to a
piece (in float64, as a share of the largest), the rounding of float32 (the largest singular value
of the difference of both gradients), and for how many utterances the rank in float64 is the number
of pieces.
"""

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.reproduce.catalogue import choose
from fedsim.scenario.built import BuiltRun, build
from fedsim.seeds import isolated

ZERO = 1e-12
"""Of the largest singular value: above what float64's rounding leaves, far below any piece."""


@dataclass(frozen=True)
class Ranks:
    """What the gradients of an utterance say of the number of its pieces.

    Attributes:
        pieces: The number of pieces.
        repeated: How many of them have come before.
        rank: The rank in float64.
        least: The smallest singular value of a piece in float64, as a share of the largest.
        rounding: The largest singular value of float32's error, as a share of the same.
    """

    pieces: int
    repeated: int
    rank: int
    least: float
    rounding: float


def gradient(built: BuiltRun, client: int, dtype: torch.dtype) -> tuple[Tensor, list[int]]:
    """The gradient of the head's weight, and the labels."""
    task = built.task
    module = task.module().train().to(dtype)
    (batch,) = built.batches(client, 1)
    with isolated(built.scenario.seed, "client", 1, client):
        loss = task.loss(module, batch.inputs.to(dtype), batch.labels, lengths=batch.lengths)
        weight = dict(module.named_parameters())[f"{task.head}.weight"]
        (found,) = torch.autograd.grad(loss, [weight])
    return found.double(), [label for label in batch.labels[0].tolist() if label >= 0]


def ranks(built: BuiltRun, client: int) -> Ranks:
    """The ranks of one utterance."""
    exact, labels = gradient(built, client, torch.float64)
    rounded, _ = gradient(built, client, torch.float32)
    values = torch.linalg.svdvals(exact)
    values, error = values / values[0], torch.linalg.svdvals(rounded - exact)[0] / values[0]
    rank = int((values > ZERO).sum())
    pieces = len(labels)
    least = float(values[pieces - 1])
    return Ranks(pieces, pieces - len({*labels}), rank, least, float(error))


def line(name: str, found: list[Ranks]) -> str:
    """One line on some of the utterances."""
    if not found:
        return f"{name}: no utterance"
    least, errors = ([*map(pick, found)] for pick in (lambda r: r.least, lambda r: r.rounding))
    right, again = sum(one.rank == one.pieces for one in found), sum(one.repeated for one in found)
    return (
        f"{name}: {len(found)} utterances, {again} pieces again; least of a piece "
        f"{min(least):.1e} to {max(least):.1e}, rounding {min(errors):.1e} to "
        f"{max(errors):.1e}; rank right in float64 for {right}"
    )


def main() -> None:
    """Print a line on utterances without and one on those with pieces that come again."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("figure", nargs="?", default="rlg/librispeech")
    parser.add_argument("--data", default="")
    parser.add_argument("--utterances", type=int, default=0, help="of each; 0 for all")
    given = parser.parse_args()
    torch.set_num_threads(1)
    (figure,) = choose(given.figure)
    built = build(figure.parts[0].scenario("smoke", data=given.data))
    number = given.utterances or built.scenario.training.clients
    found = [ranks(built, client) for client in range(number)]
    print(line("every piece once", [one for one in found if not one.repeated]))
    print(line("some again", [one for one in found if one.repeated]))


if __name__ == "__main__":
    main()
