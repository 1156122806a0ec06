"""A client that fails ends its own point of a sweep, on each engine."""

import pytest
from support.tiny import rows, scenario

from fedsim.engine.simulate import simulate
from fedsim.errors import ClientError


@pytest.mark.usefixtures("rogues_everywhere")
@pytest.mark.parametrize("engine", ["inline", "flower"])
def test_a_client_that_fails_ends_its_own_point_alone(engine, tmp_path):
    faulty = {"name": "faulty", "how": "raise", "client": 1, "round": 1}
    run = scenario(
        sweep={"defenses.0.client": [1, 9]},
        defenses=[faulty],
        training={"rounds": 1, "clients": 2, "clients_per_round": 2, "on_failure": "stop"},
        engine={"name": engine, "workers": 1},
    )
    with pytest.raises(ClientError, match="1 of 2 points"):
        simulate(run, tmp_path / "run")
    whole = {row["point"] for row in rows(tmp_path / "run") if row["status"] == "ok"}
    assert "defenses.0.client=9" in whole
