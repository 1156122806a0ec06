"""What an adversary is handed: what is granted, and nothing that leads to the truth."""

import dataclasses

import pytest
import torch
from support.interceptions import Asks, intercepted
from support.reachable import reachable
from support.tiny import scenario

from fedsim.attacking.attack import Attack, AttackRunner
from fedsim.attacking.campaign import Campaign
from fedsim.records import Interception, Truth, Update
from fedsim.runs.ledger import Ledger
from fedsim.scenario import Scenario
from fedsim.scenario.built import build
from fedsim.scenario.settings import AttackPlan
from fedsim.task import Task


def observed(run, **attack):
    """The observation and job of an attack that knows as much as the scenario grants."""
    runner = AttackRunner(build(run, adversaries=[("asks", AttackPlan(name="asks"), Asks())]))
    Asks.kept.clear()
    one = intercepted(run, 1, round=2)
    outcome = runner.perform(Attack(one, 0, 1.0, **attack))
    assert outcome.findings[0].status == "ok", outcome.findings[0].error
    return (*Asks.kept.pop(), one)


@pytest.mark.parametrize("model", ["cnn", "resnet20"])
@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_nothing_that_an_adversary_gets_leads_to_the_truth(model, algorithm):
    run = scenario(
        threat={"grants": "full"}, task={"model": model}, training={"algorithm": algorithm}
    )
    earlier = intercepted(run, 1, round=1)
    seen, job, one = observed(run, history=(earlier,))
    assert len(seen.history) == 1
    assert seen.history[0].labels is None  # labels of earlier rounds are nobody's business
    forbidden = (Task, Truth, Scenario, Interception, Update, AttackRunner, Campaign, Ledger)
    for start in (seen, job):
        for thing in reachable(start):
            assert not isinstance(thing, forbidden), type(thing)
    task = run.build_task()
    (batch,) = task.batches(1, 2, batch_size=4, steps=1)
    tensors = [thing for thing in reachable(seen) if isinstance(thing, torch.Tensor)]
    assert len(tensors) > 10
    images = {image.numpy().tobytes() for image in batch.inputs}
    for tensor in tensors:
        if tensor.shape[-3:] == batch.inputs.shape[1:]:
            found = {part.numpy().tobytes() for part in tensor.reshape(-1, *batch.inputs.shape[1:])}
            assert not images & found
    # Nor are they the server's own tensors.
    own = {t.untyped_storage().data_ptr() for t in (*one.before.values(),)}
    own |= {t.untyped_storage().data_ptr() for t in one.update.tensors.values()}
    own |= {t.untyped_storage().data_ptr() for t in one.update.buffers.values()}
    assert not own & {t.untyped_storage().data_ptr() for t in tensors}


def test_the_walk_would_find_a_truth():
    truth = Truth(labels=torch.ones(1))
    hidden = [lambda held={"deep": (truth,)}: held]
    assert any(thing is truth for thing in reachable(hidden))


def test_what_is_not_granted_is_not_there():
    seen, _, _ = observed(scenario(threat={"grants": ["BATCH_SIZE"]}))
    empty = {
        field.name: getattr(seen, field.name)
        for field in dataclasses.fields(seen)
        if field.name not in ("granted", "spec", "head", "exact", "num_examples")
    }
    assert {name for name, value in empty.items() if value} == set()
    assert seen.num_examples == 4


def test_defenses_are_told_by_name_only_when_granted():
    defenses = [{"name": "gaussian-noise"}]
    seen, _, _ = observed(scenario(threat={"grants": ["DEFENSE"]}, defenses=defenses))
    assert seen.defenses == ("gaussian-noise",)
    seen, _, _ = observed(scenario(threat={"grants": "auxiliary"}, defenses=defenses))
    assert seen.defenses is None


def test_an_attacks_randomness_is_its_own():
    def draw(label, **changes):
        run = scenario(**changes)
        runner = AttackRunner(build(run, adversaries=[(label, AttackPlan(name="asks"), Asks())]))
        Asks.kept.clear()
        runner.perform(Attack(intercepted(run, 1), 0, 1.0))
        return float(torch.rand((), generator=Asks.kept.pop()[1].rng))

    assert draw("a") == draw("a")
    assert len({draw("a"), draw("b"), draw("a", threat={"seed": 4})}) == 3


def test_budget_and_time_limit_reach_the_job():
    run = scenario(threat={"timeout": 7.0})
    plans = [AttackPlan(name="asks", budget=5), AttackPlan(name="asks", timeout=3.0)]
    runner = AttackRunner(
        build(run, adversaries=[(str(i), plan, Asks()) for i, plan in enumerate(plans)])
    )
    jobs = []
    for index in range(2):
        Asks.kept.clear()
        runner.perform(Attack(intercepted(run, 1), index, 1.0))
        jobs.append(Asks.kept.pop()[1])
    assert [job.budget for job in jobs] == [5, None]
    assert [job._seconds for job in jobs] == [7.0, 3.0]
