"""Code of the user's own, "module:name": looked up, imported, refused with what was expected."""

import csv
import json
import re
import sys
import tempfile
from pathlib import Path

import pytest
from support.own_code import PLUGINS, beside, fresh
from typer.testing import CliRunner

from fedsim import plugin
from fedsim.cli import app
from fedsim.cli.working import resumed
from fedsim.engine.ray.session import session_folder
from fedsim.engine.simulate import simulate
from fedsim.errors import PluginError, RunFolderError, ScenarioError
from fedsim.isolation.isolated import isolated
from fedsim.plugin import find, title
from fedsim.references import is_reference, look_in, references, resolve
from fedsim.runs.ledger import Ledger
from fedsim.scenario import Scenario
from fedsim.temporary import ISOLATION

SCENARIO = """
metrics = ["{module}:Size"]

[task]
name = "{module}:Few"
test_examples = 50

[training]
algorithm = "fedsgd"
rounds = 1
clients = 2
batch_size = 1

[[defenses]]
name = "{module}:Halved"

[[adversaries]]
name = "{module}:Mine"

[[adversaries]]
name = "{module}:Nameless"

[engine]
name = "{engine}"
workers = {workers}
attack_workers = 1
"""


BARE = """from fedsim import Adversary
class Bare(Adversary):
    name = "bare"
"""


def written(folder, module, engine="inline", workers=1):
    text = SCENARIO.format(module=module, engine=engine, workers=workers)
    return beside(folder, text, **{module: PLUGINS})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mine:Attack", True),
        ("my_package.attacks:Mine", True),
        ("hub:gpt2", False),
        ("package:models/gpt2", False),
        ("llg", False),
        ("a note: on it", False),
        ("os:path.join", False),
        (":Mine", False),
        (3, False),
    ],
)
def test_what_a_reference_is(name, expected):
    assert is_reference(name) is expected
    assert references({"a": [{"name": name}]}) == [name] * expected


def test_the_scenarios_folder_comes_before_the_current_one_and_what_is_installed(
    tmp_path, monkeypatch
):
    both, only_here = fresh(), fresh()
    for folder in ("there", "here"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{both}.py").write_text(f"place = '{folder}'\n")
    (tmp_path / "here" / f"{only_here}.py").write_text("place = 'here'\n")
    (tmp_path / "there" / "json.py").write_text("place = 'there'\n")
    path = beside(tmp_path / "there", f'[[adversaries]]\nname = "{both}:place"')
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(PluginError, match="none of the adversaries"):
        Scenario.load(path)
    assert resolve(f"{both}:place") == "there"
    assert resolve(f"{only_here}:place") == "here"
    with pytest.raises(PluginError, match=r"a module 'json' is imported already"):
        resolve("json:place")
    there = sys.path.index(str(tmp_path / "there"))
    libraries = [place for place, one in enumerate(sys.path) if one.endswith("site-packages")]
    assert libraries
    assert max(libraries) < there, "it would hide libraries"


def test_a_package_without_init_is_not_mistaken_for_another_of_its_name(tmp_path):
    package = fresh()
    for folder in ("one", "other"):
        (tmp_path / folder / package).mkdir(parents=True)
        (tmp_path / folder / package / "mine.py").write_text(f"place = '{folder}'\n")
    look_in([tmp_path / "one"])
    assert resolve(f"{package}.mine:place") == "one"
    look_in([tmp_path / "other"])
    with pytest.raises(PluginError, match=rf"a module '{package}\.mine' is imported already"):
        resolve(f"{package}.mine:place")


@pytest.mark.parametrize("name", ["../../away", "mine: v2", ""])
def test_the_name_that_a_class_declares_names_a_folder(name, tmp_path):
    module = fresh()
    (tmp_path / f"{module}.py").write_text(PLUGINS.replace('"lowest-bias"', repr(name), 1))
    look_in([tmp_path])
    if name:
        with pytest.raises(PluginError, match="expected letters, digits, - and _"):
            title("adversaries", f"{module}:Mine")
    else:
        assert title("adversaries", f"{module}:Mine") == "Mine"


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (None, "Mine", "there is no module '{module}', neither in {folder}"),
        ("import not_there_at_all\n", "Mine", "No module named 'not_there_at_all'"),
        ("1 / 0\n", "Mine", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(2)\n", "Mine", "its module ends the process (SystemExit: 2)"),
        (PLUGINS, "Mien", "module '{module}' has no 'Mien'. Did you mean 'Mine'?"),
        (PLUGINS, "value", "derived from fedsim.adversary.Adversary"),
        (PLUGINS, "Halved", "is none of the adversaries"),
        (BARE, "Bare", "'{module}:Bare' does not define needs, reconstruct, recovers"),
    ],
    ids=[
        "no module",
        "no module within",
        "raises",
        "ends",
        "no such name",
        "no class",
        "a defense",
        "bare",
    ],
)
def test_what_cannot_be_used_is_said(tmp_path, text, name, said):
    module = fresh()
    files = {} if text is None else {module: text}
    path = beside(tmp_path, f'[[adversaries]]\nname = "{module}:{name}"', **files)
    with pytest.raises(PluginError) as raised:
        Scenario.load(path)
    assert said.format(module=module, folder=tmp_path) in str(raised.value)


