"""What an iteration of HFGM costs: 128 changes of a frame, beside a batched forward pass.

    python benchmarks/hfgm.py [--small]

The plain side runs all changed utterances through DeepSpeech in one batch and differentiates each
one's CTC loss by the head's weight and bias, with torch's own CTC, through its own frames alone.
Ours runs again only what a change touches (`adversaries.speech.hfgm.changed_frames`) and has all
head gradients in closed form; between the two stands the batched forward pass with the closed form.
"Predicted" is an iteration with `selection` = "predicted", which evaluates few changes and judges
the others by one backward pass: the mean of sixteen iterations, one of which evaluates 16. Victims
of a round share these passes: "each of four together" has a fourth of such an iteration.
Random frames and transcript of 75 frames, 26 values, DeepSpeech of HFGM's size (2,048 units, an
LSTM of 2,048; small: 512 and 256), one thread; the cosine distances of both sides are asserted
equal. The fastest of several turns counts, in CPU time, so that a busy machine slows all alike.
"""

import argparse
from collections.abc import Sequence

import torch
from timing import fastest
from torch import Tensor
from torch.nn import functional

from adversaries.speech.hfgm.direct_search import EVERY, DirectSearch, iterate_together
from adversaries.speech.hfgm.frame_changes import Differentiable, HeadOnly
from fedsim import testing
from fedsim.engine.process import one_thread
from fedsim.gradients import cosine_distance, ctc_head_gradient, head_passes
from fedsim.seeds import isolated, torch_generator
from fedsim.tasks.speech.recognisers import as_recogniser
from fedsim.victim import VictimModel

FRAMES, FEATURES, CHANGES, CLASSES = 75, 26, 128, 29
NAMES = ["head.weight", "head.bias"]


def plain(model: VictimModel, frames: Tensor, target: Tensor, theirs: dict[str, Tensor]) -> Tensor:
    """Distances of utterances (K, T, F): one batched pass, and a gradient of the head for each,
    of its own frames alone."""
    with torch.no_grad():
        features, _ = head_passes(model, frames, target)
    head, found = model.module.head, []
    for one in features:
        scores = head(one).log_softmax(dim=1)
        loss = functional.ctc_loss(
            scores, target, torch.tensor(len(one)), torch.tensor(len(target)), reduction="none"
        )
        gradient = torch.autograd.grad(loss, [head.weight, head.bias])
        ours = {name: value[None] for name, value in zip(NAMES, gradient, strict=True)}
        found.append(cosine_distance(ours, theirs))
    return torch.cat(found)


def closed(model: VictimModel, frames: Tensor, target: Tensor, theirs: dict[str, Tensor]) -> Tensor:
    """The same, the gradients in closed form."""
    with torch.no_grad():
        passed = head_passes(model, frames, target)
    gradients = dict(zip(NAMES, ctc_head_gradient(*passed, target), strict=True))
    return cosine_distance(gradients, theirs)


def measure(
    hidden: int, recurrent: int, *, bidirectional: bool = False, together: Sequence[int] = (1, 4, 8)
) -> dict[str, float]:
    """CPU seconds of an iteration, plain first; predicted ones for so many victims together."""
    settings = {"name": "deepspeech", "hidden": hidden, "recurrent": recurrent}
    kind = as_recogniser({**settings, "bidirectional": bidirectional})
    with isolated(0, "benchmark"):
        module = kind.build(FEATURES, CLASSES).eval()
    rng = torch_generator(0, "benchmark")
    model = VictimModel(module, head="head", loss=kind.loss)
    target = torch.randint(1, CLASSES, (20,), generator=rng)
    heard, guess = (2 * torch.rand(FRAMES, FEATURES, generator=rng) - 1 for _ in range(2))
    theirs = {
        name: value.detach()[None]
        for name, value in model.gradient(heard[None], target[None], names=NAMES).items()
    }
    at = torch.randint(FRAMES, (CHANGES,), generator=rng)
    moves = functional.normalize(torch.randn(CHANGES, FEATURES, generator=rng), dim=1)
    changed = guess.repeat(CHANGES, 1, 1)
    changed[torch.arange(CHANGES), at] += moves
    # Head gradients ask for a graph from the head on; the layers before it need none.
    for name, weight in module.named_parameters():
        weight.requires_grad_(name in NAMES)
    tried = HeadOnly(model.copy(), target, NAMES)
    tried.move_to(guess)
    assert tried.way == "incremental"
    ours = torch.cat([cosine_distance(some, theirs) for some in tried.changed(at, moves)])
    expected = plain(model, changed, target, theirs)
    apart = float((ours - expected).abs().max())
    assert apart < 1e-6, f"distances differ by {apart:.1e}"

    def iteration() -> None:
        tried.move_to(guess)
        for some in tried.changed(at, moves):
            cosine_distance(some, theirs)

    def predicting(victims: int) -> float:
        """Seconds of an iteration of each of several victims, in shared passes."""
        own = model.copy()
        searches = [
            DirectSearch(
                [Differentiable(own, target, NAMES)],
                lambda gradients: cosine_distance(gradients, theirs),
                [(FRAMES, FEATURES)],
                testing.job(seed=victim),
                predicted=True,
            )
            for victim in range(victims)
        ]

        def iterations() -> None:
            for _ in range(EVERY):
                iterate_together(searches, CHANGES)

        return fastest(iterations) / EVERY / victims

    took = {
        "batched forward, a gradient each": fastest(lambda: plain(model, changed, target, theirs)),
        "batched forward, closed form": fastest(lambda: closed(model, changed, target, theirs)),
        "what a change touches, closed form": fastest(iteration),
    }
    for victims in together:
        shared = f", each of {victims} together" if victims > 1 else ""
        took[f"predicted{shared}"] = predicting(victims)
    return took


def main() -> None:
    """Both kinds of LSTM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="512 units and an LSTM of 256")
    hidden, recurrent = (512, 256) if parser.parse_args().small else (2048, 2048)
    with one_thread():
        for bidirectional in (False, True):
            took = measure(hidden, recurrent, bidirectional=bidirectional)
            way = "both ways" if bidirectional else "one way"
            sizes = f"{hidden} units, LSTM of {recurrent} {way}"
            print(f"{sizes}, {FRAMES} frames, {CHANGES} changes:")
            plainly = next(iter(took.values()))
            for what, seconds in took.items():
                print(f"  {what:36} {seconds:7.3f} s   x{plainly / seconds:.2f}")


if __name__ == "__main__":
    main()
