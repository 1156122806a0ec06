"""Under secure aggregation the server gets the sum, and the right sum."""

import pytest
from support.secure_rounds import (
    arrays,
    clients_in,
    conducted,
    error_bound,
    furthest,
    mean,
    plain,
    unequal,
)
from support.tiny import rows, scenario

from fedsim.engine.simulate import simulate

pytestmark = pytest.mark.usefixtures("rogues", "unreported")


@pytest.mark.parametrize("model", ["cnn", "resnet20"])
@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_the_masked_sum_is_the_plain_sum(algorithm, model):
    run = unequal(algorithm=algorithm, model=model)
    updates = plain(run)
    counts = [examples for _, examples in updates]
    assert len(set(counts)) > 2
    (reply,), _ = conducted(run)
    assert furthest(arrays(reply), mean(updates)) < 1e-6
    assert any("running_var" in name for name in arrays(reply)) == (model == "resnet20")
    assert clients_in(reply) == list(range(6))
    metrics = reply.content.metric_records["metrics"]
    assert metrics["num-examples"] == sum(counts)
    assert 1 < metrics["train_loss"] < 5


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_secagg_plus_is_within_its_bound(algorithm):
    run = unequal("secagg+", algorithm, "resnet20")
    updates = plain(run)
    counts = [examples for _, examples in updates]
    (reply,), _ = conducted(run)
    bound = error_bound(6, sum(counts), 40)
    assert bound < 3e-6
    # The mean comes back as float32, whose own steps near a weight of 1 are 6e-8.
    assert furthest(arrays(reply), mean(updates)) < bound + 1e-7
    assert reply.content.metric_records["metrics"]["num-examples"] == sum(counts)


@pytest.mark.parametrize(("protocol", "near"), [("masked-sum", 1e-5), ("secagg+", 1e-4)])
@pytest.mark.parametrize("strategy", ["FedAvg", "FedAdam", "FedAvgM"])
def test_a_run_trains_as_it_would_without(strategy, protocol, near, tmp_path):
    def trained(setting):
        run = scenario(
            training={
                "algorithm": "fedavg",
                "rounds": 3,
                "local_steps": 2,
                "strategy": strategy,
                "secure_aggregation": setting,
                "evaluate_clients": 2,
            },
            adversaries=[],
        )
        simulate(run, tmp_path / str(setting))
        utility = rows(tmp_path / str(setting), "utility.csv")
        return {(row["round"], row["metric"]): float(row["value"]) for row in utility}

    ours, theirs = trained(protocol), trained(False)
    assert ours == pytest.approx(theirs, abs=near, rel=near)
    assert ("3", "client_accuracy") in ours
    assert ("3", "train_loss") in ours
