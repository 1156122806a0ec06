"""Voiceprints: an encoder trained once a process or loaded, and the threshold for strangers."""

import dataclasses
from importlib import import_module

import pytest
import torch
from support.speakers import (
    NAMES,
    SIZE,
    SMALL,
    SPEC,
    WORDS,
    attacked,
    heard,
    observed,
    public,
    told,
)

from adversaries import SpeakerInference
from adversaries.speech.speaker_inference.deep_speaker import DeepSpeaker, train
from adversaries.speech.speaker_inference.voiceprints import between, loaded, saved, threshold
from fedsim import testing
from fedsim.errors import Cancelled
from fedsim.records import UNKNOWN

voiceprints = import_module("adversaries.speech.speaker_inference.voiceprints")


@pytest.fixture(scope="module")
def auxiliary():
    return public()


@pytest.fixture
def forgotten(monkeypatch):
    """No encoder is remembered, and every training is counted."""
    trained = []

    def counted(*args, **kwargs):
        trained.append(args)
        return train(*args, **kwargs)

    monkeypatch.setattr(voiceprints, "_KNOWN", {})
    monkeypatch.setattr(voiceprints, "train", counted)
    return trained


# --- training -------------------------------------------------------------------------------


def test_the_encoder_is_trained_once_and_is_the_same_whoever_asks_first(auxiliary, forgotten):
    first, second = heard("we walked", 1), heard("a tall tree", 2)
    seen = [observed(one, auxiliary=auxiliary) for one in (first, second)]
    before = [attacked(one, seed).attributes for seed, one in enumerate(seen)]
    assert len(forgotten) == 1
    voiceprints._KNOWN.clear()
    after = [attacked(one, 7).attributes for one in reversed(seen)]
    assert len(forgotten) == 2
    assert before == after[::-1]

    other = dataclasses.replace(auxiliary, inputs=auxiliary.inputs + 0.01)
    told(dataclasses.replace(seen[0], auxiliary=other), first)
    told(seen[0], first, steps=5)
    assert len(forgotten) == 4


def test_no_more_encoders_are_kept_than_it_says(auxiliary, forgotten):
    seen = observed(heard("we walked", 1), auxiliary=auxiliary)
    for steps in range(2, 9):
        told(seen, steps=steps)
    assert len(voiceprints._KNOWN) == voiceprints.KEPT


def test_a_budget_and_a_stop_reach_the_training(auxiliary, forgotten):
    seen = observed(heard("we walked", 1), auxiliary=auxiliary)
    job = testing.job(budget=3)
    SpeakerInference(**SMALL).rank([], seen, job)
    assert [step for step, _ in job.trace] == list(range(3))
    assert job.iterations == 0
    with pytest.raises(Cancelled):
        SpeakerInference(**SMALL).rank([], seen, testing.job(cancelled=lambda: True))
    assert len(voiceprints._KNOWN) == 1


# --- strangers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        ([0.8, 0.9], [0.1, 0.2], 0.5),
        ([0.2, 0.8, 0.9], [0.1, 0.3], 0.55),
        ([0.5], [0.5], 0.5),
    ],
)
def test_a_threshold_lies_where_it_tells_most_apart(own, others, expected):
    assert threshold(own, others) == pytest.approx(expected, abs=1e-5)


def test_a_threshold_needs_speakers_and_strangers():
    with pytest.raises(ValueError, match=r"too few public utterances .* 0 as unknown"):
        threshold([0.5], [])


def test_a_threshold_is_found_on_voices_that_the_encoder_never_heard(auxiliary):
    said = list(
        zip(
            auxiliary.attributes["speaker"],
            (x[:n] for x, n in zip(auxiliary.inputs, auxiliary.lengths, strict=True)),
            strict=True,
        )
    )
    asked = []

    def encode(some):
        asked.append([name for name, _ in some])
        return DeepSpeaker(SIZE, (4,), embedding=4).eval()

    between(said, encode)
    assert len(asked) == 3
    for names in asked:
        assert len(set(names)) < 4, "some speakers are strangers"
        assert all(names.count(name) == len(WORDS) - 1 for name in set(names))
    assert set().union(*(set(NAMES) - set(names) for names in asked)) == set(NAMES)


