"""The tables of the docs name every key, preset, model and field, with its default."""

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest
import tomli_w
from support.doc_tables import rows

from fedsim.knowledge import PRESETS, Knowledge
from fedsim.metrics import METRICS
from fedsim.plugin import find, names
from fedsim.records import Finding, Reconstruction
from fedsim.scenario import Scenario, settings
from fedsim.task import RUN_FIELDS, Task
from fedsim.tasks.images import Images
from fedsim.tasks.models import MODELS
from fedsim.tasks.partition import PARTITIONS
from fedsim.tasks.speech import Speech
from fedsim.tasks.speech.features import Features
from fedsim.tasks.speech.recognisers import RECOGNISERS
from fedsim.tasks.tabular import Tabular
from fedsim.tasks.text import Text
from fedsim.tasks.text.languages import Language

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "write-an-adversary.md"


# --- tables ---------------------------------------------------------------------------------


SECTIONS = {
    "": Scenario,
    "training.": settings.Training,
    "threat.": settings.Threat,
    "threat.probes.N.": settings.Probes,
    "engine.": settings.Engine,
    "sinks.": settings.Sinks,
    "sinks.tensorboard.": settings.TensorBoardSink,
    "sinks.mlflow.": settings.MLflowSink,
    "adversaries.N.": settings.AttackPlan,
    "task.": Images,
}


SPEECH = (
    ("task.", Speech),
    ("task.features.", Features),
    *(("task.model.", recogniser) for recogniser in RECOGNISERS.values()),
)
TEXT = {"task.": Text, "task.model.": Language}
TABLES = {"task.": Tabular}
PLACES = [
    *(("scenarios.md", prefix, model) for prefix, model in SECTIONS.items()),
    *(("speech.md", prefix, model) for prefix, model in SPEECH),
    *(("text.md", prefix, model) for prefix, model in TEXT.items()),
    *(("tables.md", prefix, model) for prefix, model in TABLES.items()),
]


@pytest.mark.parametrize(("page", "prefix", "model"), PLACES)
def test_every_key_of_a_scenario_is_documented_with_its_default(page, prefix, model):
    documented = rows(DOCS / page)
    hidden = RUN_FIELDS if issubclass(model, Task) else set()
    for key, field in model.model_fields.items():
        if key in hidden:
            continue
        assert prefix + key in documented, f"docs/{page} lacks a row for {prefix}{key}"
        said = documented[prefix + key]
        default = field.get_default()
        if field.is_required() or default is None or not said.startswith("`"):
            continue  # told in words
        if hasattr(default, "model_dump"):
            default = default.model_dump(exclude_none=True)
        if not said.startswith("`threat."):
            told = tomllib.loads(f"value = {said.strip('`')}")["value"]
            assert told == tomllib.loads(tomli_w.dumps({"value": default}))["value"], key


def test_no_key_is_documented_that_does_not_exist():
    pages = (
        ("scenarios.md", SECTIONS.items()),
        ("speech.md", SPEECH),
        ("text.md", TEXT.items()),
        ("tables.md", TABLES.items()),
    )
    for page, sections in pages:
        known = {prefix + key for prefix, model in sections for key in model.model_fields}
        prefixes = tuple(prefix for prefix, _ in sections if prefix)
        assert {key for key in rows(DOCS / page) if key.startswith(prefixes)} <= known


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("scenarios.md", [field.name for field in dataclasses.fields(Finding)]),
        ("scenarios.md", ["ok", "denied", "failed", "timeout"]),
        ("scenarios.md", list(METRICS)),
        ("threat-models.md", list(Knowledge.__members__)),
        ("threat-models.md", list(PRESETS)),
        ("threat-models.md", [n for n in names("adversaries") if find("adversaries", n).cites]),
    ],
    ids=["columns", "statuses", "metrics", "knowledge", "presets", "adversaries"],
)
def test_tables_are_complete(page, expected):
    assert set(expected) <= rows(DOCS / page).keys()


def test_presets_are_told_as_they_are():
    told = rows(DOCS / "threat-models.md")
    for name, granted in PRESETS.items():
        if granted != ~Knowledge(0):
            assert re.findall(r"`(\w+)`", told[name]) == granted.names()


def test_needs_are_told_as_they_are():
    told = rows(DOCS / "threat-models.md")
    for name in names("adversaries"):
        cls = find("adversaries", name)
        if name in told:
            assert re.findall(r"`(\w+)`", told[name]) == cls.by_default().names()  # type: ignore[attr-defined]
            for setting, chosen in cls.asking_more().items():
                more = (chosen.requires() & ~cls.by_default()).names()
                assert re.findall(r"`(\w+)`", told[setting]) == more, setting


def test_models_and_partitions_are_all_named():
    text = (DOCS / "scenarios.md").read_text()
    missing = [name for name in [*MODELS, *PARTITIONS] if f"`{name}`" not in text]
    assert missing == []


@pytest.mark.parametrize(
    ("name", "model"), [*PARTITIONS.items(), *MODELS.items()], ids=[*PARTITIONS, *MODELS]
)
def test_settings_of_models_and_partitions_are_told_with_their_defaults(name, model):
    lines = (DOCS / "scenarios.md").read_text().splitlines()
    (row,) = (line for line in lines if re.match(rf"\| (`[\w-]+`, )*`{name}`", line))
    for key, field in model.model_fields.items():
        if key in ("kind", "name", "head"):
            continue
        default = field.get_default(call_default_factory=True)
        assert f"`{key}" in row, key
        if not field.is_required() and default is not None:
            said = re.search(rf"`{key} = (.+?)`", row)
            assert said, f"{name}: {key} has a default, {default!r}"
            told = tomllib.loads(f"value = {said[1]}")["value"]
            assert told == tomllib.loads(tomli_w.dumps({"value": default}))["value"], key


def test_what_a_field_of_a_reconstruction_is_scored_by_is_told_as_it_is():
    told = rows(TUTORIAL)
    for field in dataclasses.fields(Reconstruction):
        read_by = [name for name, metric in METRICS.items() if field.name in metric.fields]
        assert sorted(re.findall(r"`(\w+)`", told[field.name])) == sorted(read_by), field.name


def test_the_table_of_the_architecture_names_files_that_exist():
    table = (DOCS / "architecture.md").read_text().partition("## I want to change X")[2]
    paths = re.findall(r"`((?:fedsim|adversaries|defenses|scenarios)/[\w/.]*)`", table)
    assert len(table.strip().splitlines()) >= 20
    assert len(paths) >= 25
    assert [path for path in paths if not (ROOT / path).exists()] == []
