"""Attacks on workers of their own hold up no round."""

import pytest
from support.tiny import scenario

from fedsim.engine.simulate import simulate

pytestmark = pytest.mark.usefixtures("rogues", "unreported")

ROUNDS = 3


def told(folder, **engine):
    """The ends of rounds, and where the findings of attacks arrive among them."""
    run = scenario(
        training={"rounds": ROUNDS, "clients_per_round": 6},
        adversaries=[{"name": "sleeper", "victims": [0], "rounds": [1], "timeout": 3}],
        engine=engine,
    )
    events = list[str]()
    simulate(
        run,
        folder,
        observer=lambda event, **fields: events.append(
            f"round {fields['round']}" if event == "round" else event
        ),
    )
    return [event for event in events if event == "findings" or event.startswith("round")]


def test_rounds_end_before_an_attack_that_takes_long(ray_session, tmp_path):
    rounds = [f"round {number}" for number in range(ROUNDS + 1)]
    beside = told(tmp_path / "ray", name="ray", workers=1, attack_workers=1)
    assert beside == [*rounds, "findings"]
    within = told(tmp_path / "inline", name="inline", workers=1)
    assert within[-2:] == rounds[-2:]
    assert within.count("findings") == 1
