"""Claims about the report: its numbers, and that nothing in a run folder can make it misbehave."""

import csv
import dataclasses
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from fedsim.errors import RunFolderError
from fedsim.records import Finding
from fedsim.report import summary, write_report
from fedsim.report.leakage import COLUMNS, inside

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
SCENARIO = """seed = 7
[task]
name = "images"
[training]
algorithm = "fedsgd"
rounds = 5
clients = 20
[threat]
grants = "gradients"
victims = 2
[[defenses]]
name = "gaussian-noise"
sigma = 0.01
"""


def row(round=1, client=1, label="llg", metric="asr", value=1.0, baseline=0.3, **more):
    status = more.get("status", "ok")
    return {
        "scenario": "demo", "point": "", "seed": 7, "round": round, "client": client,
        "victim": f"r{round:04d}-c{client:0>4}", "adversary": label, "metric": metric,
        "value": value if status == "ok" else "", "baseline": baseline, "baseline_prior": "",
        "status": status, "error": "", "attempt": 1, "seconds": 0.5, "iterations": 10,
        "granted": "GRADIENT", "label": label, "batch_size": 1, "local_steps": 1,
        "inclusion": 0.4, "artifact": "", **more,
    }  # fmt: skip


def write_csv(path, rows, columns):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def run(tmp_path):
    """Writes a run folder of the given findings."""

    def make(*rows, points=("",), scenario=SCENARIO, name="demo"):
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        (folder / "scenario.toml").write_text(scenario, encoding="utf-8")
        write_csv(folder / "findings.csv", rows, COLUMNS)
        utility = [
            {"round": n, "metric": metric, "value": value, "point": point}
            for point in points
            for n in range(1, 6)
            for metric, value in (("accuracy", 0.15 * n + 0.1), ("loss", 2.3 / n))
        ]
        write_csv(folder / "utility.csv", utility, ["round", "metric", "value", "point"])
        provenance = {"schema": 1, "fedsim": "0.1.0", "scenario": name, "versions": {"torch": "2"}}
        (folder / "provenance.json").write_text(json.dumps(provenance), encoding="utf-8")
        return folder

    return make


def picture(folder, relative, colour=128):
    path = folder / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (16, 16), colour).save(path)
    return relative


def page_of(folder):
    return write_report(folder).read_text(encoding="utf-8")


