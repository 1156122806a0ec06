"""Who is attacked, by whom, and with what probability."""

from collections import defaultdict

import pytest
import torch
from support.tiny import rows, scenario, timeless

from fedsim.attacking.campaign import Campaign
from fedsim.engine.attack import attack
from fedsim.engine.simulate import simulate, train
from fedsim.records import Interception, Update
from fedsim.runs.ledger import Ledger
from fedsim.scenario.built import build

pytestmark = pytest.mark.usefixtures("unreported")


class Listening:
    """An executor that runs nothing and remembers what it was given."""

    def __init__(self):
        self.attacks = []
        self.pending = 0

    def submit(self, groups):
        self.attacks += [attack for group in groups for attack in group]

    def collect(self, *, wait):
        return iter(())

    def cancel(self):
        pass


def caught(clients, round=1, *, factor=1.0):
    """Interceptions that need no training."""
    before = {"w": torch.ones(2)}
    return [
        Interception(round, (c,), before, Update({"w": factor * torch.ones(2)}, "gradient"))
        for c in clients
    ]


def chosen(run, tmp_path, rounds, clients=range(6), **how):
    """Victims by (adversary, round), and the probability they were chosen with."""
    executor = Listening()
    campaign = Campaign(build(run), Ledger.create(tmp_path, run), executor)
    found, inclusion = defaultdict(list), set()
    for round in rounds:
        campaign.intercept(round, caught(clients, round, **how))
    for one in executor.attacks:
        found[one.adversary, one.interception.round] += one.interception.clients
        inclusion.add(one.inclusion)
    return dict(found), inclusion


def test_victims_are_drawn_by_the_seed_whatever_they_send(tmp_path):
    run = scenario(threat={"victims": 2}, training={"rounds": 12})
    one, inclusion = chosen(run, tmp_path / "1", range(1, 13))
    other, _ = chosen(run, tmp_path / "2", range(1, 13), factor=-1e6)
    assert one == other
    assert inclusion == {2 / 6}
    assert all(len(set(victims)) == 2 for victims in one.values())
    assert len(set(map(tuple, one.values()))) > 4  # not the same two every round
    reseeded, _ = chosen(run.model_copy(update={"seed": 4}), tmp_path / "3", range(1, 13))
    assert reseeded != one


def test_who_else_takes_part_does_not_reorder_the_draw(tmp_path):
    run = scenario(threat={"victims": 1}, training={"rounds": 12})
    everyone, _ = chosen(run, tmp_path / "1", range(1, 13))
    fewer, _ = chosen(run, tmp_path / "2", range(1, 13), clients=[0, 2, 4])
    for place, victims in everyone.items():
        if victims[0] in (0, 2, 4):
            assert fewer[place] == victims


@pytest.mark.parametrize(
    ("victims", "expected", "probability"),
    [
        ("all", [1, 3, 5], 1.0),
        ([3, 4], [3], 1.0),
        ([0], None, None),
        (9, [1, 3, 5], 1.0),
    ],
)
def test_victims_by_list_number_or_all(victims, expected, probability, tmp_path):
    if victims == 9:
        run = scenario(training={"clients": 20}, threat={"victims": victims})
    else:
        run = scenario(threat={"victims": victims})
    found, inclusion = chosen(run, tmp_path, [1], clients=[1, 3, 5])
    assert found.get((0, 1)) == expected
    assert inclusion == ({probability} if probability else set())


def test_an_adversary_has_its_own_victims_and_rounds(tmp_path):
    run = scenario(
        training={"rounds": 4},
        threat={"victims": 1, "rounds": [1, 2]},
        adversaries=[
            {"name": "llg"},
            {"name": "idlg", "victims": "all"},
            {"name": "llg", "label": "late", "rounds": [4], "victims": [5]},
            {"name": "llg", "label": "always", "rounds": "all"},
        ],
    )
    found, _ = chosen(run, tmp_path, range(1, 5))
    sizes = {place: len(victims) for place, victims in found.items()}
    assert sizes == {
        (0, 1): 1,
        (0, 2): 1,
        (1, 1): 6,
        (1, 2): 6,
        (2, 4): 1,
        **{(3, round): 1 for round in range(1, 5)},
    }
    assert found[2, 4] == [5]
    assert found[0, 1] == found[3, 1]  # adversaries share their victims


def test_followed_clients_take_part_and_are_attacked_every_round(tmp_path):
    run = scenario(
        training={"rounds": 5, "clients": 10, "clients_per_round": 2},
        threat={"follow": [7], "victims": [7]},
    )
    simulate(run, tmp_path)
    found = rows(tmp_path)
    assert {row["client"] for row in found} == {"7"}
    assert sorted({int(row["round"]) for row in found}) == [1, 2, 3, 4, 5]


def test_updates_that_are_chosen_again_have_the_probability_of_the_wider_choice(tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "later"
    simulate(scenario(threat={"victims": 3}), whole)
    train(scenario(), folder)
    for victims in (1, 3, 1):  # the last one makes no attack
        attack(folder, changes={"threat": {"victims": victims}})
    assert {row["inclusion"] for row in rows(whole)} == {"0.75"}
    assert timeless(folder) == timeless(whole)
