"""speaker-inference names who speaks, trains once a process and never by the truth, and says why
not where it cannot."""

import dataclasses
import itertools

import pytest
import torch
from tiny import rows
from torch.nn.utils.rnn import pad_sequence

from adversaries import SpeakerInference, voiceprints
from adversaries.deep_speaker import DeepSpeaker, Recipe, train, triplet_loss
from adversaries.voiceprints import between, loaded, saved, threshold
from fedsim import testing
from fedsim.adversary import Adversary
from fedsim.errors import Cancelled, ScenarioError
from fedsim.knowledge import Knowledge
from fedsim.metrics import METRICS, applicable
from fedsim.plugin import make
from fedsim.records import UNKNOWN, Batch, Reconstruction, Spec, Truth
from fedsim.scenario import Scenario
from fedsim.seeds import isolated
from fedsim.simulation import simulate
from fedsim.tasks.features import Features
from fedsim.tasks.recognisers import PADDING, as_recogniser
from fedsim.tasks.voices import speak
from fedsim.victim import VictimModel

SIZE, CONTEXT, CLASSES = 26, 4, 29
NAMES = tuple(f"voice{number}" for number in range(4))
SPEC = Spec(CLASSES, features=SIZE, attributes={"speaker": NAMES})
WORDS = (
    "seven old ships",
    "many a river",
    "the lamp was low",
    "our garden",
    "a red door",
    "nine cold days",
)
SMALL = {"widths": (8, 16), "embedding": 16, "steps": 4, "lr": 0.01, "longest": 40}
ENOUGH = 120
"""Training steps after which voices are told apart."""


def heard(text: str, number: int) -> torch.Tensor:
    """Frames (T, 26) of a text in a synthetic voice."""
    return Features(size=SIZE).of(torch.from_numpy(speak(text, number)))


def public(speakers=range(4), words=WORDS) -> Batch:
    """Every speaker's public utterances."""
    said = [(f"voice{number}", heard(text, number)) for number in speakers for text in words]
    frames = [one for _, one in said]
    return Batch(
        pad_sequence(frames, batch_first=True),
        torch.zeros(len(said), 1, dtype=torch.int64),
        torch.tensor([len(one) for one in frames]),
        {"speaker": tuple(name for name, _ in said)},
    )


@pytest.fixture(scope="module")
def auxiliary():
    return public()


def observed(*utterances, auxiliary, spec=SPEC):
    """The gradient of an untrained recogniser, and the public utterances."""
    kind = as_recogniser({"name": "deepspeech", "context": CONTEXT, "hidden": 160, "recurrent": 8})
    with isolated(0, "test"):
        module = kind.build(SIZE, CLASSES)
    model = VictimModel(module, head="head", loss=kind.loss)
    gradient = model.gradient(
        pad_sequence(list(utterances), batch_first=True),
        torch.tensor([[2, 3, 4, PADDING]] * len(utterances)),
        lengths=torch.tensor([len(one) for one in utterances]),
    )
    sent = {name: value.detach() for name, value in gradient.items()}
    return testing.observation(gradient=sent, spec=spec, auxiliary=auxiliary)


def attacked(seen, seed=0, **settings) -> Reconstruction:
    return SpeakerInference(**{**SMALL, **settings}).reconstruct(seen, testing.job(seed=seed))


def told(seen, *utterances, **settings):
    """Rankings of utterances by the voiceprints alone."""
    attack = SpeakerInference(**{**SMALL, **settings})
    return attack.rank(utterances, seen, testing.job())


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
            "task": {"name": "speech", "speakers": 3, "utterances": 6, "longest": 12,
                     "test_fraction": 0.05, "test_examples": 1, "auxiliary_utterances": 2,
                     "partition": "iid",
                     "model": {"name": "deepspeech", "hidden": 200, "recurrent": 8}},
            "training": {"algorithm": "fedsgd", "rounds": 2, "clients": 3, "batch_size": 1,
                         "lr": 0.1},
            "threat": {"grants": ["GRADIENT", "AUXILIARY"], "victims": "all"},
            "adversaries": [{"name": "speaker-inference", "widths": [8, 16], "embedding": 16,
                             "steps": 50, "lr": 0.01, "longest": 40}],
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
    assert len(values) == 6
    assert sum(values) / 6 > chance["speaker_mrr"] + 0.1
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


