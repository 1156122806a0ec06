"""Local epochs: every client takes the steps that its examples need, and all who count agree."""

import math

import pytest
import torch
from support.tiny import ask, meaning, rows, same, scenario, sent

from fedsim.attacking.scoring import Scorer
from fedsim.engine.inline import InlineGrid
from fedsim.engine.preflight import preflight
from fedsim.engine.simulate import simulate
from fedsim.errors import ClientError, ScenarioError
from fedsim.runs.recording import Recording
from fedsim.scenario import Scenario
from fedsim.scenario.built import build
from fedsim.training import local
from fedsim.training.budget import Budget

pytestmark = pytest.mark.usefixtures("unreported")

UNEQUAL = {"train_examples": 60, "partition": {"kind": "dirichlet", "alpha": 1.0}}


def epochs(task=UNEQUAL, **changes):
    """Clients with different numbers of examples, by default one epoch a round in batches of 4."""
    training = {"algorithm": "fedavg", "local_epochs": 1, "batching": "epochs"}
    training |= changes.pop("training", {})
    return scenario(task=task, training=training, **changes)


def steps_of(run):
    task, size = run.build_task(), run.training.batch_size
    held = map(task.num_examples, range(6))
    return [run.training.local_epochs * math.ceil(n / size) for n in held]


@pytest.mark.parametrize("batching", ["draw", "epochs"])
def test_a_client_takes_as_many_steps_as_its_epochs_have_batches(batching):
    run = epochs(training={"local_epochs": 2, "batching": batching})
    expected = steps_of(run)
    assert len({*expected}) > 1
    grid, task = InlineGrid(6), run.build_task()
    for number, steps in enumerate(expected):
        told = meaning(ask(grid, run, number, round=3))
        held = task.num_examples(number)
        assert told["steps"] == steps
        drawn = min(4, held) * steps
        assert told["num_examples"] == (2 * held if batching == "epochs" else drawn)


def test_an_epoch_of_training_is_that_of_a_data_loader_without_drop_last():
    run = epochs(training={"optimizer": "adam", "lr": 0.01})
    task = run.build_task()
    largest = max(range(6), key=task.num_examples)
    module = task.module().train()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    order = torch.cat(task.drawn(largest, 2, 4, steps_of(run)[largest]))
    assert sorted(order.tolist()) == sorted(task.share(largest).tolist())
    for index in torch.utils.data.DataLoader(order, batch_size=4):
        batch = task.batch(index)
        optimizer.zero_grad()
        task.loss(module, batch.inputs, batch.labels).backward()
        optimizer.step()
    reply = ask(InlineGrid(6), run, largest, round=2)
    assert same(sent(reply), {name: p.detach() for name, p in module.named_parameters()})


@pytest.mark.parametrize("protocol", [False, "masked-sum", "secagg+"])
def test_the_scorers_truth_is_what_the_clients_trained_on(tmp_path, protocol):
    run = epochs(threat={"record": True}, training={"secure_aggregation": protocol})
    simulate(run, tmp_path)
    steps, task = steps_of(run), run.build_task()
    scorer = Scorer(build(run), "", batch_size_stated=True)
    seen = list(Recording(tmp_path / "tape"))
    assert len(seen) == run.training.rounds * (1 if protocol else 4)
    for one in seen:
        truth = scorer.truth(one)
        labels = [
            batch.labels
            for c in one.clients
            for batch in task.batches(c, one.round, batch_size=4, steps=steps[c])
        ]
        assert sorted(truth.labels.tolist()) == sorted(torch.cat(labels).tolist())
        assert truth.num_examples == len(truth.inputs) == one.update.num_examples
        found = [row for row in rows(tmp_path) if row["victim"] == one.victim]
        assert {row["status"] for row in found} == {"ok"}
        assert {int(row["local_steps"]) for row in found} == {max(steps[c] for c in one.clients)}


