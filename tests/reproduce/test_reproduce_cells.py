"""What a cell of a reproduced table is the mean of, and what its interval rests on."""

import pytest
from support.tiny import rows
from support.tiny_figures import key, table, toml

from fedsim.report.intervals import interval
from fedsim.reproduce import choose, outcome
from fedsim.reproduce.cells import Cell, Place
from fedsim.reproduce.console import reproduce
from fedsim.reproduce.pages import number
from fedsim.runs.reading import MEASURES
from fedsim.scenario import Scenario


def test_attacks_on_the_network_of_one_seed_count_once_for_the_interval(tmp_path):
    changes = {"rounds": 1, "measure": '["asr", "seconds"]', "published": ""}
    source, out = toml(tmp_path, **changes), tmp_path / "out"
    four = ["training.clients=4"]
    text = reproduce(source, out, overrides=four)[0].read_text()
    assert [row[-1] for row in table(text, "batch size")] == ["12, 3 seeds"] * 2
    (figure,) = choose(source)
    cells = outcome(figure, out, "smoke", overrides=four).shares[0].cells
    found = [row for row in rows(out / "test/tiny/smoke/tiny") if row["metric"] == "asr"]
    (ours,) = [c for c in cells if (c.measure, c.series, c.place.where) == ("asr", "llg", "4")]
    means = [
        sum(float(r["value"]) for r in found if key(r) == ("4", "llg") and r["seed"] == seed) / 4
        for seed in "345"
    ]
    assert (ours.n, ours.seeds) == (12, 3)
    assert (ours.low, ours.high) == pytest.approx(interval(means, MEASURES["asr"]))


@pytest.mark.parametrize(
    ("seeds", "words"),
    [(1, " over victims of one network"), (2, " over victims of 2 networks"), (3, "")],
)
def test_below_three_seeds_an_interval_is_said_to_be_over_victims(seeds, words):
    place = Place(1.0, frozenset({"1"}))
    one = Cell("asr", "llg", place, 12, 0.9, 0.8, 1.0, seeds=seeds)
    text = number(one, MEASURES["asr"])
    assert text.endswith("]" + words)


def test_the_seconds_of_one_call_are_one_value(tmp_path):
    changes = {"measure": '"seconds"', "published": ""}
    source, out = toml(tmp_path, **changes), tmp_path / "out"
    grouped = ["training.clients=4", 'adversaries=[{name="dlg",iterations=1,restarts=0}]',
               "threat.grants=white-box", "task.model=lenet-sigmoid"]  # fmt: skip
    reproduce(source, out, overrides=[*grouped, "paper.repetitions=1"])
    (figure,) = choose(source)
    cells = outcome(figure, out, "smoke", overrides=grouped).shares[0].cells
    assert [(cell.n, cell.low) for cell in cells] == [(4, None), (4, None)]


def test_labels_of_all_batches_are_pooled_where_they_count_the_same(tmp_path):
    changes = {
        "x": "",
        "measure": '"label_recall"',
        "paper": 'pool = ["training.batch_size"]\nweights = "labels"',
        "published": "",
    }
    source, out = toml(tmp_path, **changes), tmp_path / "out"
    alone = ["adversaries=[{name='bias-signs',of='weight'}]", "task.composition=natural"]
    reproduce(source, out, overrides=alone)
    (figure,) = choose(source)
    (cell,) = outcome(figure, out, "smoke", overrides=alone).shares[0].cells
    run = Scenario.load(source, alone)
    present = {}
    for seed in (3, 4, 5):
        for point in run.model_copy(update={"seed": seed}).points().values():
            task, size = point.build_task(), point.training.batch_size
            truth = task.truth((0,), 1, batch_size=size, steps=1)
            present[f"seed={seed},training.batch_size={size}"] = len({*truth.labels.tolist()})
    found = [r for r in rows(out / "test/tiny/smoke/tiny") if r["metric"] == "label_recall"]
    hits = sum(float(row["value"]) * present[row["point"]] for row in found)
    assert cell.mean == pytest.approx(hits / sum(present.values()))
    assert len({*present.values()}) > 1
