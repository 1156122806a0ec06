"""The page of a run: pictures, texts, points of a sweep, all in one file."""

import functools
import io
import json
import re

import pytest
from PIL import Image
from support.run_folders import HOSTILE, SCENARIO, Page, page_of, picture, row, written

from fedsim.report import summary, write_report
from fedsim.report.exhibits import shown_size


@pytest.fixture
def run(tmp_path):
    """Writes a run folder of the given findings."""
    return functools.partial(written, tmp_path)


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
    # All together, utility against leakage, and each on its own.
    assert page.count("data-figure=") == 4
    assert '<select id="point">' in page
    assert "sigma=0.1" in write_report(folder, "markdown").read_text(encoding="utf-8")


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


@pytest.mark.parametrize("alone", [False, True])
def test_no_character_of_a_recovered_text_is_hidden(run, alone):
    place = "artifacts/r0001-c0001/lamp"
    folder = run(row(label="lamp", metric="rouge1", artifact=f"{place}/reconstruction.txt"))
    (folder / place).mkdir(parents=True)
    if not alone:
        (folder / place / "original.txt").write_text("pin\u200d2290 na\xefve\r\n", newline="")
    hidden = "pin\u200d\u202e0922\u202c\x1b[2J\x00\u2028\ufeff\tna\xefve\n"
    (folder / place / "reconstruction.txt").write_text(hidden)
    page = page_of(folder) + write_report(folder, "markdown").read_text(encoding="utf-8")
    assert not {*page} & {*hidden} - {*"pin0922[J\tna\xefve\n"}
    assert r"\u200d\u202e0922\u202c\x1b[2J\x00\u2028\ufeff" in re.sub("<[^>]*>", "", page)
    if not alone:
        assert '<mark class="word">pin</mark>' in page  # with the original's own text
        assert "pin\\u200d2290 na\xefve\n" in page


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
    first = page.split("<figcaption>")[1:4]
    for rank, client, caption in zip(("Best", "Median", "Worst"), (0, 21, 39), first, strict=True):
        assert caption.startswith(f"<b>{rank}: Client {client}, round 1")
    assert page.index('class="gallery"') < page.index("data-figure="), "pictures come first"


@pytest.mark.parametrize(
    ("size", "shown"), [((16, 33), (101, 208)), ((640, 80), (640, 80)), ((8, 8), (208, 208))]
)
def test_a_sheet_is_as_high_as_its_picture(size, shown):
    file = io.BytesIO()
    Image.new("L", size).save(file, "png")
    assert shown_size(file.getvalue()) == shown
    assert shown_size(b"GIF89a" + bytes(40)) is None


def test_every_attack_is_in_the_page_as_columns(run):
    folder = run(
        row(client=3, value=0.25),
        row(client=3, metric="label_f1", value="inf"),
        row(2, 5, "dlg", "mse", status="failed", error="odd  <b>"),
    )
    (data,) = re.findall(r'id="attack-data">(.*?)</script>', page_of(folder))
    found = json.loads(data)
    assert found["count"] == 2
    assert found["facets"]["client"] == {"values": ["3", "5"], "of": [0, 1]}
    assert found["facets"]["status"] == {"values": ["ok", "failed"], "of": [0, 1]}
    scores = {one["title"]: one["values"] for one in found["scores"]}
    assert scores == {"Labels recovered": [0.25, None], "Label F1": ["∞", None]}
    assert (found["messages"], found["why"]) == (["odd <b>"], [-1, 0])


def test_a_chart_can_show_other_metrics(run):
    folder = run(*(row(n, 1, "dlg", metric, 0.5) for n in (1, 2) for metric in ("mse", "ssim")))
    page = page_of(folder)
    choice = page.split("<select data-chart>")[1].split("</select>")[0]
    assert re.findall(r'value="(\d+)">([^<]*)', choice) == [
        ("0", "main metric of each adversary"),
        ("1", "SSIM"),
    ]
    figures = json.loads(page.split('id="figures">')[1].split("</script>")[0])
    assert "dlg: SSIM" in [trace["name"] for trace in figures[1]["data"]]


