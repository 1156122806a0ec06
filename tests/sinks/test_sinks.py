"""Curves in TensorBoard and MLflow are the run's numbers, and a sink that fails costs no run."""

import sys

import pytest
from support.findings import finding
from support.tiny import faulty, rows, scenario, timeless

from adversaries import IDLG, LLG
from fedsim.attacking.audit import audit_campaign
from fedsim.engine.simulate import simulate
from fedsim.errors import ClientError, ScenarioError
from fedsim.runs.provenance import results
from fedsim.scenario import Scenario
from fedsim.sinks import Curves

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the libraries
    pytest.mark.usefixtures("unreported"),
]

NAMES = ["leakage/llg/asr", "utility/accuracy"]


def told(folder, name, point=""):
    """What the tables of a run have for a curve, by round."""
    kind, *rest = name.split("/")
    if kind == "utility":
        found = [one for one in rows(folder, "utility.csv") if one["metric"] == rest[0]]
    else:
        found = [one for one in rows(folder) if [one["label"], one["metric"]] == rest]
    values = {}
    for one in found:
        if one["point"] == point:
            values.setdefault(int(one["round"]), []).append(float(one["value"]))
    return {round: sum(each) / len(each) for round, each in values.items()}


def of_tensorboard(folder):
    """The curves in event files, by name: values by round."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    names = events.Tags()["scalars"]
    return {name: {one.step: one.value for one in events.Scalars(name)} for name in names}


def test_tensorboard_shows_the_numbers_of_each_point(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    run = scenario(sinks={"tensorboard": {}}, sweep={"training.lr": [0.1, 0.2]})
    simulate(run, tmp_path / "run")
    for point in ("training.lr=0.1", "training.lr=0.2"):
        found = of_tensorboard(tmp_path / "run" / "tensorboard" / point)
        for name in NAMES:
            assert found[name] == pytest.approx(told(tmp_path / "run", name, point)), name
            assert len(found[name]) >= 2


def test_tensorboard_of_several_runs_is_in_the_folder_that_is_named(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    board = {"tensorboard": {"folder": str(tmp_path / "board")}}
    simulate(scenario(sinks=board, training={"rounds": 1}), tmp_path / "first")
    assert set(NAMES) <= set(of_tensorboard(tmp_path / "board" / "first"))
    assert not (tmp_path / "first" / "tensorboard").exists()


def test_only_attacks_that_count_enter_a_mean(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    run = scenario(sinks={"tensorboard": {}})
    curves = Curves(run.sinks, {"": run}, tmp_path, pytest.fail)
    curves("point", point="")
    curves("attacks", round=1, queued=4)
    ended = [
        finding(victim="a", value=1.0),
        finding(victim="b", value=None, status="failed", baseline=0.2),
        finding(victim="c", value=None, status="denied", baseline=0.9),
        finding(victim="d", value=0.9, status="unverified"),
    ]
    for one in ended:
        curves("findings", findings=(one,), pending=0)
    curves("ended", status="finished")
    assert of_tensorboard(tmp_path / "tensorboard") == {"leakage/llg/asr": {1: pytest.approx(0.6)}}


def resumed(run, folder, monkeypatch, attack, call):
    """Runs a scenario that is interrupted at a call of an attack, and resumes it.

    Returns the curves of TensorBoard before the resume, and after it.
    """
    plain, calls = attack.reconstruct, []

    def stopping(self, seen, job):
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return plain(self, seen, job)

    with monkeypatch.context() as patch:
        patch.setattr(attack, "reconstruct", stopping)
        with pytest.raises(KeyboardInterrupt):
            simulate(run, folder)
    before = of_tensorboard(folder / "tensorboard")
    simulate(run, folder, resume=True)
    return before, of_tensorboard(folder / "tensorboard")


def test_a_round_that_was_interrupted_has_the_mean_of_all_its_attacks(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    run, folder = scenario(sinks={"tensorboard": {}}), tmp_path / "run"
    # The seventh of four in each of two rounds.
    before, after = resumed(run, folder, monkeypatch, LLG, 7)
    assert [*before["leakage/llg/asr"]] == [1]
    found = after["leakage/llg/asr"]
    assert found == pytest.approx(told(folder, "leakage/llg/asr"))
    assert [*found] == [1, 2]


def test_what_one_adversary_had_found_when_another_was_interrupted_is_not_lost(
    tmp_path, monkeypatch
):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    attacks = [{"name": "llg"}, {"name": "idlg"}]
    run, folder = scenario(sinks={"tensorboard": {}}, adversaries=attacks), tmp_path / "run"
    # The first of round 2, whose attacks by llg have ended.
    _, found = resumed(run, folder, monkeypatch, IDLG, 5)
    for name in ("leakage/llg/asr", "leakage/idlg/asr"):
        assert found[name] == pytest.approx(told(folder, name))
        assert sorted(found[name]) == [1, 2]


def test_mlflow_has_the_numbers_the_settings_and_the_end(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    uri = f"sqlite:///{tmp_path}/curves.db"
    sink = {"mlflow": {"uri": uri, "experiment": "tests"}}
    simulate(scenario(sinks=sink), tmp_path / "run")
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("tests")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.status, found.info.run_name) == ("FINISHED", "tiny")
    assert found.data.params["training.lr"] == "0.1"
    assert found.data.params["adversaries.0.name"] == "llg"
    for name in NAMES:
        history = client.get_metric_history(found.info.run_id, name)
        values = {one.step: one.value for one in history}
        assert values == pytest.approx(told(tmp_path / "run", name))


def test_a_round_whose_victims_are_attacked_together_is_one_mean(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    together = [{"name": "dlg", "budget": 1}]
    simulate(
        scenario(sinks={"tensorboard": {}}, adversaries=together, threat={"grants": "white-box"}),
        tmp_path / "run",
    )
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    curve = [(one.step, one.value) for one in events.Scalars("leakage/dlg/psnr")]
    assert dict(curve) == pytest.approx(told(tmp_path / "run", "leakage/dlg/psnr"))
    assert [round for round, _ in curve] == [1, 2]


@pytest.mark.usefixtures("rogues")
@pytest.mark.parametrize("clients", [[3, 2], [2, 3]])
def test_a_point_that_failed_is_the_one_whose_curves_say_so(clients, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from fedsim.sinks import tensorboard

    ends = []
    monkeypatch.setattr(tensorboard.TensorBoard, "close", lambda self, status: ends.append(status))
    # Client 2 alone is the one that this defense breaks.
    sweep = {"defenses.0.clients": [[client] for client in clients]}
    with pytest.raises(ClientError, match="1 of 2 points failed"):
        simulate(
            faulty("nan", sinks={"tensorboard": {}}, adversaries=[], sweep=sweep), tmp_path / "run"
        )
    assert ends == ["failed" if client == 2 else "finished" for client in clients]


def test_a_server_that_is_not_there_is_said_once_and_the_run_is_the_same(tmp_path):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    simulate(scenario(), tmp_path / "without")
    said = []

    def observer(event, **fields):
        if event == "caution":
            said.append(fields["text"])

    sink = {"mlflow": {"uri": "http://127.0.0.1:9"}}
    swept = scenario(sinks=sink)
    simulate(swept, tmp_path / "with", observer=observer)
    (only,) = [text for text in said if "mlflow" in text]
    assert only.startswith("nothing more goes to mlflow, and the run goes on: ")
    assert timeless(tmp_path / "with") == timeless(tmp_path / "without")


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_library_that_is_missing_is_said_with_its_extra(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, f"fedsim.sinks.{name}", None)
    said = []
    run = scenario(sinks={name: {}}, training={"rounds": 1}, sweep={"seed": [1, 2]})
    simulate(run, tmp_path / "run", observer=lambda event, **f: said.append(f.get("text", "")))
    (only,) = [text for text in said if name in text]
    assert f"pip install '.[{name}]'" in only


def test_sinks_are_no_part_of_what_results_depend_on():
    plain, sunk = scenario(), scenario(sinks={"tensorboard": {}})
    assert "sinks" not in plain.to_toml()
    assert results(plain.to_dict()) == results(sunk.to_dict())
    assert Scenario.parse(sunk.to_dict()) == sunk


def test_an_audit_of_another_project_is_refused_a_sink(tmp_path):
    with pytest.raises(ScenarioError, match="Leave sinks out"):
        audit_campaign(
            [LLG()], scenario().build_task(), out=tmp_path / "audit", sinks={"tensorboard": {}}
        )
    assert not (tmp_path / "audit").exists()
