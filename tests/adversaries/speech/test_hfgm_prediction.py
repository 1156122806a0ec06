"""HFGM with predicted changes: the prediction is that of the distance, and the search succeeds."""

import pytest
import torch
from pydantic import ValidationError
from support.recognised import FEATURES, SAID, gradient_of, observed, recogniser, voice

from adversaries import HFGM
from adversaries.speech.hfgm import frame_changes
from adversaries.speech.hfgm.direct_search import CONTROLS, EVERY, DirectSearch
from adversaries.speech.hfgm.frame_changes import Differentiable
from adversaries.speech.utterance_attack import distance_from
from fedsim import testing

FRAMES = 12
NAMES = ["head.weight", "head.bias"]


def search(*, distance: str = "cosine", predicted: bool = True):
    """A search for one utterance, and random changes of its frames."""
    model = recogniser(256)
    theirs = {name: gradient_of(model, voice(0, FRAMES))[name][None] for name in NAMES}
    model.module.eval()
    tried, job = Differentiable(model.copy(), SAID, NAMES), testing.job()
    found = DirectSearch(
        [tried], distance_from(theirs, distance), [(FRAMES, FEATURES)], job, predicted
    )
    rng = torch.Generator().manual_seed(1)
    at = torch.randint(FRAMES, (256,), generator=rng)
    moves = torch.nn.functional.normalize(torch.randn(256, FEATURES, generator=rng), dim=1)
    return found, at, moves


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
    linear, true = found._predict(0, at, moves), found._evaluate(0, at, moves)
    assert float((linear - true).norm()) < 0.05 * float(true.norm())


def test_changes_of_full_length_are_mostly_judged_as_an_evaluation_judges_them():
    found, at, moves = search()
    for _ in range(EVERY):
        found.iterate(32)
    predicted, true = found._predict(0, at, moves), found._evaluate(0, at, moves)
    assert 0.05 < float((true < 0).float().mean()) < 0.95
    assert float(((predicted < 0) == (true < 0)).float().mean()) > 0.85


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
