"""Speakers are ranked, matched by their inputs, and never named by a tie."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.errors import DataError, PluginError
from fedsim.metrics import METRICS, applicable, baselines
from fedsim.records import UNKNOWN, Batch, Reconstruction, Spec, Truth
from fedsim.tasks.speech import Speech

MANY = tuple(f"s{number:02d}" for number in range(20))
SPEC = Spec(5, attributes={"speaker": ("anna", "bela", "carl", UNKNOWN)})
NAMES = ("speaker_top1", "speaker_mrr")


def scores(rankings, speakers, spec=SPEC, inputs=None, claims=None) -> list[float]:
    claimed = Reconstruction(inputs=claims, attributes={"speaker": rankings})
    truth = Truth(inputs=inputs, attributes={"speaker": speakers})
    return [METRICS[name].score(claimed, truth, spec) for name in NAMES]


def guess(truth, rng, *, informed):
    """A claim of transcripts alone, which names nobody."""
    return Reconstruction(text=["borrows"])


def test_the_first_named_counts_and_so_does_the_rank():
    ranking = {"anna": 0.9, "bela": 0.5, "carl": 0.1, UNKNOWN: 0.3}
    assert scores([ranking], ["anna"]) == [1, 1]
    assert scores([ranking], ["bela"]) == [0, 1 / 2]
    assert scores([ranking, ranking], ["anna", "carl"]) == [0.5, (1 + 1 / 4) / 2]


def test_a_stranger_is_rightly_unknown():
    ranking = {"anna": 0.2, "bela": 0.1, "carl": 0.1, UNKNOWN: 0.3}
    assert scores([ranking], ["doris"]) == [1, 1]
    assert scores([ranking], ["anna"]) == [0, 1 / 2]
    closed = Spec(5, attributes={"speaker": ("anna", "bela")})
    assert scores([{"anna": 1.0, "bela": 0.0}], ["doris"], closed) == [0, 0]


@pytest.mark.parametrize("constant", [0.0, 1.0, math.nan, math.inf, -math.inf])
def test_equal_scores_for_all_name_nobody(constant):
    ranking = dict.fromkeys(SPEC.attributes["speaker"], constant)
    assert scores([ranking], ["anna"]) == [0, 1 / 4]


def test_scores_of_nan_or_inf_rank_last():
    ranking = {"anna": math.inf, "bela": math.nan, "carl": -5.0, UNKNOWN: -6.0}
    assert scores([ranking], ["carl"]) == [1, 1]
    assert scores([ranking], ["anna"]) == [0, 1 / 4]
    assert scores([ranking], ["bela"]) == [0, 1 / 4]
    assert scores([{"anna": math.nan}], ["anna"]) == [0, 1 / 4]


def test_who_is_left_out_is_not_named():
    assert scores([{"bela": 1.0}], ["anna"]) == [0, 0]
    assert scores([{"anna": 1.0}], ["anna", "bela"]) == [0.5, 0.5]


def test_claims_are_matched_by_their_inputs():
    one, two = torch.ones(3, 2), -torch.ones(4, 2)
    rankings = [{"anna": 1.0, "bela": 0.0}, {"anna": 0.0, "bela": 1.0}]
    speakers = ["bela", "anna"]
    assert scores(rankings, speakers) == [0, 1 / 2]
    assert scores(rankings, speakers, inputs=[one, two], claims=[two, one]) == [1, 1]
    assert scores(rankings, speakers, inputs=[one, two], claims=[one, two]) == [0, 1 / 2]
    # Of two utterances one is claimed: its speaker is named, the other's is not.
    assert scores(rankings[:1], speakers, inputs=[one, two], claims=[two]) == [0.5, 0.5]


@settings(deadline=None)  # the first call may meet a busy machine
@given(st.lists(st.sampled_from(MANY), min_size=1, max_size=3), st.integers(0, 2**32))
def test_a_random_order_scores_chance_on_average(speakers, seed):
    spec, rng = Spec(5, attributes={"speaker": MANY}), torch.Generator().manual_seed(seed)
    truth = Truth(attributes={"speaker": speakers})
    total = dict.fromkeys(("speaker_top1", "speaker_top5", "speaker_mrr"), 0.0)
    # Every rotation of one order puts each candidate at each rank once.
    order = torch.randperm(20, generator=rng).tolist()
    for turn in range(20):
        ranking = {MANY[i]: float((rank + turn) % 20) for rank, i in enumerate(order)}
        claimed = Reconstruction(attributes={"speaker": [ranking] * len(speakers)})
        for name in total:
            total[name] += METRICS[name].score(claimed, truth, spec) / 20
    for name, mean in total.items():
        assert baselines(METRICS[name], truth, spec, guess, 0) == (pytest.approx(mean), None)


def test_chance_is_exact():
    truth = Truth(attributes={"speaker": ["anna", "doris"]})
    chance = {name: baselines(METRICS[name], truth, SPEC, guess, 0)[0] for name in NAMES}
    assert chance == {"speaker_top1": 1 / 4, "speaker_mrr": pytest.approx((25 / 12) / 4)}
    closed = Spec(5, attributes={"speaker": ("anna", "bela")})
    assert baselines(METRICS["speaker_top1"], truth, closed, guess, 0)[0] == 1 / 4


def test_first_five_are_asked_for_among_twenty_or_more():
    def named(count):
        spec = Spec(5, attributes={"speaker": MANY[:count]})
        return [metric.name for metric in applicable({"attributes"}, spec)]

    assert named(20) == ["speaker_top1", "speaker_top5", "speaker_mrr"]
    assert named(19) == list(NAMES)
    assert named(0) == [m.name for m in applicable({"attributes"}, Spec(5))] == []


def test_a_claim_or_a_truth_without_speakers_is_an_error():
    with pytest.raises(PluginError, match="needs attributes"):
        METRICS["speaker_top1"].score(Reconstruction(inputs=[]), Truth(), SPEC)
    with pytest.raises(ValueError, match="no 'speaker' of its examples; it has sender"):
        METRICS["speaker_top1"].score(
            Reconstruction(attributes={"speaker": []}), Truth(attributes={"sender": [1]}), SPEC
        )


# --- public utterances ----------------------------------------------------------------------


def speech(**settings) -> Speech:
    return Speech(
        seed=3, clients=5, speakers=5, utterances=6, longest=20, model="deepspeech", **settings
    )


def split(task: Speech) -> tuple[list[str], list[str]]:
    """The speakers of the public utterances and of the clients'."""
    assert not set(task.splits[1].tolist()) & set(torch.cat(task.shares).tolist())
    return [[task.recordings.speakers[i] for i in part.tolist()] for part in task.splits[1:]]


