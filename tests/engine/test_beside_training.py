"""Attacks on workers of their own hold up no round."""

import sys

import pytest
from support.tiny import rows, scenario

from fedsim.engine.simulate import simulate

pytestmark = [
    pytest.mark.usefixtures("rogues", "unreported"),
    pytest.mark.skipif(sys.platform == "win32", reason="Ray's workers are tested on POSIX"),
]

ROUNDS = 3


def told(folder, *, timeout, **engine):
    """What ends first: rounds, and an attack on round 1 that waits for the end of the last."""
    ended = folder.parent / "ended"
    waits = {"name": "sleeper", "until": str(ended), "victims": [0], "rounds": [1]}
    run = scenario(
        training={"rounds": ROUNDS, "clients_per_round": 6},
        adversaries=[{**waits, "timeout": timeout}],
        engine=engine,
    )
    events = list[str]()

    def observer(event, **fields):
        if event == "round":
            events.append(f"round {fields['round']}")
        elif event == "findings":
            events.append(event)
        if events[-1:] == [f"round {ROUNDS}"]:
            ended.touch()

    simulate(run, folder, observer=observer)
    return events, {row["status"] for row in rows(folder)}


def test_rounds_end_before_an_attack_that_takes_long(ray_session, tmp_path):
    rounds = [f"round {number}" for number in range(ROUNDS + 1)]
    engine = {"name": "ray", "workers": 1, "attack_workers": 1}
    assert told(tmp_path / "ray/run", timeout=120, **engine) == ([*rounds, "findings"], {"ok"})


def test_in_one_process_rounds_wait_for_attacks(tmp_path):
    events, statuses = told(tmp_path / "inline/run", timeout=0.3, name="inline", workers=1)
    assert events[-2:] == ["round 2", "round 3"]
    assert statuses == {"timeout"}
