"""Whom verdicts rest on: rounds of one client are no repetitions, and all verdicts one family."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from support.run_folders import page_of, row, written
from support.tiny import scenario

from fedsim.engine.simulate import simulate
from fedsim.metric import Measure
from fedsim.report import compare, verdicts, write_report
from fedsim.report.significance import better
from fedsim.report.verdict import judge
from fedsim.runs.reading import MEASURES

CLASSES, ROUNDS = 10, 20


def guessing(rng, clients, right):
    """A guess that never changes, against clients that have few of ten labels each.

    `right` is the share of attacks that know the label instead.
    """
    labels = np.concatenate([
        rng.choice(CLASSES, ROUNDS, p=rng.dirichlet([0.3] * CLASSES)) for _ in range(clients)
    ])  # fmt: skip
    hits = ((labels == 0) | (rng.random(len(labels)) < right)).astype(float)
    at, client = np.tile(np.arange(1.0, ROUNDS + 1), clients), np.repeat(np.arange(clients), ROUNDS)
    return pd.DataFrame({
        "seed": "7", "round": at, "client": client, "label": "llg", "metric": "asr",
        "value": hits, "counted": hits, "baseline": 1 / CLASSES, "baseline_prior": math.nan,
        "victim": [f"r{n:04.0f}-c{c:04d}" for n, c in zip(at, client, strict=True)],
        "status": "ok", "probe": "", "batch_size": "1", "unit": client,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("clients", "right", "low", "high"),
    [(2, 0.0, 0.0, 0.05), (5, 0.0, 0.0, 0.05), (2, 0.7, 0.9, 1)],
)
def test_rounds_of_few_clients_are_no_repetitions(clients, right, low, high):
    rng, trials = np.random.default_rng(5), 200
    runs = {n: guessing(rng, clients, right) for n in range(trials)}
    kinds = [judge({n: rows}, MEASURES)[n].kind for n, rows in runs.items()]
    assert low <= kinds.count("leaks") / trials <= high


def test_victims_of_one_seed_are_no_repetitions_in_a_round_either():
    """Errors that share what their network has in common, around those of a guess."""
    rng, clients, rounds, seeds, trials = np.random.default_rng(3), 10, 2, 3, 60
    seed, at, client = map(np.ravel, np.meshgrid(range(seeds), range(rounds), range(clients)))
    rows = pd.DataFrame({
        "seed": seed.astype(str), "round": at + 1.0, "client": client, "label": "dlg",
        "metric": "psnr", "baseline": 0.5, "baseline_prior": math.nan, "status": "ok",
        "victim": [f"r{n:04d}-c{c:04d}" for n, c in zip(at, client, strict=True)],
        "probe": "", "batch_size": "1", "unit": client,
    })  # fmt: skip
    kinds = []
    for _ in range(trials):
        scores = 0.5 + rng.normal(0, 0.1, seeds)[seed] + rng.normal(0, 0.1, len(seed))
        found = judge({0: rows.assign(value=scores, counted=scores)}, MEASURES)
        kinds.append(found[0].kind)
    assert kinds.count("leaks") / trials <= 0.07
    high = rows.assign(value=scores + 1, counted=scores + 1)
    assert judge({0: high}, MEASURES)[0].kind == "leaks"


@pytest.mark.parametrize("seed", [13, 14])
def test_an_attack_that_guesses_labels_at_random_does_not_leak(tmp_path, seed):
    """With one example a victim: a chance level that is estimated may be 0 by luck, as for 13."""
    run = scenario(
        seed=seed,
        adversaries=[{"name": "random"}],
        threat={"seed": seed, "grants": "auxiliary"},
        training={"rounds": 8, "clients_per_round": 1, "batch_size": 1},
        task={"auxiliary_fraction": 0.3},
    )
    simulate(run, tmp_path / "run")
    (found,) = verdicts(tmp_path / "run")
    assert not found["badge"].startswith("leaks")


def test_one_score_a_client_is_tested_as_it_is():
    values, chance, how = [0.5, 0.75, 0.25, 1.0], [0.3] * 4, Measure("Share", kind="share")
    alone = better(values, chance, ["7"] * 4, how, sizes=[4.0] * 4)
    assert better(values, chance, ["7"] * 4, how, units=[*"abcd"], sizes=[4.0] * 4) == alone
    assert better(values, chance, ["7"] * 4, how, units=[*"aaaa"], sizes=[4.0] * 4) == alone


@pytest.mark.parametrize(
    ("values", "units", "p"),
    [
        # Student's t of the means 0.2 and 0.4, with one degree of freedom.
        ([0.2, 0.2, 0.4, 0.4], "aabb", 0.10242),
        # Each client alone: three equal gains, 1/8; twice the smaller of that and 1/4.
        ([0.2, 0.2, 0.2, 0.2, 0.2, 0.2], "aaabbb", 0.25),
    ],
)
def test_p_values_over_clients_have_known_answers(values, units, p):
    how = Measure("Number")
    found = better(values, [0.0] * len(values), ["7"] * len(values), how, units=[*units])
    assert found == pytest.approx(p, abs=1e-4)


def test_without_a_success_attacks_and_clients_are_told_apart(tmp_path):
    rows = [row(at, n, "dlg", "recovered", 0.0, 0.0) for at in range(1, 21) for n in range(2)]
    (found,) = verdicts(written(tmp_path, *rows))
    assert found["badge"] == "nothing seen in 40 attacks on 2 clients"
    assert found["sentence"].startswith(
        "Recovered: 0 of 40, rate below 7.22 % on these 2 clients, 77.6 % on others (95 %); "
    )
    assert found["readings"] == {"recovered": "nothing seen"}


@pytest.mark.parametrize(("clients", "bound"), [(1, ", below"), (2, ";"), (5, ", below")])
def test_the_bound_of_a_mean_is_one_over_clients(tmp_path, clients, bound):
    rows = [row(at, n, value=0.3 + 0.01 * n + 0.02 * (-1) ** at) for at in range(1, 7)
            for n in range(clients)]  # fmt: skip
    (found,) = verdicts(written(tmp_path, *rows))
    whom = "one client" if clients == 1 else f"{clients} clients"
    assert f"over {6 * clients} attacks on {whom}{bound}" in found["sentence"]


def test_a_leak_of_few_clients_says_what_it_may_be(tmp_path):
    def said(clients, rounds):
        rows = [row(at, n, baseline=0.1) for at in range(1, rounds + 1) for n in range(clients)]
        (found,) = verdicts(written(tmp_path, *rows))
        assert found["kind"] == "leaks"
        return found

    assert said(1, 8)["badge"] == "leaks, 8 attacks on one client"
    assert "a guess that never changes may suit one client" in said(1, 8)["sentence"]
    assert said(2, 8)["badge"] == "leaks, 16 attacks on 2 clients"
    assert "may suit these 2 clients" in said(2, 8)["sentence"]
    assert "may suit" not in said(5, 8)["sentence"]
    assert "may suit" not in said(4, 1)["sentence"]
    assert said(10, 8)["badge"] == "leaks"


def test_what_is_read_together_is_corrected_together(tmp_path):
    def rows(label, share, clients=12):
        return [row(1, n, label, value=float(n < share * clients), baseline=0.3)
                for n in range(clients)]  # fmt: skip

    lucky, strong = rows("lucky", 0.6), rows("strong", 1.0)
    (alone,) = verdicts(written(tmp_path, *lucky))
    assert alone["kind"] == "leaks"
    others = [one for n in range(20) for one in rows(f"guess-{n:02d}", 0.3)]
    folder = written(tmp_path, *lucky, *strong, *others)
    kinds = {one["label"]: one["kind"] for one in verdicts(folder)}
    assert (kinds["lucky"], kinds["strong"]) == ("unclear", "leaks")
    said = "any of the 22 verdicts says “leaks” of an attack that guesses at random is at most 5 %"
    assert page_of(folder).count(said) == 1
    assert said in write_report(folder, "markdown").read_text("utf-8")


def test_runs_on_one_page_are_corrected_together(tmp_path):
    folders = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        folders.append(written(tmp_path / name, *(row(1, n) for n in range(12))))
    for format in ("html", "markdown"):
        page = compare(folders, tmp_path / "page", format).read_text("utf-8")
        assert "any of the 2 verdicts says" in page
        assert "leaks" in page


def test_over_three_seeds_a_strong_leak_stays_one_beside_many_others(tmp_path):
    rng = np.random.default_rng(2)
    rows = [
        row(1, n, label, value=0.1 * seed + rng.normal(0.5 if label == "llg" else 0.1, 0.05),
            baseline=0.3, batch_size=16, seed=seed, point=f"seed={seed}")
        for label in ("llg", *(f"guess-{n:02d}" for n in range(20)))
        for seed in range(3) for n in range(10)
    ]  # fmt: skip
    points = [f"seed={seed}" for seed in range(3)]
    kinds = {one["label"]: one["kind"] for one in verdicts(written(tmp_path, *rows, points=points))}
    assert {label for label, kind in kinds.items() if kind == "leaks"} == {"llg"}


def test_attacks_that_broke_are_counted_in_badge_and_mean_alike(tmp_path):
    broken = [row(1, 20, status="failed", error="odd"), row(1, 21, status="timeout")]
    (found,) = verdicts(written(tmp_path, *(row(1, n) for n in range(12)), *broken))
    whom = "14 victims (1 failed, 1 out of time)"
    assert found["badge"] == f"leaks, {whom}"
    assert f"over {whom}" in found["sentence"]
    assert (found["victims"], found["failed"]) == (12, 2)
    broken = [row(1, 20, "dlg", "recovered", 0.0, 0.0, status="failed", error="odd")]
    rows = [row(1, n, "dlg", "recovered", 0.0, 0.0) for n in range(12)]
    (found,) = verdicts(written(tmp_path, *rows, *broken))
    assert found["badge"] == "nothing seen in 13 victims (1 failed): rate below 22.1 %"
    assert "Recovered: 0 of 12 that ended, rate below 22.1 % (95 %)" in found["sentence"]


def test_a_verdict_on_probes_and_updates_names_both(tmp_path):
    rows = [row(at, 3, victim=f"r{at:04d}-c0003-p{n:02d}") for at in range(1, 7) for n in range(3)]
    updates = [row(at, 3, value=0.0) for at in range(1, 7)]
    (found,) = verdicts(written(tmp_path, *rows))
    assert found["badge"] == "leaks, 18 attacks on 3 probes"
    (found,) = verdicts(written(tmp_path, *rows, *updates))
    assert "6 attacks on one client and 18 attacks on 3 probes" in found["badge"]
    assert "clients' updates 0 %, probes 100 %" in found["sentence"]


@pytest.mark.parametrize(
    ("hits", "kind", "said"),
    [
        (0, "nothing", "Missed: 25 of 25, rate above 88.7 % (95 %)"),
        (25, "leaks", "Missed 0 %"),
        (2, "unclear", "Missed: 23 of 25, rate above 76.9 % (95 %)"),
    ],
)
def test_a_yes_or_no_that_is_better_low_is_read_so(tmp_path, hits, kind, said):
    rows = [row(1, n, metric="missed", value=float(n >= hits), baseline=0.9) for n in range(25)]
    folder = written(tmp_path, *rows)
    how = {"title": "Missed", "kind": "yes/no", "lower": True}
    (folder / "metrics.json").write_text(json.dumps({"missed": how}))
    (found,) = verdicts(folder)
    assert found["kind"] == kind
    assert said in found["sentence"]


def test_no_bound_is_said_where_nothing_is_excluded(tmp_path):
    rows = [row(1, n, metric="label_exact", baseline=0.5) for n in range(3)]
    (found,) = verdicts(written(tmp_path, *rows))
    assert found["sentence"].startswith("All labels right: 3 of 3; chance 50 %")
    rows = [row(1, n, value=float(n) / 2, baseline=0.3) for n in range(3)]
    (found,) = verdicts(written(tmp_path, *rows))
    assert "(95 %)" not in found["sentence"]


def test_of_equally_strong_metrics_the_main_one_is_told(tmp_path):
    rows = [row(1, n, "dlg", metric, baseline=0.0) for metric in ("asr", "recovered")
            for n in range(12)]  # fmt: skip
    (found,) = verdicts(written(tmp_path, *rows))
    assert found["metric"] == "recovered"


def test_a_leak_without_a_guess_from_public_data_says_so(tmp_path):
    (found,) = verdicts(written(tmp_path, *(row(1, n) for n in range(12))))
    assert "chance 30 %, no prior guess known" in found["sentence"]
    rows = [row(1, n, baseline_prior=0.4) for n in range(12)]
    (found,) = verdicts(written(tmp_path, *rows))
    assert "chance 30 %, prior guess 40 %" in found["sentence"]
