"""What secure aggregation refuses before any training, and its setting wherever it is written."""

import tomllib

import pytest
from flwr.app import Message, MessageType, RecordDict
from support.secure_rounds import asked, secure
from support.tiny import config, initial

from fedsim import HonestButCurious
from fedsim.attacking.attack import AttackRunner
from fedsim.attacking.campaign import Campaign
from fedsim.attacking.executor import InlineExecutor
from fedsim.engine.inline import InlineGrid
from fedsim.errors import ClientError, EngineError, ScenarioError
from fedsim.federation.secure.grid import SecureGrid
from fedsim.federation.strategies import AVERAGING, build_strategy, strategy_names
from fedsim.runs.ledger import Ledger
from fedsim.scenario import Scenario
from fedsim.scenario.built import build

pytestmark = pytest.mark.usefixtures("rogues")


@pytest.mark.parametrize(
    "training", [{"clients": 1, "clients_per_round": 1}, {"clients_per_round": 1}]
)
def test_one_client_is_refused_with_the_reason(training):
    with pytest.raises(ScenarioError, match="the sum of one update is that update"):
        secure(training=training)


@pytest.mark.parametrize("name", strategy_names())
def test_strategies_that_look_at_single_updates_are_refused(name):
    settings = {"DifferentialPrivacy": {"noise_multiplier": 0.1, "clipping_norm": 0.1}}
    algorithm = "fedsgd" if name == "FedSGD" else "fedavg"
    run = secure(
        training={
            "algorithm": algorithm,
            "strategy": {"name": name, **settings.get(name[:19], {})},
        }
    )
    if name in AVERAGING:
        build_strategy(run)
    else:
        with pytest.raises(ScenarioError, match="looks at single updates"):
            build_strategy(run)


@pytest.mark.parametrize(
    ("given", "meant"),
    [(False, False), (True, "secagg+"), ("secagg+", "secagg+"), ("masked-sum", "masked-sum")],
)
def test_the_setting_survives_every_way_of_writing_it_down(given, meant):
    run = secure(given)
    assert run.training.secure_aggregation == meant
    assert Scenario.parse(tomllib.loads(run.to_toml())) == run
    assert Scenario.model_validate_json(run.model_dump_json()) == run


@pytest.mark.parametrize("wrong", ["secagg", "yes", 1, "", None])
def test_other_settings_are_refused(wrong):
    with pytest.raises(ScenarioError, match="'masked-sum'"):
        secure(wrong)


def test_the_setting_can_be_swept():
    run = secure()
    run = Scenario.parse(
        {**run.to_dict(), "sweep": {"training.secure_aggregation": [False, "masked-sum"]}}
    )
    assert [p.training.secure_aggregation for p in run.points().values()] == [False, "masked-sum"]


def test_a_single_update_where_a_sum_belongs_is_refused(tmp_path):
    run = secure(training={"rounds": 1})
    built, ledger = build(run), Ledger.create(tmp_path, run)
    campaign = Campaign(built, ledger, InlineExecutor(AttackRunner(built)))
    curious = HonestButCurious(build_strategy(run), campaign=campaign, on_failure="stop")
    with pytest.raises(ClientError, match="train on a SecureGrid"):
        curious.start(
            grid=InlineGrid(6),
            initial_arrays=initial(run),
            num_rounds=1,
            train_config=config(run),
        )


def test_training_messages_cannot_be_pulled_one_by_one():
    run = secure()
    grid = SecureGrid(InlineGrid(6), "masked-sum", seed=3, most=4)
    with pytest.raises(EngineError, match="send_and_receive"):
        grid.push_messages(asked(run))
    queries = [Message(RecordDict(), 1000, MessageType.QUERY)]
    (answer,) = grid.pull_messages(grid.push_messages(queries))
    assert answer.content["client"]["client"] == 0