def test_the_page_works_in_a_browser_without_a_network(run, browser):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.select import Select
    from selenium.webdriver.support.wait import WebDriverWait

    points = ("sigma=0.0", HOSTILE)
    rows = [row(n, n, HOSTILE, "asr", 0.8, point=point) for n in range(1, 6) for point in points]
    rows += [row(n, n, "dlg", "mse", 10.0**-n, 0.1, point=points[0]) for n in range(1, 4)]
    rows += [row(6, n, "dlg", "ssim", 0.5, 0.1, point=points[0]) for n in range(300)]
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
    table = browser.find_element(By.ID, "attacks")
    count = table.find_element(By.CSS_SELECTOR, "[role=status]")
    assert count.text.startswith("313 attacks")
    assert len(table.find_elements(By.CSS_SELECTOR, "tbody tr")) < 60, "the rows in view"
    chosen = {one.find_element(By.XPATH, "..").text.split("\n")[0]: Select(one)
              for one in browser.find_elements(By.CSS_SELECTOR, "#filters select")}  # fmt: skip
    assert [*chosen] == ["Point", "Round", "Client", "Adversary", "Outcome"]
    chosen["Adversary"].select_by_visible_text("dlg")
    chosen["Round"].select_by_visible_text("6")
    assert count.text.startswith("300 of 313 attacks")
    box = table.find_element(By.CSS_SELECTOR, ".rows")

    def at_the_end(_page):
        box.send_keys(Keys.END)  # once more, where the browser was still busy with the filter
        return "299 dlg ok SSIM 0.5" in box.text

    WebDriverWait(browser, 30).until(at_the_end)
    chosen["Adversary"].select_by_visible_text(HOSTILE)
    assert count.text.startswith("0 of 313 attacks")
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


def test_filters_choose_pictures_and_sections_too(run, browser):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.select import Select

    victims = [("dlg", 1), ("dlg", 2), ("rlg", 1)]
    rows = [row(n, n, label, "mse", 0.01, 0.1, artifact=f"artifacts/{n}/{label}.png")
            for label, n in victims]  # fmt: skip
    folder = run(*rows)
    for label, n in victims:
        picture(folder, f"artifacts/{n}/{label}.png")
    browser.get(write_report(folder).as_uri())

    def shown() -> list[str]:
        figures = browser.find_elements(By.CSS_SELECTOR, "figure")
        return [one.find_element(By.TAG_NAME, "b").text for one in figures if one.is_displayed()]

    def sections() -> list[str]:
        heads = browser.find_elements(By.CSS_SELECTOR, "section[data-label] > h2")
        return [one.text for one in heads if one.is_displayed()]

    assert len(shown()) == 3
    chosen = {one.find_element(By.XPATH, "..").text.split("\n")[0]: Select(one)
              for one in browser.find_elements(By.CSS_SELECTOR, "#filters select")}  # fmt: skip
    chosen["Round"].select_by_visible_text("2")
    assert shown() == ["Client 2, round 2"]
    assert "rlg: original and reconstruction" not in sections(), "no picture of it is left"
    chosen["Round"].select_by_visible_text("all")
    chosen["Adversary"].select_by_visible_text("rlg")
    assert shown() == ["Client 1, round 1"]
    assert not [one for one in sections() if one.startswith("dlg")]
    chosen["Adversary"].select_by_visible_text("all")
    assert len(shown()) == 3


def test_the_heading_says_whether_images_were_computed_or_looked_up(run):
    folder = run(
        row(1, 1, "dlg", "mse", 0.01, 0.1, artifact="artifacts/dlg.png"),
        row(1, 1, "finder", "mse", 0.01, 0.1, artifact="artifacts/reconstruction-nearest.png"),
    )
    for file in ("dlg.png", "reconstruction-nearest.png"):
        picture(folder, f"artifacts/{file}")
    page = write_report(folder).read_text(encoding="utf-8")
    assert "<h2>dlg: original and reconstruction</h2>" in page
    assert "<h2>finder: original and nearest public example</h2>" in page