def test_auxiliary_utterances_tell_who_speaks():
    task = speech(auxiliary_utterances=2)
    public = task.auxiliary()
    heard, clients = split(task)
    assert public.attributes["speaker"] == tuple(heard)
    assert sorted(heard) == sorted([f"voice{n:03d}" for n in range(5)] * 2)
    assert set(clients) == set(heard)
    assert task.spec.attributes == {"speaker": tuple(sorted(set(heard)))}
    assert public.to("cpu").attributes == public.attributes


def test_strangers_have_no_public_utterance():
    task = speech(auxiliary_utterances=2, auxiliary_speakers=3)
    heard, clients = split(task)
    assert len(heard) == 6
    assert len(set(heard)) == 3
    assert len(set(clients)) == 5
    assert task.spec.attributes == {"speaker": (*sorted(set(heard)), UNKNOWN)}
    drawn = {
        speech(auxiliary_speakers=1, auxiliary_fraction=0.9)
        .model_copy(update={"seed": seed})
        .spec.attributes["speaker"]
        for seed in range(8)
    }
    assert len(drawn) > 1, "who is public is drawn by the seed"


def test_a_share_goes_on_being_drawn_as_before():
    task = speech(auxiliary_fraction=0.25)
    assert len(task.splits[1]) == int(0.25 * 24)
    assert speech(auxiliary_fraction=0.0).auxiliary() is None
    assert speech(auxiliary_fraction=0.0).spec.attributes == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"auxiliary_utterances": 6}, r"speaker 'voice\d+' has \d training utterances"),
        ({"auxiliary_speakers": 6}, "and 5 speakers have training utterances"),
    ],
)
def test_more_than_there_is_is_refused(settings, message):
    with pytest.raises(DataError, match=message):
        _ = speech(**settings).splits


def test_attributes_of_a_batch_are_empty_unless_given():
    assert Batch(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)).attributes == {}
