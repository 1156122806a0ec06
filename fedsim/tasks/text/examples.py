"""From texts to examples: who holds which, what of it is public, token ids, masks and guesses."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.errors import DataError
from fedsim.metrics import read
from fedsim.records import Reconstruction, Spec, Tokens, Truth
from fedsim.seeds import torch_generator
from fedsim.tasks.text.data import Texts
from fedsim.tasks.text.languages import PADDING

__all__ = [
    "agreement",
    "cut",
    "drawn_claim",
    "encoded",
    "groups",
    "masked",
    "nobodys",
    "same",
    "shown",
    "token_shares",
]


def cut(
    texts: Texts,
    *,
    train_examples: int | None,
    test_examples: int | None,
    auxiliary_fraction: float,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Indices (int64) of the test, auxiliary and clients' texts, all drawn by the seed.

    No auxiliary text is one of a client's, case and spaces aside.
    """

    def drawn(index: Tensor, count: int | None, purpose: str) -> Tensor:
        order = torch.randperm(len(index), generator=torch_generator(seed, purpose))
        return index[order[:count]].sort().values

    tested = drawn(texts.test, test_examples, "test examples")
    kept = drawn(texts.train, train_examples, "training examples")
    order = kept[torch.randperm(len(kept), generator=torch_generator(seed, "auxiliary"))]
    count = int(auxiliary_fraction * len(order))
    rest = order[count:].sort().values
    held = {same(texts.texts[i]) for i in rest.tolist()}
    free = [i for i in order[:count].tolist() if same(texts.texts[i]) not in held]
    return tested, torch.tensor(sorted(free), dtype=torch.int64), rest


def groups(name: str, texts: Texts, index: Tensor, *, whose: bool) -> NDArray[Any]:
    """What a partition goes by: the labels of these texts, or whose they are, as integers."""
    if not whose:
        return np.asarray(texts.labels[index].numpy())
    if texts.senders is None:
        raise DataError(
            f"data '{name}' does not say whose a text is; expected a column sender, author or "
            'user, or another task.partition ("iid")'
        )
    return np.asarray(np.unique(texts.senders, return_inverse=True)[1][index.numpy()])


def nobodys(public: Iterable[str], held: Iterable[str]) -> tuple[str, ...]:
    """The public texts that nobody holds, case and spaces aside."""
    known = {same(text) for text in held}
    return tuple(text for text in public if same(text) not in known)


def same(text: str) -> str:
    """What two texts have in common that differ in case and spaces alone."""
    return " ".join(text.lower().split())


def encoded(
    name: str, texts: Sequence[str], index: Sequence[int], tokens: Tokens, longest: int | None
) -> dict[int, list[int]]:
    """The token ids of the texts at these places that have at most `longest`, by their place.

    name: of the data, for messages. longest: None for what the model takes. Raises `DataError` for
    a text that is longer than that then, and for one of which the tokenizer knows nothing.
    """
    found = tokens.tokenizer([texts[i] for i in index], verbose=False)["input_ids"]
    unknown = tokens.special.get("unk")
    for at, one in zip(index, found, strict=True):
        # Spelling takes time, and only these can come to nothing.
        doubtful = unknown is None or unknown in one or len(one) < 4
        if doubtful and not tokens.spell(one):
            raise DataError(
                f"data '{name}': the tokenizer knows no word of text {at} ({texts[at][:40]!r}). "
                "Leave it out, or choose another model"
            )
        if longest is None and len(one) > tokens.longest:
            raise DataError(
                f"data '{name}': text {at} has {len(one)} tokens, and the model takes "
                f"{tokens.longest}. Leave out longer ones with task.longest = {tokens.longest}, or "
                "choose a model that takes more"
            )
    most = longest or tokens.longest
    return {at: one for at, one in zip(index, found, strict=True) if len(one) <= most}


def masked(
    ids: Tensor, share: float, tokens: Tokens, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Ids (L,) with a share of the text's tokens masked, one at least, and targets (L,).

    Targets hold the masked tokens, -100 elsewhere. Special tokens are never masked.
    """
    free = torch.tensor([int(i) not in tokens.marks for i in ids]).nonzero().flatten()
    count = max(1, round(share * len(free)))
    chosen = free[torch.randperm(len(free), generator=rng)[:count]]
    target = torch.full_like(ids, PADDING)
    target[chosen] = ids[chosen]
    return ids.index_fill(0, chosen, tokens.special["mask"]), target


def agreement(claimed: Tensor, true: Tensor, *, matthews: bool) -> dict[str, float]:
    """Accuracy of predictions (N,) int64 and Matthews' correlation (`mcc`), 0 for one label."""
    found = {"accuracy": float((claimed == true).double().mean())}
    if matthews:
        from sklearn.metrics import matthews_corrcoef

        found["mcc"] = float(matthews_corrcoef(true.numpy(), claimed.numpy()))
    return found


def token_shares(texts: Iterable[str], tokens: Tokens) -> Tensor:
    """How often each token occurs in texts, as a share of all, (V,) float32."""
    counts = torch.zeros(len(tokens.pieces), dtype=torch.float64)
    for one in tokens.tokenizer(list(texts), verbose=False)["input_ids"]:
        bare = torch.tensor(tokens.bare(one), dtype=torch.int64)
        counts.index_add_(0, bare, torch.ones(len(bare), dtype=torch.float64))
    return (counts / counts.sum()).float()


def drawn_claim(
    truth: Truth,
    tokens: Tokens,
    weights: Tensor,
    shares: Tensor,
    rng: torch.Generator,
    *,
    scores: Tensor | None = None,
) -> Reconstruction:
    """As many labels, drawn by shares (classes,), and texts of the same lengths, tokens by weights
    (V,). scores: of labels (classes,); drawn from N(0, 1) where not given."""
    count = 0 if truth.labels is None else len(truth.labels)
    labels = torch.multinomial(shares, count, replacement=True, generator=rng)
    scores = torch.randn(len(shares), generator=rng) if scores is None else scores
    frame, drawn = len(tokens.prefix) + len(tokens.suffix), list[Tensor]()
    for length in truth.lengths or ():
        inner = torch.multinomial(weights, max(1, length - frame), replacement=True, generator=rng)
        parts = (torch.tensor(tokens.prefix), inner, torch.tensor(tokens.suffix))
        drawn.append(torch.cat([part.long() for part in parts]))
    counts = dict(Counter(labels.tolist()))
    return Reconstruction(
        label_set=frozenset(counts),
        label_counts=counts,
        labels=labels,
        label_scores=scores,
        num_labels=count,
        tokens=drawn,
        token_counts=dict(Counter(tokens.bare(torch.cat(drawn).tolist()) if drawn else [])),
        text=[tokens.spell(one.tolist()) for one in drawn],
    )


def shown(claimed: Reconstruction, truth: Truth, spec: Spec) -> dict[str, bytes]:
    """The originals and what was matched to each, a line a text, as files; {} without a claim."""
    lines = list[str]()
    if claimed.tokens is not None or claimed.text is not None:
        lines = read(claimed, truth, spec)
    elif claimed.token_counts is not None and spec.tokens is not None:
        spelled = [spec.tokens.spell([i]) for i in sorted(claimed.token_counts)]
        lines = [" ".join(spelled)]
    if not lines or truth.text is None:
        return {}
    files = {"original.txt": truth.text, "reconstruction.txt": lines}
    return {
        name: "".join(" ".join(line.split()) + "\n" for line in text).encode(errors="replace")
        for name, text in files.items()
    }
