"""Where the time of the attacks goes: shares of a unit of work by kind of operation.

    python benchmarks/profiles.py [--only dlg lamp ...] [--data DIR]

Prints rows of a Markdown table: CPU milliseconds of a unit (without the profiler), and by PyTorch's
profiler the shares of products of matrices, convolutions, recurrent layers, copies, other tensor
operations, and what lies outside of them: Python, NumPy, SciPy, and the profiler's own calls. The
victims are those of benchmarks/dlg.py, lamp.py, hfgm.py and rlg_solvers.py. One thread. It uses
what earlier versions have, too, so that a copy of it beside their benchmarks profiles these.
"""

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable

import torch
from dlg_plain import gradient, network, pictures, victim
from lamp_plain import encoder, folder, public, texts
from lamp_plain import victim as sentence
from rlg_solvers import gradient as head_gradient
from torch.nn import functional

from adversaries import DLG, HFGM, LAMP, RLG
from fedsim import libraries, testing
from fedsim.knowledge import Knowledge
from fedsim.records import Spec
from fedsim.seeds import isolated, torch_generator
from fedsim.spec import BLANK_PIECE, SpeechSpec, TextSpec
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.speech.recognisers import as_recogniser
from fedsim.tasks.text.languages.language import POINTS, classification_loss
from fedsim.tasks.text.languages.tokenizers import describe_tokenizer
from fedsim.victim import VictimModel

KINDS = {
    "products": ("mm", "addmm", "bmm", "baddbmm", "mv", "dot", "linear"),
    "convolutions": ("convolution", "mkldnn_convolution", "slow_conv2d"),
    "recurrent": ("lstm", "mkldnn_rnn", "gru"),
    "copies": ("copy_", "cat", "index", "gather", "clone", "im2col", "col2im", "fill_", "stack"),
}
"""Operations of a kind, by how their names begin after "aten::"."""

PIECES = (BLANK_PIECE, *" abcdefghijklmnopqrstuvwxyz'")
Work = Callable[[], int]
"""Works, and returns how many units it did."""


def kind(name: str) -> str:
    """The kind of an operation."""
    operation = name.removeprefix("aten::").lstrip("_")
    if not name.startswith("aten::"):
        return "outside"
    for known, begins in KINDS.items():
        if operation.startswith(begins):
            return known
    return "others"


def profiled(work: Work) -> tuple[float, dict[str, float]]:
    """CPU milliseconds of a unit, and the share of each kind."""
    work()
    started = time.process_time()
    units = work()
    each = 1000 * (time.process_time() - started) / units
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as taken:
        started = time.process_time()
        work()
        spent = 1e6 * (time.process_time() - started)
    shares: dict[str, float] = defaultdict(float)
    for event in taken.key_averages():
        found = kind(event.key)
        if found != "outside":
            shares[found] += event.self_cpu_time_total / spent
    shares["outside"] = max(0.0, 1 - sum(shares.values()))
    return each, shares


def by_dlg(data: str | None, size: int, together: int, iterations: int) -> Work:
    """Evaluations of batches of a size, so many in one optimisation."""
    _, images = pictures(data)
    module = network(images, 7)
    model = VictimModel(module, head="head", loss=cross_entropy)
    spec = Spec(images.classes, images.shape, (0.0, 1.0))
    seen = []
    for trial in range(together):
        pairs = [victim(images, trial * size + at) for at in range(size)]
        inputs, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        sent = dict(zip(model.parameters(), gradient(module, inputs, labels), strict=True))
        seen.append(testing.observation(gradient=sent, model=model, spec=spec, num_examples=size))
    dlg = DLG(precision="float32", iterations=iterations, restarts=0)

    def work() -> int:
        jobs = [testing.job(seed=index) for index in range(together)]
        return sum(one.diagnostics["closures"] for one in dlg.reconstruct_many(seen, jobs))

    return work


