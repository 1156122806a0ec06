"""What a report makes of metrics without a chance level, of details, and of iterations."""

import io

import pytest
from rich.console import Console
from support.run_folders import row, write_csv

from fedsim.cli.summary import print_summary
from fedsim.report import summary, write_report
from fedsim.runs.reading import COLUMNS


@pytest.fixture
def run(tmp_path):
    """Writes a run folder of the given findings."""

    def make(*rows):
        write_csv(tmp_path / "findings.csv", rows, COLUMNS)
        return tmp_path

    return make


def dlg(client, value, metric="recovered", **more):
    return row(client=client, label="dlg", metric=metric, value=value, baseline=0.0, **more)


def printed(folder):
    out = io.StringIO()
    print_summary(Console(width=200, file=out), folder)
    return out.getvalue()


def test_iterations_to_success_are_those_of_attacks_that_recovered_every_image(run):
    folder = run(
        dlg(1, 1.0, iterations=10),
        dlg(2, 1.0, iterations=30),
        dlg(3, 1.0, iterations=11),
        dlg(4, 0.5, iterations=300),  # half of the images
        dlg(5, 0.0, iterations=300),
        dlg(6, 1.0, iterations=7, status="failed"),
        dlg(1, 0.001, "mse", iterations=10),
    )
    found = {each["metric"]: each for each in summary(folder)}
    assert found["recovered"]["successes"] == 3
    assert found["recovered"]["iterations_median"] == 11
    assert found["recovered"]["iterations_mean"] == 17
    assert found["mse"]["successes"] is found["mse"]["iterations_median"] is None
    said = "iterations to success: median 11 over 3 successes"
    assert said in found["recovered"]["sentence"]
    assert said in printed(folder)
    assert said in write_report(folder, "markdown").read_text(encoding="utf-8")
    page = write_report(folder).read_text(encoding="utf-8")
    assert said in page
    assert "11 iterations to success (median), 17 (mean) over 3" in page


@pytest.mark.parametrize("rows", [[dlg(1, 0.0, iterations=300)], [dlg(1, 1.0, iterations=0)]])
def test_without_successes_or_iterations_nothing_is_said_of_them(run, rows):
    (found,) = summary(run(*rows))
    assert found["iterations_median"] is None
    assert "iterations" not in found["sentence"]
    assert "iterations to success" not in write_report(run(*rows)).read_text(encoding="utf-8")


def test_what_has_no_chance_level_is_neither_compared_nor_counted_when_broken(run):
    went = {"metric": "divergence", "label": "dlg", "baseline": ""}
    folder = run(
        *(row(client=n, value=v, **went) for n, v in enumerate([0.0, 0.5, 0.25, 0.25])),
        row(client=5, status="failed", **went),
    )
    (found,) = summary(folder)
    assert (found["mean"], found["n"], found["failed"]) == (0.25, 4, 1)
    assert found["baseline"] is None
    assert found["verdict"] == "about the attack"
    assert "1 failed, left out" in found["sentence"]
    assert "chance" not in found["sentence"]
    page = write_report(folder).read_text(encoding="utf-8")
    assert "that diverged.</small>" in page, "neither way means that more leaks"


def test_a_value_that_is_not_defined_is_left_out_of_the_mean(run):
    rows = [
        row(client=n, metric="label_correlation", value=v, baseline=0.3 if v != "" else "")
        for n, v in enumerate([0.5, "", 1.0])
    ]
    (found,) = summary(run(*rows))
    assert (found["mean"], found["n"], found["attacks"]) == (0.75, 2, 3)


def test_details_are_on_the_page_and_not_in_the_printed_table(run):
    rows = [
        row(metric=metric)
        for metric in ("asr", "hellinger", "label_recall", "label_precision", "label_f1")
    ]
    folder = run(*rows)
    table, page = printed(folder), write_report(folder).read_text(encoding="utf-8")
    for title in ("Labels recovered", "Label F1"):
        assert title in table
        assert title in page
    for title in ("Hellinger distance", "Label recall", "Label precision"):
        assert title not in table
        assert title in page


def test_an_attack_that_is_scored_on_details_alone_is_printed_by_its_main_one(run):
    table = printed(run(row(metric="label_precision"), row(metric="label_recall")))
    assert "Label recall" in table
    assert "Label precision" not in table
