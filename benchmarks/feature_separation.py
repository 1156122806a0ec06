"""Feature separation on real data: whole batches of photographs, texts, transcripts and tokens.

    python benchmarks/feature_separation.py DATA [--only photographs] [--batches 3]

DATA is a folder with images/tiny_imagenet_val.npz, images/cifar100.npz, lm/tinyshakespeare.txt,
lm/wikitext2_valid.txt and audio/librispeech_short_wav.csv. Networks are in training mode, and
untrained, a new one for each batch, unless a line says otherwise. Lines give the number of examples
(tokens, where these have labels of their own) and of those whose label occurs again, how many
batches have all features right (relative error below 0.01), the largest error and residual, and the
seconds of an attack on one CPU thread; then why batches were refused. The part "retrieval" counts
the images that their features find among public ones.
"""

import argparse
import dataclasses
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import data_sets
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fedsim import libraries, testing
from fedsim.engine.process import one_thread
from fedsim.gradients.true_features import candidates, true_features
from fedsim.knowledge import Knowledge
from fedsim.metrics import METRICS
from fedsim.metrics.features import EXACT, errors
from fedsim.plugin import make
from fedsim.records import Batch, Observation, Reconstruction, Truth
from fedsim.seeds import isolated, torch_generator
from fedsim.spec import Spec, TextSpec
from fedsim.task import Task
from fedsim.tasks.text.languages.language import masked_loss
from fedsim.tasks.text.languages.tokenizers import describe_tokenizer, learn_tokenizer
from fedsim.victim import VictimModel

RESNET18 = {"name": "transformers", "config": "resnet", "settings": {
    "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512], "layer_type": "basic",
    "embedding_size": 64}}  # fmt: skip
GPT = {"n_embd": 128, "n_layer": 2, "n_head": 2, "n_positions": 128}
BERT = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 256}  # fmt: skip
PUBLIC = 256
"""Number of public images among which each image of a batch is to be found."""


@dataclass(frozen=True)
class Case:
    """A batch: what the server sees of it, and the truth with its features."""

    seen: Observation
    truth: Truth


def case(model: VictimModel, spec: Spec, truth: Truth, target: Tensor) -> Case:
    """The gradient of one step, labels granted.

    Args:
        model: The model before it.
        spec: What examples look like.
        truth: The examples.
        target: Their labels (B,), or (B, L) padded with -100.
    """
    inputs, lengths = pad_sequence(list(truth.inputs or ()), batch_first=True), truth.lengths
    ends = None if lengths is None else torch.tensor(lengths)
    gradient = model.gradient(inputs, target, lengths=ends)
    seen = testing.observation(
        gradient={name: value.detach() for name, value in gradient.items()},
        head=model.head,
        spec=spec,
        model=model,
        num_examples=len(inputs),
        labels=target,
        steps=1,
    )
    features = true_features(model, truth)
    return Case(seen, dataclasses.replace(truth, features=features))


def of_task(
    task: Task, size: int, batches: int, trained: VictimModel | None = None
) -> Iterator[Case]:
    """Batches of a task's clients, each with an untrained network of its own, or with one."""
    for seed in range(batches):
        with isolated(seed, "benchmark"):
            module = task.build() if trained is None else trained.copy().module
        model = task.victim(task.arrays(module))
        truth = task.truth([seed % task.clients], seed + 1, batch_size=size, steps=1)
        target = truth.labels
        if truth.sequences is not None:
            target = pad_sequence(list(truth.sequences), batch_first=True, padding_value=-100)
        assert target is not None
        yield case(model, task.spec, truth, target)


def speakers() -> tuple[list[str], list[str]]:
    """Lines of the 100 characters who speak most in Shakespeare's plays, labelled by speaker."""
    read = Path(os.environ["SHAKESPEARE"]).read_text(encoding="utf-8").split("\n\n")
    parts = [one.split(":\n", 1) for one in read if ":\n" in one]
    said = [(who, " ".join(text.split())) for who, text in parts if text.strip()]
    names = [who for who, _ in said]
    most = sorted({*names}, key=lambda who: (names.count(who), who))[-100:]
    kept = [(text, who) for who, text in said if who in most]
    return [text for text, _ in kept], [who for _, who in kept]


