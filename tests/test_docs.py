"""What the documentation says is so: its code runs, its commands parse, its tables are complete."""

import csv
import os
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.command_lines import accepted, commands, loaded
from support.commands import python
from support.doc_tables import rows
from support.plugins_fixture import install, with_plugins

from fedsim.defense import Defense
from fedsim.plugin import Plugin, find, names
from fedsim.scenario import Scenario

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "write-an-adversary.md"
DEFENSE = DOCS / "write-a-defense.md"
FLOWER = DOCS / "in-your-flower-project.md"
METRIC = DOCS / "write-a-metric.md"
TASK = DOCS / "write-a-task.md"
OWN = DOCS / "your-model-and-data.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")]
PAGES += [ROOT / "SECURITY.md", ROOT / "docker" / "README.md"]
OTHERS = [page for page in PAGES if page not in (TUTORIAL, DEFENSE, FLOWER, METRIC, TASK, OWN)]
KNOWN_HOSTS = {"flower.ai", "doi.org", "www.ray.io", "docs.ray.io", "keepachangelog.com"}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the file that its first line names, if any."""

    language: str
    text: str

    @property
    def file(self) -> str:
        found = re.match(r"# (\S+\.(?:py|toml))\n", self.text)
        return found[1] if found else ""


def blocks(page: Path, *languages: str) -> list[Block]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [Block(language, text) for language, text in found if language in languages]


def written(page: Path, folder: Path) -> None:
    for block in blocks(page, "python", "toml"):
        if block.file:
            (folder / block.file).write_text(block.text)


def run(line: str, folder: Path, site: Path) -> str:
    """One documented command, with this interpreter; pip installs into `site` instead."""
    program, *rest = shlex.split(line)
    if line == "pip install -e .":
        install(folder, site)
        return ""
    module = {"fedsim": ["-m", "fedsim.cli"], "python": []}[program]
    env = with_plugins(site, OMP_NUM_THREADS="1", COLUMNS="110")
    if rest[0] == "run":  # more workers take longer to start than these runs take
        rest += ["--set", "engine.workers=1"]
    done = python(*module, *rest, folder=folder, env=env)
    assert done.returncode == 0, f"$ {line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_page(page: Path, folder: Path) -> dict[str, str]:
    """What the page's commands print, in a folder with its files."""
    site = folder.with_name("site")
    folder.mkdir()
    written(page, folder)
    lines = [line for b in blocks(page, "sh") for line in b.text.splitlines()]
    return {line: run(line, folder, site) for line in lines}


def findings(folder: Path) -> list[dict[str, str]]:
    with (folder / "findings.csv").open(newline="") as file:
        return list(csv.DictReader(file))


# --- code -----------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_the_tutorial_does_what_it_says(tmp_path):
    assert [block for block in blocks(TUTORIAL, "python", "toml") if not block.file] == []
    folder = tmp_path / "project"
    said = run_page(TUTORIAL, folder)

    assert "conforms" in said["fedsim check bias_counts:BiasCounts"]
    assert "bias-counts" in said["fedsim list adversaries"]
    exact = {
        label: [
            float(row["value"])
            for row in findings(folder / "runs/compare")
            if (row["label"], row["metric"]) == (label, "label_exact")
        ]
        for label in ("llg", "bias-counts", "blind")
    }
    assert {label: len(values) for label, values in exact.items()} == dict.fromkeys(exact, 15)
    assert sum(exact["bias-counts"]) == 15, "the page says that it beats LLG"
    assert sum(exact["llg"]) < 5


@pytest.mark.timeout(600)
def test_the_defense_does_what_it_says(tmp_path):
    folder = tmp_path / "project"
    said = run_page(DEFENSE, folder)
    assert "conforms" in said["fedsim check threshold:Threshold"]
    recovered = {
        (row["point"].partition("=")[2], row["label"]): float(row["value"])
        for row in findings(folder / "runs/threshold")
        if row["metric"] == {"llg": "asr", "dlg": "recovered"}[row["label"]]
    }
    dlg = {"0.0": 1.0, "0.1": 0.0}
    assert {tau: value for (tau, label), value in recovered.items() if label == "dlg"} == dlg
    assert {value for (_, label), value in recovered.items() if label == "llg"} == {1.0}


def followed(page: Path, folder: Path) -> dict[str, str]:
    """What the page's commands print, each block of the page taken in its turn."""
    here, site, said = folder, folder.with_name("site"), {}
    here.mkdir()
    for block in blocks(page, "python", "toml", "sh"):
        if block.language != "sh":
            (here / block.file).write_text(block.text)
            continue
        for line in block.text.splitlines():
            if line.startswith("cd "):
                here = here / line.removeprefix("cd ")
            else:
                said[line] = run(line, here, site)
    return said


@pytest.mark.timeout(600)
def test_the_metric_does_what_it_says(tmp_path):
    said = followed(METRIC, tmp_path / "project")
    assert "conforms" in said["fedsim check worst_pixel:WorstPixel"]
    assert "worst-pixel" in said["fedsim list worst pixel"]
    assert "better for the attacker: lower" in said["fedsim show worst-pixel"]
    rows = findings(tmp_path / "project/worst_pixel/runs/audit")
    mine = [row for row in rows if row["metric"] == "worst-pixel"]
    assert len(mine) == 2
    assert all(float(row["value"]) < 0.01 < float(row["baseline"]) for row in mine)


