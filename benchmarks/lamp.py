"""LAMP's parts side by side: gradients in factors, many at a time, and the paper's loop as written.

    python benchmarks/lamp.py [--sentences 1] [--candidates 20] [--steps 4] [--data DIR]
        [--whole] [--unchanged 0 300]

MiniLM-L6, B = 1, float32, one thread, the cosine distance over the parameters that
`benchmarks/lamp_plain.py` matches, and its trigrams; one run, where both sides take turns.
A candidate is scored as plain does (a gradient; the likelihood of its tokens, which are projected
anew each time), by its gradient alone, and by `TextDistance` with all 201 of a discrete step in
passes of a few, tokens projected once and reordered. A step is the objective, its slope, and Adam.
Distances of the plain side are asserted equal to 1e-5. CPU milliseconds of the fastest of three
turns, so that a busy machine slows both alike; and what they come to for the paper's schedule.
With --whole the adversary `lamp` attacks the sentences by that schedule, the first alone and, where
there are more, all together, with the same language model: CPU seconds a sentence beside what
plain's parts come to, and ROUGE without separators. None ends there because its tokens have the
gradient. With `--unchanged` the attack is made with each of these values of the setting.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import torch
from lamp_plain import (
    CANDIDATES,
    LR,
    PERMUTATIONS,
    ROUNDS,
    STARTS,
    STEPS,
    Victim,
    distance,
    encoder,
    folder,
    nearest,
    objective,
    public,
    surprise,
    texts,
    victim,
)
from timing import fastest
from torch import Tensor

from adversaries import LAMP
from adversaries.text import dummy_texts
from adversaries.text.lamp.reordering import moved
from fedsim import libraries, testing
from fedsim.gradients import TextDistance, nearest_tokens, norm_gap
from fedsim.knowledge import Knowledge
from fedsim.metrics import METRICS
from fedsim.priors import LanguagePrior, language_prior
from fedsim.records import Observation, Reconstruction, Truth
from fedsim.seeds import torch_generator
from fedsim.spec import TextSpec
from fedsim.tasks.text.languages.language import POINTS, classification_loss
from fedsim.tasks.text.languages.tokenizers import describe_tokenizer
from fedsim.victim import VictimModel

WORDS = "bert.embeddings.word_embeddings.weight"
TOGETHER = {"four": 4, "eight": 8}
"""Restarts or victims that share the steps; the plugin takes eight at once."""
EQUAL = 1e-5
SCORED, SWAPS = STARTS + PERMUTATIONS, ROUNDS * (CANDIDATES + 1)
"""Points that the paper's schedule scores at the start, and in all discrete steps."""


@dataclass
class Sentence:
    """An attacked sentence.

    text: the sentence; it: model and gradient for the plain loop; seen: the observation that the
    adversary gets; truth: tokens and text, for the metrics.
    """

    text: str
    it: Victim
    seen: Observation
    truth: Truth


def sentences(data: str | None, count: int) -> tuple[LanguagePrior, list[Sentence]]:
    """The language model and the sentences."""
    tokenizer = libraries.transformers().AutoTokenizer.from_pretrained(folder())
    model = encoder()
    tokens, fitted = describe_tokenizer(tokenizer, len(tokenizer), 512, WORDS), public(data)
    found = []
    for text, label in texts(data, count):
        ids = tokenizer(text, return_tensors="pt").input_ids[0]
        it = victim(model, ids, label)
        seen = testing.observation(
            gradient=dict(zip(it.names, it.gradient, strict=True)),
            model=VictimModel(
                it.model, head="classifier", loss=classification_loss, words=WORDS, points=POINTS
            ),
            head="classifier",
            spec=TextSpec(classes=2, tokens=tokens),
            labels=it.label,
            lengths=[it.length],
            num_examples=1,
            prior=fitted,
            granted=~Knowledge(0),
        )
        found.append(Sentence(text, it, seen, Truth(tokens=[ids], text=[text])))
    return language_prior("n-gram", fitted, tokens), found