def causal(text: Path, tokens: int, batches: int, *, tied: bool) -> Iterator[Case]:
    """Tokens of a small GPT-2 that learns to predict the next one: one text of each batch."""
    library = libraries.transformers()
    read = tuple(line for line in text.read_text(encoding="utf-8").splitlines() if line.strip())
    tokenizer = learn_tokenizer(read, 2000, False)
    ids = torch.tensor(tokenizer(" ".join(read[:400]))["input_ids"])
    for seed in range(batches):
        with isolated(seed, "benchmark"):
            config = library.GPT2Config(
                vocab_size=len(tokenizer), tie_word_embeddings=tied, resid_pdrop=0.0,
                embd_pdrop=0.0, attn_pdrop=0.0, **GPT)  # fmt: skip
            config._attn_implementation = "eager"
            module: nn.Module = library.GPT2LMHeadModel(config)
        words = "transformer.wte.weight"
        spec = TextSpec(len(tokenizer), tokens=describe_tokenizer(tokenizer, 2000, 128, words))
        model = VictimModel(
            module.train(), head="lm_head", loss=masked_loss, spec=spec, words=words
        )
        at = int(torch.randint(len(ids) - 200, (), generator=torch_generator(seed, "text")))
        one, after = ids[at : at + tokens], ids[at + 1 : at + tokens + 1]
        truth = Truth(inputs=[one], labels=after, sequences=[after], lengths=[tokens])
        yield case(model, spec, truth, after[None])


def measure(title: str, cases: Iterator[Case], labels_from: str = "given") -> None:
    """Attack batches and print their line."""
    attack = make("adversaries", "feature-separation", {"labels_from": labels_from})
    sizes, repeats, right, wrong = list[int](), list[int](), 0, 0
    found, checks, seconds, refused = [0.0], [0.0], list[float](), list[str]()
    for seed, one in enumerate(cases):
        labels = one.truth.labels
        assert labels is not None
        sizes.append(len(labels))
        repeats.append(len(labels) - len(set(labels.tolist())))
        start = time.perf_counter()
        try:
            claimed = attack.reconstruct(one.seen, testing.job(seed=seed))
        except ValueError as error:
            refused.append(str(error))
        else:
            error = float(errors(claimed, one.truth).max())
            right, wrong = right + (error < EXACT), wrong + (error >= EXACT)
            found.append(error)
            checks.append(claimed.diagnostics["residual"])
        seconds.append(time.perf_counter() - start)
    print(
        f"{title}, labels by {labels_from}: {min(sizes)} to {max(sizes)} examples, repeats "
        f"{min(repeats)} to {max(repeats)}: {right} of {len(sizes)} right, {wrong} claimed and "
        f"wrong, largest error {max(found):.1e}, largest residual {max(checks):.1e}, "
        f"{sorted(seconds)[len(seconds) // 2]:.2f} s (at most {max(seconds):.2f} s)",
        flush=True,
    )
    for why in dict.fromkeys(refused):
        print(f"    {why}", flush=True)