def test_an_update_of_more_examples_than_its_epochs_have_is_refused(tmp_path, monkeypatch):
    trained = local.train_locally

    def greedy(*args, **settings):
        update, loss = trained(*args, **settings)
        return update.replace(num_examples=4 * update.steps + 1), loss

    monkeypatch.setattr(local, "train_locally", greedy)
    run = epochs(training={"clients_per_round": 6})
    most = [f"{steps} steps of 4 hold {4 * steps}" for steps in steps_of(run)]
    with pytest.raises(ClientError) as refused:
        simulate(run, tmp_path)
    lines = str(refused.value).splitlines()[1:7]
    assert all(text in line for text, line in zip(most, lines, strict=True))


@pytest.mark.parametrize("batching", ["draw", "epochs"])
@pytest.mark.parametrize(
    ("adversary", "model", "metric"),
    [("idlg", "cnn", "asr"), ("first-linear", "mlp", "recovered")],
)
def test_exact_attacks_find_the_examples_of_every_round(
    tmp_path, batching, adversary, model, metric
):
    run = scenario(
        task={"model": model},
        training={"rounds": 3, "batch_size": 1, "batching": batching, "algorithm": "fedavg"},
        adversaries=[{"name": adversary}],
        threat={"grants": "white-box"},
    )
    simulate(run, tmp_path)
    found = [float(row["value"]) for row in rows(tmp_path) if row["metric"] == metric]
    assert len(found) == 12
    assert min(found) == 1


def test_examples_recur_only_by_epochs():
    for batching, distinct in (("draw", False), ("epochs", True)):
        run = scenario(training={"batch_size": 1, "batching": batching})
        task = run.build_task()
        held = task.num_examples(0)
        taken = [int(task.drawn(0, round, 1, 1)[0]) for round in range(1, 2 * held + 1)]
        assert (sorted(taken[:held]) == sorted(taken[held:])) == distinct


# --- the table ---------------------------------------------------------------------------------


def test_steps_and_epochs_are_not_both_given():
    for steps in (1, 4):
        with pytest.raises(
            ScenarioError,
            match=r"^training: local_epochs and local_steps both say .*; leave one out\.$",
        ):
            scenario(training={"algorithm": "fedavg", "local_steps": steps, "local_epochs": 1})
    with pytest.raises(ScenarioError, match=r"training\.local_epochs = 2: FedSGD sends the gradie"):
        scenario(training={"local_epochs": 2})


def test_epochs_survive_the_way_to_a_file_to_a_client_and_through_a_sweep(tmp_path):
    run = epochs(training={"local_epochs": 2})
    (tmp_path / "run.toml").write_text(run.to_toml())
    for other in (
        Scenario.load(tmp_path / "run.toml"),
        Scenario.model_validate_json(run.model_dump_json()),
    ):
        assert build(other).steps(0) == build(run).steps(0)
    swept = scenario(training={"algorithm": "fedavg"}, sweep={"training.local_epochs": [1, 3]})
    for again in (swept, Scenario.parse(swept.to_dict())):
        one, three = (build(point).steps(0) for point in again.points().values())
        assert three == 3 * one > 3
    with pytest.raises(ScenarioError, match="both say how long"):
        scenario(
            training={"algorithm": "fedavg", "local_steps": 5},
            sweep={"training.local_epochs": [1]},
        ).points()


# --- privacy budgets ---------------------------------------------------------------------------


def test_no_accountants_sampling_fits_epochs_and_the_check_says_so():
    defenses = [{"name": "dp-sgd", "clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-3}]
    run = epochs(task={}, defenses=defenses)
    assert Budget(build(run)).spent(2, {0: 2})["epsilon"] == math.inf
    _, cautions = preflight(run)
    assert [text for text in cautions if 'training.batching = "draw"' in text]
    drawn = epochs(task={}, defenses=defenses, training={"batching": "draw"})
    assert Budget(build(drawn)).spent(2, {0: 2})["epsilon"] < math.inf
    assert not [text for text in preflight(drawn)[1] if "training.batching" in text]


def test_budgets_count_the_steps_of_the_client_that_takes_the_most():
    run = epochs(
        training={"batching": "draw"},
        defenses=[{"name": "dp-sgd", "clip": 1.0, "noise_multiplier": 1.0}],
    )
    exposure = Budget(build(run))._exposure(0, 2, {0: 2})
    assert exposure.local_steps == max(steps_of(run))
    assert exposure.released == 0  # clients weigh as many examples as they train on
