"""ctc-matching finds utterances to the last digits, and its distance is what it says."""

import dataclasses
import math

import pytest
import torch
from support.recognised import SAID, SPEC, observed, recogniser, voice
from torch import nn

from adversaries import CTCMatching
from adversaries.speech.ctc_matching.frame_search import means
from fedsim import testing
from fedsim.errors import NotGranted
from fedsim.gradients import WhitenedDistance, cosine_distance, ctc_head_gradient, head_passes
from fedsim.metrics import METRICS
from fedsim.records import Truth


def attack(seen, *, seed: int = 0, **settings):
    return CTCMatching(**settings).reconstruct(seen, testing.job(seed=seed))


def error(claimed, *utterances) -> float:
    return METRICS["mae"].score(claimed, Truth(inputs=list(utterances)), SPEC)


def test_an_utterance_comes_back_from_the_head_alone():
    heard = voice(0, 6)
    claimed = attack(observed(recogniser(256), heard), iterations=300)
    assert claimed.inputs[0].shape == heard.shape
    assert error(claimed, heard) < 1e-3
    assert claimed.outcomes == ("matched",)
    # Zeros are what the paper's tables are beside.
    assert error(attack(observed(recogniser(256), heard), iterations=1), heard) > 0.5


def test_the_cosine_stays_on_its_plateau_where_the_whitened_distance_does_not():
    heard = voice(0, 10)
    seen = observed(recogniser(256), heard)
    whitened, cosine = (
        attack(seen, restarts=3, meetings=0, distance=distance)
        for distance in ("whitened", "cosine")
    )
    assert error(whitened, heard) < 0.1 * error(cosine, heard)


def test_all_layers_give_a_narrow_model_away():
    heard = voice(0, 4)
    settings = {"layers": "all", "distance": "cosine", "lr": 0.1, "restarts": 1, "meetings": 0}
    claimed = attack(observed(recogniser(32), heard), iterations=100, **settings)
    assert error(claimed, heard) < 0.3


def test_a_batch_of_unequal_lengths_comes_back_in_order():
    heard = [voice(0, 5), voice(1, 7)]
    claimed = attack(observed(recogniser(256), *heard), restarts=3, meetings=0)
    assert [len(one) for one in claimed.inputs] == [5, 7]
    assert error(claimed, *heard) < 0.1


def test_restarts_run_side_by_side_and_the_lowest_distance_is_claimed():
    heard = voice(0, 5)
    seen = observed(recogniser(128), heard)
    one, three = (attack(seen, iterations=60, restarts=count, meetings=0) for count in (0, 2))
    assert len(three.outcomes) == 3
    assert three.objective <= one.objective * (1 + 1e-3)
    assert three.diagnostics["evaluations"] == 180


def test_starts_that_meet_find_what_none_of_them_found():
    heard = voice(0, 10)
    seen = observed(recogniser(256), heard)
    apart, met = (attack(seen, iterations=80, restarts=3, meetings=count) for count in (0, 12))
    assert apart.outcomes == ("steps",) * 4
    assert error(met, heard) < min(1e-3, error(apart, heard) / 10)
    assert "matched" in met.outcomes


def test_starts_go_on_from_their_mean_and_from_means_of_halves():
    ends = [torch.full((3,), 10.0**at) for at in range(4)]
    every, *halves = means(ends, torch.Generator().manual_seed(0))
    assert every.tolist() == [1111 / 4] * 3
    pairs = {(10.0**a + 10.0**b) / 2 for a in range(4) for b in range(a)}
    assert len(halves) == 3
    assert {value for half in halves for value in half.tolist()} <= pairs


def test_a_meeting_that_brings_nothing_is_the_last():
    seen = observed(recogniser(256), voice(0, 10))
    wrong = attack(seen, assumes="random", iterations=40)
    assert wrong.diagnostics["evaluations"] < 8 * 40 * 6
    alone = attack(seen, assumes="random", iterations=40, restarts=0)
    assert alone.diagnostics["evaluations"] == 40