def test_another_attack_has_to_claim_frames(auxiliary):
    seen = dataclasses.replace(
        observed(heard("we walked", 1), auxiliary=auxiliary),
        granted=~Knowledge(0),
        num_examples=1,
    )
    with pytest.raises(ValueError, match="'bias-signs' claims no inputs"):
        attacked(seen, inputs_from="bias-signs")


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


def test_training_draws_speakers_together(auxiliary):
    frames = [x[:n] for x, n in zip(auxiliary.inputs, auxiliary.lengths, strict=True)]
    speakers = auxiliary.attributes["speaker"]

    def spread(steps):
        recipe = Recipe(**{**SMALL, "steps": steps})
        with isolated(0, "test"):
            network = recipe.network(SIZE)
        train(network, frames, speakers, recipe, rng=torch.Generator().manual_seed(0))
        cosines = network.embed(frames) @ network.embed(frames).T
        same = torch.tensor([[a == b for a in speakers] for b in speakers])
        return float(cosines[same].mean() - cosines[~same].mean())

    assert spread(ENOUGH) > spread(1) + 0.3


def test_triplets_lose_what_they_lack_in_cosine():
    # Cosines: anchor-positive 0.6, each to the other speaker 0 and 0.8.
    embedded = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    loss = triplet_loss(embedded, torch.tensor([0, 0, 1]), 0.1)
    # Of (1, 2 | 3): 0 - 0.6 + 0.1 is apart; of (2, 1 | 3): 0.8 - 0.6 + 0.1 is not.
    assert float(loss) == pytest.approx(0.3)
    assert float(triplet_loss(embedded, torch.tensor([0, 0, 1]), 0.7)) == pytest.approx(0.5)
    assert float(triplet_loss(embedded, torch.tensor([0, 1, 2]), 0.1)) == 0


def test_the_papers_encoder_has_24_million_weights():
    network = DeepSpeaker(26, (64, 128, 256, 512), blocks=3, embedding=512)
    assert sum(p.numel() for p in network.parameters()) == pytest.approx(24e6, rel=0.02)


@pytest.mark.parametrize("frames", [1, 2, 7, 16, 33])
def test_an_embedding_is_of_length_one_and_knows_no_padding(frames):
    torch.manual_seed(0)
    network = DeepSpeaker(SIZE, (4, 6, 8), blocks=1, embedding=10).eval()
    utterance = torch.randn(frames, SIZE)
    alone = network.embed([utterance])
    padded = torch.nn.functional.pad(utterance, (0, 0, 0, 21))[None].repeat(2, 1, 1)
    padded[1] = torch.randn(frames + 21, SIZE)
    together = network(padded, torch.tensor([frames, frames + 21]))
    assert alone.shape == (1, 10)
    assert torch.allclose(together[:1], alone, atol=1e-6)
    assert float(alone.norm()) == pytest.approx(1)


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
    with pytest.raises(ValueError, match="0 of strangers to them tell no threshold"):
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
    assert found == "by encoders that never heard a third of the public speakers each"
    found = attacked(seen, encoder=str(tmp_path)).diagnostics["threshold"]
    assert found == "by the loaded encoder, which may have heard all public speakers"
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


# --- bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda batch: dataclasses.replace(batch, attributes={}), "do not tell who speaks"),
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
    with pytest.raises(ValueError, match="do not tell who speaks"):
        SpeakerInference().reconstruct(testing.example(), testing.job())
