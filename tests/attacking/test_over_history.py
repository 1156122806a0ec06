"""Claims about all updates that were shown are scored on the distinct examples behind them."""

from typing import ClassVar

import pytest
import torch
from support.interceptions import intercepted
from support.tiny import rows, scenario

from adversaries import FirstLinear
from fedsim.attacking.attack import Attack, AttackRunner
from fedsim.attacking.truths import distinct
from fedsim.engine.simulate import simulate
from fedsim.knowledge import Knowledge
from fedsim.records import Truth
from fedsim.scenario.built import build
from fedsim.scenario.settings import AttackPlan

pytestmark = pytest.mark.usefixtures("unreported")

GRANTS = ["GRADIENT", "BATCH_SIZE", "HISTORY"]


def few_examples(**changes):
    """Two clients of three digits each, one a round in shuffled epochs."""
    return scenario(
        task={"model": "mlp", "train_examples": 6, "auxiliary_fraction": 0.0},
        training={
            "clients": 2,
            "clients_per_round": 2,
            "batch_size": 1,
            "batching": "epochs",
            **changes.pop("training", {}),
        },
        threat={"grants": GRANTS},
        **changes,
    )


class Forgetful(FirstLinear):
    """Claims the present example alone, of all that it was shown."""

    name = "forgetful"
    needs = FirstLinear.needs | Knowledge.HISTORY
    over_history: ClassVar[bool] = True


def test_a_client_that_is_seen_for_an_epoch_has_given_away_everything(tmp_path):
    run = few_examples(
        training={"rounds": 4}, adversaries=[{"name": "accumulate", "claims_from": "first-linear"}]
    )
    simulate(run, tmp_path)
    found = {
        (row["round"], row["client"]): row["value"]
        for row in rows(tmp_path)
        if row["metric"] == "recovered"
    }
    assert len(found) == 8
    assert {float(value) for value in found.values()} == {1.0}


@pytest.mark.parametrize(("shown", "used"), [(1, 1), (2, 2), (3, 3), (4, 3), (6, 3)])
def test_the_denominator_is_the_number_of_distinct_examples(shown, used):
    run = few_examples()
    adversaries = [
        ("united", AttackPlan(name="forgetful"), Forgetful()),
        ("alone", AttackPlan(name="first-linear"), FirstLinear()),
    ]
    runner = AttackRunner(build(run, adversaries=adversaries))
    *history, last = (intercepted(run, 0, round=number) for number in range(1, shown + 1))
    united, alone = (
        {
            row.metric: row
            for row in runner.perform(Attack(last, at, 1.0, history=(*history,))).findings
        }
        for at in (0, 1)
    )
    assert united["recovered"].value == pytest.approx(1 / used)
    assert alone["recovered"].value == 1.0
    # The row still describes the update: one example in one step.
    assert (united["recovered"].batch_size, united["recovered"].local_steps) == (1, 1)


def test_examples_are_told_apart_by_their_content():
    inputs = [torch.tensor([value]) for value in (1.0, 2.0, 1.0, 3.0)]
    truth = Truth(
        inputs=inputs,
        labels=torch.tensor([5, 6, 5, 7]),
        lengths=[1, 2, 1, 3],
        attributes={"speaker": ["a", "b", "a", "c"]},
    )
    kept = distinct(truth)
    assert [float(one) for one in kept.inputs] == [1.0, 2.0, 3.0]
    assert kept.labels.tolist() == [5, 6, 7]
    assert kept.lengths == [1, 2, 3]
    assert kept.attributes == {"speaker": ["a", "b", "c"]}


def test_labels_are_joined_again_from_the_sequences_that_are_kept():
    sequences = [torch.tensor(row) for row in ([1, 2, -100], [3, -100, -100], [1, 2, -100])]
    truth = Truth(
        text=["x y", "z", "x y"], sequences=sequences, labels=torch.tensor([1, 2, 3, 1, 2])
    )
    assert distinct(truth).labels.tolist() == [1, 2, 3]


def test_of_labels_alone_nothing_is_taken_for_a_repetition():
    truth = Truth(labels=torch.tensor([1, 1, 2]))
    assert distinct(truth) is truth
