"""Probes, the same examples attacked in each round, make the curves where a run has any."""

import json
import math
import re

import pytest
from support.run_folders import page_of, row, written

from fedsim.report.folder import open_folder
from fedsim.report.replication import attacks_of, over_rounds, worst_probe
from fedsim.runs.reading import MEASURES, probe_of

T2 = 4.302652729911275


def probed(*, seeds=(7,), metric="asr", label="llg"):
    """Three probes in each of three rounds, and a client's own update, which scores 0."""
    rows = []
    for seed in seeds:
        point = f"seed={seed}" if len(seeds) > 1 else ""
        for at in (1, 2, 3):
            key = {"point": point, "seed": seed, "label": label, "metric": metric}
            rows.append(row(at, 3, value=0.0, **key))
            for probe, value in enumerate((0.5, 0.6, 0.7)):
                score = value - 0.1 * at + 0.01 * (seed - 7)
                rows.append(row(at, 3, value=score, victim=f"r{at:04d}-c0003-p{probe:02d}", **key))
    return rows


@pytest.mark.parametrize(
    ("victim", "probe"),
    [
        ("r0003-c0003-p00", "c0003-p00"),
        ("r0012-c12345-p10", "c12345-p10"),
        ("r0003-c0003", ""),
        ("r0003-c0000-c0003-c0005", ""),
        ("<img>-p00", ""),
    ],
)
def test_a_probe_is_known_by_the_victims_key(victim, probe):
    assert probe_of(victim) == probe


def test_curves_are_over_probes_with_their_interval(tmp_path):
    (series,) = open_folder(written(tmp_path, *probed())).series()
    part = attacks_of(series.rows, "llg", "asr")
    means = over_rounds(part, MEASURES["asr"])
    assert [one.mean for one in means.values()] == pytest.approx([0.5, 0.4, 0.3])
    half = T2 * 0.1 / math.sqrt(3)
    assert (means[1].low, means[1].high) == pytest.approx((0.5 - half, 0.5 + half))
    assert worst_probe(part, MEASURES["asr"]) == "c0003-p02"
    assert worst_probe(part, MEASURES["mse"]) == "c0003-p00"


def test_with_seeds_the_interval_is_over_seeds(tmp_path):
    (series,) = open_folder(written(tmp_path, *probed(seeds=(7, 8, 9)))).series()
    one = over_rounds(attacks_of(series.rows, "llg", "asr"), MEASURES["asr"])[1]
    half = T2 * 0.01 / math.sqrt(3)
    assert (one.low, one.high) == pytest.approx((0.51 - half, 0.51 + half))


def test_adversaries_without_probes_keep_the_curve_of_their_victims(tmp_path):
    rows = [*probed(), *(row(at, 1, "dlg", "mse", 0.01 * at, 0.2) for at in (1, 2, 3))]
    (series,) = open_folder(written(tmp_path, *rows)).series()
    part = attacks_of(series.rows, "dlg", "mse")
    assert len(part) == 3
    assert worst_probe(part, MEASURES["mse"]) == ""
    assert {one.low for one in over_rounds(part, MEASURES["mse"]).values()} == {None}


def test_the_page_draws_the_mean_of_probes_and_the_worst_probe(tmp_path):
    page = page_of(written(tmp_path, *probed()))
    figure = json.loads(page.split('id="figures">')[1].split("</script>")[0])[0]
    by_name = {trace["name"]: trace for trace in figure["data"]}
    mean = by_name["llg: labels recovered, mean of probes"]
    assert mean["y"] == pytest.approx([0.5, 0.4, 0.3])
    worst = by_name["llg: worst probe, c0003-p02"]
    assert worst["y"] == pytest.approx([0.6, 0.5, 0.4])
    assert [trace["legendgroup"] for trace in figure["data"] if trace.get("fill")] == ["0"]
    assert "the probe that leaked most over all rounds" in page


def test_probes_of_several_batch_sizes_are_read_apart(tmp_path):
    rows = probed()
    for one in rows:
        one["batch_size"] = 4 if one["victim"].endswith("p02") else 1
    folder = open_folder(written(tmp_path, *rows))
    assert sorted({*folder.rows["label"]}) == ["llg", "llg, B = 1", "llg, B = 4"]
    (series,) = folder.series()
    assert len(attacks_of(series.rows, "llg, B = 1", "asr")) == 6
    assert len(attacks_of(series.rows, "llg, B = 4", "asr")) == 3
    text = page_of(folder.path)
    whom = "3 updates from 1 of 20 clients and 3 probes of each round&#39;s model"
    assert f"{whom} were attacked in 3 rounds by 1 adversary" in text
    assert re.search('llg, B = 4: [^"]*, mean of probes', text)
