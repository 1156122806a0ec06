"""What the scenarios of HFGM's tables and figures measure, and how."""

import pytest

from fedsim.knowledge import Knowledge
from fedsim.scenario import Scenario
from fedsim.scenario.files import FOLDER

ABOUT_SPEAKERS = (
    *("table1", "table2", "table3", "table4", "table5", "table7", "table8", "speakers"),
    *("fig2", "fig3", "fig4", "fig5", "batch-dropout", "steps-dropout"),
)
SMALL = ("fig3", "speakers")
"""Without the first five: no more is published than who is named first; six speakers."""


def scenario(name: str, scale: str = "smoke") -> Scenario:
    return Scenario.load(f"papers/hfgm-{name}", scale=scale)


def test_every_table_and_figure_with_a_measure_is_there():
    there = {path.stem for path in (FOLDER / "papers" / "hfgm").glob("*.toml")}
    assert there >= {*ABOUT_SPEAKERS, "fig7", "curve", "transcripts", "wer"}


def test_which_word_was_said_is_not_granted():
    run = scenario("transcripts")
    assert not run.knowledge() & Knowledge.LABELS
    assert run.denials() == {}
    ((_, _, adversary),) = run.build_adversaries()
    assert len(set(adversary.transcripts)) == 10
    assert "text" in adversary.fills()


@pytest.mark.parametrize("scale", ["smoke", "paper"])
@pytest.mark.parametrize("name", ABOUT_SPEAKERS)
def test_error_and_speakers_are_those_of_one_attack(name, scale):
    run = scenario(name, scale)
    assert {"mae", "speaker_top1"} <= {*run.paper.measure}
    assert ("speaker_top5" in run.paper.measure) == (scale == "paper" and name not in SMALL)
    for label, _, adversary in run.build_adversaries():
        assert {"inputs", "attributes"} <= adversary.fills()
        assert label == adversary.source("inputs_from") or label not in ("hfgm", "first-frames")
    assert run.denials() == {}
    assert run.knowledge() & Knowledge.AUXILIARY
    assert run.task["auxiliary_utterances"] == 5
    assert run.task["least_utterances"] > 5


@pytest.mark.parametrize("name", ABOUT_SPEAKERS)
def test_a_remark_names_the_scale_of_its_six_speakers(name):
    run = scenario(name, "paper")
    said = [one.remark for one in run.paper.published if "here of 6" in one.remark]
    many = run.task.get("speakers", 6) > 6
    assert all("of 6 at smoke scale" in remark for remark in said) or not many


def test_batches_are_sought_by_algorithm_3_and_steps_by_algorithm_4():
    for name, key in (("table4", "training.batch_size"), ("table5", "training.local_steps")):
        run = scenario(name)
        assert max(run.sweep[key]) == 8
        assert "hfgm" in [label for label, _, _ in run.build_adversaries()]


@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_steps_see_one_utterance_and_batches_nearly_equal_lengths(scale):
    assert scenario("table5", scale).task["partition"] == {"kind": "length", "each": 1}
    assert scenario("table4", scale).task["partition"] == {"kind": "length", "each": 8}


@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_verdicts_have_three_values_at_least(scale):
    for name in ABOUT_SPEAKERS:
        run = scenario(name, scale)
        assert (run.training.clients_per_round or run.training.clients) >= 3


@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_wrong_transcripts_are_four_and_wrong_lengths_half_and_double(scale):
    labels = [label for label, _, _ in scenario("table8", scale).build_adversaries()]
    assert labels == ["ctc-matching", *(f"random {number}" for number in range(1, 5))]
    labels = [label for label, _, _ in scenario("table7", scale).build_adversaries()]
    assert labels[-2:] == ["twice as many", "half as many"]


@pytest.mark.parametrize("name", ["table7", "table8"])
def test_what_is_wrongly_assumed_is_told_by_the_distance(name):
    run = scenario(name)
    assert "gradient_distance" in run.paper.measure
    for _, _, adversary in run.build_adversaries():
        assert "objective" in adversary.fills()