def stepping(far: TextDistance, start: Tensor, typical: float) -> Callable[[], None]:
    """A function that takes one step of Adam from embeddings (R, 1, L, d); the ends stay."""
    inner = start[:, :, 1:-1].clone().requires_grad_(True)
    optimizer = torch.optim.Adam([inner], lr=LR)
    rows = torch.zeros(len(start), dtype=torch.int64)

    def step() -> None:
        optimizer.zero_grad()
        whole = torch.cat([start[:, :, :1], inner, start[:, :, -1:]], dim=2)
        (far(whole, rows) + norm_gap(whole, typical)).sum().backward()
        optimizer.step()

    return step


def compared(
    sentence: Sentence, language: LanguagePrior, index: int, candidates: int, steps: int
) -> dict[str, float]:
    """CPU seconds of each part on both sides, and the largest differences."""
    it = sentence.it
    rng = torch_generator(0, "lamp", index)
    width, inside = it.embeddings.shape[1], it.length - 2
    seen = sentence.seen
    made: list[TextDistance] = []

    def prepare() -> None:
        lengths = [torch.tensor([it.length])]
        made.append(TextDistance(seen.model, [seen.gradient], [it.label], lengths))

    took = {"prepared": fastest(prepare)}
    far = made[-1]
    typical = float(it.embeddings.norm(dim=1).mean())
    spread = typical / width**0.5
    most = max(TOGETHER.values())
    start = spread * torch.randn(most, 1, it.length, width, generator=rng)
    start[:, 0, 0], start[:, 0, -1] = it.embeddings[it.start], it.embeddings[it.end]
    orders = [list(range(inside))]
    orders += [moved(list(range(inside)), rng) for _ in range(CANDIDATES)]
    places = torch.tensor([[0, *(1 + at for at in order), it.length - 1] for order in orders])
    every = start[0, 0][places]

    some = every[:candidates]
    values: dict[str, Tensor] = {}

    def plain_alone() -> None:
        values["plain"] = torch.stack([distance(it, one[None]).detach() for one in some])

    def plain_ranked() -> None:
        for one in some:
            distance(it, one[None])
            with torch.no_grad():
                surprise(language, nearest(it, one[None]))

    def alone() -> None:
        values["ours"] = far(every[:, None], torch.zeros(len(every), dtype=torch.int64))

    def ranked() -> None:
        alone()
        with torch.no_grad():
            language.surprise(nearest_tokens(every[0], it.embeddings)[places])

    took["candidate, gradient alone"] = fastest(plain_alone) / len(some)
    took["candidate"] = fastest(plain_ranked) / len(some)
    took["candidate, gradient alone, in factors"] = fastest(alone) / len(every)
    took["candidate in factors"] = fastest(ranked) / len(every)
    apart = float((values["plain"] - values["ours"][: len(some)]).abs().max())
    if apart > EQUAL:
        raise SystemExit(f"distances differ by {apart:.1e}")

    free = start[0].clone().requires_grad_(True)
    optimizer = torch.optim.Adam([free], lr=LR)

    def plain_step() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            objective(it, free).backward()
            optimizer.step()

    def repeated(call: Callable[[], None]) -> None:
        for _ in range(steps):
            call()

    took["step"] = fastest(plain_step) / steps
    one = stepping(far, start[:1], typical)
    took["step in factors"] = fastest(lambda: repeated(one)) / steps
    for name, rows in TOGETHER.items():
        several = stepping(far, start[:rows], typical)
        spent = fastest(lambda call=several: repeated(call))  # type: ignore[misc]
        took[f"step in factors, {name} restarts"] = spent / steps / rows
    return took | {"apart": apart, "slopes": slopes(it, far, start[:1])}


def slopes(it: Victim, far: TextDistance, start: Tensor) -> float:
    """How far the two sides' slopes are apart, as a share of the norm."""
    mine, plain = (start.clone().requires_grad_(True) for _ in range(2))
    (a,) = torch.autograd.grad(far(mine, torch.tensor([0])).sum(), mine)
    (b,) = torch.autograd.grad(distance(it, plain[0]), plain)
    return float((a - b).norm() / b.norm())


