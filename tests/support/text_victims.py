"""Updates of small transformers on one batch of texts, for attacks that match gradients."""

import torch

from fedsim import testing
from fedsim.priors import LanguagePrior
from fedsim.records import Truth
from fedsim.tasks.text import Text

BERT = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "initializer_range": 0.2}  # fmt: skip
GPT2 = {"n_embd": 48, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.2}
QUICK = {"starts": 20, "permutations": 20, "candidates": 40, "continuous": 25}
LAMP_QUICK = {**QUICK, "steps": 300, "lr": 0.05}


def small(config="bert", **more):
    model = {"name": "transformers", "config": config, "settings": BERT}
    if config == "gpt2":
        model["settings"] = GPT2
    return Text(**{"seed": 3, "clients": 12, "vocabulary": 400, "model": model} | more)


def seen(task, client=0, size=1, **known):
    """An observation of everything but what is None in `known`, and the truth."""
    victim = task.victim({})
    (batch,) = task.batches(client, 1, batch_size=size, steps=1)
    gradient = victim.gradient(batch.inputs, batch.labels, lengths=batch.lengths)
    lengths = batch.lengths.tolist()
    given = {"labels": batch.labels, "lengths": lengths, "prior": task.prior()} | known
    observed = testing.observation(
        gradient=gradient,
        model=victim,
        spec=task.spec,
        head=victim.head,
        num_examples=size,
        **{name: value for name, value in given.items() if value is not None},
    )
    whole = batch.inputs
    if batch.labels.ndim == 2:
        whole = torch.where(batch.labels < 0, whole, batch.labels)
    texts = [ids[:n] for ids, n in zip(whole, lengths, strict=True)]
    return observed, Truth(tokens=texts, text=[task.spec.tokens.spell(t.tolist()) for t in texts])


class Scored(LanguagePrior):
    """A prior that says of each order how many of its tokens are not where `wanted` has them."""

    description = "places"

    def __init__(self, wanted):
        self.wanted = wanted

    def surprise(self, ids, lengths=None):
        return (ids != self.wanted).float().sum(dim=1)
