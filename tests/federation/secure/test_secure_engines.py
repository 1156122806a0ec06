"""Under secure aggregation every engine finds the same, and a run is taken up again."""

import pytest
from safetensors.torch import load_file
from support.secure_rounds import PROTOCOLS, secure
from support.tiny import rows, same, timeless

from fedsim.engine.simulate import simulate

pytestmark = pytest.mark.usefixtures("rogues", "unreported")


@pytest.mark.parametrize(
    ("engine", "protocols"),
    [("ray", PROTOCOLS), ("flower", ["secagg+"])],  # a start of Flower's takes half a minute
)
def test_every_engine_finds_what_one_process_finds(engine, protocols, tmp_path, ray_session):
    run = secure(
        protocols[0],
        training={"algorithm": "fedavg", "local_steps": 2, "on_failure": "drop"},
        defenses=[{"name": "faulty", "how": "raise"}],
    )
    run = run.model_copy(update={"sweep": {"training.secure_aggregation": protocols}})
    several = run.engine.model_copy(update={"name": engine, "workers": 2, "attack_workers": 1})
    simulate(run, tmp_path / "inline")
    simulate(run.model_copy(update={"engine": several}), tmp_path / "other")

    def found(name):
        # Flower's engine tells a client's error with its traceback.
        hidden = {"error": ""} if engine == "flower" else {}
        return [{**row, **hidden} for row in timeless(tmp_path / name)]

    assert found("other") == found("inline")
    assert {row["client"] for row in found("other")} == {"0+1+2+3+4+5", "0+1+3+4+5"}
    assert rows(tmp_path / "other", "utility.csv") == rows(tmp_path / "inline", "utility.csv")
    finals = sorted((tmp_path / "inline").rglob("global.safetensors"))
    assert len(finals) == len(protocols)
    for path in finals:
        other = tmp_path / "other" / path.relative_to(tmp_path / "inline")
        assert same(load_file(other), load_file(path))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_interrupted_run_is_taken_up_again(protocol, tmp_path):
    run = secure(
        protocol,
        training={"rounds": 3, "algorithm": "fedavg", "strategy": "FedAdam"},
        defenses=[{"name": "counting"}],
    )
    simulate(run, tmp_path / "whole")

    def stop(event, **fields):
        if event == "round" and fields["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(run, tmp_path / "run", observer=stop)
    resumed = []

    def listen(event, **fields):
        if event == "resumed":
            resumed.append(fields["round"])

    simulate(run, tmp_path / "run", resume=True, observer=listen)
    assert resumed[0] in (1, 2)  # and not from the beginning
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")
    final = "checkpoint/global.safetensors"
    assert same(load_file(tmp_path / "run" / final), load_file(tmp_path / "whole" / final))
