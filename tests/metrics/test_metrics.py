"""Known answers, closed forms of chance against draws, and what no score may do."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.errors import PluginError
from fedsim.metric import Measure, Metric
from fedsim.metrics import METRICS, applicable, baselines, match, register
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.runs.reading import MEASURES

SPEC = Spec(classes=10, input_shape=(1, 12, 12), input_range=(0.0, 1.0))
IMAGE_METRICS = ["mse", "psnr", "ssim", "recovered"]

counts = st.dictionaries(st.integers(0, 9), st.integers(1, 4), min_size=1, max_size=5)


def labelled(labels) -> Truth:
    return Truth(labels=torch.tensor(sorted(Counter(labels).elements())))


def claim(labels) -> Reconstruction:
    return Reconstruction(label_counts=Counter(labels))


def images(count: int, seed: int = 0) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return list(torch.rand(count, 1, 12, 12, generator=rng))


def value(name: str, claimed: Reconstruction, truth: Truth, spec: Spec = SPEC) -> float:
    return METRICS[name].score(claimed, truth, spec)


# Labels


@pytest.mark.parametrize(
    ("claimed", "true", "asr", "f1", "exact"),
    [
        ([1, 2, 3], [1, 2, 3], 1, 1, 1),
        ([3, 3, 3], [1, 2, 3], 1 / 3, 0.5, 0),
        ([1, 2, 2], [1, 1, 2], 2 / 3, 1, 0),
        ([4, 5], [1, 2], 0, 0, 0),
        ([1], [1, 1, 1, 2], 0.25, 2 / 3, 0),  # claiming few does not pay
        ([1, 2, 3, 4], [1], 0.25, 0.4, 0),  # nor does claiming many
        ([], [1, 2], 0, 0, 0),
    ],
)
def test_label_metrics_have_known_answers(claimed, true, asr, f1, exact):
    truth = labelled(true)
    assert value("asr", claim(claimed), truth) == pytest.approx(asr)
    assert value("label_f1", claim(claimed), truth) == pytest.approx(f1)
    assert value("label_exact", claim(claimed), truth) == exact
    listed = Reconstruction(labels=torch.tensor(claimed, dtype=torch.int64))
    assert value("asr", listed, truth) == pytest.approx(asr)


@given(counts, counts)
@settings(max_examples=50, deadline=None)
def test_label_metrics_lie_between_0_and_1_and_agree_on_exactness(claimed, true):
    truth = labelled(true)
    scores = {n: value(n, claim(claimed), truth) for n in ("asr", "label_f1", "label_exact")}
    assert all(0 <= score <= 1 for score in scores.values())
    assert (scores["label_exact"] == 1) == (claimed == true) == (scores["asr"] == 1)


@pytest.mark.parametrize("name", ["asr", "label_exact"])
@pytest.mark.parametrize("true", [[0], [0, 1], [0, 0, 0, 1], [0, 1, 2, 2]])
def test_chance_in_closed_form_is_what_random_guesses_score(name, true):
    spec, truth = Spec(classes=4), labelled(true)
    rng = torch.Generator().manual_seed(0)
    guesses = torch.randint(4, (4000, len(true)), generator=rng).tolist()
    scores = torch.tensor([value(name, claim(guess), truth, spec) for guess in guesses])
    closed = METRICS[name].chance(truth, spec)
    error = float(scores.std()) / len(guesses) ** 0.5
    assert float(scores.mean()) == pytest.approx(closed, abs=4 * error)


@given(counts, st.integers(10, 10_000))
@settings(max_examples=30, deadline=None)
def test_chance_is_a_probability_also_for_many_classes(true, classes):
    spec = Spec(classes=classes)
    assert 0 < METRICS["asr"].chance(labelled(true), spec) < 1
    assert 0 <= METRICS["label_exact"].chance(labelled(true), spec) < 1


def test_chance_is_certain_with_one_class():
    for name in ("asr", "label_exact"):
        assert METRICS[name].chance(labelled([0, 0, 0]), Spec(classes=1)) == pytest.approx(1)


# Images


def test_an_exact_match_in_another_order_is_perfect():
    truth = Truth(inputs=images(3))
    claimed = Reconstruction(inputs=[truth.inputs[i] for i in (2, 0, 1)])
    assert value("mse", claimed, truth) == 0
    assert value("psnr", claimed, truth) == 100
    assert value("ssim", claimed, truth) == pytest.approx(1)
    assert value("recovered", claimed, truth) == 1


def test_image_metrics_have_known_answers():
    truth = Truth(inputs=[torch.full((1, 12, 12), 0.5)])
    claimed = Reconstruction(inputs=[torch.full((1, 12, 12), 0.6)])
    assert value("mse", claimed, truth) == pytest.approx(0.01, rel=1e-5)
    assert value("psnr", claimed, truth) == pytest.approx(20, rel=1e-5)
    assert value("recovered", claimed, truth) == 0


def test_pixels_are_in_units_of_the_range():
    spec = Spec(classes=2, input_shape=(1, 12, 12), input_range=(-1.0, 1.0))
    truth = Truth(inputs=[torch.zeros(1, 12, 12)])
    assert value("mse", Reconstruction(inputs=[torch.full((1, 12, 12), 0.2)]), truth, spec) == (
        pytest.approx(0.01, rel=1e-5)
    )
    beyond = Reconstruction(inputs=[torch.full((1, 12, 12), 1e9)])
    assert value("mse", beyond, truth, spec) == 0.25


@pytest.mark.parametrize(
    "broken",
    [
        [],
        [torch.full((1, 12, 12), float("nan"))],
        [torch.full((1, 12, 12), float("inf"))],
        [torch.zeros(1, 4, 4)],
    ],
    ids=["none", "nan", "inf", "shape"],
)
def test_no_image_is_worse_than_any_image(broken):
    truth = Truth(inputs=images(1))
    worst, some = Reconstruction(inputs=broken), Reconstruction(inputs=images(1, seed=5))
    for name in IMAGE_METRICS:
        score, other = value(name, worst, truth), value(name, some, truth)
        assert math.isfinite(score)
        assert score <= other if METRICS[name].higher_is_better else score >= other


def test_fewer_and_more_claims_than_originals():
    truth = Truth(inputs=images(4))
    half = Reconstruction(inputs=truth.inputs[1:3])
    assert value("recovered", half, truth) == 0.5
    spam = Reconstruction(inputs=images(4, seed=5) + list(truth.inputs))
    assert value("recovered", spam, truth) == 0, "only as many claims as originals count"


def test_matching_skips_what_cannot_be_matched():
    originals = torch.stack(images(3))
    claims = [originals[2], torch.full((1, 12, 12), float("nan")), originals[0]]
    assert match(claims, originals) == [2, -1, 0]


@pytest.mark.parametrize("side", [5, 8, 11, 12, 32])
def test_ssim_takes_small_images(side):
    rng = torch.Generator().manual_seed(0)
    image = torch.rand(3, side, side, generator=rng)
    spec = Spec(classes=2, input_shape=(3, side, side), input_range=(0.0, 1.0))
    truth = Truth(inputs=[image])
    assert value("ssim", Reconstruction(inputs=[image]), truth, spec) == pytest.approx(1)
    noise = torch.rand(3, side, side, generator=rng)
    assert value("ssim", Reconstruction(inputs=[noise]), truth, spec) < 0.6


# The registry


def test_metrics_apply_by_the_fields_that_are_filled():
    found = [metric.name for metric in applicable({"inputs", "labels"}, SPEC)]
    assert found == [
        *("asr", "label_f1", "label_precision", "label_recall", "label_exact", "hellinger"),
        *("mse", "psnr", "ssim", "recovered"),
    ]
    of_sets = ["label_f1", "label_precision", "label_recall", "label_set_exact"]
    assert [m.name for m in applicable({"label_set"})] == of_sets
    assert [m.name for m in applicable({"text"})][:3] == ["wer", "text_exact", "rouge1"]
    assert [m.name for m in applicable({"sequences"})] == ["wer", "text_exact"]
    assert applicable({"text"}, SPEC) == []
    assert applicable({"attributes"}, SPEC) == []
    assert applicable({"inputs"}, Spec(classes=2)) == []
    assert "ssim" not in [m.name for m in applicable({"inputs"}, Spec(2, (1, 4, 4)))]


def test_a_claim_without_its_field_is_an_error():
    with pytest.raises(PluginError, match="label_counts or labels"):
        value("asr", Reconstruction(), labelled([1]))


def test_a_truth_without_examples_is_an_error():
    with pytest.raises(ValueError, match="no labels"):
        value("asr", claim([1]), Truth())
    with pytest.raises(ValueError, match="no inputs"):
        value("mse", Reconstruction(inputs=[]), Truth())


def test_a_name_is_taken_once():
    with pytest.raises(PluginError, match="already"):
        register(METRICS["asr"])


def test_baselines_are_means_of_seeded_guesses():
    truth = Truth(inputs=images(2), labels=torch.tensor([0, 1]))

    def guess(truth, rng, *, informed):
        if informed:
            return Reconstruction(inputs=list(truth.inputs), label_counts={0: 1, 1: 1})
        return Reconstruction(inputs=list(torch.rand(2, 1, 12, 12, generator=rng)))

    chance, prior = baselines(METRICS["mse"], truth, SPEC, guess, 7)
    assert chance == pytest.approx(1 / 6, abs=0.03)
    assert prior == 0
    assert baselines(METRICS["mse"], truth, SPEC, guess, 7)[0] == chance
    assert baselines(METRICS["mse"], truth, SPEC, guess, 8)[0] != chance
    assert baselines(METRICS["asr"], truth, SPEC, guess, 7) == (
        pytest.approx(METRICS["asr"].chance(truth, SPEC)),
        1,
    )


def test_guesses_of_a_victim_whose_seed_is_large_draw_as_recorded_runs_did():
    drawn = []

    def guess(truth, rng, *, informed):
        plain = torch.Generator().manual_seed(rng.initial_seed())
        drawn.append((float(torch.rand((), generator=rng)), float(torch.rand((), generator=plain))))
        return Reconstruction(labels=truth.labels)

    baselines(METRICS["asr"], Truth(labels=torch.tensor([0, 1])), SPEC, guess, 2**50)
    assert drawn
    assert all(ours == theirs for ours, theirs in drawn)


class Constant(Metric):
    """One half, whatever is claimed."""

    name = "constant"
    fields = ("label_counts",)
    shown = Measure("Constant", "One half.", "{value}")

    def compute(self, claimed, truth, spec):
        return 0.5


class OfObjective(Constant):
    """One half, of a field that no guess has."""

    fields = ("objective",)


class Undefined(Constant):
    """Never defined."""

    def compute(self, claimed, truth, spec):
        return math.nan


def test_a_task_without_public_data_has_no_prior_baseline():
    def guess(truth, rng, *, informed):
        if informed:
            raise NotImplementedError
        return Reconstruction(label_counts={0: 1})

    assert baselines(Constant(), labelled([1]), SPEC, guess, 0) == (0.5, None)


def test_a_guess_that_has_nothing_to_read_gives_no_baseline():
    def guess(truth, rng, *, informed):
        return Reconstruction(label_counts={0: 1})

    assert baselines(OfObjective(), labelled([1]), SPEC, guess, 0) == (None, None)
    assert baselines(Undefined(), labelled([1]), SPEC, guess, 0) == (None, None)


def test_every_metric_says_how_it_is_read():
    for name, metric in METRICS.items():
        assert metric.shown.title, name
        assert metric.shown.words.endswith("."), name
        assert "{n}" in metric.shown.phrase, name
        assert type(metric).summary().endswith("."), name
    ranks = [metric.shown.rank for metric in METRICS.values()]
    assert len({*ranks}) == len(ranks)


def test_folders_of_before_are_read_as_they_were():
    assert len(MEASURES) == 34
    for name, measure in MEASURES.items():
        assert METRICS[name].shown.lower == measure.lower, name
    assert MEASURES["of another package"].title == "of another package"


def test_a_phrase_fills_in_what_it_knows_and_nothing_else():
    measure = Measure("", "", "{value} {hits} of {n} updates {0} {n.real} {n:9999}", "yes/no")
    assert measure.say(1.0, [1.0], 1) == "100 % 1 of 1 update {0} {n.real} {n:9999}"
