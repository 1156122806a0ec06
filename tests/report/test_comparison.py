"""Several runs on one page: settings that differ, results side by side, paired differences."""

import json
import re
import time

import pytest
from support.repeated import repeated
from support.run_folders import HOSTILE, SCENARIO, Page, row, write_csv
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.errors import RunFolderError
from fedsim.report import compare
from fedsim.runs.reading import COLUMNS


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two folders, of which the second leaks 0.1 more; the current folder is another one."""
    first, second = repeated(tmp_path / "first"), repeated(tmp_path / "second")
    text = (second / "findings.csv").read_text()
    # Only llg's scores: lines whose metric is asr.
    lines = [
        re.sub(r",asr,([\d.]+),", lambda m: f",asr,{float(m[1]) + 0.1:.6f},", line)
        for line in text.splitlines(keepends=True)
    ]
    (second / "findings.csv").write_text("".join(lines))
    (second / "scenario.toml").write_text(SCENARIO.replace("rounds = 5", "rounds = 9"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return first, second


def words(path):
    """The text of a page."""
    return " ".join(" ".join(Page(path.read_text(encoding="utf-8")).words).split())


def test_one_page_compares_the_runs_on_the_same_axes(runs):
    path = compare(runs)
    assert path.name == "comparison.html"
    text = words(path)
    assert "first beside second" in text
    assert "training.rounds 5 9" in text
    assert "training.clients" not in text
    assert "second: defenses.0.sigma=0.1" in text
    assert "utility after the last round that both have" in text
    assert "+10.0 points" in text
    page = path.read_text(encoding="utf-8")
    (figure,) = json.loads(page.split('id="figures">')[1].split("</script>")[0])
    named = [trace["name"] for trace in figure["data"] if trace["showlegend"]]
    sigmas = ("0.0", "0.01", "0.1")
    assert named[:6] == [
        f"{run}: defenses.0.sigma={s}" for run in ("first", "second") for s in sigmas
    ]
    assert len(figure["layout"]["annotations"]) == 4


def test_a_point_is_compared_with_its_namesake_in_the_first_run(runs):
    markdown = compare(runs, format="markdown").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in markdown.splitlines() if line.startswith("| second")]
    shares = {cells[0][2:]: cells for cells in rows if "points" in " ".join(cells)}
    assert len(shares) == 3
    for name, cells in shares.items():
        assert cells[1] == name.replace("second", "first")
        assert any(cell.startswith("+10.0 points \\[+10.0, +10.0\\]") for cell in cells)


def test_a_point_without_a_namesake_names_the_one_that_it_is_compared_with(runs, tmp_path):
    other = repeated(tmp_path / "other", sigmas=("0.1",))
    for path in (other / "findings.csv", other / "utility.csv"):
        path.write_text(path.read_text().replace("sigma=0.1", "sigma=0.5"))
    markdown = compare([runs[0], other], format="markdown").read_text(encoding="utf-8")
    (row,) = [line for line in markdown.splitlines() if "| other" in line and "points" in line]
    assert "| first: defenses.0.sigma=0.0 |" in row


def test_runs_without_a_common_seed_have_no_difference(runs, tmp_path):
    other = repeated(tmp_path / "other", seeds=(1, 2, 3))
    assert "no seed or no examples in common" in words(compare([runs[0], other]))
    each = [repeated(tmp_path / f"of-{seed}", seeds=(seed,)) for seed in (1, 2)]
    assert "One seed each, so there is no interval over seeds" in words(compare(each))


def test_runs_of_other_examples_are_not_subtracted(runs):
    for task in ('name = "images"\ndata = "mnist"', 'name = "text"'):
        (runs[1] / "scenario.toml").write_text(SCENARIO.replace('name = "images"', task))
        text = words(compare(runs))
        assert "second is about other examples (" in text
        assert "no difference is taken" in text
        assert "points" not in text.split("Differences from first")[1].split("Round by round")[0]
    for run in runs:  # the same data under another name
        (run / "provenance.json").write_text(json.dumps({"hashes": {"data": "d1"}}))
    assert "other examples" not in words(compare(runs))


def test_only_common_seeds_count(runs, tmp_path):
    other = repeated(tmp_path / "other", seeds=(8, 9, 10))
    text = words(compare([runs[0], other]))
    assert "it has an interval" not in text
    assert re.search(
        r"other: defenses\.0\.sigma=0\.1 first: defenses\.0\.sigma=0\.1 \+0\.0 points \+0", text
    )


def test_the_command_writes_a_comparison_only_for_several_folders(runs, tmp_path):
    first, second = map(str, runs)
    done = CliRunner().invoke(
        app, ["report", first, second, "--out", str(tmp_path / "a" / "b.html")]
    )
    assert done.output.strip() == str(tmp_path / "a" / "b.html")
    assert (tmp_path / "a" / "b.html").is_file()
    done = CliRunner().invoke(app, ["report", first, second, "--format", "markdown"])
    assert done.output.strip() == "comparison.md"
    assert not list(runs[1].glob("report.*"))
    done = CliRunner().invoke(app, ["report", first])
    assert done.output.strip() == str(runs[0] / "report.html")
    refused = CliRunner().invoke(app, ["report", first, "--out", "x.html"])
    assert "give several run folders" in str(refused.exception)


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda first, second: [first, first], "given twice"),
        (lambda first, second: [first], "two run folders or more"),
        (lambda first, second: [first, first / "nowhere"], "there is no run folder"),
        (lambda first, second: [first, first.parent], "is no run folder"),
    ],
)
def test_folders_that_cannot_be_compared_are_refused(runs, choose, message):
    with pytest.raises(RunFolderError, match=message):
        compare(choose(*runs))


def test_folders_of_the_same_name_are_told_apart_by_their_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [repeated(tmp_path / side / "run") for side in ("left", "right")]
    text = words(compare(folders))
    assert f"{folders[0]} beside {folders[1]}" in text


def test_nothing_in_the_folders_is_markup(runs, tmp_path):
    bad = tmp_path / "bad<img src=x onerror=window.hacked=1>"
    bad.mkdir()
    rows = [row(label=HOSTILE, metric=HOSTILE, point=HOSTILE, seed=HOSTILE, client=HOSTILE)]
    write_csv(bad / "findings.csv", rows, COLUMNS)
    write_csv(bad / "utility.csv", [{"round": 1, "metric": HOSTILE, "value": 1, "point": HOSTILE}],
              ["round", "metric", "value", "point"])  # fmt: skip
    (bad / "scenario.toml").write_text(
        f"seed = '''{HOSTILE}'''\n[task]\n'{HOSTILE}' = [[1], {{}}]\n"
    )
    page = compare([runs[0], bad]).read_text(encoding="utf-8")
    elements = Page(page).elements
    assert [tag for tag, _ in elements].count("script") == 3
    assert "img" not in [tag for tag, _ in elements]
    assert not [attrs for _, attrs in elements if any(name.startswith("on") for name in attrs)]
    markdown = compare([runs[0], bad], format="markdown").read_text(encoding="utf-8")
    assert "<" not in markdown


def test_settings_of_old_runs_that_lack_a_key_are_shown_as_not_set(runs):
    (runs[1] / "scenario.toml").write_text("seed = 7\nname = 'x'\n")
    text = words(compare(runs))
    assert "task.name images –" in text
    assert "defenses.0.sigma 0.01 –" in text
    (runs[1] / "scenario.toml").write_text("seed = [")
    assert "second: scenario.toml cannot be read" in words(compare(runs))


def test_the_comparison_works_in_a_browser(runs, browser):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    for width in (1200, 420):
        browser.set_window_size(width, 1000)
        browser.get(compare(runs).resolve().as_uri())
        WebDriverWait(browser, 30).until(
            lambda page: len(page.find_elements(By.CSS_SELECTOR, ".chart svg .annotation")) == 4
        )
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.execute_script(wide) <= 0
        legend = browser.find_element(By.CSS_SELECTOR, ".legend")
        assert "second: defenses.0.sigma=0.1" in legend.text
        inside = browser.find_element(By.CSS_SELECTOR, ".chart")
        assert (
            legend.rect["y"] + legend.rect["height"] <= inside.rect["y"] + inside.rect["height"] + 1
        )
        axis = browser.find_element(By.CSS_SELECTOR, ".xtitle")
        assert axis.rect["y"] + axis.rect["height"] <= legend.rect["y"] + 1
    tall = "return document.querySelector('.chart').clientHeight"
    before = browser.execute_script(tall)
    browser.set_window_size(800, 1000)
    WebDriverWait(browser, 30).until(lambda page: page.get_window_size()["width"] == 800)
    time.sleep(1)  # Plotly resizes its charts a moment after the window.
    assert browser.execute_script(tall) == before
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_data_of_one_name_and_other_content_are_other_examples(runs):
    for folder, digest in zip(runs, ("sha256 a", "sha256 b"), strict=True):
        provenance = {"hashes": {"data": digest}}
        (folder / "provenance.json").write_text(json.dumps(provenance))
    assert "so that no difference is taken" in words(compare(runs))


def test_other_examples_behind_the_same_clients_are_said(runs):
    _, second = runs
    assert "differences pair clients and rounds" not in words(compare(runs))
    (second / "scenario.toml").write_text(SCENARIO.replace("clients = 20", "clients = 77"))
    text = words(compare(runs))
    assert "second has other examples behind the same client and round than first" in text
    assert "(training.clients differ)" in text