def plain_seconds(took: dict[str, float]) -> float:
    """What the plain side's parts come to for the paper's schedule."""
    return (
        SCORED * took["candidate, gradient alone"]
        + SWAPS * took["candidate"]
        + STEPS * took["step"]
    )


def whole(some: Sequence[Sentence], unchanged: int) -> tuple[float, list[Reconstruction]]:
    """CPU seconds a sentence of whole attacks that share their steps, and what they claim."""
    # No distance is negative, so that no start ends early because its tokens match.
    dummy_texts.MATCHED = dict.fromkeys(dummy_texts.MATCHED, -1.0)
    began = time.process_time()
    jobs = [testing.job(seed=index) for index in range(len(some))]
    found = LAMP(unchanged=unchanged).reconstruct_many([one.seen for one in some], jobs)
    return (time.process_time() - began) / len(some), found


def print_whole(some: Sequence[Sentence], plain: Sequence[float], unchanged: int) -> None:
    """Print what whole sentences take; plain: seconds of each on the plain side."""
    took, found = whole(some, unchanged)
    rouge = [
        mean(
            100 * float(METRICS[name].score(claim, one.truth, one.seen.spec) or 0)
            for claim, one in zip(found, some, strict=True)
        )
        for name in ("rouge1", "rouge2", "rougeL")
    ]
    how = "the first alone" if len(some) == 1 else f"{len(some)} together"
    beside, steps = mean(plain), mean(one.diagnostics["evaluations"] for one in found)
    print(
        f"whole sentences, unchanged = {unchanged}, {how}: {took:.0f} s each, plain "
        f"{beside:.0f} s, x{beside / took:.1f}; {steps:.0f} steps; ROUGE-1, 2, L "
        f"{rouge[0]:.0f}, {rouge[1]:.0f}, {rouge[2]:.0f} %"
    )
    for one in found:
        print(f"  {one.text[0]} ({one.diagnostics['evaluations']} steps)", flush=True)


def main() -> None:
    """Print milliseconds, ratios, and what a sentence takes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=1)
    parser.add_argument("--candidates", type=int, default=20, help="that the plain side scores")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--whole", action="store_true", help="attack whole sentences (minutes)")
    parser.add_argument("--unchanged", type=int, nargs="+", default=[0])
    parser.add_argument("--data", default=os.environ.get("FEDSIM_DATA"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    language, attacked = sentences(options.data, options.sentences)
    print(language.description, flush=True)
    totals = []
    for index, one in enumerate(attacked):
        took = compared(one, language, index, options.candidates, options.steps)
        milli = {part: 1000 * value for part, value in took.items()}
        print(f"{one.text} ({one.it.length} tokens)")
        print(f"  values differ by {took['apart']:.1e}, slopes by {took['slopes']:.1e}")
        for part, plain in (
            ("candidate in factors", "candidate"),
            ("candidate, gradient alone, in factors", "candidate, gradient alone"),
            ("step in factors", "step"),
            *((f"step in factors, {name} restarts", "step") for name in TOGETHER),
        ):
            times = milli[plain] / milli[part]
            print(f"  {part}: {milli[part]:.1f} ms, plain {milli[plain]:.1f} ms, x{times:.1f}")
        totals.append(plain_seconds(took))
        print(f"  {SCORED} starts, {STEPS} steps, {SWAPS} candidates: plain {totals[-1]:.0f} s")
        for how, together in {"": 1, **TOGETHER}.items():
            step = took["step in factors" + (f", {how} restarts" if how else "")]
            ours = (
                took["prepared"] / together
                + SCORED * took["candidate, gradient alone, in factors"]
                + SWAPS * took["candidate in factors"]
                + STEPS * step
            )
            said = f"of {how} restarts together" if how else "alone"
            print(f"    in factors, {said}: {ours:.0f} s, x{totals[-1] / ours:.1f}", flush=True)
    for unchanged in options.unchanged if options.whole else []:
        print_whole(attacked[:1], totals[:1], unchanged)
        if len(attacked) > 1:
            print_whole(attacked, totals, unchanged)


if __name__ == "__main__":
    main()
