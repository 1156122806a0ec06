"""Under secure aggregation it is the sum that is attacked, as that of all its clients."""

import pytest
import torch
from support.rogues import Historian
from support.secure_rounds import PROTOCOLS, arrays, conducted, secure, unequal
from support.tiny import rows

from fedsim.attacking.scoring import Scorer
from fedsim.engine.simulate import simulate
from fedsim.runs.recording import Recording
from fedsim.scenario import Scenario
from fedsim.scenario.built import build
from fedsim.training.local import local_training

pytestmark = pytest.mark.usefixtures("rogues", "unreported")


@pytest.mark.reported
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_attacks_run_on_the_aggregate_and_name_all_its_clients(protocol, tmp_path):
    run = secure(
        protocol,
        training={"clients_per_round": 3, "batch_size": 2},
        threat={"grants": "full", "record": True, "victims": 1},
        adversaries=[
            {"name": "llg"},
            {"name": "vandal"},
            {"name": "dlg", "budget": 2},
            {"name": "rubbish", "how": "raise"},
        ],
    )
    page = simulate(run, tmp_path)
    found = rows(tmp_path)
    task = run.build_task()
    for one in Recording(tmp_path / "tape"):
        assert len(one.clients) == 3
        assert one.update.num_examples == 6
        name = "+".join(map(str, one.clients))
        own = [row for row in found if row["victim"] == one.victim]
        assert {row["client"] for row in own} == {name}
        assert {row["label"] for row in own} == {"llg", "vandal", "dlg", "rubbish"}
        assert {row["inclusion"] for row in own} == {"1.0"}
        assert {row["batch_size"] for row in own} == {"2"}
        union = [task.batches(c, one.round, batch_size=2, steps=1)[0] for c in one.clients]
        truth = Scorer(build(run), "", batch_size_stated=True).truth(one)
        assert torch.equal(truth.labels, torch.cat([batch.labels for batch in union]))
        told = Scorer(build(run), "", batch_size_stated=False).truth(one)
        assert torch.equal(told.labels, truth.labels)
        assert name in page.read_text()
    assert len({row["round"] for row in found}) == 2
    status = {(row["label"], row["status"]) for row in found}
    assert status == {("llg", "ok"), ("vandal", "ok"), ("dlg", "ok"), ("rubbish", "failed")}


def test_the_gradient_that_an_adversary_sees_is_that_of_all_the_examples():
    run = unequal(algorithm="fedsgd")
    (reply,), _ = conducted(run)
    task = run.build_task()
    batches = [task.batches(c, 1, batch_size=40, steps=1)[0] for c in range(6)]
    inputs = torch.cat([batch.inputs for batch in batches])
    labels = torch.cat([batch.labels for batch in batches])
    whole = type(batches[0])(inputs, labels)
    module = task.module().train()
    training = local_training(run, task, module, [whole], torch.Generator(), ())
    gradient, loss = training.gradient(module, whole)
    for name, value in arrays(reply).items():
        torch.testing.assert_close(
            torch.from_numpy(value).float(), gradient[name], rtol=1e-4, atol=1e-6
        )
    assert reply.content.metric_records["metrics"]["train_loss"] == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("victims", [1, "all", [2], [0, 5]])
def test_whoever_is_chosen_it_is_the_aggregate_that_is_attacked(victims, tmp_path):
    run = secure(threat={"victims": victims}, training={"rounds": 1})
    simulate(run, tmp_path)
    assert {(row["client"], row["inclusion"]) for row in rows(tmp_path)} == {("0+1+2+3+4+5", "1.0")}


def test_an_aggregate_of_many_is_written_down_under_a_short_name(tmp_path):
    many = {"clients": 70, "clients_per_round": 70, "rounds": 1, "batch_size": 1}
    run = secure(training=many, threat={"record": True, "grants": "full"}, task={"size": 8})
    run = Scenario.parse({**run.to_dict(), "adversaries": [{"name": "dlg", "budget": 1}]})
    simulate(run, tmp_path)
    everyone = tuple(range(70))
    (caught,) = Recording(tmp_path / "tape")
    assert caught.clients == everyone
    (victim,) = {row["victim"] for row in rows(tmp_path)}
    assert victim.startswith("r0001-c0000+69-")
    assert len(victim) < 40
    assert {row["client"] for row in rows(tmp_path)} == {"+".join(map(str, everyone))}
    assert {row["status"] for row in rows(tmp_path)} == {"ok"}


def test_of_an_aggregate_there_is_no_history(tmp_path):
    run = secure(threat={"grants": ["HISTORY"], "follow": [5]}, adversaries=[{"name": "historian"}])
    Historian.lengths.clear()
    simulate(run, tmp_path)
    assert Historian.lengths == [0, 0]


def test_every_image_of_a_secure_sum_is_recovered_if_it_has_fewer_examples_than_classes(tmp_path):
    overrides = [
        "training.secure_aggregation=masked-sum",
        "training.clients_per_round=3",
        "training.batch_size=3",
        "training.rounds=1",
        'adversaries=[{name="exact-batch"}]',
    ]
    run = Scenario.load("exact-batch", overrides)
    simulate(run, tmp_path)
    found = {row["metric"]: row for row in rows(tmp_path)}
    assert len(found["recovered"]["client"].split("+")) == 3
    assert float(found["recovered"]["value"]) == 1
    assert float(found["mse"]["value"]) < 1e-8