def test_strangers_are_unknown_only_where_there_can_be_some(auxiliary):
    mine = public(range(3))
    spec = dataclasses.replace(SPEC, attributes={"speaker": (*NAMES[:3], UNKNOWN)})
    seen = observed(heard("we walked", 1), auxiliary=mine, spec=spec)
    rankings, _ = told(seen, heard("we walked", 1), heard("we walked", 3))
    assert [set(one) for one in rankings] == [{*NAMES[:3], UNKNOWN}] * 2
    assert rankings[0][UNKNOWN] == rankings[1][UNKNOWN]
    closed, _ = told(observed(heard("we walked", 1), auxiliary=auxiliary), heard("we walked", 1))
    assert set(closed[0]) == set(NAMES)


# --- encoders of a folder -------------------------------------------------------------------


def test_an_encoder_of_a_folder_does_without_training(auxiliary, forgotten, tmp_path):
    torch.manual_seed(1)
    network = DeepSpeaker(SIZE, (4, 6), blocks=0, embedding=8).eval()
    saved(network, tmp_path / "voices")
    again = loaded(tmp_path / "voices", SIZE, torch.device("cpu"))
    frames = heard("we walked", 1)
    assert torch.equal(again.embed([frames]), network.embed([frames]))

    seen = observed(frames, auxiliary=auxiliary)
    (ranking,), _ = told(seen, frames, encoder=str(tmp_path / "voices"))
    own = [x[:n] for x, n in zip(auxiliary.inputs, auxiliary.lengths, strict=True)][:5]
    expected = (network.embed(own) @ network.embed([frames])[0]).mean()
    assert ranking["voice0"] == pytest.approx(float(expected), abs=1e-6)
    (first,), _ = told(seen, frames, encoder=str(tmp_path / "voices"), enrolment=1)
    cosine = float(network.embed(own[:1]) @ network.embed([frames])[0])
    assert first["voice0"] == pytest.approx(cosine, abs=1e-6)
    assert forgotten == []


def test_how_the_threshold_was_found_is_told(auxiliary, tmp_path):
    saved(DeepSpeaker(SIZE, (4,), embedding=4).eval(), tmp_path)
    open_set = dataclasses.replace(SPEC, attributes={"speaker": (*NAMES, UNKNOWN)})
    frames = heard("we walked", 1)
    seen = observed(frames, auxiliary=auxiliary, spec=open_set)
    found = attacked(seen, steps=2).diagnostics["threshold"]
    assert found == "by encoders trained without a third of the public speakers each"
    found = attacked(seen, encoder=str(tmp_path)).diagnostics["threshold"]
    assert found == "by the loaded encoder, which may have been trained on all public speakers"
    closed = observed(frames, auxiliary=auxiliary)
    assert "threshold" not in attacked(closed, encoder=str(tmp_path)).diagnostics


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "encoder.json").unlink(), "holds no speaker encoder"),
        (lambda folder: (folder / "encoder.json").write_text("[]"), "holds no speaker encoder"),
        (
            lambda folder: (folder / "encoder.safetensors").write_bytes(b"no weights"),
            "holds no speaker encoder",
        ),
        (lambda folder: saved(DeepSpeaker(9, (4,)), folder), "frames of 9 values.* have 26"),
    ],
)
def test_a_folder_without_a_fitting_encoder_is_refused(auxiliary, tmp_path, spoil, message):
    saved(DeepSpeaker(SIZE, (4,)), tmp_path)
    spoil(tmp_path)
    seen = observed(heard("we walked", 1), auxiliary=auxiliary)
    with pytest.raises(ValueError, match=message):
        attacked(seen, encoder=str(tmp_path))


def test_an_encoder_of_nan_is_refused(tmp_path):
    network = DeepSpeaker(SIZE, (4,))
    network.affine.weight.data[0] = torch.nan
    saved(network, tmp_path)
    with pytest.raises(ValueError, match="NaN or Inf among its weights"):
        loaded(tmp_path, SIZE, torch.device("cpu"))
