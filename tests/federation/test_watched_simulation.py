"""The traps of `test_watched_traps` on Flower's own simulation, whose clients run in Ray."""

import json
import tomllib

import pytest
import torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from support.tiny import rows
from support.traps import TRAPS, Net, client_app

from adversaries import LLG, FirstLinear
from fedsim import HonestButCurious, load

MISFITS = {
    "label smoothing": "label smoothing of 0.1",
    "gradient clipping": "gradients clipped to norm 0.1",
    "mixed precision": "autocast in bfloat16",
}


@pytest.fixture(scope="module")
def audit(tmp_path_factory, ray_session):
    """The run folder of an audit on Flower's simulation, one round."""
    import ray
    from flwr.simulation import run_simulation

    folder = tmp_path_factory.mktemp("simulation")
    torch.manual_seed(5)
    server, arrays = ServerApp(), ArrayRecord(Net().state_dict())

    @server.main()
    def main(grid, context):
        HonestButCurious(
            # Without these, training begins with the nodes that have connected so far.
            FedAvg(
                fraction_evaluate=0.0,
                min_train_nodes=len(TRAPS),
                min_available_nodes=len(TRAPS),
            ),
            adversaries=[FirstLinear(), LLG()],
            model=Net,
            out=folder / "run",
            record={"keep": "all"},
        ).start(grid=grid, initial_arrays=arrays, num_rounds=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSIM_TRUTH", str(folder / "truth"))
        patch.setattr(ray, "shutdown", lambda: None)  # the session is that of other tests, too
        with pytest.warns(UserWarning, match="does not explain its update"):
            run_simulation(
                server_app=server,
                client_app=client_app(str(folder / "truth")),
                num_supernodes=len(TRAPS),
                backend_config={"client_resources": {"num_cpus": 3, "num_gpus": 0}},
            )
    return folder / "run"


def by_trap(folder):
    """The rows of each trap."""
    found = {trap: [] for trap in TRAPS}
    for row in rows(folder):
        found[[*TRAPS][int(row["client"])]].append(row)
    return found


def test_each_trap_is_read_right_or_named(audit):
    for trap, found in by_trap(audit).items():
        expected = ("ok", "revealed", "fits")
        if trap in MISFITS:
            expected = ("unverified", "revealed", f"misfit: {MISFITS[trap]}")
        said = {(row["status"], row["truth"], row["checked"]) for row in found}
        assert said == {expected}, trap


def test_examples_are_scored_against_what_the_client_really_trained_on(audit):
    found = by_trap(audit)
    recovered = {
        trap: next(float(row["value"]) for row in found[trap] if row["metric"] == "recovered")
        for trap in ("other batches", "normalisation", "augmentation", "noise")
    }
    assert recovered == {
        "other batches": 1.0, "normalisation": 1.0, "augmentation": 1.0, "noise": 0.0,
    }  # fmt: skip


def test_settings_are_those_that_ran_and_defaults_are_stated_nowhere(audit):
    updates = {[*TRAPS][one.clients[0]]: one.update for one in load(audit).recording()}
    assert (updates["Adam"].optimizer, updates["Adam"].lr) == ("adam", 0.01)
    assert (updates["momentum"].momentum, updates["momentum"].steps) == (0.9, 3)
    assert updates["mixed precision"].num_examples == 16
    stated = tomllib.loads((audit / "scenario.toml").read_text())
    assert "defenses" not in stated
    assert not {"rounds", "lr", "optimizer", "local_steps"} & stated["training"].keys()
    unknown = json.loads((audit / "provenance.json").read_text())["unknown"]
    assert {"defenses", "task.model", "training.lr", "training.rounds"} <= {*unknown}