def test_two_packages_with_one_name_are_told_apart_and_not_chosen_from(tmp_path, monkeypatch):
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedsim.adversaries]\nllg = other:Mine\n")
    caches = (plugin._entry_points, plugin._packages)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        for cache in caches:
            cache.cache_clear()
        with pytest.raises(PluginError, match=r"'llg': other:Mine of other and .* of fedsim-priv"):
            find("adversaries", "llg")
        assert find("adversaries", "rlg").name == "rlg"
    for cache in caches:
        cache.cache_clear()
    assert find("adversaries", "llg").name == "llg"


def test_an_adversary_of_two_packages_or_with_an_odd_name_is_not_isolated(tmp_path, monkeypatch):
    for package, name in (("one", "same"), ("two", "same"), ("three", "../../away")):
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[fedsim.adversaries]\n{name} = {package}:Mine\n")
    caches = (plugin._entry_points, plugin._packages)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        for cache in caches:
            cache.cache_clear()
        with pytest.raises(PluginError, match="several of the adversaries are called 'same'"):
            isolated("same", {})
        with pytest.raises(PluginError, match="three:Mine declares the name"):
            isolated("../../away", {})
    for cache in caches:
        cache.cache_clear()


def test_a_metric_is_named_by_a_reference_only():
    with pytest.raises(ScenarioError, match=r"metrics: expected module:Class; found 'asr'"):
        Scenario.parse({"metrics": ["asr"]})


def test_an_attack_builds_on_one_of_ones_own(tmp_path):
    module = fresh()
    (tmp_path / f"{module}.py").write_text(PLUGINS)
    look_in([tmp_path])
    dlg = find("adversaries", "dlg")(labels_from=f"{module}:Mine")
    assert dlg.parts()["labels_from"].name == "lowest-bias"
    assert title("adversaries", f"{module}:Mine") == "lowest-bias"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("engine", "workers"), [("inline", 1), ("ray", 2), ("flower", 2)])
