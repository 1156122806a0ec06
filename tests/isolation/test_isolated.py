"""Adversaries in processes of their own: the same results, other code kept out, deaths survived."""

import os
import signal
import sys
import threading
import time
from typing import ClassVar

import pytest
import torch
from support.tiny import rows, scenario

from fedsim.adversary import Adversary
from fedsim.attacking.audit import planned
from fedsim.engine.attack import attack
from fedsim.engine.simulate import simulate
from fedsim.errors import PluginError, ScenarioError
from fedsim.isolation import IsolatedAdversary, isolated, isolates, process, walls_around
from fedsim.isolation.calls import KeptChild, asked
from fedsim.isolation.child import Call
from fedsim.isolation.isolated import _follow
from fedsim.isolation.sending import pickled, weights
from fedsim.job import Job
from fedsim.knowledge import Knowledge
from fedsim.records import Reconstruction
from fedsim.references import look_in
from fedsim.runs import provenance
from fedsim.scenario import Scenario
from fedsim.scenario.built import build
from fedsim.victim import VictimModel

UNCLEAR = ("seconds",)

OWN = '''
import os
from fedsim import Adversary, Knowledge, Reconstruction
from fedsim.errors import NotGranted

class Own(Adversary):
    """Counts as its setting says."""

    name = "own"
    needs = Knowledge.GRADIENT | Knowledge.BATCH_SIZE
    recovers = frozenset({"label_counts"})
    group = 2
    how: str = "claims"

    def cautions(self, model):
        return [f"it saw {type(model.module).__name__}"]

    def reconstruct(self, seen, job):
        if self.how == "denied":
            seen.know(Knowledge.AUXILIARY)
        if self.how == "memory":
            return Reconstruction(label_counts={0: 1}, diagnostics={"limit": job.memory_mb})
        for _ in job.steps(3):
            job.progress(0, 0.5)
        print("nobody reads this")
        return Reconstruction(label_counts={0: seen.num_examples}, diagnostics={"at": os.getpid()})

    def reconstruct_many(self, seen, jobs):
        if self.how == "fails":
            raise RuntimeError("together")
        return super().reconstruct_many(seen, jobs)
'''


@pytest.fixture
def own(tmp_path):
    """A folder with a module of a name that no other test imports."""
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN)
    return f"{name}:Own"


def tables(run):
    """Rows without what is measured by a clock."""
    return [{k: v for k, v in row.items() if k not in UNCLEAR} for row in rows(run)]


def ran(tmp_path, name, adversaries, **threat):
    threat = {"grants": "white-box", "isolation": "auto", **threat}
    folders = [str(tmp_path)]
    simulate(scenario(adversaries=adversaries, threat=threat, search_dirs=folders), tmp_path / name)
    return tmp_path / name


def test_built_in_adversaries_find_the_same_in_a_process(tmp_path):
    attacks = [
        {"name": "llg"},
        {"name": "random"},
        {"name": "dlg", "iterations": 3, "restarts": 0, "victims": 2, "rounds": [1]},
    ]
    here = ran(tmp_path, "here", attacks, isolation="none")
    there = ran(tmp_path, "there", attacks, isolation="process")
    assert tables(here) == tables(there)
    page = (there / "report.html").read_text()
    assert "isolation of dlg" in page
    assert "process: memory, time" in page


def test_an_own_adversary_is_not_imported_by_the_process_of_the_run(tmp_path, own):
    run = ran(tmp_path, "run", [{"name": own}])
    assert own.partition(":")[0] not in sys.modules
    assert {row["status"] for row in rows(run)} == {"ok"}
    assert {row["adversary"] for row in rows(run)} == {"own"}
    assert {row["iterations"] for row in rows(run)} == {"3"}
    assert f'"at": {os.getpid()}' not in (run / "log.jsonl").read_text()
    caution = [line for line in (run / "log.jsonl").read_text().splitlines() if "it saw" in line]
    assert caution
    again = ran(tmp_path, "again", [{"name": own}], isolation="none")
    assert own.partition(":")[0] in sys.modules
    assert tables(run) == tables(again)


@pytest.mark.parametrize(
    ("how", "status", "error", "logged"),
    [
        ("fails", "ok", "", "RuntimeError: together"),
        ("denied", "denied", "the threat model grants", ""),
        ("memory", "ok", "", '"limit": 512'),
    ],
)
def test_errors_and_limits_pass_the_border(tmp_path, own, how, status, error, logged):
    run = ran(tmp_path, "run", [{"name": own, "how": how, "rounds": [1]}], memory_mb=512)
    found = rows(run)
    assert found
    for row in found:
        assert (row["status"], error in row["error"]) == (status, True), row
    assert logged in (run / "log.jsonl").read_text()


