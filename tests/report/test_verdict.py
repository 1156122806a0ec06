"""The verdict on an adversary rests on all its metrics, both guesses and every round."""

import functools
import math
import random

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from support.run_folders import page_of, row, written

from fedsim.cli.summary import print_summary
from fedsim.metric import Measure
from fedsim.report import summary, verdicts, write_report
from fedsim.report.significance import better, holm, rate_below
from fedsim.report.verdict import judge
from fedsim.runs.reading import MEASURES

ROUNDS = (1, 5, 10, 15, 20, 25, 30)


@pytest.fixture
def run(tmp_path):
    """Writes a run folder of the given findings."""
    return functools.partial(written, tmp_path)


def dlg(at, client, **scores):
    """The rows of one attack: metric=(value, chance) or (value, chance, prior guess)."""
    return [
        row(at, client, "dlg", metric, score[0], score[1], baseline_prior=[*score, ""][2])
        for metric, score in scores.items()
    ]


def readable(mse=0.044, ssim=0.33):
    """The first example of the issue: digits that a person reads, none below the threshold."""
    rng = random.Random(0)
    return [
        one
        for at in (1, 5, 10)
        for client in range(4)
        for one in dlg(
            at,
            client,
            recovered=(0.0, 0.0),
            mse=(mse + rng.gauss(0, 0.005), 0.31 + rng.gauss(0, 0.01)),
            ssim=(ssim + rng.gauss(0, 0.02), 0.014 + rng.gauss(0, 0.005)),
        )
    ]


def late(metric="recovered", chance=0.0):
    """The second: one victim a round, exact at rounds 20 and 30 alone."""
    return [row(at, 1, "dlg", metric, float(at in (20, 30)), chance) for at in ROUNDS]


def test_readable_digits_leak_though_none_is_below_the_threshold_of_recovered(run):
    folder = run(*readable())
    (found,) = verdicts(folder)
    assert (found["kind"], found["badge"]) == ("leaks", "leaks, 12 attacks on 4 clients")
    assert found["metric"] == "mse"
    assert found["figure"].startswith("Mean squared error 0.04")
    assert found["low"] < 0.044 < found["high"]
    assert "over 12 attacks on 4 clients" in found["sentence"]
    assert "chance 0.3" in found["sentence"]
    assert found["readings"] == {
        "recovered": "nothing seen",
        "mse": "beats chance",
        "ssim": "beats chance",
    }
    for text in (page_of(folder), write_report(folder, "markdown").read_text("utf-8")):
        assert "leaks" in text
        assert "at chance" not in text


def test_an_attack_that_is_exact_in_late_rounds_only_leaks_and_says_where(run):
    folder = run(*late())
    (found,) = verdicts(folder)
    assert found["kind"] == "leaks"
    assert found["badge"] == "leaks, 7 attacks on one client"
    assert found["figure"] == "Recovered 0 % → 100 %"
    assert found["rounds"] == {"1": 0.0, "30": 1.0}
    assert "29 %" not in found["figure"]
    assert "by round: 0 % at 1, 100 % at 30" in found["sentence"]
    console = Console(width=200, record=True)
    print_summary(console, folder)
    assert "dlg: leaks, 7 attacks on one client. Recovered 28.6 %" in console.export_text()


def test_a_round_in_the_middle_that_leaks_is_named(run):
    rows = [row(at, client, value=float(at == 15), baseline=0.1)
            for at in ROUNDS for client in range(8)]  # fmt: skip
    (found,) = verdicts(run(*rows))
    assert found["kind"] == "leaks"
    assert found["figure"] == "Labels recovered 0 % → 100 % → 0 %"
    assert [*found["rounds"]] == ["1", "15", "30"]


def test_without_a_success_the_verdict_bounds_the_rate(run):
    (found,) = verdicts(run(*(row(1, n, "dlg", "recovered", 0.0, 0.0) for n in range(25))))
    assert found["kind"] == "nothing"
    assert found["badge"] == "nothing seen in 25 victims: rate below 11.3 %"
    assert "Recovered: 0 of 25, rate below 11.3 % (95 %)" in found["sentence"]


@pytest.mark.parametrize(("n", "said"), [(2, "too few to tell"), (9, "few victims")])
def test_few_victims_say_so(run, n, said):
    (found,) = verdicts(run(*(row(1, k, "dlg", "recovered", 0.0, 0.0) for k in range(n))))
    assert found["badge"].endswith(said)


def test_few_attacks_that_are_all_better_than_a_guess_are_above_chance_and_too_few(run):
    rows = [row(at, client, value=1.0, baseline=0.3) for at in (1, 2) for client in range(2)]
    (found,) = verdicts(run(*rows))
    assert (found["kind"], found["readings"]) == ("unclear", {"asr": "too few to tell"})
    assert found["badge"] == "above chance in 4 attacks on 2 clients, too few to tell"
    (found,) = verdicts(run(*rows[1:], row(1, 0, value=0.3, baseline=0.3)))
    assert found["badge"] == "not above chance in 4 attacks on 2 clients, few victims"