def test_transcripts_are_tried():
    heard = voice(0, 5)
    seen = observed(recogniser(256), heard, labels=None)
    claimed = attack(seen, transcripts=["its", "abc"], restarts=1, meetings=0)
    assert claimed.diagnostics["said"] == claimed.text == ["abc"]
    assert CTCMatching(transcripts=["abc"]).fills() - CTCMatching().fills() == {"text"}
    first, second = claimed.diagnostics["distances"]
    assert second < 0.1 * first
    with pytest.raises(NotGranted, match="LABELS"):
        attack(seen)


def test_what_comes_after_a_transcript_that_matches_is_not_tried():
    seen = observed(recogniser(256), voice(0, 5), labels=None)
    claimed = attack(seen, transcripts=["its", "abc", "z e"], iterations=250)
    assert claimed.text == ["abc"]
    assert len(claimed.diagnostics["distances"]) == 2
    assert claimed.diagnostics["untried"] == 1


def test_where_no_transcript_matches_the_closest_meet_first():
    heard = voice(0, 10)
    seen = observed(recogniser(256), heard, labels=None)
    settings = {"transcripts": ["its", "abc"], "iterations": 80, "restarts": 3}
    apart, met = (attack(seen, meetings=count, **settings) for count in (0, 12))
    assert apart.text == met.text == ["abc"]
    assert error(met, heard) < min(1e-3, error(apart, heard) / 10)
    for ours, theirs in zip(
        apart.diagnostics["distances"][::2], met.diagnostics["distances"][::2], strict=True
    ):
        assert ours == theirs  # of wrong ones no starts met


def test_a_transcript_that_takes_more_frames_than_there_are_is_left_out():
    seen = observed(recogniser(64), voice(0, 6), labels=None)
    claimed = attack(seen, transcripts=["abc", "play music"], iterations=3)
    assert claimed.diagnostics["said"] == ["abc"]
    assert claimed.diagnostics["left out"] == ["'play music' takes 10 frames of 6"]


def test_what_would_never_end_in_time_is_refused_at_once():
    seen, job = observed(recogniser(), voice(0, 5)), testing.job(deadline=5.0)
    with pytest.raises(ValueError, match=r"least number of iterations.*lower iterations"):
        CTCMatching(iterations=1_000_000, restarts=0).reconstruct(seen, job)
    assert job.iterations <= 6


def test_several_local_steps_are_matched_as_one_and_it_is_said():
    heard = [voice(0, 5), voice(0, 5)]
    seen = observed(recogniser(), *heard)
    assert "local steps" not in attack(seen, iterations=2).diagnostics
    steps = observed(recogniser(), *heard, steps=2, exact=False)
    assert "matched as one step" in attack(steps, iterations=2).diagnostics["local steps"]


def test_smoothness_draws_neighbours_together():
    seen = observed(recogniser(), voice(0, 8))
    settings = {"iterations": 40, "meetings": 0}
    free, smooth = (
        attack(seen, smoothness=weight, **settings).inputs[0].diff(dim=0).abs().mean()
        for weight in (0.0, 100.0)
    )
    assert smooth < 0.2 * free


def test_masks_are_drawn_anew_and_leave_no_trace_in_other_randomness():
    heard = voice(0, 5)
    seen = observed(recogniser(64, dropout=0.3), heard)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = attack(seen, iterations=20, masks=4)
    assert torch.equal(torch.rand(3), expected)
    again = attack(seen, iterations=20, masks=4)
    assert torch.equal(first.inputs[0], again.inputs[0])
    without = attack(seen, iterations=20)
    assert not torch.equal(first.inputs[0], without.inputs[0])


def test_masks_of_a_model_without_dropout_are_refused():
    seen = observed(recogniser(64), voice(0, 5))
    with pytest.raises(ValueError, match=r"drops nothing.*task\.model\.dropout"):
        attack(seen, iterations=1, masks=8)


@pytest.mark.parametrize("training", [True, False])
def test_batch_statistics_are_warned_of(training):
    model = recogniser(64)
    model.module.joint.append(nn.BatchNorm1d(64)).train(training)
    warned = any("statistics of the client's batch" in one for one in CTCMatching().cautions(model))
    assert warned == training


