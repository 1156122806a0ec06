"""HFGM with predicted changes: the prediction is that of the distance, and the search succeeds."""

import pytest
import torch
from pydantic import ValidationError
from support.recognised import CLASSES, FEATURES, SAID, gradient_of, observed, recogniser, voice
from torch import nn

from adversaries import HFGM
from adversaries.speech import utterance_attack
from adversaries.speech.hfgm import direct_search, frame_changes
from adversaries.speech.hfgm.direct_search import CONTROLS, EVERY, DirectSearch
from adversaries.speech.hfgm.frame_changes import Differentiable, move_together
from adversaries.speech.utterance_attack import distance_from
from fedsim import testing
from fedsim.attacking.utterances import undivided_loss
from fedsim.seeds import isolated
from fedsim.tasks.speech.recognisers.ctc import mean_ctc_loss
from fedsim.victim import VictimModel

FRAMES = 12
NAMES = ["head.weight", "head.bias"]


def search(*, distance: str = "cosine", predicted: bool = True):
    """A search for one utterance, and random changes of its frames."""
    model = recogniser(256)
    theirs = {name: gradient_of(model, voice(0, FRAMES))[name][None] for name in NAMES}
    model.module.eval()
    tried, job = Differentiable(model.copy(), SAID, NAMES), testing.job(device="cpu")
    found = DirectSearch(
        [tried], distance_from(theirs, distance), [(FRAMES, FEATURES)], job, predicted
    )
    rng = torch.Generator().manual_seed(1)
    at = torch.randint(FRAMES, (256,), generator=rng)
    moves = torch.nn.functional.normalize(torch.randn(256, FEATURES, generator=rng), dim=1)
    return found, at, moves


def predicted(found, at, moves):
    """What the search predicts of changes."""
    (slope,) = torch.autograd.grad(found.distance(0), found.tried[0].frames)
    return found.predict(0, at, moves, slope)


def refused(*_):
    raise ValueError("no DeepSpeech")


def attack(seen, **settings):
    chosen = {"iterations": 40, "samples": 32, "schedule": "cosine", "selection": "predicted"}
    return HFGM(**{**chosen, **settings}).reconstruct(seen, testing.job())


@pytest.mark.parametrize("distance", ["cosine", "l2", "whitened"])
def test_small_changes_are_predicted_exactly(distance):
    found, at, moves = search(distance=distance)
    found.step = 0.01
    moves *= found.step
    linear, true = predicted(found, at, moves), found.evaluate(0, at, moves)
    assert float((linear - true).norm()) < 0.05 * float(true.norm())


def test_changes_of_full_length_are_mostly_judged_as_an_evaluation_judges_them():
    found, at, moves = search()
    for _ in range(EVERY):
        found.iterate(32)
    said, true = predicted(found, at, moves), found.evaluate(0, at, moves)
    assert 0.05 < float((true < 0).float().mean()) < 0.95
    assert float(((said < 0) == (true < 0)).float().mean()) > 0.85


@pytest.mark.parametrize("way", ["incremental", "whole"])
def test_a_few_vectors_are_evaluated_and_the_search_comes_closer(way, monkeypatch):
    heard = voice(0, 5)
    seen = observed(recogniser(256), heard)
    if way == "whole":
        monkeypatch.setattr(frame_changes, "ChangedFrames", refused)
    early, late = attack(seen, iterations=1), attack(seen, iterations=150)
    assert late.diagnostics["way"] == way
    assert late.objective < 0.2 * early.objective
    assert late.diagnostics["evaluated"] == pytest.approx(CONTROLS / EVERY / 32, rel=0.1)
    assert 0 < late.diagnostics["kept"] < 1


def test_a_batch_is_sought_utterance_by_utterance():
    seen = observed(recogniser(256), voice(0, 4), voice(1, 6))
    early, late = (attack(seen, iterations=n) for n in (1, 200))
    assert [len(one) for one in late.inputs] == [4, 6]
    assert late.objective < 0.3 * early.objective


@pytest.mark.parametrize("selection", ["evaluated", "predicted"])
def test_where_no_distance_is_finite_the_start_is_claimed(selection):
    model, heard = recogniser(), voice(0, 5)
    huge = {name: value * 1e25 for name, value in gradient_of(model, heard).items()}
    seen = observed(model, heard, gradient=huge)
    claimed = attack(seen, iterations=3, distance="l2", selection=selection)
    assert claimed.objective == float("inf")
    assert [one.shape for one in claimed.inputs] == [(5, FEATURES)]


def test_what_has_no_closed_form_is_not_predicted():
    with pytest.raises(ValidationError, match='expected layers = "last"'):
        HFGM(selection="predicted", layers="all")
    seen = observed(
        recogniser(),
        voice(0, 5),
        labels=SAID.expand(3, -1),
        lengths=[5] * 3,
        num_examples=3,
        steps=3,
        lr=0.05,
    )
    with pytest.raises(ValueError, match='Set selection = "evaluated"'):
        attack(seen)


PREDICTED = HFGM(iterations=4, samples=16, schedule="cosine", selection="predicted")