class Page(HTMLParser):
    """What a browser would see as elements, attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.words = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.elements and self.elements[-1][0] not in ("script", "style"):
            self.words.append(data)


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
    assert "denied on all updates (1)" in denied["sentence"]


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
    ("value", "verdict"), [(0.001, "beats"), (0.1, "at"), (0.4, "worse")]
)  # fmt: skip
def test_lower_is_better_for_errors(run, value, verdict):
    rows = [row(client=n, metric="mse", value=value + n * 1e-5 - 5e-5, baseline=0.1)
            for n in range(11)]  # fmt: skip
    (found,) = summary(run(*rows))
    assert found["lower_is_better"]
    assert found["best"] < found["worst"]
    assert found["verdict"].split()[0] == verdict


def test_unknown_metrics_and_infinite_values_are_shown(run):
    folder = run(row(metric="glimpse", value=3.0), row(metric="psnr", value="inf", baseline=9))
    assert {each["metric"] for each in summary(folder)} == {"glimpse", "psnr"}
    page = page_of(folder)
    assert "glimpse" in page
    assert "∞" in page
    assert "Infinity" not in page.split('id="figures">')[1].split("</script>")[0]


def test_sweep_points_are_kept_apart(run):
    points = ("sigma=0.0", "sigma=0.1")
    folder = run(row(point=points[0], value=1.0), row(point=points[1], value=0.3), points=points)
    assert [(each["point"], each["mean"]) for each in summary(folder)] == [
        ("sigma=0.0", 1.0),
        ("sigma=0.1", 0.3),
    ]
    page = page_of(folder)
    assert page.count("data-figure=") == 2
    assert '<select id="point">' in page
    assert "sigma=0.1" in write_report(folder, "markdown").read_text(encoding="utf-8")


def test_hostile_text_stays_text(run):
    long = "x" * 300_000
    folder = run(
        row(label=HOSTILE, scenario=HOSTILE, point=HOSTILE, client=HOSTILE, metric=HOSTILE),
        row(label="=cmd()|' /C calc'!A0", status="failed", error=HOSTILE + long),
        row(label="<a href='javascript:window.hacked=1'>x</a>", metric=HOSTILE, client="\0\n|"),
        scenario=f"# {HOSTILE}\n{SCENARIO}",
        name=HOSTILE,
    )
    page = page_of(folder)
    elements = Page(page).elements
    assert [tag for tag, _ in elements].count("script") == 3
    assert not [attrs for _, attrs in elements if any(name.startswith("on") for name in attrs)]
    assert not [attrs for _, attrs in elements if attrs.get("href", "data:").startswith("java")]
    assert "window.hacked=1</script>" not in page.replace("&lt;", "<").split("<body>")[0]
    assert long not in page
    (message,) = {attrs["title"] for _, attrs in elements if "title" in attrs}
    assert 240 < len(message) <= 2000
    markdown = write_report(folder, "markdown").read_text(encoding="utf-8")
    outside_code = re.sub(r"(?s)```.*?```", "", markdown)
    assert "<" not in outside_code
    assert len(markdown) < 50_000


def test_markdown_code_blocks_cannot_be_closed_from_inside(run):
    folder = run(row(), scenario="# ````\n# <b>\n" + SCENARIO)
    assert "\n`````\n# ````" in write_report(folder, "markdown").read_text(encoding="utf-8")


def test_the_page_asks_nothing_of_a_network(run):
    folder = run(row(artifact="artifacts/r0001-c0001/llg/reconstruction.png"))
    picture(folder, "artifacts/r0001-c0001/llg/reconstruction.png")
    page = page_of(folder)
    for tag, attrs in Page(page).elements:
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            assert attrs.get(name, "data:").startswith("data:"), (tag, attrs)
    assert "default-src 'none'" in page
    assert not re.search(r"url\(|@import", (page.split("<style>")[1]).split("</style>")[0])


def test_originals_stand_beside_reconstructions(run):
    own, shared = "artifacts/r0001-c0001/dlg", "artifacts/r0002-c0001"
    folder = run(
        row(1, 1, "dlg", "mse", 0.001, 0.1, artifact=f"{own}/reconstruction.png"),
        row(2, 1, "dlg", "mse", 0.002, 0.1, artifact=f"{shared}/dlg"),
    )
    picture(folder, f"{own}/original.png", 10)
    picture(folder, f"{own}/reconstruction.png", 11)
    picture(folder, f"{shared}/original-0.png", 12)
    picture(folder, f"{shared}/dlg/reconstruction-0.png", 13)
    page = page_of(folder)
    images = [attrs for tag, attrs in Page(page).elements if tag == "img"]
    assert len({image["src"] for image in images}) == 4
    assert all(image["alt"] for image in images)
    assert "Client 1, round 1" in page
    assert "Mean squared error 0.001" in page
    markdown = write_report(folder, "markdown").read_text(encoding="utf-8")
    assert f"({own}/reconstruction.png)" in markdown


def test_the_right_words_of_a_text_are_marked_and_nothing_in_it_is_markup(run):
    place = "artifacts/r0001-c0001/lamp"
    folder = run(row(label="lamp", metric="rouge1", artifact=f"{place}/reconstruction.txt"))
    (folder / place).mkdir(parents=True)
    (folder / place / "original.txt").write_text("my pin is 2290\n")
    (folder / place / "reconstruction.txt").write_text("<b>pin is</b> my card\n")
    page = page_of(folder)
    assert '&lt;b&gt;<mark class="run">pin</mark> <mark class="run">is</mark>&lt;/b&gt;' in page
    assert '<mark class="word">my</mark> card' in page
    assert "marked: words of the original" in page
    assert "<b>pin" not in page


def test_an_image_alone_is_a_sheet_of_originals_and_reconstructions(run):
    folder = run(row(label="dlg", metric="mse", artifact="artifacts/x/dlg/reconstruction.png"))
    picture(folder, "artifacts/x/dlg/reconstruction.png")
    page = page_of(folder)
    assert "Original above, reconstruction below" in page
    assert '<div class="missing">' not in page


def test_a_long_gallery_shows_a_fair_choice(run):
    rows = [row(1, n, "dlg", "mse", n / 100, 0.5, artifact=f"artifacts/{n}/reconstruction.png")
            for n in range(40)]  # fmt: skip
    folder = run(*rows)
    for each in rows:
        picture(folder, each["artifact"])
    page = page_of(folder)
    assert "12 of 40, evenly spread from the best to the worst" in page
    assert "Client 0, round 1" in page
    assert "Client 39, round 1" in page


@pytest.mark.parametrize(
    "path",
    ["../secret.png", "artifacts/../../secret.png", "{outside}/secret.png", "link.png",
     "linked/secret.png", "C:\\secret.png", "..\\secret.png", "page.html", "image.svg", "huge.png",
     "gone.png", "a\0b.png", "file:///etc/passwd", "x" * 5000 + ".png", "."],
)  # fmt: skip
def test_artifacts_outside_the_run_folder_are_not_embedded(run, tmp_path, path):
    folder = run()
    picture(tmp_path, "secret.png")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "linked").symlink_to(tmp_path)
    for name in ("page.html", "image.svg"):
        (folder / name).write_text("<script>window.hacked=1</script>")
    (folder / "huge.png").write_bytes(b"\x89PNG" + bytes(2_000_001))
    run(row(artifact=path.format(outside=tmp_path)))
    page = page_of(folder)
    assert "data:image" not in page.split("<body>")[1].split('id="figures"')[0]
    assert "window.hacked" not in page


def test_the_files_of_a_run_are_not_followed_out_of_it(run, tmp_path):
    folder = run(row())
    (tmp_path / "secret").write_text("hush = 1")
    (folder / "scenario.toml").unlink()
    (folder / "scenario.toml").symlink_to(tmp_path / "secret")
    assert inside(folder, "scenario.toml") is None
    assert "hush" not in page_of(folder)
    target = tmp_path / "precious"
    target.write_text("precious")
    (folder / "report.html").unlink()
    (folder / "report.html").symlink_to(target)
    write_report(folder)
    assert target.read_text() == "precious"


@pytest.mark.parametrize("tail", ["demo,,7,3,4", 'demo,,7,3,4,v,llg,asr,,,,failed,"a\nb\nc', "x,"])
def test_a_torn_last_line_is_left_out_and_said(run, tail):
    folder = run(row(), row(client=2, value=0.5, error='two\nlines, "quoted"'))
    with (folder / "findings.csv").open("a") as file:
        file.write(tail)
    (found,) = summary(folder)
    assert (found["attacks"], found["mean"]) == (2, 0.75)
    assert "The last line of findings.csv is incomplete" in page_of(folder)


def test_a_run_without_adversaries_reports_utility(run):
    folder = run()
    assert summary(folder) == []
    assert "No adversary took part" in page_of(folder)
    (folder / "findings.csv").unlink()
    assert "accuracy went from 25\u00a0% to 85\u00a0%" in page_of(folder)


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


@pytest.fixture
def browser(tmp_path):
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium and chromedriver are not installed")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,1000",
                 "--disable-dev-shm-usage", profile):  # fmt: skip
        options.add_argument(flag)
    service = webdriver.ChromeService(executable_path=driver)
    opened = webdriver.Chrome(options=options, service=service)
    yield opened
    opened.quit()


def test_the_page_works_in_a_browser_without_a_network(run, browser):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.select import Select
    from selenium.webdriver.support.wait import WebDriverWait

    points = ("sigma=0.0", HOSTILE)
    rows = [row(n, n, HOSTILE, "asr", 0.8, point=point) for n in range(1, 6) for point in points]
    rows += [row(n, n, "dlg", "mse", 10.0**-n, 0.1, point=points[0]) for n in range(1, 4)]
    folder = run(*rows, points=points, name=HOSTILE, scenario=f"# {HOSTILE}\n{SCENARIO}")
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd(
        "Network.emulateNetworkConditions",
        {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0},
    )
    path = write_report(folder)
    browser.get("about:blank")
    browser.get_log("performance")
    browser.get(path.as_uri())
    WebDriverWait(browser, 30).until(
        lambda page: page.find_elements(By.CSS_SELECTOR, ".chart svg .trace path.js-line")
    )
    Select(browser.find_element(By.ID, "point")).select_by_value("1")
    WebDriverWait(browser, 30).until(
        lambda page: page.find_elements(By.CSS_SELECTOR, "[data-point='1'] .chart svg .trace")
    )
    assert not browser.find_element(By.CSS_SELECTOR, "[data-point='0']").is_displayed()
    legend = browser.find_element(By.CSS_SELECTOR, "[data-point='1'] .legend").text
    assert "</script><script>" in legend
    assert browser.execute_script("return typeof window.hacked") == "undefined"
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(wide) <= 0
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {
        event["params"]["request"]["url"].split(":")[0]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert asked <= {"file", "data", "blob"}


def test_scripts_of_others_do_not_run_even_unescaped(run, browser):
    path = write_report(run(row()))
    page = path.read_text(encoding="utf-8").replace("<footer>", HOSTILE + "<footer>")
    path.write_text(page, encoding="utf-8")
    browser.get(Path(path).as_uri())
    assert browser.execute_script("return typeof Plotly") == "object"
    assert browser.execute_script("return typeof window.hacked") == "undefined"