def test_an_attack_on_a_recorded_run_says_its_walls_too(tmp_path):
    kept = {"record": {"keep": "all"}, "threat": {"isolation": "process"}}
    simulate(scenario(adversaries=[], training={"rounds": 1}, **kept), tmp_path / "run")
    attack(tmp_path / "run", changes={"adversaries": [{"name": "llg"}]})
    walls = provenance.read(tmp_path / "run")["isolation"]
    assert walls["llg"].startswith("process: ")


def test_the_facts_follow_the_source(tmp_path, own):
    table = {"adversaries": [{"name": own}], "search_dirs": [str(tmp_path)]}
    first = Scenario.parse(table)
    assert first.build_adversaries()[0][0] == "own"
    assert Scenario.parse(table).build_adversaries()[0][2].facts is (
        first.build_adversaries()[0][2].facts
    )
    file = tmp_path / f"{own.partition(':')[0]}.py"
    file.write_text(OWN.replace('name = "own"', 'name = "other"'))
    os.utime(file, ns=(0, 1))
    assert Scenario.parse(table).build_adversaries()[0][0] == "other"


def test_mistakes_are_told_as_without_isolation(tmp_path, own):
    table = {"search_dirs": [str(tmp_path)]}
    with pytest.raises(ScenarioError, match=r"adversaries.0 .*\.hwo: unknown key"):
        Scenario.parse(table | {"adversaries": [{"name": own, "hwo": 1}]})
    with pytest.raises(PluginError, match=r"has no 'Onw'\. Did you mean 'Own'"):
        Scenario.parse(table | {"adversaries": [{"name": own.replace("Own", "Onw")}]})
    with pytest.raises(PluginError, match="no 'ddlg' among the adversaries"):
        isolated("ddlg", {})
    (tmp_path / "broken_module.py").write_text("raise SystemExit(3)")
    with pytest.raises(PluginError, match=r"broken_module:X cannot be .* \(SystemExit: 3\)"):
        Scenario.parse(table | {"adversaries": [{"name": "broken_module:X"}]})
    (tmp_path / "reading_module.py").write_text(f"open({str(tmp_path / 'data.csv')!r})")
    (tmp_path / "data.csv").write_text("a")
    with pytest.raises(PluginError, match="PermissionError"):
        Scenario.parse(table | {"adversaries": [{"name": "reading_module:X"}]})


def test_an_error_in_the_warnings_of_an_adversary_names_it(tmp_path):
    (tmp_path / "cautious.py").write_text(
        "from adversaries import IDLG\n\n\nclass X(IDLG):\n"
        "    def cautions(self, model):\n        return [model.nothing]\n"
    )
    table = {"search_dirs": [str(tmp_path)], "adversaries": [{"name": "cautious:X"}]}
    ((_, _, adversary),) = Scenario.parse(table).build_adversaries()
    model = VictimModel(torch.nn.Linear(1, 1), head="", loss=max)
    with pytest.raises(PluginError, match=r"idlg: .*`cautions` failed: AttributeError: .*nothing"):
        adversary.cautions(model)


def test_who_runs_in_a_process():
    assert not isolates("auto", "dlg", {"labels_from": "llg"})
    assert isolates("auto", "dlg", {"labels_from": "mine:Labels"})
    inner = {"name": "llg", "labels_from": {"name": "mine:Labels"}}
    assert isolates("auto", "dlg", {"labels_from": inner})
    assert isolates("auto", "mine:Attack", {})
    assert not isolates("auto", "__main__:Attack", {})
    assert isolates("process", "dlg", {})
    assert not isolates("none", "mine:Attack", {})


def test_declarations_of_parts_and_conditions_are_known():
    plain = scenario(adversaries=[{"name": "accumulate"}], threat={"grants": "full"})
    (_, _, here) = plain.build_adversaries()[0]
    there = isolated("accumulate", {})
    assert there.conditions() == here.conditions()
    assert there.requires() == here.requires()
    assert there.fills() == here.fills()
    assert there.over_history
    assert there.parts()["claims_from"].name == "dlg"
    kind = plain.build_task().spec_type
    assert there.unsuited(kind, "images") == here.unsuited(kind, "images") == []
    from fedsim.tasks.text import Text

    (theirs,), (ours,) = (one.unsuited(Text.spec_type, "text") for one in (there, here))
    assert theirs == ours


def test_a_model_of_ones_own_is_sent_as_code(tmp_path):
    (tmp_path / "own_net.py").write_text(
        f"from pathlib import Path\nassert Path({str(tmp_path / 'weights')!r}).read_text()\n"
        "from torch import nn\n\n\ndef net(classes, shape):\n    return Net()\n\n\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.head = nn.Linear(64, 10)\n"
        "    def forward(self, x):\n        return self.head(x.flatten(1))\n"
    )
    (tmp_path / "weights").write_text("w")
    table = scenario(adversaries=[{"name": "idlg"}, {"name": "dlg", "iterations": 2}]).to_dict()
    table["threat"] |= {"isolation": "process", "grants": "white-box", "rounds": [1]}
    table["task"]["model"] = "own_net:net"
    table |= {"search_dirs": [str(tmp_path)], "engine": {"workers": 1}}
    simulate(Scenario.parse(table), tmp_path / "run")
    assert {row["status"] for row in rows(tmp_path / "run")} == {"ok"}


