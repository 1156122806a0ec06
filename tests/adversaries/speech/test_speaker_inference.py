"""speaker-inference names who speaks, and says why not where it cannot."""

import dataclasses
import importlib
import itertools

import pytest
import torch
from support.speakers import (
    CLASSES,
    ENOUGH,
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
from support.tiny import rows

from adversaries import HFGM, SpeakerInference
from fedsim import testing
from fedsim.adversary import Adversary
from fedsim.engine.simulate import simulate
from fedsim.errors import ScenarioError
from fedsim.knowledge import Knowledge
from fedsim.metrics import METRICS, applicable
from fedsim.plugin import make
from fedsim.records import Batch, Reconstruction, Truth
from fedsim.scenario import Scenario
from fedsim.tasks.speech.recognisers import as_recogniser
from fedsim.victim import VictimModel


@pytest.fixture(scope="module")
def auxiliary():
    return public()


# --- what it finds --------------------------------------------------------------------------


def test_a_gradient_names_its_speaker(auxiliary):
    named = []
    for number, text in itertools.product(range(4), ("borrows", "a tall tree", "we walked")):
        frames = heard(text, number)
        claimed = attacked(observed(frames, auxiliary=auxiliary), steps=ENOUGH)
        truth = Truth(inputs=[frames], attributes={"speaker": [f"voice{number}"]})
        assert METRICS["mae"].score(claimed, truth, SPEC) < 1e-3
        named.append(METRICS["speaker_top1"].score(claimed, truth, SPEC))
    assert sum(named) / len(named) >= 0.75, "chance is a quarter"


def test_every_utterance_of_a_batch_has_a_ranking_of_its_own(auxiliary):
    said = [heard("we walked", 0), heard("a tree", 3)]
    seen = observed(*said, auxiliary=auxiliary)
    claimed = attacked(seen)
    assert len(claimed.attributes["speaker"]) == len(claimed.inputs) == 2
    alone, _ = told(seen, *claimed.inputs)
    assert claimed.attributes["speaker"] == alone
    assert [set(one) for one in alone] == [set(NAMES)] * 2
    assert all(-1.001 < score < 1.001 for one in alone for score in one.values())
    assert claimed.diagnostics["first-frames"]["lengths"] == sorted(map(len, said))
    assert claimed.diagnostics["not heard"] == {}


def test_it_keeps_its_contract(auxiliary):
    seen = observed(heard("we walked", 1), auxiliary=auxiliary)
    assert testing.conformance(SpeakerInference, seen) == []


def test_a_federation_leaks_who_speaks(tmp_path):
    run = Scenario.parse(
        {
            "name": "speakers",
            "seed": 3,
            "task": {"name": "speech", "speakers": 3, "utterances": 10, "longest": 12,
                     "test_fraction": 0.05, "test_examples": 1, "auxiliary_utterances": 4,
                     "partition": "iid",
                     "model": {"name": "deepspeech", "hidden": 200, "recurrent": 8}},
            "training": {"algorithm": "fedsgd", "rounds": 3, "clients": 3, "batch_size": 1,
                         "lr": 0.1},
            "threat": {"grants": ["GRADIENT", "AUXILIARY"], "victims": "all"},
            "adversaries": [{"name": "speaker-inference", "widths": [8, 16], "embedding": 16,
                             "steps": 100, "lr": 0.01, "longest": 40}],
            "engine": {"workers": 1},
        }
    )  # fmt: skip
    simulate(run, tmp_path / "run")
    found = rows(tmp_path / "run")
    assert {row["status"] for row in found} == {"ok"}
    chance = {row["metric"]: float(row["baseline"]) for row in found}
    assert chance["speaker_top1"] == pytest.approx(1 / 3)
    assert chance["speaker_mrr"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    values = [float(row["value"]) for row in found if row["metric"] == "speaker_mrr"]
    assert len(values) == 9
    assert sum(values) / 9 > chance["speaker_mrr"] + 0.1
    assert all(row["baseline_prior"] == "" for row in found)


# --- what it needs --------------------------------------------------------------------------


def test_it_needs_what_the_other_attack_needs_and_public_utterances():
    assert SpeakerInference().requires() == Knowledge.AUXILIARY | Knowledge.GRADIENT
    with pytest.raises(ScenarioError, match="no threat model grants the inputs"):
        make("adversaries", "speaker-inference", {"inputs_from": "given"})


def test_it_is_scored_on_what_the_other_attack_claims_and_hands_its_cautions_on():
    search = SpeakerInference(inputs_from="hfgm")
    assert {metric.name for metric in applicable(search.fills(), SPEC)} == {
        *("mae", "mae_ends", "mae_middle", "gradient_distance", "speaker_top1", "speaker_mrr")
    }
    assert SpeakerInference().fills() == {"inputs", "attributes"}
    kind = as_recogniser({"name": "deepspeech", "hidden": 8, "recurrent": 8, "dropout": 0.1})
    model = VictimModel(kind.build(SIZE, CLASSES).train(), head="head", loss=kind.loss)
    (told,) = search.cautions(model)
    assert "drops units" in told
    assert SpeakerInference().cautions(model) == []
    assert "'rlg' claims no inputs" in SpeakerInference(inputs_from="rlg").cautions(model)[-1]


def test_an_encoder_that_is_not_there_is_told_before_any_search(auxiliary, tmp_path, monkeypatch):
    attack = SpeakerInference(inputs_from="hfgm", encoder=str(tmp_path))
    kind = as_recogniser({"name": "deepspeech", "hidden": 8, "recurrent": 8})
    model = VictimModel(kind.build(SIZE, CLASSES), head="head", loss=kind.loss, spec=SPEC)
    (told,) = attack.cautions(model)
    assert "holds no speaker encoder" in told
    monkeypatch.setattr(HFGM, "reconstruct", lambda *_: pytest.fail("it searched first"))
    seen = dataclasses.replace(
        observed(heard("we walked", 1), auxiliary=auxiliary), granted=~Knowledge(0)
    )
    with pytest.raises(ValueError, match="holds no speaker encoder"):
        attack.reconstruct(seen, testing.job())


def test_another_attack_has_to_claim_frames(auxiliary):
    seen = dataclasses.replace(
        observed(heard("we walked", 1), auxiliary=auxiliary),
        granted=~Knowledge(0),
        num_examples=1,
    )
    with pytest.raises(ValueError, match="'bias-signs' claims no inputs"):
        attacked(seen, inputs_from="bias-signs")


# --- bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda batch: dataclasses.replace(batch, attributes={}), "do not contain speakers"),
        (
            lambda batch: public(words=WORDS[:1]),
            "4 public utterances of 4 speakers make no triplet",
        ),
        (lambda batch: public([2]), "6 public utterances of 1 speakers make no triplet"),
        (
            lambda batch: dataclasses.replace(batch, lengths=torch.ones_like(batch.lengths)),
            "none of the 24 public utterances has 2 frames",
        ),
    ],
    ids=["nobody", "one utterance each", "one speaker", "too short"],
)
def test_refuses_public_utterances_that_teach_no_voice(auxiliary, change, message):
    seen = observed(heard("we walked", 1), auxiliary=change(auxiliary))
    with pytest.raises(ValueError, match=message):
        attacked(seen)


