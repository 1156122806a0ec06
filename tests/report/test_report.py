"""Claims about the report: its numbers, and what of a run folder it can do without."""

import dataclasses
import functools
import json
import subprocess
import sys

import pytest
from support.run_folders import SCENARIO, page_of, row, written
from support.tiny import scenario

from fedsim.engine.simulate import simulate
from fedsim.errors import RunFolderError
from fedsim.records import Finding
from fedsim.report import summary, write_report
from fedsim.runs.reading import COLUMNS


@pytest.fixture
def run(tmp_path):
    """Writes a run folder of the given findings."""
    return functools.partial(written, tmp_path)


def test_columns_are_the_fields_of_a_finding():
    assert [field.name for field in dataclasses.fields(Finding)] == COLUMNS


def test_importing_the_report_loads_nothing_heavy():
    heavy = ("torch", "pandas", "plotly", "jinja2", "numpy", "flwr", "ray")
    code = f"import fedsim.report, sys; sys.exit(str([m for m in {heavy} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


def test_summary_has_the_numbers_of_an_adversary(run):
    (found,) = summary(run(*(row(client=n, value=v) for n, v in enumerate([1.0, 0.5, 0.9]))))
    assert (found["label"], found["metric"], found["point"]) == ("llg", "asr", "")
    assert (found["attacks"], found["ok"], found["n"]) == (3, 3, 3)
    assert found["mean"] == pytest.approx(0.8)
    assert found["baseline"] == pytest.approx(0.3)
    assert found["baseline_prior"] is None
    assert (found["best"], found["worst"]) == (1.0, 0.5)
    assert 0 <= found["low"] < 0.8 < found["high"] <= 1
    assert found["sentence"] == "80 % of the labels in 3 updates recovered; chance 30 %"
    json.dumps(found, allow_nan=False)


def test_failed_and_timed_out_attacks_count_as_the_baseline(run):
    rows = [row(client=1, value=1.0), row(client=2, status="failed", baseline=0.2),
            row(client=3, status="timeout", baseline=0.4)]  # fmt: skip
    (found,) = summary(run(*rows))
    assert found["mean"] == pytest.approx((1.0 + 0.2 + 0.4) / 3)
    assert (found["ok"], found["failed"], found["timeout"], found["n"]) == (1, 1, 1, 3)
    assert "1 failed and 1 ran out of time, counted as a guess" in found["sentence"]


def test_a_failed_attack_without_metric_counts_in_every_metric_at_the_usual_baseline(run):
    rows = [row(metric="mse", value=0.0, baseline=0.1), row(metric="ssim", value=1, baseline=0.2),
            row(client=2, metric="", status="failed", baseline="")]  # fmt: skip
    found = {each["metric"]: each for each in summary(run(*rows))}
    assert found.keys() == {"mse", "ssim"}
    assert found["mse"]["mean"] == pytest.approx(0.05)
    assert found["ssim"]["mean"] == pytest.approx(0.6)
    assert found["mse"]["failed"] == 1


def test_denied_attacks_are_counted_and_not_averaged(run):
    found, denied = summary(
        run(row(value=0.9), row(client=2, status="denied"), row(label="dlg", status="denied"))
    )
    assert found["mean"] == pytest.approx(0.9)
    assert (found["attacks"], found["denied"], found["n"]) == (2, 1, 1)
    assert denied["mean"] is None
    assert denied["verdict"] == "denied"
    assert denied["sentence"] == "denied on all updates (1)"


def test_what_every_attack_ended_with_is_in_the_summary(run):
    denied, failed, late = summary(
        run(
            row(status="denied", error="AUXILIARY is granted,\nbut there is none"),
            row(label="dlg", metric="", baseline="", status="failed", error="ValueError: odd"),
            row(label="idlg", metric="", baseline="", status="timeout"),
            row(label="idlg", metric="", baseline="", status="failed", client=2),
        )
    )
    said = "denied on all updates (1): AUXILIARY is granted, but there is none"
    assert denied["sentence"] == said
    assert failed["sentence"] == "1 update attacked, 1 failed; nothing to average"
    said = "2 updates attacked, 1 failed, 1 ran out of time; nothing to average"
    assert late["sentence"] == said


def test_the_last_attempt_at_an_attack_counts(run):
    rows = [row(status="failed", attempt=1), row(value=1.0, attempt=2)]
    (found,) = summary(run(*rows))
    assert (found["attacks"], found["failed"], found["mean"]) == (1, 0, 1.0)


def test_yes_or_no_metrics_are_told_as_counts(run):
    rows = [row(client=n, metric="label_exact", value=float(n < 22), baseline=0.31)
            for n in range(25)]  # fmt: skip
    (found,) = summary(run(*rows))
    assert found["sentence"] == "labels of 22 of 25 updates recovered; chance 31 %"
    assert found["verdict"] == "beats chance"


def test_yes_or_no_metrics_met_in_part_are_told_as_shares(run):
    (found,) = summary(run(*(row(client=n, metric="recovered", value=0.25) for n in range(4))))
    assert found["sentence"].startswith("25 % of the examples in 4 updates recovered")


@pytest.mark.parametrize(
    ("value", "verdict"), [(0.001, "beats"), (0.1, "not"), (0.4, "worse")]
)  # fmt: skip
def test_lower_is_better_for_errors(run, value, verdict):
    rows = [row(client=n, metric="mse", value=value + n * 1e-5 - 5e-5, baseline=0.1)
            for n in range(11)]  # fmt: skip
    (found,) = summary(run(*rows))
    assert found["lower_is_better"]
    assert found["best"] < found["worst"]
    assert found["verdict"].split()[0] == verdict