def test_the_truth_is_not_sent():
    task = scenario().build_task()

    class Loss:
        def __call__(self, *given, **named):
            return task

        def __init__(self):
            self.task = task

    model = VictimModel(torch.nn.Linear(1, 1), head="", loss=Loss())
    with pytest.raises(PluginError, match="holds a Images, through which an adversary"):
        pickled(Call("cautions", ("llg", {}, ""), (model,)))


class Here(Adversary):
    """Exists in this process alone."""

    name: ClassVar[str] = "here"
    needs: ClassVar[Knowledge] = Knowledge.HEAD_GRADIENT
    recovers: ClassVar[frozenset[str]] = frozenset({"label_counts"})

    def reconstruct(self, seen, job):
        return Reconstruction(label_counts={0: 1}, diagnostics={"at": os.getpid()})


@pytest.mark.parametrize("isolation", ["auto", "process"])
def test_an_adversary_that_exists_here_is_sent_if_that_is_asked_for(isolation):
    run = scenario(threat={"isolation": isolation})
    ((_, _, made),) = build(run, adversaries=planned([Here()])).adversaries
    assert isinstance(made, IsolatedAdversary) is (isolation == "process")
    assert made.name == "here"
    assert made.recovers == {"label_counts"}


def test_a_process_that_stays_answers_several_calls(tmp_path, own):
    look_in([tmp_path])
    kept = KeptChild()
    call = Call("cautions", (own, {}, ""), (VictimModel(torch.nn.Linear(1, 1), head="", loss=max),))
    assert asked(call, 60.0, kept=kept) == b'["it saw Linear"]'
    child = kept._child
    assert asked(call, 60.0, kept=kept) == b'["it saw Linear"]'
    assert kept._child is child
    with pytest.raises(ScenarioError):
        asked(Call("facts", (own, {"hwo": 1}, "")), 60.0, kept=kept)
    assert kept._child is None


def test_code_of_the_running_script_is_sent_if_that_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "Here", Here, raising=False)
    plain = ran(tmp_path, "plain", [{"name": "__main__:Here", "rounds": [1]}])
    apart = ran(tmp_path, "apart", [{"name": "__main__:Here", "rounds": [1]}], isolation="process")
    assert tables(plain) == tables(apart)
    number = f'"at": {os.getpid()}'
    assert number in (plain / "log.jsonl").read_text()
    assert number not in (apart / "log.jsonl").read_text()


def test_a_dead_server_costs_no_row(tmp_path, own):
    file = tmp_path / f"{own.partition(':')[0]}.py"
    slow = OWN.replace("print(", "import time; time.sleep(1); print(")
    file.write_text(slow)
    before = process.server()._process.pid

    def kill():
        while not (tmp_path / "run/attacks.jsonl").exists():
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(process.server()._process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    run = ran(tmp_path, "run", [{"name": own, "victims": 2}])
    killer.join()
    assert process.server()._process.pid != before
    assert {row["status"] for row in rows(run)} == {"ok"}


def test_nothing_stays_behind():
    server = process.server()
    number, folder = server._process.pid, server._folder.path
    assert folder.is_dir()
    process.stop()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_paths_in_settings_may_be_read_and_words_may_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("data", "weights.safetensors"):
        (tmp_path / name).write_text("w")
    (tmp_path / "folder").mkdir()
    settings = {"a": "data", "b": [".", ".."], "c": {"d": "weights.safetensors"}, "e": "./folder/"}
    found = {*weights(settings | {"f": str(tmp_path / "data"), "g": 3, "h": "llg"})}
    assert found == {str(tmp_path / one) for one in ("data", "weights.safetensors", "folder")}


def test_the_page_does_not_promise_a_limit_of_memory_on_a_gpu():
    planned = [("here", None, isolated("llg", {})), ("plain", None, Here())]
    cpu = walls_around(planned, torch.device("cpu"))
    gpu = walls_around(planned, torch.device("cuda"))
    assert "memory" in cpu["here"]
    assert "memory" not in gpu["here"]
    assert cpu["plain"] == gpu["plain"] == "none"


def test_impossible_progress_is_left_out():
    job = Job(torch.Generator())
    _follow([job], b"[0, 3, 9, 2, 0.5]")
    for impossible in ("1" + "0" * 300, "-1"):
        for place in range(1, 4):
            report = ["0", "4", "9", "4", "0.1"]
            report[place] = impossible
            _follow([job], f"[{','.join(report)}]".encode())
    assert (job.iterations, job.planned, job.trace) == (3, 9, [(2, 0.5)])
    _follow([job], b"[0, 5, 9, null, null]")
    assert (job.iterations, job.trace) == (5, [(2, 0.5)])
