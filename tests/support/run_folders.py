"""Run folders of given findings, pictures in them, and what a browser sees of their report."""

import csv
import json
from html.parser import HTMLParser

from PIL import Image

from fedsim.report import write_report
from fedsim.runs.reading import COLUMNS

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
    """A line of findings.csv."""
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
    """A table with a header, one row a line."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def written(tmp_path, *rows, points=("",), scenario=SCENARIO, name="demo"):
    """A run folder of the given findings, under `tmp_path`."""
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


def picture(folder, relative, colour=128):
    """A grey picture in a run folder; its path there."""
    path = folder / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (16, 16), colour).save(path)
    return relative


def page_of(folder):
    """The HTML of a run folder's report."""
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