def test_better_than_chance_and_no_better_than_public_data_is_no_leak(run):
    rng = random.Random(1)
    rows = [
        one
        for client in range(20)
        for one in dlg(1, client, mse=(0.08 + rng.gauss(0, 0.01), 0.31, 0.08))
    ]
    (found,) = verdicts(run(*rows))
    assert (found["kind"], found["badge"]) == ("guessed", "no better than a prior guess")
    assert found["readings"] == {"mse": "beats chance, not a prior guess"}
    assert "prior guess 0.08" in found["sentence"]


def test_more_than_public_data_in_few_victims_is_not_shown_and_not_denied(run):
    rows = [row(1, client, value=1.0, baseline=0.1, baseline_prior=0.5) for client in range(2)]
    rows += [row(1, client, value=0.6, baseline=0.1, baseline_prior=0.5) for client in range(2, 6)]
    rows += [row(1, client, value=0.4, baseline=0.1, baseline_prior=0.5) for client in range(6, 8)]
    (found,) = verdicts(run(*rows))
    assert found["kind"] == "guessed"
    assert found["badge"] == "not shown to beat a prior guess, 8 victims"
    assert found["readings"] == {"asr": "beats chance, perhaps a prior guess"}


def test_a_metric_at_chance_says_how_much_can_have_been_missed(run):
    rows = [row(1, n, value=0.3 + 0.05 * (-1) ** n) for n in range(20)]
    (found,) = verdicts(run(*rows))
    assert found["kind"] == "unclear"
    assert found["badge"] == "not above chance in 20 victims"
    assert (
        "Labels recovered 30 % over 20 victims, below 32 % (95 %); chance 30 %"
        in (found["sentence"])
    )


def test_attacks_that_all_broke_are_not_said_to_find_nothing(run):
    (found,) = verdicts(run(*(row(1, n, status="failed", error="odd") for n in range(5))))
    assert (found["kind"], found["badge"]) == ("unknown", "not known: no attack ended")


def test_the_interval_is_one_over_seeds_where_there_are_three(run):
    rows = [row(1, n, value=0.8 + seed / 100 + n / 1000, seed=seed, point=f"seed={seed}")
            for seed in (7, 8, 9) for n in range(6)]  # fmt: skip
    (found,) = verdicts(run(*rows, points=("seed=7", "seed=8", "seed=9")))
    assert "over 3 seeds" in found["sentence"]
    assert found["kind"] == "leaks"


def test_adversaries_that_guess_are_said_to_leak_in_one_case_of_twenty_at_most():
    """Five metrics in two rounds of ten victims each: the family-wise error stays below 5 %."""
    rng, wrong, runs = np.random.default_rng(3), 0, 80
    metrics = ("ssim", "psnr", "lpips", "mse", "mae")
    cells = [(at, client, one) for at in (1.0, 2.0) for client in range(10) for one in metrics]
    table = pd.DataFrame(cells, columns=["round", "client", "metric"]).assign(
        seed="7", label="llg", status="ok", baseline=0.5, baseline_prior=math.nan, probe="",
        batch_size="4", unit=[f"c{client}" for _, client, _ in cells],
        victim=[f"r{at:g}-c{client}" for at, client, _ in cells],
    )  # fmt: skip
    for _ in range(runs):
        scores = rng.normal(0.5, 0.1, len(table))
        (found,) = judge({"": table.assign(value=scores, counted=scores)}, MEASURES).values()
        wrong += found.kind == "leaks"
    assert wrong / runs <= 0.05


def test_rows_that_do_not_count_are_in_every_table(run):
    rows = [row(1, 1), row(1, 2, status="denied", error="no"), row(1, 3, status="unverified")]
    markdown = write_report(run(*rows), "markdown").read_text("utf-8")
    head, line = (
        next(line for line in markdown.splitlines() if line.startswith(start)).split(" | ")
        for start in ("| Metric", "| Labels recovered")
    )
    cells = dict(zip(head, line, strict=True))
    assert (cells["denied"], cells["unverified"], cells["n"]) == ("1", "1", "1")
    points = ("sigma=0", "sigma=1")
    swept = run(*[one | {"point": point} for one in rows for point in points], points=points)
    markdown = write_report(swept, "markdown").read_text("utf-8")
    assert markdown.split("## Point")[0].count("1 denied 1 unverified") == 2
    console = Console(width=200, record=True)
    print_summary(console, swept)
    assert "llg at sigma=0: 1 denied, 1 unverified" in console.export_text()


def test_holm_has_a_known_answer():
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert adjusted == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})


