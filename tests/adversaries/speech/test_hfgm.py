"""HFGM: the shortcut equals the whole model, the search comes closer, and what it refuses."""

import dataclasses

import pytest
import torch
from support.recognised import (
    CLASSES,
    FEATURES,
    SAID,
    SPEC,
    gradient_of,
    observed,
    recogniser,
    voice,
)

from adversaries import HFGM
from adversaries.speech.hfgm.changed_frames import ChangedFrames
from adversaries.speech.hfgm.frame_changes import HeadOnly, Whole
from fedsim import testing
from fedsim.errors import DataError, NotGranted
from fedsim.gradients import to_gradient
from fedsim.knowledge import Knowledge
from fedsim.metrics import METRICS
from fedsim.records import Spec, Truth, Update
from fedsim.victim import VictimModel


def changes(frames: int, count: int = 24):
    rng = torch.Generator().manual_seed(1)
    at = torch.randint(frames, (count,), generator=rng)
    return at, torch.randn(count, FEATURES, generator=rng)


def attack(seen, *, seed: int = 0, **settings):
    chosen = {"iterations": 40, "samples": 32, **settings}
    return HFGM(**chosen).reconstruct(seen, testing.job(seed=seed))


def error(claimed, *utterances) -> float:
    return METRICS["mae"].score(claimed, Truth(inputs=list(utterances)), SPEC)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("frames", [1, 3, 5, 40])
def test_the_shortcut_says_what_the_whole_model_says(frames, bidirectional):
    model = recogniser(bidirectional=bidirectional)
    model.module.eval()
    base = 2 * torch.rand(frames, FEATURES, generator=torch.Generator().manual_seed(0)) - 1
    at, moves = changes(frames)
    shortcut = ChangedFrames(model.module, FEATURES)
    _, alone = shortcut.base(base)
    features, logits = shortcut(at, moves)
    whole = base.repeat(len(at), 1, 1)
    whole[torch.arange(len(at)), at] += moves
    with torch.no_grad():
        torch.testing.assert_close(alone, model.module(base[None])[0], atol=1e-6, rtol=0)
        torch.testing.assert_close(logits, model.module(whole), atol=1e-6, rtol=0)
        torch.testing.assert_close(model.module.head(features), logits, atol=1e-6, rtol=0)


def test_an_lstm_forgets_so_that_distant_frames_are_not_run_again():
    model = recogniser()
    model.module.eval()
    seen = []
    model.module.joint.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    shortcut = ChangedFrames(model.module, FEATURES)
    shortcut.base(torch.rand(120, FEATURES))
    shortcut(torch.tensor([3]), torch.ones(1, FEATURES))
    assert seen[0] == 120
    assert 6 <= seen[1] < 80


def test_gradients_in_closed_form_are_those_of_autograd():
    model, frames = recogniser(), voice(0, 9)
    model.module.eval()
    at, moves = changes(9, 5)
    names = ["head.weight", "head.bias"]
    fast, slow = HeadOnly(model.copy(), SAID, names), Whole(model.copy(), SAID, names)
    first, expected = fast.move_to(frames), slow.move_to(frames)
    for name in names:
        torch.testing.assert_close(first[name], expected[name], atol=1e-6, rtol=1e-5)
    assert fast.way == "incremental"
    (ours,), theirs = list(fast.changed(at, moves)), list(slow.changed(at, moves))
    for name in names:
        wanted = torch.cat([one[name] for one in theirs])
        torch.testing.assert_close(ours[name], wanted, atol=1e-6, rtol=1e-5)


