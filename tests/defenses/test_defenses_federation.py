"""Defenses in a federation: what is sent, by whom, and what must be remembered."""

import math

import pytest
import torch
from flwr.app import RecordDict
from support.tiny import ask, rows, scenario, sent

from defenses import GaussianNoise, LaplacianNoise
from fedsim.attacking.attack import AttackRunner
from fedsim.attacking.executor import InlineExecutor
from fedsim.engine.inline import InlineGrid
from fedsim.engine.preflight import preflight
from fedsim.engine.simulate import simulate
from fedsim.errors import ClientError, ScenarioError
from fedsim.federation import federate
from fedsim.runs.ledger import Ledger
from fedsim.scenario.built import build

pytestmark = pytest.mark.usefixtures("unreported")

# --- what is sent ----------------------------------------------------------------------------


def wire(defenses, algorithm, steps=1):
    """What client 0 sends, with defenses and without, in round 1."""
    extra = {"algorithm": algorithm, "local_steps": steps}
    clean = sent(ask(InlineGrid(6), scenario(training=extra), 0))
    guarded = sent(ask(InlineGrid(6), scenario(training=extra, defenses=defenses), 0))
    return clean, guarded


@pytest.mark.parametrize("kind", [GaussianNoise, LaplacianNoise])
@pytest.mark.parametrize(("algorithm", "steps"), [("fedsgd", 1), ("fedavg", 1), ("fedavg", 4)])
def test_noise_on_the_wire_has_the_variance_asked_for(kind, algorithm, steps):
    clean, noisy = wire([{"name": kind.name, "sigma": 0.3}], algorithm, steps)
    noise = torch.cat([(noisy[name] - value).flatten() for name, value in clean.items()])
    assert len(noise) > 8000
    assert float(noise.var()) == pytest.approx(0.09, rel=0.06)
    assert float(noise.mean()) == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize(("algorithm", "steps"), [("fedsgd", 1), ("fedavg", 3)])
def test_only_the_clients_and_layers_named_are_protected(algorithm, steps):
    noise = {"name": "gaussian-noise", "sigma": 0.3, "layers": ["head"]}
    clean, noisy = wire([noise], algorithm, steps)
    changed = {name for name in clean if not torch.equal(clean[name], noisy[name])}
    assert changed == {"head.weight", "head.bias"}
    assert list(clean) == list(noisy)
    clean, other = wire([noise | {"clients": [1, 2]}], algorithm, steps)
    assert all(torch.equal(clean[name], other[name]) for name in clean)
    (clean, exact) = wire([{**noise, "clients": [0], "layers": ["head.bias"]}], algorithm, steps)
    assert {n for n in clean if not torch.equal(clean[n], exact[n])} == {"head.bias"}


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_arrays_are_sent_in_the_models_order_as_some_strategies_of_flower_go_by_it(algorithm):
    first = next(iter(scenario().build_task().module().state_dict())).rpartition(".")[0]
    clean, noisy = wire([{"name": "gaussian-noise", "layers": [first]}], algorithm)
    assert not torch.equal(clean[f"{first}.weight"], noisy[f"{first}.weight"])
    assert list(clean) == list(noisy)


def test_a_layer_or_client_that_is_not_there_is_an_error_before_any_training():
    run = scenario(defenses=[{"name": "sign", "layers": ["haed"]}])
    with pytest.raises(ScenarioError, match=r"defenses.0 \(sign\).layers.*Did you mean 'head'"):
        preflight(run)
    with pytest.raises(ScenarioError, match="there is no client 6; clients go from 0 to 5"):
        scenario(defenses=[{"name": "sign", "clients": [6]}])


NOTHING = [
    {"name": "gaussian-noise", "sigma": 0.0},
    {"name": "laplacian-noise", "sigma": 0.0},
    {"name": "top-k", "k": 1.0, "error_feedback": True},
    {"name": "grad-drop", "rate": 0.0},
    {"name": "gradient-mask", "rate": 0.0},
    {"name": "deep-gradient-compression", "ratio": 0.0, "momentum": 0.0},
    {"name": "client-dp", "clip": math.inf, "noise_multiplier": 0.0},
    {"name": "dp-sgd", "clip": math.inf, "noise_multiplier": 0.0},
    {"name": "dropout", "rate": 0.0},
]


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_at_strength_zero_the_run_is_bit_identical(algorithm, tmp_path):
    extra = {"algorithm": algorithm, "local_steps": 1 if algorithm == "fedsgd" else 2}
    simulate(scenario(training=extra), tmp_path / "plain")
    simulate(scenario(training=extra, defenses=NOTHING), tmp_path / "guarded")
    budgets = ("epsilon", "delta", "epsilon_released")

    def trained(name):
        table = rows(tmp_path / name, "utility.csv")
        return [row for row in table if not row["metric"].endswith(budgets)]

    def found(name):
        return [{**row, "seconds": ""} for row in rows(tmp_path / name)]

    assert trained("plain") == trained("guarded")
    assert found("plain") == found("guarded")
    states = [tmp_path / n / "checkpoint/global.safetensors" for n in ("plain", "guarded")]
    from safetensors.torch import load_file

    plain, guarded = (
        {k: v for k, v in load_file(path).items() if not k.startswith("client/")} for path in states
    )
    assert all(torch.equal(plain[name], guarded[name]) for name in plain)


# --- state that must not be lost ------------------------------------------------------------


class Forgetful(InlineGrid):
    """An engine that gives every client a new Context each round."""

    def exchange(self, messages):
        for context in self.contexts.values():
            context.state = RecordDict()
        return super().exchange(messages)


def test_a_defense_that_remembers_refuses_an_engine_that_forgets(tmp_path):
    run = scenario(
        training={"clients_per_round": 6},
        defenses=[{"name": "top-k", "error_feedback": True}],
    )

    def started(grid, folder):
        built = build(run)
        executor = InlineExecutor(AttackRunner(built))
        ledger = Ledger.create(tmp_path / folder, run)
        federate.run(built, ledger, grid, executor, "", lambda *_, **__: None)

    started(InlineGrid(6), "kept")
    with pytest.raises(ClientError, match=r"remembers 0 of the 1 rounds .*Context.state"):
        started(Forgetful(6), "lost")