@pytest.mark.timeout(600)
def test_the_task_does_what_it_says(tmp_path):
    said = followed(TASK, tmp_path / "project")
    assert "conforms" in said["fedsim check wine:Wine"]
    assert "first-linear: needs" in said["fedsim check audit.toml"]
    rows = findings(tmp_path / "project/wine/runs/audit")
    assert {row["status"] for row in rows} == {"ok"}
    for label, metric in (("llg", "asr"), ("first-linear", "row_exact")):
        values = [float(r["value"]) for r in rows if (r["label"], r["metric"]) == (label, metric)]
        assert values == [1.0] * 4, label


@pytest.mark.timeout(600)
def test_ones_own_model_and_data_are_used_as_the_page_says(tmp_path):
    said = followed(OWN, tmp_path / "project")
    assert "llg: needs" in said["fedsim check shapes.toml --set task.data=./pictures"]
    listed = said["fedsim list data --data ."].splitlines()
    assert any(re.search(r"pictures\s+images\s+in \.", line) for line in listed)
    rows = findings(tmp_path / "project/runs/shapes")
    scores = [
        (float(row["value"]), float(row["baseline"])) for row in rows if row["metric"] == "asr"
    ]
    assert len(scores) == 8
    assert all(value == 1 > 0.5 > chance for value, chance in scores)


@pytest.mark.timeout(600)
def test_the_flower_script_finds_what_was_trained_on(tmp_path):
    written(FLOWER, tmp_path)
    for block in blocks(FLOWER, "sh"):
        for line in block.text.splitlines():
            run(line, tmp_path, tmp_path / "site")
    scores = {
        (row["label"], row["metric"]): float(row["value"])
        for row in findings(tmp_path / "runs/audit")
    }
    assert scores["llg", "asr"] == 1
    assert scores["dlg", "recovered"] == 1
    assert (tmp_path / "runs/audit/report.html").is_file()
    watched = findings(tmp_path / "runs/watched")
    assert {(row["status"], row["truth"], row["checked"]) for row in watched} == {
        ("ok", "revealed", "fits")
    }
    for row in watched:
        assert row["value"] == "1.0" or row["metric"] not in ("asr", "recovered")


@pytest.mark.parametrize("page", [*OTHERS, DEFENSE, FLOWER], ids=lambda page: page.name)
def test_python_in_the_other_pages_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {"__name__": "documented"}
    for block in blocks(page, "python"):
        if not block.file:
            exec(compile(block.text, page.name, "exec"), space)  # noqa: S102 - our own page


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.name)
def test_scenarios_and_commands_in_the_other_pages_load(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(page, tmp_path)
    for block in blocks(page, "toml"):
        Scenario.parse(tomllib.loads(block.text)).points()
    for block in blocks(page, "sh"):
        for line in block.text.splitlines():
            words = shlex.split(line)
            assert words[0] == "fedsim", f"{line}: use a text block for what is not run here"
            loaded(words)


@pytest.mark.parametrize(("name", "least"), [("cluster.md", 13), ("deployment.md", 3)])
def test_commands_for_several_machines_are_accepted(name, least):
    found = [words for block in blocks(DOCS / name, "text") for words in commands(block.text)]
    assert len(found) >= least
    for words in found:
        accepted(words)
        if "--resume" not in words:
            loaded(words)


# --- links and addresses --------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if "://" in target:
            assert target.split("/")[2] in KNOWN_HOSTS, target
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(there), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_tells_of_a_machine(page):
    text = page.read_text()
    assert re.findall(r"(?<![\w.])/(?:work|tmp|root|home|mnt|Users)/", text) == []
    assert os.path.expanduser("~") + "/" not in text


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_every_page_is_in_the_index(page):
    """Of a folder with a README, that is in the index, and the others are in it."""
    folder = page.parent / "README.md"
    index = DOCS / "index.md" if page == folder or not folder.exists() else folder
    assert page.name == "index.md" or f"({page.relative_to(index.parent)})" in index.read_text()


def told_as_they_are(page: Path, cls: type[Plugin], expected: set[str]) -> None:
    """Every setting has a row on the page, with the default that the class gives it."""
    told = rows(page)
    assert expected <= set(told), f"{page.name} lacks {expected - set(told)}"
    for setting in expected:
        default = cls.model_fields[setting].default
        text = told[setting].strip("`")
        value = None if text == "none" else tomllib.loads(f"value = {text}")["value"]
        assert value == (list(default) if isinstance(default, tuple) else default), setting


@pytest.mark.parametrize("name", names("defenses"))
def test_every_defense_has_a_page_with_all_its_settings(name):
    cls = find("defenses", name)
    expected = set(cls.model_fields)
    if cls.protect is Defense.protect:
        expected -= {"layers"}
    told_as_they_are(DOCS / "defenses" / f"{name}.md", cls, expected)


ATTACKS = DOCS / "adversaries"
TOGETHER = dict.fromkeys(("bias-signs", "idlg", "min-column", "random"), "label-baselines")
"""Adversaries that share a page."""


@pytest.mark.parametrize(
    "name",
    [*TOGETHER, *(n for n in names("adversaries") if (ATTACKS / f"{n}.md").exists())],
)
def test_pages_of_adversaries_have_all_their_settings(name):
    page = ATTACKS / f"{TOGETHER.get(name, name)}.md"
    cls = find("adversaries", name)
    told_as_they_are(page, cls, set(cls.model_fields))
    assert f"({page.name}" in (ATTACKS / "README.md").read_text()


def test_no_page_has_a_placeholder_left():
    assert [page.name for page in PAGES if "@@" in page.read_text()] == []