@pytest.mark.parametrize(
    ("n", "hits", "bound"), [(1, 0, 0.95), (20, 0, 0.13911), (10, 2, 0.50690), (3, 3, 1.0)]
)
def test_the_bound_of_a_rate_is_clopper_pearsons(n, hits, bound):
    assert rate_below(n, hits) == pytest.approx(bound, abs=1e-5)


NUMBER, SHARE, YES = (Measure(kind, kind=kind) for kind in ("number", "share", "yes/no"))


@pytest.mark.parametrize(
    ("values", "guesses", "how", "p"),
    [
        ([1.0, 1.0, 1.0], [0.5, 0.5, 0.5], SHARE, 0.125),
        ([0.0, 0.0, 1.0], [0.0, 0.0, 0.0], YES, 0.0),
        ([0.5, 0.5], [0.3, 0.3], SHARE, None),
        ([0.6, 0.7, 0.8], [0.5, 0.5, 0.5], NUMBER, 0.0370),
        ([0.6, 0.6, 0.6], [0.5, 0.5, 0.5], NUMBER, 0.125),
        # A share of one example each: the standard error is that of coins, 0.5 / sqrt(3).
        ([0.6, 0.6, 0.6], [0.5, 0.5, 0.5], SHARE, 0.3811),
        ([float("inf")] * 4, [9.0] * 4, NUMBER, 0.0625),
    ],
)
def test_p_values_have_known_answers(values, guesses, how, p):
    assert better(values, guesses, ["7"] * len(values), how) == pytest.approx(p, abs=1e-4)


def test_the_reading_of_a_metric_is_in_the_summary(run):
    found = {one["metric"]: one["verdict"] for one in summary(run(*readable(mse=0.31, ssim=0.014)))}
    assert found["mse"] == found["ssim"] == "not above chance"


def test_one_readable_reconstruction_is_told_whatever_the_others_are(run):
    rows = [
        one
        for n in range(2)
        for one in dlg(1, n, recovered=(0.0, 0.0), mse=((0.32, 0.002)[n], 0.31))
    ]
    (found,) = verdicts(run(*rows))
    assert found["kind"] == "unclear"
    assert found["badge"] == (
        "not above chance in 2 victims, but Mean squared error 0.002 at best, too few to tell"
    )
    assert "Mean squared error 0.002 at best, chance 0.31" in found["sentence"]


def test_a_measure_that_is_always_above_chance_is_told_beside_one_without_success(run):
    rows = [
        one
        for n in range(3)
        for one in dlg(1, n, recovered=(0.0, 0.0), ssim=(0.1, 0.01), mse=(0.3 - 0.1 * n, 0.31))
    ]
    (found,) = verdicts(run(*rows))
    assert found["kind"] == "unclear"
    assert found["badge"] == (
        "above chance in 3 victims, with Mean squared error 0.1 at best, too few to tell"
    )
    assert found["metric"] != "recovered"
    assert "Recovered: 0 of 3" in found["sentence"]
    (found,) = verdicts(run(*(one for one in rows if one["metric"] == "recovered")))
    assert found["kind"] == "nothing"
    assert found["badge"] == "nothing seen in 3 victims: rate below 63.2 %, few victims"


def test_sums_of_secure_aggregation_are_not_called_clients(run):
    rows = [
        row(at, "0+1+2", baseline=0.0, value=0.0, victim=f"r{at:04d}-c0000+0001+0002")
        for at in (1, 2)
    ]
    folder = run(*rows)
    (found,) = verdicts(folder)
    assert "2 attacks on one sum of clients" in found["badge"]
    assert "2 sums of updates from 3 of " in page_of(folder)


def test_a_guess_from_public_data_that_cannot_be_tested_is_not_beaten(run):
    rng = random.Random(1)
    rows = [
        one
        for n in range(12)
        for one in dlg(1, n, mse=(0.2 + rng.gauss(0, 0.01), 0.31, 0.05 if n < 2 else None))
    ]
    (found,) = verdicts(run(*rows))
    assert found["kind"] == "guessed"


def test_more_seeds_hide_no_leak(run):
    def rows(seeds):
        return [
            {**row(at, n, value=float(at > 10), baseline=0.3), "seed": str(seed)}
            for seed in range(seeds) for at in range(1, 13) for n in range(8)
        ]  # fmt: skip

    for seeds in (1, 3):
        (found,) = verdicts(run(*rows(seeds)))
        assert found["kind"] == "leaks", seeds


def test_equal_scores_and_hostile_batch_sizes_have_bounds(run):
    rows = [{**row(1, n, value=0.0, baseline=0.3), "batch_size": "9" * 400} for n in range(5)]
    (found,) = verdicts(run(*rows))
    assert "below 45.1 % (95 %)" in found["sentence"]