def test_the_heads_gradient_is_differentiated_in_closed_form():
    model, heard = recogniser(), voice(0, 4)
    model.module.eval().double()
    frames = heard[None].double().requires_grad_()
    names = ["head.weight", "head.bias"]
    weight, bias = ctc_head_gradient(*head_passes(model, frames, SAID), SAID, create_graph=True)
    told = model.gradient(frames, SAID[None], names=names, create_graph=True)
    torch.testing.assert_close(weight[0], told["head.weight"])
    torch.testing.assert_close(bias[0], told["head.bias"])
    ours, theirs = (
        torch.autograd.grad(value.square().sum(), frames, retain_graph=True)[0]
        for value in (weight, told["head.weight"])
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("layer", ["a", "weighted"])
def test_whitening_is_shampoos_of_the_observed_gradient(layer):
    rng = torch.Generator().manual_seed(0)
    weight, bias = f"{layer}.weight", f"{layer}.bias"
    theirs = {weight: torch.randn(4, 6, generator=rng), bias: torch.randn(4, generator=rng)}
    ours = {name: torch.randn(3, *value.shape, generator=rng) for name, value in theirs.items()}
    floor = 0.05
    found = WhitenedDistance(theirs, floor)(ours)

    joined = torch.cat([theirs[weight], theirs[bias][:, None]], dim=1).double()
    joined /= joined.norm()
    least = floor * torch.linalg.svdvals(joined)[0]

    def root(square):
        values, vectors = torch.linalg.eigh(square)
        return vectors * (values.clamp(min=0).sqrt() + least).rsqrt() @ vectors.T

    for row, distance in enumerate(found):
        mine = torch.cat([ours[weight][row], ours[bias][row][:, None]], dim=1).double()
        apart = root(joined @ joined.T) @ (mine / mine.norm() - joined) @ root(joined.T @ joined)
        assert float(distance) == pytest.approx(float(apart.square().sum() / 4), rel=1e-3)


def test_whitening_is_zero_at_the_gradient_and_forgives_its_length():
    rng = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    theirs = {"a.weight": normal(5, 3), "a.bias": normal(5), "b": normal(2, 2, 2)}
    same = {name: 7 * value[None] for name, value in theirs.items()}
    distance = WhitenedDistance(theirs)
    assert float(distance(same)) < 1e-20
    small = {name: value + 0.1 * normal(*value.shape) for name, value in same.items()}
    together = {name: value[None] for name, value in theirs.items()}
    assert float(distance(small)) > 10 * float(cosine_distance(small, together))
    with pytest.raises(ValueError, match=r"'a\.weight' is zero"):
        WhitenedDistance({"a.weight": torch.zeros(2, 2)})


def test_every_transcript_that_is_tried_has_its_part_of_the_budget():
    seen = observed(recogniser(64), voice(0, 5))
    job = testing.job(budget=6)
    claimed = CTCMatching(transcripts=["xyz", "abc"], restarts=0).reconstruct(seen, job)
    assert (job.iterations, job.budget) == (6, 6)
    assert all(map(math.isfinite, claimed.diagnostics["distances"]))
    assert claimed.objective == min(claimed.diagnostics["distances"])


def test_a_budget_that_is_used_up_before_a_candidate_begins_ends_the_attack():
    seen = observed(recogniser(64), voice(0, 6), labels=None)
    claimed = CTCMatching(transcripts=["its", "abc"]).reconstruct(seen, testing.job(budget=1))
    assert claimed.inputs[0].shape == (6, 8)
    assert "budget" in claimed.outcomes


@pytest.mark.parametrize("sent", [torch.float16, torch.bfloat16])
def test_arrays_of_16_bits_are_matched(sent):
    heard = voice(0, 5)
    seen = observed(recogniser(256), heard)
    gradient = {name: value.to(sent) for name, value in seen.gradient.items()}
    claimed = attack(dataclasses.replace(seen, gradient=gradient), restarts=3, meetings=0)
    assert error(claimed, heard) < 0.05


def test_an_empty_transcript_is_refused():
    with pytest.raises(ValueError, match="at least 1 character"):
        CTCMatching(transcripts=["abc", ""])
