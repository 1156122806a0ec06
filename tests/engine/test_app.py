"""`flwr run .`: the same scenario as a Flower app, on Flower's own processes."""

from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from support.flower import needs_proc, processes
from support.tiny import rows, timeless

from fedsim.engine.app import _settled, app
from fedsim.engine.inline import InlineGrid
from fedsim.engine.simulate import simulate
from fedsim.errors import EngineError, RunFolderError, ScenarioError
from fedsim.scenario import Scenario

ROOT = Path(__file__).parents[2]
OVERRIDES = "training.rounds=2 adversaries.1.iterations=2 adversaries.1.restarts=0"


def serve(nodes: int, **config: str) -> None:
    context = Context(
        run_id=7, node_id=0, node_config={}, state=RecordDict(), run_config={**config}
    )
    app(InlineGrid(nodes), context)


def test_the_app_runs_the_scenario_of_its_run_config(tmp_path, capsys):
    serve(4, scenario="first-rounds", overrides=OVERRIDES, out=str(tmp_path / "app"))
    assert "4 SuperNodes are connected, so training.clients = 4 instead of 20" in (
        said := capsys.readouterr().out
    )
    assert f"report: {(tmp_path / 'app' / 'report.html').resolve()}" in said
    overrides = [*OVERRIDES.split(), "training.clients=4", "training.clients_per_round=4"]
    simulate(Scenario.load("first-rounds", overrides), tmp_path / "run")
    assert timeless(tmp_path / "app") == timeless(tmp_path / "run")
    assert rows(tmp_path / "app", "utility.csv") == rows(tmp_path / "run", "utility.csv")


@pytest.mark.filterwarnings("ignore")  # of tensorboard
def test_the_app_writes_curves_to_the_sinks_of_the_scenario(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run, overrides = tmp_path / "run", f"{OVERRIDES} sinks.tensorboard={{}}"
    serve(2, scenario="first-rounds", overrides=overrides, out=str(run))
    events = accumulator.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert {"utility/accuracy", "leakage/llg/asr"} <= set(events.Tags()["scalars"])
    found = [float(one["value"]) for one in rows(run, "utility.csv") if one["metric"] == "accuracy"]
    assert [one.value for one in events.Scalars("utility/accuracy")] == pytest.approx(found)


class Arriving:
    """A grid whose nodes connect one after the other."""

    def __init__(self, last: int) -> None:
        self.asked, self.last = 0, last

    def get_node_ids(self):
        self.asked += 1
        return range(min(self.asked // 2, self.last))


def test_the_app_waits_for_as_many_supernodes_as_are_stated(monkeypatch, capsys):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert _settled(Arriving(9), 3, quiet=0.0) == 3
    assert "2 of 3 SuperNodes are connected\n3 of 3 SuperNodes" in capsys.readouterr().out
    assert _settled(Arriving(2), 0, quiet=0.2) == 2
    with pytest.raises(EngineError, match=r"^2 SuperNodes connected, and no other .*expected 3 \("):
        _settled(Arriving(2), 3, patience=0.2)
    with pytest.raises(EngineError, match=r"^no SuperNodes connected, .*within 0\.2 s$"):
        _settled(Arriving(0), 0, patience=0.2)
    with pytest.raises(ScenarioError, match="supernodes: found 'two'; expected a number"):
        serve(2, supernodes="two")


def test_the_app_refuses_a_sweep_and_an_existing_folder(tmp_path):
    sweep = "training.rounds=1 'sweep={\"training.lr\"=[0.1,0.2]}'"
    with pytest.raises(ScenarioError, match="sweep"):
        serve(2, scenario="first-rounds", overrides=sweep, out=str(tmp_path / "sweep"))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "scenario.toml").touch()
    with pytest.raises(RunFolderError, match="holds a run already"):
        serve(2, scenario="first-rounds", overrides=OVERRIDES, out=str(tmp_path / "taken"))


@needs_proc
def test_flwr_run_runs_the_scenario_of_the_project(tmp_path):
    config = f'overrides="{OVERRIDES}" out="{tmp_path / "run"}"'
    with processes(tmp_path) as flower:  # the SuperLink that `flwr run` leaves behind ends too
        flower.superlink('address = ":local:"', name="local")
        command = ["flwr", "run", str(ROOT), "--stream", "--run-config", config]
        flower.run(*command, "--federation-config", "num-supernodes=5", seconds=240)
    assert "report:" in flower.said(), flower.said()[-3000:]
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000
    overrides = [*OVERRIDES.split(), "training.clients=5"]
    simulate(Scenario.load("first-rounds", overrides), tmp_path / "alone")
    assert timeless(tmp_path / "run") == timeless(tmp_path / "alone")