@pytest.mark.parametrize("tail", ["demo,,7,3,4", 'demo,,7,3,4,v,llg,asr,,,,failed,"a\nb\nc', "x,"])
def test_a_torn_last_line_is_left_out_and_said(run, tail):
    folder = run(row(), row(client=2, value=0.5, error='two\nlines, "quoted"'))
    with (folder / "findings.csv").open("a") as file:
        file.write(tail)
    (found,) = summary(folder)
    assert (found["attacks"], found["mean"]) == (2, 0.75)
    assert "The last line of findings.csv is incomplete" in page_of(folder)


def test_a_mean_without_an_interval_has_a_dash_in_markdown(run):
    few = write_report(run(row(), row(client=2)), format="markdown").read_text(encoding="utf-8")
    assert "| 100 % | – | 30 % |" in few.replace("\u00a0", " ")


def test_a_run_without_adversaries_reports_utility(run):
    folder = run()
    assert summary(folder) == []
    assert "No adversary took part" in page_of(folder)
    (folder / "findings.csv").unlink()
    assert "accuracy went from 25\u00a0% to 85\u00a0%" in page_of(folder)


def test_a_run_that_was_killed_before_its_first_attack_ended_is_not_one_without_adversaries(run):
    folder = run(scenario=SCENARIO + '[[adversaries]]\nname = "llg"\n')
    (folder / "utility.csv").write_text("round,metric,value,point\n0,accuracy,0.25,\n")
    page = page_of(folder)
    assert "No attack has ended: it shows utility alone." in page
    assert "Meanwhile accuracy was 25\u00a0%." in page
    assert "The run is unfinished: it ended round 0 of 5." in page
    assert "continues it, or says why it fails." in page


def test_points_that_are_unfinished_are_named_and_those_that_ended_are_not(run):
    folder = run(row(), points=("lr=1", "lr=2"))
    for kept, seen in (((1, 2, 3), True), ((1, 2, 3, 4, 5), False)):
        lines = [f"{n},loss,1.0,{point}" for point in ("lr=1", "lr=2") for n in kept]
        (folder / "utility.csv").write_text("\n".join(["round,metric,value,point", *lines, ""]))
        assert ("lr=2 is unfinished: it ended round 3 of 5" in page_of(folder)) is seen
    (folder / "utility.csv").write_text("round,metric,value,point\n3,loss,1.0,lr=1\n")
    (folder / "points.csv").write_text("point,seconds\nlr=1,2.0\n")
    assert "unfinished" not in page_of(folder)
    (folder / "points.csv").unlink()
    (folder / "provenance.json").write_text('{"schema": 1, "unknown": []}')  # not trained by fedsim
    assert "unfinished" not in page_of(folder)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="there is no run folder"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match="is no run folder"):
        write_report(tmp_path)
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    with pytest.raises(RunFolderError, match="no findings and no utility"):
        summary(tmp_path)
    (tmp_path / "findings.csv").write_text("a,b\n1,2\n")
    with pytest.raises(RunFolderError, match="has no column adversary, baseline"):
        summary(tmp_path)


def test_a_table_whose_first_line_lacks_columns_is_refused(run):
    folder = run(row())
    (folder / "utility.csv").write_text("round,metric,value\n1,accuracy,0.5,lr=1\n")
    with pytest.raises(RunFolderError, match=r"utility.csv .* is no CSV: Length of header"):
        write_report(folder)


def test_a_run_whose_findings_were_deleted_is_not_one_without_attacks(run):
    folder = run(row())
    (folder / "attacks.jsonl").write_text("{}\n")
    (folder / "findings.csv").unlink()
    with pytest.raises(RunFolderError, match=r"has no findings.csv, although attacks have ended"):
        write_report(folder)


def test_broken_side_files_do_not_stop_a_report(run):
    folder = run(row(), scenario="seed = [", name="x")
    (folder / "provenance.json").write_bytes(b'{"schema": 1, \xff')
    (folder / "findings.csv").write_bytes((folder / "findings.csv").read_bytes() + b"\xff,\n")
    page = page_of(folder)
    assert "scenario.toml cannot be read" in page
    assert "1 rows of findings.csv have no known status" in page


def test_an_unknown_format_is_refused(run):
    with pytest.raises(RunFolderError, match="html and markdown"):
        write_report(run(row()), "pdf")  # type: ignore[arg-type]


def test_values_whose_squares_are_infinite_do_not_stop_a_report(run):
    folder = run(
        *(row(n, metric="gradient_distance", value=10.0 ** (300 + n)) for n in range(1, 6)),
        *(row(n, metric="mse", value=1e305 * n, baseline=1e300) for n in range(1, 6)),
    )
    (found, _) = summary(folder)
    assert (found["mean"], found["low"]) == (pytest.approx(2.2222e304), None)
    page = page_of(folder)
    assert "Infinity" not in page.split('id="figures">')[1].split("</script>")[0]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_rows_without_a_round_and_guesses_without_a_mean_do_not_stop_a_report(run):
    odd = [{**row(), "round": text, "victim": text} for text in ("", "x", "inf")]
    folder = run(*(row(n, metric="mse", baseline=f"{'-' * (n % 2)}inf") for n in range(1, 4)), *odd)
    page = page_of(folder)
    assert "3 rows of findings.csv have no round; left out" in page
    assert [one["attacks"] for one in summary(folder)] == [3]


def test_a_run_that_is_interrupted_has_its_report(tmp_path):
    def stop(event: str, **fields: object) -> None:
        if event == "round" and fields["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(scenario(training={"rounds": 4}), tmp_path, observer=stop)
    assert "llg" in (tmp_path / "report.html").read_text()