def compare(title: str, cases: Iterator[Case]) -> None:
    """Print whether the features agree with the text that dager reads from the layers below.

    Dager does not use the head's gradient, and feature-separation nothing else.
    """
    separate = make("adversaries", "feature-separation", {"labels_from": "given"})
    right, agreeing, changed = list[bool](), list[float](), list[int]()
    for seed, one in enumerate(cases):
        (text,) = (
            make("adversaries", "dager", {}).reconstruct(one.seen, testing.job(seed=seed)).tokens
        )
        assert one.truth.inputs is not None
        right.append(torch.equal(text, one.truth.inputs[0]))
        claimed = separate.reconstruct(one.seen, testing.job(seed=seed))
        wrong = text.clone()
        wrong[len(text) // 2] = (wrong[len(text) // 2] + 1) % one.seen.spec.classes
        model = one.seen.know(Knowledge.MODEL)
        missed = []
        for read in (text, wrong):
            features = true_features(model, dataclasses.replace(one.truth, inputs=[read]))
            missed.append(errors(claimed, dataclasses.replace(one.truth, features=features)))
        agreeing.append(float(missed[0].max()))
        changed.append(int((missed[1] > EXACT).sum()))
    print(
        f"{title}: dager reads {sum(right)} of {len(right)} texts; the features of its text differ "
        f"from the recovered ones by at most {max(agreeing):.1e}; with one token in the middle "
        f"changed {min(changed)} to {max(changed)} of them differ by more than {EXACT:g}",
        flush=True,
    )


def trained(task: Task, steps: int, *, lr: float, size: int) -> VictimModel:
    """A network after steps of Adam on batches of the clients in turn."""
    with isolated(0, "benchmark"):
        module = task.build()
    optimizer = torch.optim.Adam(module.parameters(), lr=lr)
    for step in range(steps):
        client, round = step % task.clients, 1000 + step
        (batch,) = task.batches(client, round, batch_size=size, steps=1)
        loss = task.loss(module, batch.inputs, batch.labels, lengths=batch.lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"    loss {float(loss.detach()):.2f} after {steps} steps", flush=True)
    return task.victim(task.arrays(module))


def retrieve(title: str, task: Task, model: VictimModel | None, size: int, batches: int) -> None:
    """Print how many examples are found among public ones by their features.

    The candidate of an example is the image itself, or its mirror image, or moved by an eighth.
    """
    attack = make("adversaries", "feature-separation", {"labels_from": "given"})
    metric = METRICS["feature_retrieval"]
    public = task.auxiliary()
    assert public is not None
    public = Batch(public.inputs[:PUBLIC], public.labels[:PUBLIC])
    copies = {
        "the image itself": lambda one: one,
        "mirrored": lambda one: one.flip(-1),
        "moved by an eighth": lambda one: one.roll(one.shape[-1] // 8, dims=-1),
    }
    scores = {name: list[tuple[float, float]]() for name in copies}
    for seed, one in enumerate(of_task(task, size, batches, model)):
        victim, truth, spec = one.seen.know(Knowledge.MODEL), one.truth, one.seen.spec
        try:
            claimed = attack.reconstruct(one.seen, testing.job(seed=seed))
        except ValueError as why:
            print(f"    {title}: {why}", flush=True)
            continue
        for name, copied in copies.items():
            changed = dataclasses.replace(truth, inputs=[copied(x) for x in truth.inputs or ()])
            pool = candidates(victim, changed, public)
            truth = dataclasses.replace(truth, candidates=pool)
            known = Reconstruction(features=truth.features)
            pair = (metric.score(claimed, truth, spec), metric.score(known, truth, spec))
            scores[name].append(pair)
    for name, pairs in scores.items():
        if not pairs:
            continue
        ours, true = torch.tensor(pairs).mean(dim=0).tolist()
        print(
            f"{title}, batches of {size}, {name}: {ours:.3f} found by recovered features, "
            f"{true:.3f} by true ones, {1 / (PUBLIC + size):.4f} by chance",
            flush=True,
        )


def main() -> None:
    """Print a line for each network, batch size and source of labels."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder with images, lm and audio")
    parser.add_argument("--batches", type=int, default=3, help="batches of each kind")
    parser.add_argument("--only", nargs="+", choices=[*PARTS], default=[*PARTS])
    chosen = parser.parse_args()
    one_thread()
    for part in chosen.only:
        PARTS[part](chosen.data, chosen.batches)


def photographs(folder: Path, batches: int) -> None:
    """Tiny ImageNet, ResNet-18: distinct labels, and labels as drawn."""
    for how, sizes in (("balanced", (64, 128)), ("natural", (8, 16, 32, 48))):
        task = images("tiny_imagenet_val", folder, RESNET18, composition=how)
        for size, source in itertools.product(sizes, ("given", "llg")):
            title = f"Tiny ImageNet, ResNet-18, batches of {size} ({how})"
            measure(title, of_task(task, size, batches), source)


def thousand() -> tuple[Tensor, Tensor]:
    """Photographs in 1,000 classes of two each."""
    data = data_sets.thousand(Path(os.environ["IMAGES"]))
    return data.images, data.labels


def classes(folder: Path, batches: int) -> None:
    """Tiny ImageNet in 1,000 classes, ResNet-18: distinct labels, and labels as drawn."""
    os.environ["IMAGES"] = str(folder / "images")
    for how, sizes in (("balanced", (64, 128, 256)), ("natural", (32, 64, 128))):
        data = "feature_separation:thousand"
        task = images(data, folder, RESNET18, composition=how, test_fraction=0.01)
        for size in sizes:
            title = f"1,000 classes, ResNet-18, batches of {size} ({how})"
            measure(title, of_task(task, size, batches))


def images(name: str, folder: Path, model: Any, **settings: Any) -> Task:
    """Images of two clients, and public ones."""
    shared = {"data": name, "folder": folder / "images", "clients": 2, "model": model}
    return cast(Task, make("tasks", "images", {**shared, **settings}))


def texts(folder: Path, batches: int) -> None:
    """Speaker classification among 100 of Shakespeare's characters, by a GPT-2 and a BERT."""
    os.environ["SHAKESPEARE"] = str(folder / "lm" / "tinyshakespeare.txt")
    for kind, settings in (("gpt2", GPT), ("bert", BERT)):
        model = {"name": "transformers", "config": kind, "settings": settings}
        data = "feature_separation:speakers"
        given = {"data": data, "clients": 2, "longest": 64, "model": model}
        task = cast(Task, make("tasks", "text", given))
        for size, source in itertools.product((8, 16), ("given", "rlg")):
            measure(f"speakers, {kind}, batches of {size}", of_task(task, size, batches), source)


def speech(folder: Path, batches: int) -> None:
    """Word pieces of LibriSpeech's utterances, LAS: before and after training; CTC."""
    shared = {"data": "librispeech_short_wav", "folder": folder / "audio", "clients": 4}
    task = cast(Task, make("tasks", "speech", {**shared, "model": "las"}))
    measure("LAS, untrained, single utterances", of_task(task, 1, batches))
    model = trained(task, 200, lr=2e-3, size=8)
    measure("LAS, trained, single utterances", of_task(task, 1, batches, model))
    task = cast(Task, make("tasks", "speech", {**shared, "model": "deepspeech"}))
    measure("CTC", of_task(task, 1, 1))


def tokens(folder: Path, batches: int) -> None:
    """Next tokens of WikiText-2, a small GPT-2 with a head of its own, and with a tied one."""
    text = folder / "lm" / "wikitext2_valid.txt"
    for length in (16, 32):
        measure(f"next tokens, GPT-2, {length}", causal(text, length, batches, tied=False))
        compare(f"next tokens, GPT-2, {length}", causal(text, length, batches, tied=False))
    measure("next tokens, tied head", causal(text, 16, 1, tied=True))


def retrieval(folder: Path, batches: int) -> None:
    """CIFAR-100, ResNet-20, before and after training."""
    task = images("cifar100", folder, "resnet20")
    retrieve("untrained", task, None, 32, batches)
    retrieve("trained", task, trained(task, 100, lr=2e-3, size=64), 32, batches)


PARTS = {one.__name__: one for one in (photographs, classes, texts, speech, tokens, retrieval)}

if __name__ == "__main__":
    main()