def sizes_of_passes(monkeypatch):
    """How many utterances each pass of the searches has, in a list that fills."""
    found = []

    def noted(tried, frames):
        found.append(len(tried))
        return move_together(tried, frames)

    monkeypatch.setattr(direct_search, "move_together", noted)
    return found


@pytest.mark.parametrize("bidirectional", [False, True])
def test_victims_share_passes_and_are_found_as_each_alone(bidirectional, monkeypatch):
    model = recogniser(64, bidirectional=bidirectional)
    seen = [observed(model, voice(0, 9)), observed(model, voice(1, 4), voice(2, 5))]
    longer = torch.cat([SAID, SAID.flip(0)])[None]
    seen += [observed(model, voice(3, 12), labels=longer), observed(model, voice(4, 7))]
    alone = [
        PREDICTED.reconstruct(one, testing.job(seed=at, budget=2 if at == 3 else None))
        for at, one in enumerate(seen)
    ]
    sizes = sizes_of_passes(monkeypatch)
    jobs = [testing.job(seed=at, budget=2 if at == 3 else None) for at in range(len(seen))]
    together = PREDICTED.reconstruct_many(seen, jobs)
    # Victims of one utterance share passes until the budget of one ends; the batch is alone.
    assert sizes == [3] * 2 + [2] * 2 + [1] * 4
    assert [one.outcomes for one in together] == [one.outcomes for one in alone]
    for ours, theirs in zip(together, alone, strict=True):
        assert ours.objective == pytest.approx(theirs.objective, abs=1e-5)
        assert ours.diagnostics["kept"] == theirs.diagnostics["kept"]
        assert [step for step, _ in ours.trace] == [step for step, _ in theirs.trace]
        for one, other in zip(ours.inputs, theirs.inputs, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_victims_of_another_model_or_beyond_memory_are_searched_apart(monkeypatch):
    one, other = recogniser(64), recogniser(48)
    lengths = (3, 6, 6, 6)
    seen = [
        observed(model, voice(0, frames))
        for model, frames in zip((one, other, one, one), lengths, strict=True)
    ]
    sizes = sizes_of_passes(monkeypatch)
    brief = PREDICTED.model_copy(update={"iterations": 1})
    brief.reconstruct_many(seen, [testing.job(seed=at) for at in range(4)])
    assert sorted(sizes) == [1, 3]
    units = sum(len(weight) for weight in one.parameters().values())
    monkeypatch.setattr(utterance_attack, "HELD", 2 * 6 * units)
    sizes.clear()
    brief.reconstruct_many(seen, [testing.job(seed=at) for at in range(4)])
    assert sorted(sizes) == [1, 1, 2]


class Blind(nn.Module):
    """A recogniser that is not told the lengths: what follows a frame changes its logits."""

    blank = 0

    def __init__(self, stride=1):
        super().__init__()
        self.stride = stride
        self.recurrent = nn.GRU(stride * FEATURES, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, inputs, lengths=None):
        whole = inputs.shape[1] // self.stride * self.stride
        windows = inputs[:, :whole].reshape(len(inputs), -1, self.stride * FEATURES)
        return self.head(self.recurrent(windows)[0])


def blind(stride, *, loss):
    with isolated(0, "test"):
        return VictimModel(Blind(stride).train(), head="head", loss=loss)


def test_a_model_that_sees_padding_is_shared_by_victims_of_one_length(monkeypatch):
    model = blind(1, loss=mean_ctc_loss)
    seen = [observed(model, voice(at, frames)) for at, frames in enumerate((6, 12, 6))]
    alone = [PREDICTED.reconstruct(one, testing.job(seed=at)) for at, one in enumerate(seen)]
    sizes = sizes_of_passes(monkeypatch)
    together = PREDICTED.reconstruct_many(seen, [testing.job(seed=at) for at in range(3)])
    assert sizes == [2, 1] * 4
    for ours, theirs in zip(together, alone, strict=True):
        assert ours.objective == pytest.approx(theirs.objective, abs=1e-5)
        torch.testing.assert_close(ours.inputs[0], theirs.inputs[0], atol=1e-5, rtol=0)


def test_a_model_with_fewer_logits_than_frames_is_attacked_too():
    model = blind(2, loss=undivided_loss)
    gradient = {
        name: value.detach()
        for name, value in model.gradient(voice(0, 12)[None], SAID[None]).items()
    }
    seen = [observed(model, voice(0, n), gradient=gradient) for n in (12, 12, 8)]
    alone = [PREDICTED.reconstruct(one, testing.job(seed=at)) for at, one in enumerate(seen)]
    together = PREDICTED.reconstruct_many(seen, [testing.job(seed=at) for at in range(3)])
    for ours, theirs in zip(together, alone, strict=True):
        assert ours.objective == pytest.approx(theirs.objective, abs=1e-5)


def test_a_search_that_has_ended_keeps_no_graph():
    found, *_ = search()
    found.iterate(8)
    assert found.tried[0].frames.requires_grad
    found.end()
    assert found.own == []
    assert not found.tried[0].frames.requires_grad


def test_evaluations_have_the_victims_of_a_round_one_by_one():
    assert PREDICTED.together() == 8
    assert HFGM().together() == 1