def test_a_model_of_another_kind_is_run_whole_and_gives_the_same():
    class Wrapped(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.head = inner.head

        def forward(self, inputs, lengths=None):
            return self.inner(inputs, lengths)

    model, heard = recogniser(), voice(0, 6)
    other = VictimModel(Wrapped(model.module), head="inner.head", loss=model._loss)
    gradient = gradient_of(model, heard)
    renamed = {f"inner.{name}": value for name, value in gradient.items()}
    seen = observed(model, heard)
    whole = observed(other, heard, gradient=renamed, head="inner.head")
    fast, slow = attack(seen, iterations=10), attack(whole, iterations=10)
    assert (fast.diagnostics["way"], slow.diagnostics["way"]) == ("incremental", "whole")
    assert fast.objective == pytest.approx(slow.objective, abs=1e-6)
    torch.testing.assert_close(fast.inputs[0], slow.inputs[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("distance", ["cosine", "l2", "whitened"])
def test_the_search_comes_closer_to_gradient_and_frames(distance):
    heard = voice(0, 5)
    seen = observed(recogniser(256), heard)
    settings = {"distance": distance, "schedule": "cosine"}
    early = attack(seen, iterations=1, **settings)
    late = attack(seen, iterations=150, **settings)
    assert late.objective < 0.2 * early.objective
    if distance != "l2":  # which is close long before the frames are
        assert error(late, heard) < 0.9 * error(early, heard)
    assert late.inputs[0].shape == heard.shape
    assert late.inputs[0].dtype == torch.float32
    assert len(late.trace) == 150
    assert 0 < late.diagnostics["kept"] < 1


def test_the_step_is_halved_when_progress_ends_and_the_search_with_it():
    heard = voice(0, 4)
    seen = observed(recogniser(), heard)
    # Of a fall by 99 % every 5 iterations nothing comes: 1, .5, .25, .125.
    claimed = attack(seen, iterations=100, patience=5, fall=0.99)
    assert claimed.outcomes == ("stalled",)
    assert claimed.diagnostics["step"] == 0.125
    assert len(claimed.trace) == 16
    assert attack(seen, iterations=7).outcomes == ("steps",)
    job = testing.job(budget=3)
    assert HFGM(samples=4).reconstruct(seen, job).outcomes == ("budget",)
    assert job.iterations == 3


def test_the_authors_count_the_point_itself_among_the_samples():
    heard = voice(0, 4)
    seen = observed(recogniser(), heard)
    ours = attack(seen, iterations=1, samples=9)
    theirs = attack(seen, iterations=1, samples=10, fidelity="authors")
    assert torch.equal(ours.inputs[0], theirs.inputs[0])


def test_a_batch_is_sought_utterance_by_utterance():
    heard = [voice(0, 4), voice(1, 6)]
    seen = observed(recogniser(256), *heard)
    early, late = (attack(seen, iterations=n, schedule="cosine") for n in (1, 200))
    assert [len(one) for one in late.inputs] == [4, 6]
    assert late.objective < 0.3 * early.objective
    # The head is called with unpadded utterances, the client's gradient was of padded ones.
    candidates = [HeadOnly(seen.model.copy(), SAID, ["head.weight"]) for _ in heard]
    for each in candidates:
        each.model.module.eval()
    mean = sum(
        one.move_to(frames)["head.weight"] for one, frames in zip(candidates, heard, strict=True)
    )
    torch.testing.assert_close(mean[0] / 2, seen.gradient["head.weight"], atol=1e-6, rtol=1e-4)


def test_several_local_steps_are_taken_for_every_change():
    model, heard, lr = recogniser(), voice(0, 5), 0.05
    client = model.copy()
    client.module.eval()
    before = {name: value.detach().clone() for name, value in client.parameters().items()}
    for _ in range(3):
        gradient = client.gradient(heard[None], SAID[None])
        with torch.no_grad():
            for name, weight in client.parameters().items():
                weight.sub_(gradient[name], alpha=lr)
    delta = {name: client.parameters()[name].detach() - before[name] for name in before}
    sent = Update(tensors=delta, kind="delta", lr=lr, steps=3, num_examples=3)
    mean, exact = to_gradient(sent, before, lr=lr, steps=3)
    assert not exact
    model.module.eval()
    tried = Whole(model, SAID, ["head.weight"], lr=lr, steps=3)
    found = tried.move_to(heard)["head.weight"][0]
    torch.testing.assert_close(found, mean["head.weight"], atol=1e-5, rtol=1e-3)
    for name, value in model.parameters().items():
        assert torch.equal(value, before[name]), name

    known = {
        "gradient": mean,
        "labels": SAID.expand(3, -1),
        "lengths": [5, 5, 5],
        "num_examples": 3,
        "steps": 3,
        "lr": lr,
    }
    seen = observed(model, heard, **known)
    claimed = attack(seen, iterations=3, samples=4)
    assert [len(one) for one in claimed.inputs] == [5, 5, 5]
    assert claimed.diagnostics["way"] == "one by one"
    unsaid = observed(model, heard, **{**known, "labels": None})
    claimed = attack(unsaid, iterations=3, samples=4, transcripts=["abc"])
    assert claimed.text == ["abc"] * 3
    other = observed(model, heard, **{**known, "lengths": [5, 4, 5]})
    with pytest.raises(ValueError, match="not all the same utterance"):
        attack(other)


def test_the_right_transcript_and_length_come_closest():
    heard = voice(0, 4)
    model = recogniser(96)
    seen = observed(model, heard, labels=None, lengths=None)
    assert not seen.granted & (Knowledge.LABELS | Knowledge.LENGTHS)
    settings = {"iterations": 60, "schedule": "cosine"}
    claimed = attack(seen, transcripts=["its", "abc", "z e"], frames=[4], **settings)
    assert claimed.diagnostics["said"] == ["abc"]
    assert len(claimed.outcomes) == 3
    claimed = attack(observed(model, heard, lengths=None), frames=[3, 4], **settings)
    assert len(claimed.diagnostics["distances"]) == 2
    with pytest.raises(NotGranted, match="LABELS"):
        attack(seen)


def test_controls_assume_another_transcript_or_length():
    heard = voice(0, 8)
    seen = observed(recogniser(), heard)
    right, wrong = attack(seen), attack(seen, assumes="random")
    assert wrong.diagnostics["said"] != ["abc"]
    assert wrong.objective > 3 * right.objective
    assert len(attack(seen, off=2, iterations=2).inputs[0]) == 10
    assert len(attack(seen, off=-3, iterations=2).inputs[0]) == 5
    assert len(attack(seen, stretch=0.5, iterations=2).inputs[0]) == 4
    assert len(attack(seen, stretch=2.0, off=1, iterations=2).inputs[0]) == 17


def test_needs_follow_from_the_settings():
    plain = HFGM().requires()
    assert Knowledge.LABELS | Knowledge.LENGTHS | Knowledge.HEAD_GRADIENT in plain
    assert Knowledge.GRADIENT not in plain
    assert Knowledge.GRADIENT in HFGM(layers="all").requires()
    assert Knowledge.LABELS not in HFGM(transcripts=["yes"]).requires()
    assert Knowledge.LENGTHS not in HFGM(frames=[10]).requires()


def test_all_layers_are_matched_one_by_one():
    heard = voice(0, 4)
    claimed = attack(observed(recogniser(16), heard), layers="all", iterations=4, samples=4)
    assert claimed.diagnostics["way"] == "one by one"
    assert claimed.objective < 1


@pytest.mark.parametrize(
    ("known", "settings", "told"),
    [
        ({}, {"off": -9}, "a frame at least"),
        ({"spec": Spec(CLASSES)}, {}, "expected a task with speech"),
        ({"gradient": {"head.weight": torch.zeros(CLASSES, 64)}}, {}, "zero throughout"),
        ({"gradient": {"body.weight": torch.ones(4, 64)}}, {}, "the update holds body.weight"),
        ({"gradient": {"head.weight": torch.full((CLASSES, 64), torch.nan)}}, {}, "NaN"),
        ({}, {"transcripts": ["naïve"]}, "'ï'"),
        ({}, {"transcripts": ["a"] * 33, "frames": [5, 6]}, "64 at most"),
    ],
)
def test_what_cannot_be_sought_is_refused(known, settings, told):
    with pytest.raises(ValueError, match=told):
        attack(observed(recogniser(), voice(0, 5), **known), **settings)


def test_a_transcript_longer_than_its_frames_is_explained():
    with pytest.raises(DataError, match="takes 3 frames of 2"):
        attack(observed(recogniser(), voice(0, 5)), off=-3)


def test_candidates_that_ctc_cannot_say_are_left_out_and_told():
    seen = observed(recogniser(), voice(0, 5), labels=None, lengths=None)
    settings = {"transcripts": ["abc", "play music"], "frames": [2, 5], "iterations": 2}
    claimed = attack(seen, **settings)
    assert len(claimed.outcomes) == 1
    assert (claimed.diagnostics["said"], claimed.diagnostics["lengths"]) == (["abc"], [5])
    assert claimed.diagnostics["left out"] == [
        "'abc' takes 3 frames of 2",
        "'play music' takes 10 frames of 2",
        "'play music' takes 10 frames of 5",
    ]
    with pytest.raises(DataError, match=r"infinite loss: 'play music' takes 10 frames of 5\."):
        attack(seen, transcripts=["play music"], frames=[5])
    assert "left out" not in attack(observed(recogniser(), voice(0, 5)), iterations=2).diagnostics


def test_the_time_of_all_cases_is_looked_at_before_the_first_is_searched():
    seen = observed(recogniser(), voice(0, 5), labels=None)
    HFGM(transcripts=["abc"], iterations=6).reconstruct(seen, testing.job())  # warm
    job = testing.job(deadline=30.0)
    with pytest.raises(ValueError, match="least number of iterations for all candidates, 800000"):
        HFGM(transcripts=["abc"] * 8, iterations=100_000, schedule="cosine").reconstruct(seen, job)
    assert job.iterations <= 6


def test_a_search_that_cannot_end_in_time_is_refused_at_once():
    seen = observed(recogniser(), voice(0, 5))
    job = testing.job(deadline=5.0)
    with pytest.raises(ValueError, match="least number of iterations"):
        HFGM(samples=512, patience=100_000).reconstruct(seen, job)
    assert job.iterations <= 6


def test_a_loss_that_is_not_ctc_is_told():
    model, heard = recogniser(), voice(0, 5)

    def mean(module, inputs, target, *, lengths=None, at="input"):
        return module(inputs, lengths).square().mean()

    other = VictimModel(model.module, head="head", loss=mean)
    with pytest.raises(ValueError, match="trained by CTC"):
        attack(observed(other, heard))


def test_a_single_step_needs_neither_its_number_nor_its_rate():
    seen = observed(recogniser(), voice(0, 5), steps=None, lr=None)
    assert not seen.granted & (Knowledge.LOCAL_STEPS | Knowledge.LEARNING_RATE)
    assert len(attack(seen, iterations=2).inputs) == 1
    with pytest.raises(NotGranted, match="LOCAL_STEPS"):
        attack(dataclasses.replace(seen, exact=False), iterations=2)


def test_the_float32_of_a_long_utterance_is_no_other_loss():
    model, heard = recogniser(), 3 * voice(0, 900)
    claimed = attack(observed(model, heard), iterations=1, samples=2)
    assert claimed.inputs[0].shape == heard.shape


def test_a_transcript_that_the_recogniser_cannot_write_is_cautioned_of():
    own = recogniser()
    model = VictimModel(own.module, head="head", loss=lambda *_: 0.0, spec=SPEC)
    (told,) = HFGM(transcripts=["abc", "Ünicode"]).cautions(model)
    assert "does not write" in told


def test_dropout_is_cautioned_of():
    assert not HFGM().cautions(recogniser())
    assert "random" in HFGM().cautions(recogniser(dropout=0.1))[0]


def test_transcripts_that_are_tried_share_the_budget():
    seen = observed(recogniser(), voice(0, 5))
    attack, job = HFGM(transcripts=["xyz", "abc"], iterations=40, samples=8), testing.job(budget=9)
    claimed = attack.reconstruct(seen, job)
    assert (job.iterations, job.budget) == (9, 9)
    assert claimed.outcomes == ("budget", "budget")
    first = [value for at, value in job.trace if at <= 5]
    assert first[-1] == claimed.diagnostics["distances"][0]
