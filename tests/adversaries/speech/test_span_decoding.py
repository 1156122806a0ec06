"""span-decoding: transcripts from row spaces, without an optimiser."""

import dataclasses
from typing import ClassVar

import pytest
import torch
from support.spellers import PIECES, generator, recogniser, utterance

from adversaries import SpanDecoding
from adversaries.speech.span_decoding.decoder_steps import Walk
from fedsim import adversary, plugin, testing
from fedsim.knowledge import Knowledge
from fedsim.plugin import find
from fedsim.records import END, Reconstruction


def claimed(seen, **settings) -> Reconstruction:
    return SpanDecoding(**settings).reconstruct(seen, testing.job())


@pytest.mark.parametrize(
    "said",
    [[], [7], [3, 17, 8, 25], [4, 11, 4, 29, 4, 4], [9] * 5],
    ids=["nothing", "one", "distinct", "repeated", "one label"],
)
def test_a_transcript_is_recovered_in_order(said):
    found = claimed(utterance(said, seed=1), labels_from="given")
    assert found.sequences[0].tolist() == found.labels.tolist() == [*said, END]
    assert found.num_labels == len(said) + 1
    assert found.label_counts == {k: [*said, END].count(k) for k in {*said, END}}
    assert found.objective < 1e-8
    assert found.diagnostics["residual"] < 1e-5


def test_nothing_but_the_gradient_and_the_model_is_needed():
    seen = utterance([3, 17, 8, 25], seed=1)
    job = testing.job()
    blind = dataclasses.replace(seen, labels=None, num_examples=None)
    found = SpanDecoding().reconstruct(blind, job)
    assert job.iterations == len(found.trace) == 5
    assert found.labels.tolist() == [3, 17, 8, 25, END]
    assert found.diagnostics["told_by"] == "rlg"


def test_given_labels_are_used_as_a_bag_alone():
    seen = utterance([3, 17, 8])
    turned = dataclasses.replace(seen, labels=torch.tensor([[8, 3, END, 17, -100]]))
    assert torch.equal(
        claimed(seen, labels_from="given").labels, claimed(turned, labels_from="given").labels
    )


class Says(adversary.Adversary):
    """Stands in for rlg: a set, and a number of labels that is not theirs."""

    name = "rlg"
    needs = Knowledge.HEAD_GRADIENT
    recovers = frozenset({"label_set", "num_labels"})
    said: ClassVar[frozenset[int]] = frozenset({3, 8, 17, 21, 25})
    number: ClassVar[int] = 5

    def reconstruct(self, seen, job):
        return Reconstruction(label_set=self.said, num_labels=self.number)


@pytest.mark.parametrize("number", [1, 3, 4, 5, 9])
def test_the_number_of_labels_shows_by_itself(monkeypatch, number):
    monkeypatch.setattr(Says, "number", number)
    monkeypatch.setattr(plugin, "find", lambda kind, n: Says if n == "rlg" else find(kind, n))
    found = claimed(utterance([3, 17, 3, 25], seed=2))
    assert found.labels.tolist() == [3, 17, 3, 25, END]
    assert found.diagnostics["labels_told"] == number


def test_where_a_label_was_missed_the_claim_does_not_match(monkeypatch):
    monkeypatch.setattr(Says, "said", frozenset({3, 25}))
    monkeypatch.setattr(plugin, "find", lambda kind, n: Says if n == "rlg" else find(kind, n))
    found = claimed(utterance([3, 17, 8, 25], seed=2))
    assert found.objective > 1e-3
    assert set(found.labels.tolist()) <= {3, 25, END}


