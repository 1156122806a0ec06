"""Guesses without an update, drawn from the examples that other clients reveal."""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from fedsim.attacking.truths import content_of
from fedsim.gradients import BLANK
from fedsim.records import Reconstruction, Tokens, Truth
from fedsim.spec import SpeechSpec
from fedsim.tasks.partitioned import claim_labels
from fedsim.tasks.text.examples import random_guess

MOST = 256
"""Examples of a client that guesses are drawn from."""

Example = tuple[Tensor, Any]
"""An input and its label, an integer; its labels (L,), if it has a sequence of them; or None."""


class Pool:
    """Examples of each client."""

    def __init__(self) -> None:
        self._held: dict[int, list[Example]] = {}

    def add(self, client: int, truth: Truth) -> None:
        """Keep a client's examples, if inputs are known."""
        if truth.inputs:
            unknown = [None] * len(truth.inputs)
            labels = unknown if truth.labels is None else truth.labels.tolist()
            pairs = zip(truth.inputs, truth.sequences or labels, strict=True)
            self._held[client] = list(pairs)[:MOST]

    def others(
        self, truth: Truth, clients: Collection[int], *, labelled: bool = True
    ) -> list[Example]:
        """Examples of other clients than these, none of which is among their own.

        Args:
            truth: Their own examples.
            clients: The clients.
            labelled: Whether to raise if none has a label; otherwise those without are returned.

        Raises:
            NotImplementedError: No other client revealed an example.
        """
        own = {content_of(one) for one in truth.inputs or ()}
        pool = [pair for c, held in sorted(self._held.items()) if c not in clients for pair in held]
        pool = [pair for pair in pool if content_of(pair[0]) not in own]
        others = [pair for pair in pool if pair[1] is not None]
        if not (others or (pool and not labelled)):
            raise NotImplementedError("no other client revealed an example with a label")
        return others or pool


def guess_inputs(
    others: list[Example], count: int, classes: int, rng: torch.Generator, *, informed: bool
) -> Reconstruction:
    """Claim inputs and, if some of the examples have one, labels.

    Args:
        others: Examples of other clients.
        count: The number of examples to claim.
        classes: The number of classes.
        rng: Source of randomness.
        informed: Claim the mean input, and labels by their frequencies; otherwise examples of
            other clients, and labels that are uniform at random.
    """
    known = [label for _, label in others if label is not None]
    if informed:
        shape = others[0][0].shape  # inputs of another one, such as longer series, have no mean
        mean = torch.stack([one.float() for one, _ in others if one.shape == shape]).mean(dim=0)
        if not known:
            return Reconstruction(inputs=[mean] * count)
        frequencies = torch.bincount(torch.tensor(known), minlength=classes).float()
        labels = torch.multinomial(frequencies, count, replacement=True, generator=rng)
        scores = count * frequencies / frequencies.sum()
        return claim_labels(labels, scores, inputs=[mean] * count)
    labels = torch.randint(classes, (count,), generator=rng)
    inputs = [others[at][0] for at in torch.randint(len(others), (count,), generator=rng).tolist()]
    if not known:
        return Reconstruction(inputs=inputs)
    scores = torch.randn(classes, generator=rng)
    return claim_labels(labels, scores, inputs=inputs)


def guess_texts(
    others: list[Example], truth: Truth, tokens: Tokens, classes: int, rng: torch.Generator
) -> Reconstruction:
    """Claim labels, and texts of the same lengths.

    Args:
        others: Examples of other clients, by whose frequencies tokens and labels are drawn; if
            there are none, both are uniform.
        truth: The victim's examples, of which numbers and lengths are used.
        tokens: The vocabulary.
        classes: The number of classes.
        rng: Source of randomness.
    """
    weights, shares, scores = torch.ones(len(tokens.pieces)), torch.ones(classes), None
    if others:
        ids = torch.cat([one for one, _ in others])
        weights = torch.bincount(ids, minlength=len(weights)).float()
    if known := [label for _, label in others if label is not None]:
        shares = torch.bincount(torch.tensor(known), minlength=classes).float()
        scores = truth.num_examples * shares / shares.sum()
    weights[sorted(tokens.marks)] = 0
    return random_guess(truth, tokens, weights, shares, rng, scores=scores)


def guess_transcripts(
    others: list[Example], truth: Truth, spec: SpeechSpec, rng: torch.Generator
) -> Reconstruction:
    """Claim label sequences of the true lengths.

    Args:
        others: Examples of other clients, by whose frequencies labels are drawn; if there are none,
            they are uniform.
        truth: The victim's examples, of which the lengths of the sequences are used.
        spec: The labels.
        rng: Source of randomness.
    """
    sizes = [len(one) for one in truth.sequences or ()]
    weights, scores = torch.ones(spec.classes), torch.randn(spec.classes, generator=rng)
    if others:
        every = torch.cat([labels for _, labels in others])
        weights = torch.bincount(every, minlength=spec.classes).float()
        scores = sum(sizes) * weights / weights.sum()
    weights[BLANK] = 0
    labels = torch.multinomial(weights, sum(sizes), replacement=True, generator=rng)
    sequences = list(torch.split(labels, sizes))
    text = [spec.spell(one.tolist()) for one in sequences]
    return claim_labels(labels, scores, sequences=sequences, text=text)