def by_lamp(data: str | None, steps: int, starts: int) -> Work:
    """Steps of one sentence, with discrete ones in between."""
    words = "bert.embeddings.word_embeddings.weight"
    tokenizer = libraries.transformers().AutoTokenizer.from_pretrained(folder())
    tokens, fitted = describe_tokenizer(tokenizer, len(tokenizer), 512, words), public(data)
    text, label = texts(data, 1)[0]
    it = sentence(encoder(), tokenizer(text, return_tensors="pt").input_ids[0], label)
    model = VictimModel(
        it.model, head="classifier", loss=classification_loss, words=words, points=POINTS
    )
    seen = testing.observation(
        gradient=dict(zip(it.names, it.gradient, strict=True)),
        model=model,
        head="classifier",
        spec=TextSpec(classes=2, tokens=tokens),
        labels=it.label,
        lengths=[it.length],
        num_examples=1,
        prior=fitted,
        granted=~Knowledge(0),
    )
    lamp = LAMP(steps=steps, starts=starts, permutations=starts)

    def work() -> int:
        lamp.reconstruct(seen, testing.job())
        return steps

    return work


def by_hfgm(iterations: int, **settings: str) -> Work:
    """Iterations of one utterance on DeepSpeech with 2,048 units."""
    kind = as_recogniser({"name": "deepspeech", "hidden": 2048, "recurrent": 2048})
    with isolated(0, "benchmark"):
        module = kind.build(26, 29).eval()
    rng = torch_generator(0, "benchmark")
    model = VictimModel(module, head="head", loss=kind.loss)
    target = torch.randint(1, 29, (20,), generator=rng)
    heard = functional.hardtanh(torch.randn(75, 26, generator=rng))
    sent = {
        name: value.detach()
        for name, value in model.gradient(heard[None], target[None]).items()
        if name.startswith("head.")
    }
    seen = testing.observation(
        gradient=sent,
        model=model,
        spec=SpeechSpec(classes=29, features=26, sample_rate=0, pieces=PIECES),
        labels=target[None],
        lengths=[75],
        num_examples=1,
    )
    hfgm = HFGM(iterations=iterations, **settings)

    def work() -> int:
        hfgm.reconstruct(seen, testing.job())
        return iterations

    return work


def by_rlg(*, repeats: bool) -> Work:
    """An update of 50 labels among 16,000."""
    seen = testing.observation(gradient={"head.weight": head_gradient(16_000, 50, 512, repeats)})

    def work() -> int:
        RLG().reconstruct(seen, testing.job())
        return 1

    return work


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=["dlg", "lamp", "hfgm", "rlg"])
    parser.add_argument("--data", default=os.environ.get("FEDSIM_DATA"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    works: dict[str, Callable[[], Work]] = {
        "dlg, an evaluation, 20 images together": lambda: by_dlg(given.data, 1, 20, 12),
        "dlg, an evaluation of a batch of 4": lambda: by_dlg(given.data, 4, 1, 20),
        "lamp, a step": lambda: by_lamp(given.data, 150, 50),
        "hfgm, an iteration": lambda: by_hfgm(3),
        "hfgm, the same, predicted": lambda: by_hfgm(16, selection="predicted"),
        "rlg, an update": lambda: by_rlg(repeats=False),
        "rlg, the same, with repeats": lambda: by_rlg(repeats=True),
    }
    kinds = [*KINDS, "others", "outside"]
    print("| work | ms | " + " | ".join(kinds) + " |")
    print("|" + (2 + len(kinds)) * " --- |")
    for name, prepare in works.items():
        if given.only and name.partition(",")[0] not in given.only:
            continue
        if "predicted" in name and "selection" not in HFGM.model_fields:
            continue
        each, shares = profiled(prepare())
        parts = " | ".join(f"{100 * shares[one]:.0f} %" for one in kinds)
        print(f"| {name} | {each:,.3g} | {parts} |", flush=True)


if __name__ == "__main__":
    main()