def test_a_context_vector_is_read_off():
    model, said = recogniser(3), torch.tensor([[4, 11, 4, 9, END]])
    contexts = torch.randn(1, 5, 16, generator=generator(3))
    gradient = {k: v.detach() for k, v in model.gradient(contexts, said, at="context").items()}
    walk = Walk(model, gradient, torch.tensor([END, 4, 9, 11]))
    assert not walk.cut(5), "nothing but rounding is behind the fifth direction"
    kept = walk.start()
    for _ in range(4):
        kept = walk.step(kept).best(1, 1.0)
    assert kept.labels.tolist() == [[1, 3, 1, 2]]
    assert torch.allclose(kept.contexts[0], contexts[0].double(), atol=1e-3)
    assert walk.matched == ["speller.projection.weight", "speller.projection.bias"]


def test_a_trained_recogniser_leaks_as_well():
    model = recogniser(1)
    frames = torch.randn(1, 30, 5, generator=generator(1))
    target = torch.tensor([[3, 17, 8, 25, END]])
    for _ in range(60):
        gradient = model.gradient(frames, target)
        with torch.no_grad():
            for name, weight in model.parameters().items():
                weight -= 0.5 * gradient[name]
    seen = utterance([3, 17, 8, 25], seed=1, model=model)
    assert claimed(seen, labels_from="given").labels.tolist() == target[0].tolist()


@pytest.mark.parametrize("share", [1e-6, 1e-1])
def test_under_noise_it_claims_what_fits_best_and_says_how_well(share):
    seen = utterance([3, 17, 8, 25], seed=1)
    rng = generator(5)
    noisy = {
        k: v + share * v.square().mean().sqrt() * torch.randn(v.shape, generator=rng)
        for k, v in seen.gradient.items()
    }
    found = claimed(dataclasses.replace(seen, gradient=noisy), labels_from="given")
    assert (found.objective < 1e-6) == (share < 1e-3)
    assert (found.labels.tolist() == [3, 17, 8, 25, END]) or share > 1e-3


def test_more_labels_than_the_decoder_is_wide_are_refused():
    said = torch.randint(1, PIECES, (24,), generator=generator()).tolist()
    with pytest.raises(ValueError, match="as 25 labels need: the decoder is too narrow"):
        claimed(utterance(said), labels_from="given")


def test_it_refuses_what_it_cannot_read():
    seen = utterance([3, 17])
    with pytest.raises(ValueError, match="no point 'context'"):
        claimed(testing.example())
    with pytest.raises(ValueError, match="batch_size = 1"):
        claimed(dataclasses.replace(seen, num_examples=4))
    with pytest.raises(ValueError, match=r"4 local steps .* training\.local_steps = 1"):
        claimed(dataclasses.replace(seen, steps=4))
    for value, message in ((float("nan"), "NaN"), (0.0, "zero throughout")):
        broken = {k: torch.full_like(v, value) for k, v in seen.gradient.items()}
        with pytest.raises(ValueError, match=message):
            claimed(dataclasses.replace(seen, gradient=broken), labels_from="given")


def test_it_keeps_its_contract_and_leaves_the_model_as_it_was():
    seen = utterance([3, 17])
    before = {k: v.clone() for k, v in seen.model.module.state_dict().items()}
    assert testing.conformance(SpanDecoding, seen) == []
    after = seen.model.module.state_dict()
    assert all(torch.equal(after[k], v) and after[k].dtype == v.dtype for k, v in before.items())
    assert all(p.grad is None for p in seen.model.module.parameters())


def test_a_budget_that_is_used_up_is_one_clear_error():
    with pytest.raises(ValueError, match="budget was used up"):
        SpanDecoding(labels_from="given").reconstruct(utterance([3, 17]), testing.job(budget=0))


@pytest.mark.parametrize("seed", range(4))
def test_more_labels_than_the_rows_have_dimensions_are_read(seed):
    said = [[5, 5, 5, 9, 9], [4, 4, 4, 12, 12, 25], [2, 2, 2, 2, 6, 6], [8, 1, 8, 8, 1, 1, 1]][seed]
    assert claimed(utterance(said, seed=seed)).sequences[0].tolist() == [*said, END]