def test_every_process_finds_the_code(tmp_path, engine, workers, monkeypatch, ray_session):
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    module = fresh()
    path = written(tmp_path / "there", module, engine, workers)
    folder = tmp_path / "run"
    kept = set()

    def observe(event, **fields):
        if event == "findings" and engine == "ray":
            kept.update(Path(session_folder() or tempfile.gettempdir()).glob(f"{ISOLATION}*"))

    simulate(Scenario.load(path), folder, observer=observe)
    assert engine != "ray" or kept  # Ray kills the server, whose folder goes with the session's
    with (folder / "findings.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["status"] for row in rows} == {"ok"}
    assert {(row["adversary"], row["label"]) for row in rows} == {
        ("lowest-bias", "lowest-bias"),
        ("Nameless", "Nameless"),
    }
    sizes = [float(row["value"]) for row in rows if row["metric"] == "claimed-labels"]
    assert sizes == [1.0] * 4
    assert json.loads((folder / "metrics.json").read_text())["claimed-labels"]
    text = (folder / "scenario.toml").read_text()
    assert f'name = "{module}:Few"' in text
    assert str(tmp_path / "there") in text


# --- trust ----------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """A run folder of a scenario that names code, which marks that it was imported."""
    module, mark = fresh(), tmp_path / "imported"
    path = written(tmp_path / "theirs", module)
    folder = tmp_path / "run"
    Ledger.create(folder, Scenario.load(path)).provenance(Scenario.load(path), {})
    del sys.modules[module]
    path.with_name(f"{module}.py").write_text(
        # In the process of its adversary it may not write.
        f"from contextlib import suppress\nfrom pathlib import Path\n"
        f"with suppress(PermissionError):\n    Path({str(mark)!r}).touch()\n{PLUGINS}"
    )
    return folder, path, mark


@pytest.mark.parametrize("command", ["run", "check", "show"])
def test_a_run_folders_code_is_imported_only_if_trusted(run, command, tmp_path):
    folder, _, mark = run
    line = [command, str(folder / "scenario.toml")]
    line += ["--out", str(tmp_path / "again")] if command == "run" else []
    refused = CliRunner().invoke(app, line).exception
    assert isinstance(refused, ScenarioError)
    assert "only with --trust" in str(refused)
    assert not mark.exists()
    assert CliRunner().invoke(app, [*line, "--trust"]).exit_code == 0
    assert mark.exists()


def test_the_command_that_continues_a_run_trusts_its_code(run):
    folder, path, mark = run
    words = resumed(folder, None, Scenario.load(path))
    assert CliRunner().invoke(app, words[1:]).exit_code == 0
    assert mark.exists()
    assert "--trust" not in resumed(folder, None, Scenario.load("quickstart"))


def test_a_copy_of_a_run_folders_scenario_is_not_trusted_either(run, tmp_path):
    folder, _, mark = run
    copy = tmp_path / "copy.toml"
    copy.write_bytes((folder / "scenario.toml").read_bytes())
    with pytest.raises(ScenarioError, match="only with --trust"):
        Scenario.load(copy)
    assert not mark.exists()


@pytest.mark.parametrize("way", ["beside its findings", "through a link"])
def test_without_its_folders_a_run_folders_scenario_is_recognised_all_the_same(run, way, tmp_path):
    folder, _, mark = run
    path = folder / "scenario.toml"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if str(tmp_path / "theirs") not in line))
    path.write_text(re.sub(r"search_dirs = \[[^]]*\]\n", "", path.read_text()))
    assert "search_dirs" not in path.read_text()
    if way == "through a link":
        (tmp_path / "link.toml").symlink_to(path)
        path = tmp_path / "link.toml"
    with pytest.raises(ScenarioError, match="only with --trust"):
        Scenario.load(path)
    assert not mark.exists()


@pytest.mark.parametrize("data", ["digits", "./digits"])
def test_folders_that_a_file_lists_are_not_looked_in_unless_it_is_trusted(data, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(f'search_dirs = ["/nowhere"]\n[task]\ndata = "{data}"\n')
    assert "/nowhere" not in Scenario.load(path).search_dirs
    assert "/nowhere" not in sys.path


def test_a_run_is_resumed_with_its_own_scenario_without_a_word(run):
    folder, path, _ = run
    assert Ledger.create(folder, Scenario.load(path), resume=True)


def test_resuming_imports_nothing_that_the_folder_alone_names(run):
    folder, _, mark = run
    with pytest.raises(RunFolderError, match="another scenario"):
        Ledger.create(folder, Scenario.load("quickstart"), resume=True)
    assert not mark.exists()


def test_a_report_imports_nothing(run):
    folder, _, mark = run
    Ledger(folder).utility(1, {"accuracy": 0.5}, "")
    assert CliRunner().invoke(app, ["report", str(folder)]).exit_code == 0
    assert (folder / "report.html").is_file()
    assert not mark.exists()
