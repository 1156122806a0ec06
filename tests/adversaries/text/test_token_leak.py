"""token-leak: the words of a batch are the rows of the embeddings' gradient that are not zero."""

import dataclasses

import pytest
import torch

from adversaries import TokenLeak
from fedsim import testing
from fedsim.knowledge import Knowledge
from fedsim.tasks.text import Text

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 24}  # fmt: skip


def small(**settings):
    model = {"name": "transformers", "config": "bert", "settings": SMALL}
    return Text(**{"seed": 3, "clients": 4, "vocabulary": 600, "model": model, **settings})


def seen(task, size=3):
    victim = task.victim({})
    (batch,) = task.batches(0, 1, batch_size=size, steps=1)
    gradient = victim.gradient(batch.inputs, batch.labels, lengths=batch.lengths)
    pairs = zip(batch.inputs, batch.lengths.tolist(), strict=True)
    used = {i for ids, n in pairs for i in ids[:n].tolist()}
    if task.task == "masked-lm":
        used |= {i for i in batch.labels.flatten().tolist() if i >= 0}
    return testing.observation(gradient=gradient, spec=task.spec, head=victim.head), used


def claimed(observed):
    return TokenLeak().reconstruct(observed, testing.job())


def noisy(observed, sigma):
    rng = torch.Generator().manual_seed(0)
    changed = {
        k: v + sigma * torch.randn(v.shape, generator=rng) for k, v in observed.gradient.items()
    }
    return dataclasses.replace(observed, gradient=changed)


@pytest.fixture(scope="module")
def task():
    return small()


@pytest.mark.parametrize("size", [1, 4])
def test_the_words_are_all_found_and_no_other(task, size):
    observed, used = seen(task, size)
    found = claimed(observed)
    assert found.token_counts == dict.fromkeys(used, 1)
    assert found.diagnostics["exact"]
    assert observed.granted == Knowledge.GRADIENT.closed()


def test_words_that_a_defense_dropped_are_missing_and_none_is_made_up(task):
    observed, used = seen(task)
    name = task.spec.tokens.embedding
    rows = observed.gradient[name].clone()
    rows[max(used)] = 0
    found = claimed(dataclasses.replace(observed, gradient={name: rows}))
    assert set(found.token_counts) == used - {max(used)}


def test_under_little_noise_words_stand_out_and_under_much_none_does(task):
    observed, used = seen(task)
    size = float(observed.gradient[task.spec.tokens.embedding].norm(dim=1).max())
    least = claimed(noisy(observed, 1e-9 * size))
    assert set(least.token_counts) == used
    assert least.diagnostics["gap"] > 2
    assert not least.diagnostics["exact"]
    little = set(claimed(noisy(observed, 1e-5 * size)).token_counts)
    assert little < used
    assert len(little) > len(used) / 4
    assert len(claimed(noisy(observed, 10 * size)).token_counts) <= 2


def test_a_head_tied_to_the_embeddings_fills_all_rows_and_is_told(task):
    observed, used = seen(small(task="masked-lm"))
    found = claimed(observed)
    assert found.diagnostics["rows_filled"] > 0.9
    assert not found.diagnostics["exact"]
    masked = set(found.token_counts)
    assert len(masked & used) >= 0.8 * len(masked)


def test_what_cannot_be_read_is_one_clear_error(task):
    observed, _ = seen(small(parameters="no-embeddings"))
    with pytest.raises(ValueError, match=r'not trained, or not sent.*task.parameters = "all"'):
        claimed(observed)
    with pytest.raises(ValueError, match="expected a task with texts"):
        claimed(testing.example())
    observed, _ = seen(task)
    name = task.spec.tokens.embedding
    frozen = {**observed.gradient, name: torch.zeros_like(observed.gradient[name])}
    with pytest.raises(ValueError, match="is zero: the word embeddings were frozen, or"):
        claimed(dataclasses.replace(observed, gradient=frozen))
    broken = {k: torch.full_like(v, torch.nan) for k, v in observed.gradient.items()}
    with pytest.raises(ValueError, match="NaN"):
        claimed(dataclasses.replace(observed, gradient=broken))


def test_it_keeps_its_contract(task):
    assert testing.conformance(TokenLeak, seen(task)[0]) == []