def test_a_speaker_with_one_utterance_is_a_candidate_all_the_same(auxiliary):
    fewer = public(range(3))
    lone = public([3], WORDS[:1])
    width = max(fewer.inputs.shape[1], lone.inputs.shape[1])
    inputs = [
        torch.nn.functional.pad(one.inputs, (0, 0, 0, width - one.inputs.shape[1]))
        for one in (fewer, lone)
    ]
    both = Batch(
        torch.cat(inputs),
        torch.cat([fewer.labels, lone.labels]),
        torch.cat([fewer.lengths, lone.lengths]),
        {"speaker": (*fewer.attributes["speaker"], *lone.attributes["speaker"])},
    )
    (ranking,), _ = told(observed(heard("we walked", 3), auxiliary=both), heard("we walked", 3))
    assert set(ranking) == set(NAMES)


class Rubbish(Adversary):
    """Claims an utterance, and what is none."""

    name = "rubbish"
    needs = Knowledge.GRADIENT
    recovers = frozenset({"inputs"})
    sound: bool = True

    def reconstruct(self, seen, job):
        bad = [torch.full((9, SIZE), torch.nan), torch.zeros(9, 5), torch.zeros(1, SIZE)]
        return Reconstruction(inputs=bad + [heard("we walked", 2)] * self.sound)


@pytest.mark.parametrize("sound", [True, False])
def test_claims_that_are_no_utterances_rank_nobody(auxiliary, monkeypatch, sound):
    monkeypatch.setattr(SpeakerInference, "parts", lambda _: {"inputs_from": Rubbish(sound=sound)})
    seen = observed(heard("we walked", 2), auxiliary=auxiliary)
    if not sound:
        with pytest.raises(ValueError, match=r"1 frames, .*; NaN or Inf.*; shape \(9, 5\)"):
            attacked(seen)
        return
    claimed = attacked(seen)
    assert set(claimed.diagnostics["not heard"]) == {0, 1, 2}
    rankings = claimed.attributes["speaker"]
    assert all(score != score for one in rankings[:3] for score in one.values())
    truth = Truth(attributes={"speaker": ["voice2"]})
    for one in rankings[:3]:
        claim = Reconstruction(attributes={"speaker": [one]})
        assert METRICS["speaker_top1"].score(claim, truth, SPEC) == 0
    assert claimed.diagnostics["named"][:3] == [None] * 3


def test_a_task_without_frames_is_refused():
    with pytest.raises(ValueError, match="expected a task with speech; this task has images"):
        SpeakerInference().reconstruct(testing.example(), testing.job())


def test_victims_are_attacked_together_as_the_other_attack_does(auxiliary, monkeypatch):
    asked, attack = [], HFGM.reconstruct_many

    def counted(self, seen, jobs):
        asked.append(len(seen))
        return attack(self, seen, jobs)

    monkeypatch.setattr(HFGM, "reconstruct_many", counted)
    hfgm = {"name": "hfgm", "selection": "predicted", "iterations": 3, "schedule": "cosine"}
    many = SpeakerInference(**SMALL, inputs_from=hfgm)
    assert (many.together(), SpeakerInference().together()) == (8, 1)
    kind = as_recogniser({"name": "deepspeech", "context": 2, "hidden": 32, "recurrent": 8})
    model = VictimModel(kind.build(SIZE, CLASSES), head="head", loss=kind.loss, spec=SPEC)
    labels = torch.tensor([[2, 3, 4]])
    known = {"model": model, "labels": labels, "lengths": [20], "num_examples": 1}
    seen = [
        testing.observation(
            gradient=model.gradient(heard(word, 0)[None, :20], labels),
            spec=SPEC,
            auxiliary=auxiliary,
            **known,
        )
        for word in WORDS[:2]
    ]
    importlib.import_module("adversaries.speech.speaker_inference.voiceprints")._KNOWN.clear()
    found = many.reconstruct_many(seen, [testing.job(), testing.job()])
    assert asked == [2]
    # The losses of the encoder that the first victim trains are not in its trace.
    assert [[step for step, _ in one.trace] for one in found] == [[1, 2, 3]] * 2
    assert all(one.attributes["speaker"] for one in found)
