"""Differential privacy: bounds hold, noise is as stated, budgets are the accountant's own."""

import csv
import math

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from opacus import GradSampleModule
from opacus.accountants import create_accountant
from opacus.optimizers import DPOptimizer
from tiny import ask, rows, scenario, sent
from torch import nn
from torch.nn import functional

from defenses import DPSGD, ClientDP, Dropout, GaussianNoise, LaplacianNoise
from fedsim import testing
from fedsim.attack import Bench
from fedsim.budget import Budget
from fedsim.campaign import InlineExecutor
from fedsim.defense import Exposure, MeanGradient, Training
from fedsim.engine.inline import InlineGrid
from fedsim.errors import ClientError, ScenarioError
from fedsim.federation import play
from fedsim.ledger import Ledger
from fedsim.mods import FixedClipping, LocalDP
from fedsim.preflight import preflight
from fedsim.privacy import epsilon
from fedsim.records import Batch, Update
from fedsim.simulation import simulate


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def protect(defense, tensors, seed=0):
    update = Update(tensors, "delta", lr=0.1)
    return defense.protect(update, torch.Generator().manual_seed(seed), {}).tensors


def norm(tensors):
    return float(torch.cat([value.double().flatten() for value in tensors.values()]).norm())


def loss(module, batch):
    return functional.cross_entropy(module(batch.inputs), batch.labels)


def training(module, batch, seed=0):
    plain = MeanGradient(loss, frozenset(name for name, _ in module.named_parameters()))
    rng = torch.Generator().manual_seed(seed)
    return Training(module, (batch,), loss, plain, "fedsgd", 0.1, 0.0, 0.0, rng)


def exposure(**changes):
    facts = {
        "rounds": 10,
        "participations": 4,
        "clients": 20,
        "clients_per_round": 5,
        "examples": 80,
        "batch_size": 8,
        "local_steps": 3,
        "trained": frozenset({"head.weight"}),
    }
    return Exposure(**{**facts, **changes})


# --- the accountant -------------------------------------------------------------------------


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_epsilon_is_what_the_accountant_says_itself(accountant):
    theirs = create_accountant(accountant)
    for _ in range(50):
        theirs.step(noise_multiplier=1.1, sample_rate=0.1)
    expected = theirs.get_epsilon(delta=1e-5)
    assert epsilon(1.1, 0.1, 50, 1e-5, accountant) == pytest.approx(expected, rel=1e-9)


def test_without_noise_nothing_is_private_and_without_steps_everything():
    assert epsilon(0.0, 0.1, 50, 1e-5) == math.inf
    assert epsilon(1.0, 0.1, 0, 1e-5) == 0


def test_epsilon_grows_with_steps_and_sampling_and_shrinks_with_noise():
    steps = [epsilon(1.0, 0.1, n, 1e-5) for n in (1, 10, 100)]
    rates = [epsilon(1.0, q, 10, 1e-5) for q in (0.01, 0.1, 1.0)]
    noises = [epsilon(z, 0.1, 10, 1e-5) for z in (4.0, 1.0, 0.5)]
    for rising in (steps, rates, noises):
        assert rising == sorted(rising)
        assert rising[0] < rising[-1]


def test_the_budget_that_llg_publishes():
    """100 of 750 users a round, 100 rounds, beta 1 and sigma .1: "about 11.5" at delta 1e-5."""
    from opacus.accountants.analysis import rdp

    told = exposure(clients=750, clients_per_round=100, rounds=100, released=100)
    released = ClientDP(clip=1.0, noise_multiplier=0.1).spent(told)["epsilon_released"]
    assert released == pytest.approx(epsilon(1.0, 100 / 750, 100, 1e-5))
    assert released == pytest.approx(10.5, abs=0.1)  # by the conversion that Opacus uses today
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
    spent = rdp.compute_rdp(q=100 / 750, noise_multiplier=1.0, steps=100, orders=orders)
    moments = min(spent + np.log(1e5) / (np.array(orders) - 1))  # Abadi et al., theorem 2
    assert moments == pytest.approx(11.5, abs=0.1)


# --- a whole client -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_a_client_is_clipped_to_the_bound(size):
    update = {"a": size * drawn(50, 20), "b": size * drawn(30, seed=1)}
    clipped = protect(ClientDP(clip=0.5, noise_multiplier=0), update)
    assert norm(clipped) <= 0.5 * (1 + 1e-6)
    assert norm(clipped) == pytest.approx(min(0.5, norm(update)), rel=1e-6)
    ratios = torch.cat([(clipped[k] / update[k]).flatten() for k in update])
    torch.testing.assert_close(ratios, ratios[:1].expand_as(ratios))  # its direction stays


def test_a_clients_noise_is_as_large_as_it_says():
    update = {"a": drawn(200, 100)}
    noisy = protect(ClientDP(clip=2.0, noise_multiplier=0.3), update)
    clipped = protect(ClientDP(clip=2.0, noise_multiplier=0), update)
    assert float((noisy["a"] - clipped["a"]).std()) == pytest.approx(0.6, rel=0.02)


def test_a_clients_budget_counts_rounds_sampling_and_sums():
    defense = ClientDP(noise_multiplier=2.0, delta=1e-6)
    alone = defense.spent(exposure())
    assert alone == {"epsilon": epsilon(2.0, 1.0, 4, 1e-6), "delta": 1e-6}
    summed = defense.spent(exposure(summed=4))
    assert summed["epsilon"] == epsilon(4.0, 1.0, 4, 1e-6) < alone["epsilon"]
    released = defense.spent(exposure(released=5))["epsilon_released"]
    assert released == epsilon(2.0 * math.sqrt(5), 5 / 20, 10, 1e-6)


def test_what_is_sent_unprotected_makes_a_clients_budget_infinite():
    told = exposure(buffers=frozenset({"norm.running_mean"}))
    assert ClientDP().spent(told)["epsilon"] == math.inf
    only = ClientDP(layers=("head",))
    assert only.spent(exposure())["epsilon"] < math.inf
    more = exposure(trained=frozenset({"head.weight", "conv.weight"}))
    assert only.spent(more)["epsilon"] == math.inf


# --- each example ---------------------------------------------------------------------------


def convolutional():
    return testing.network().module


def normalised():
    """GroupNorm and LayerNorm: what takes BatchNorm's place."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.LayerNorm(64),
        nn.Linear(64, 10),
    )  # fmt: skip


class Own(nn.Module):
    """A layer that Opacus has no rule for: a parameter used by hand, twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.randn(36))
        self.head = nn.Linear(36, 10)

    def forward(self, inputs):
        hidden = inputs.flatten(1) * self.scale
        return self.head(torch.tanh(hidden) * self.scale)


def one_by_one(module, batch, clip):
    """DP-SGD's clipped mean, example by example in float64."""
    module = module.double()
    total = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    for x, y in zip(batch.inputs.double(), batch.labels, strict=True):
        grads = torch.autograd.grad(loss(module, Batch(x[None], y[None])), list(total_of(module)))
        size = torch.cat([g.flatten() for g in grads]).norm()
        for name, g in zip(total, grads, strict=True):
            total[name] += g * min(1.0, clip / float(size))
    return {name: (value / len(batch)).float() for name, value in total.items()}


def total_of(module):
    return (p for _, p in module.named_parameters())


@pytest.mark.parametrize("build", [convolutional, normalised, Own])
@pytest.mark.parametrize("clip", [0.05, 1.0, 100.0])
@pytest.mark.parametrize("how", ["auto", "torch.func"])
def test_examples_are_clipped_one_by_one(build, clip, how):
    module, batch = build(), testing.batch(6)
    defense = DPSGD(clip=clip, noise_multiplier=0, per_example=how)
    prepared = defense.prepare(training(module, batch))
    ours, value = prepared.gradient(module, batch)
    assert value == pytest.approx(float(loss(module, batch).detach()), rel=1e-5)
    theirs = one_by_one(build(), batch, clip)
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name], expected, rtol=1e-4, atol=1e-7)
    assert norm(ours) <= clip * (1 + 1e-6)
    for single in range(6):
        alone = Batch(batch.inputs[single : single + 1], batch.labels[single : single + 1])
        assert norm(prepared.gradient(module, alone)[0]) <= clip * (1 + 1e-6)


@pytest.mark.parametrize("how", ["opacus", "torch.func"])
def test_a_step_is_that_of_opacus_own_optimizer(how):
    batch, clip = testing.batch(5), 0.3
    module, theirs = convolutional(), GradSampleModule(convolutional(), loss_reduction="mean")
    ours, _ = (
        DPSGD(clip=clip, noise_multiplier=0, per_example=how)
        .prepare(training(module, batch))
        .gradient(module, batch)
    )
    optimizer = DPOptimizer(
        torch.optim.SGD(theirs.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=clip,
        expected_batch_size=5,
    )
    batch.inputs.requires_grad_()  # or Opacus' hooks warn
    loss(theirs, batch).backward()
    optimizer.pre_step()
    for (name, _), p in zip(module.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours[name], p.grad, rtol=1e-5, atol=1e-7)


def test_an_examples_noise_is_as_large_as_it_says():
    module, batch = convolutional(), testing.batch(4)
    defense = DPSGD(clip=2.0, noise_multiplier=3.0)
    gradients = {"a": torch.zeros(4, 200, 100)}
    noisy = defense.privatized(gradients, torch.Generator().manual_seed(0))
    assert float(noisy["a"].std()) == pytest.approx(2.0 * 3.0 / 4, rel=0.02)
    draws = [defense.prepare(training(module, batch, s)).gradient(module, batch)[0] for s in (0, 1)]
    assert not torch.equal(draws[0]["head.weight"], draws[1]["head.weight"])


def test_opacus_leaves_no_hook_and_no_gradient_behind():
    module, batch = convolutional(), testing.batch(3)
    hooks = [(len(m._forward_hooks), len(m._backward_hooks)) for m in module.modules()]
    prepared = DPSGD(per_example="opacus").prepare(training(module, batch))
    prepared.gradient(module, batch)
    assert hooks == [(len(m._forward_hooks), len(m._backward_hooks)) for m in module.modules()]
    for p in module.parameters():
        assert p.grad is None
        assert getattr(p, "grad_sample", None) is None


def test_batch_normalisation_is_refused_with_the_reason_and_the_fix():
    run = scenario(task={"model": "resnet20"}, defenses=[{"name": "dp-sgd"}])
    with pytest.raises(ScenarioError, match=r"batch normalisation \(norm.*whole batch.*GroupNorm"):
        preflight(run)


def test_what_an_earlier_defense_did_to_the_gradient_is_not_lost_in_silence():
    module, batch = convolutional(), testing.batch(3)
    other = training(module, batch).replace(gradient=lambda module, batch: ({}, 0.0))
    with pytest.raises(ScenarioError, match="List dp-sgd before"):
        DPSGD().prepare(other)


def test_opacus_alone_refuses_a_layer_it_has_no_rule_for():
    recurrent = nn.Sequential(nn.Flatten(), nn.LSTM(36, 10))
    with pytest.raises(ScenarioError, match=r"per_example = .torch.func"):
        DPSGD(per_example="opacus").prepare(training(recurrent, testing.batch(2)))


def test_an_examples_budget_counts_local_steps_and_the_share_of_a_batch():
    told = DPSGD(noise_multiplier=1.5).spent(exposure())
    assert told == {"epsilon": epsilon(1.5, 8 / 80, 4 * 3, 1e-5), "delta": 1e-5}


# --- in a federation ------------------------------------------------------------------------


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


def test_a_layer_or_client_that_is_not_there_is_an_error_before_any_training():
    run = scenario(defenses=[{"name": "sign", "layers": ["haed"]}])
    with pytest.raises(ScenarioError, match=r"defenses.0 \(sign\).layers.*Did you mean 'head'"):
        preflight(run)
    with pytest.raises(ScenarioError, match="there is no client 6; clients go from 0 to 5"):
        scenario(defenses=[{"name": "sign", "clients": [6]}])


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_training_with_dp_sgd_is_clipped_in_every_local_step(algorithm):
    private = {"name": "dp-sgd", "clip": 0.01, "noise_multiplier": 0.0}
    steps = 1 if algorithm == "fedsgd" else 3
    extra = {"algorithm": algorithm, "local_steps": steps, "lr": 0.5}
    run = scenario(training=extra, defenses=[private])
    task = run.build_task()
    before = task.arrays(task.module())
    after = sent(ask(InlineGrid(6), run, 0))
    if algorithm == "fedsgd":
        assert norm(after) <= 0.01 * (1 + 1e-6)
    else:
        moved = norm({name: after[name] - before[name] for name in before})
        assert 0 < moved <= 3 * 0.5 * 0.01 * (1 + 1e-4)


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


def spent(folder, metric="epsilon"):
    with (folder / "utility.csv").open() as file:
        return [float(r["value"]) for r in csv.DictReader(file) if r["metric"] == metric]


def test_the_budget_stands_beside_utility_every_round(tmp_path):
    run = scenario(
        training={"rounds": 3, "clients_per_round": 6},
        defenses=[{"name": "dp-sgd", "noise_multiplier": 2.0}],
    )
    simulate(run, tmp_path / "run")
    held = min(run.build_task().num_examples(client) for client in range(6))
    expected = [epsilon(2.0, 4 / held, rounds, 1e-5) for rounds in (0, 1, 2, 3)]
    assert spent(tmp_path / "run") == pytest.approx(expected)
    assert spent(tmp_path / "run", "delta") == [1e-5] * 4
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"Privacy spent: epsilon = {expected[-1]:.3g} at delta = 1e-05" in page


def test_two_defenses_report_under_their_names():
    run = scenario(defenses=[{"name": "dp-sgd"}, {"name": "client-dp"}])
    told = Budget(run, run.build_task()).spent(1, {0: 1})
    assert {"dp-sgd.0 epsilon", "client-dp.1 epsilon", "client-dp.1 epsilon_released"} <= set(told)


def test_only_who_runs_a_defense_counts_for_its_budget():
    run = scenario(defenses=[{"name": "client-dp", "clients": [1]}])
    told = Budget(run, run.build_task()).spent(5, {0: 5, 1: 2})
    assert told == {"epsilon": epsilon(1.0, 1.0, 2, 1e-5), "delta": 1e-5}


def test_a_delta_that_promises_nothing_is_warned_of():
    _, quiet = preflight(scenario(defenses=[{"name": "dp-sgd"}]))
    assert quiet == []
    _, cautions = preflight(scenario(defenses=[{"name": "client-dp", "delta": 0.2}]))
    assert "delta = 0.2 with 6 clients" in cautions[0]
    _, cautions = preflight(scenario(defenses=[{"name": "dp-sgd", "delta": 0.1}]))
    assert "examples on one client" in cautions[0]


# --- Flower's own ---------------------------------------------------------------------------


def test_flowers_clipping_is_a_clip():
    update = {"a": drawn(50, 20), "b": drawn(30, seed=1)}
    clipped = protect(FixedClipping(clipping_norm=0.5), update)
    assert list(clipped) == list(update)
    assert norm(clipped) == pytest.approx(0.5, rel=1e-5)
    small = {"a": 0.001 * drawn(5)}
    torch.testing.assert_close(protect(FixedClipping(clipping_norm=0.5), small), small)


def test_flowers_local_dp_adds_the_noise_of_its_formula():
    defense = LocalDP(clipping_norm=1.0, sensitivity=1.0, epsilon=10.0, delta=1e-5)
    update = {"a": 1e-6 * torch.ones(300, 100)}
    noisy = protect(defense, update)
    sigma = math.sqrt(2 * math.log(1.25e5)) / 10
    assert float(noisy["a"].std()) == pytest.approx(sigma, rel=0.02)
    assert torch.equal(noisy["a"], protect(defense, update)["a"])
    assert not torch.equal(noisy["a"], protect(defense, update, 1)["a"])
    with pytest.raises(ClientError, match="zero throughout"):
        protect(defense, {"a": torch.zeros(3)})
    told = defense.spent(exposure())
    assert told["epsilon"] == epsilon(sigma, 1.0, 4, 1e-5)
    assert LocalDP(sensitivity=0.1).cautions(exposure())


@pytest.mark.parametrize("where", ["Server", "Client"])
def test_flowers_dp_strategies_train_under_their_names(where, tmp_path):
    strategy = {
        "name": f"DifferentialPrivacy{where}SideFixedClipping",
        "noise_multiplier": 0.001,
        "clipping_norm": 1.0,
    }
    half = [{"name": "flower-fixed-clipping", "clipping_norm": 1.0}] if where == "Client" else []
    run = scenario(training={"algorithm": "fedavg", "strategy": strategy}, defenses=half)
    simulate(run, tmp_path / "run")
    assert {row["status"] for row in rows(tmp_path / "run")} == {"ok"}
    assert len(spent(tmp_path / "run", "accuracy")) == 3


DP = "DifferentialPrivacy"


@pytest.mark.parametrize(
    ("strategy", "defenses", "words"),
    [
        (f"{DP}ClientSideFixedClipping", [], "none does"),
        (f"{DP}ClientSideFixedClipping", [{"clipping_norm": 0.5}], "clipped to 1.0, and none does"),
        (f"{DP}ClientSideFixedClipping", [{"clients": [0]}], "none does"),
        (f"{DP}ClientSideAdaptiveClipping", [], "ServerSideAdaptiveClipping"),
        (f"{DP}ServerSideFixedClipping", [], ""),
    ],
)
def test_a_strategy_that_counts_on_clipping_clients_gets_them(strategy, defenses, words):
    settings = {"name": strategy, "noise_multiplier": 0.1}
    if strategy.endswith("FixedClipping"):
        settings["clipping_norm"] = 1.0
    listed = [{"name": "flower-fixed-clipping", **entry} for entry in defenses]
    run = scenario(training={"algorithm": "fedavg", "strategy": settings}, defenses=listed)
    if not words:
        preflight(run)
        return
    with pytest.raises(ScenarioError, match=words):
        preflight(run)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"num_sampled_clients": 3}, "leave it out"),
        ({"inner": f"{DP}ServerSideFixedClipping"}, "no other wrapper"),
        ({"inner": {"name": "FedTrimmedAvg", "beta": 2}}, "beta"),
        ({"accountant": 1}, "'int' object"),
    ],
)
def test_what_a_dp_strategy_takes_on_trust_is_checked(more, words):
    settings = {"name": f"{DP}ServerSideFixedClipping", "noise_multiplier": 0.1}
    strategy = {**settings, "clipping_norm": 1.0, **more}
    run = scenario(training={"algorithm": "fedavg", "strategy": strategy})
    with pytest.raises(ScenarioError, match=words):
        preflight(run)


def test_dp_strategies_refuse_running_statistics():
    strategy = {
        "name": f"{DP}ServerSideFixedClipping",
        "noise_multiplier": 0.1,
        "clipping_norm": 1.0,
    }
    run = scenario(
        task={"model": "resnet20"}, training={"algorithm": "fedavg", "strategy": strategy}
    )
    with pytest.raises(ScenarioError, match="running statistics too"):
        preflight(run)


def test_batches_composed_by_label_have_no_sampling_to_count():
    run = scenario(task={"composition": "balanced"}, defenses=[{"name": "dp-sgd"}])
    _, cautions = preflight(run)
    assert "composed by label" in cautions[0]
    assert Budget(run, run.build_task()).spent(1, {0: 1})["epsilon"] == math.inf


def test_sums_of_everybodys_noise_are_cheaper():
    both = {"defenses": [{"name": "client-dp"}]}
    alone = scenario(**both)
    summed = scenario(**both, training={"secure_aggregation": "masked-sum"})
    dropping = scenario(**both, training={"secure_aggregation": "masked-sum", "on_failure": "drop"})
    told = [
        Budget(run, run.build_task()).spent(2, {0: 2})["epsilon"]
        for run in (alone, summed, dropping)
    ]
    multipliers = (1.0, math.sqrt(4), math.sqrt(2))
    assert told == [epsilon(z, 1.0, 2, 1e-5) for z in multipliers]


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
        bench = Bench(run)
        ledger = Ledger.create(tmp_path / folder, run)
        play(run, ledger, grid, InlineExecutor(bench), "", lambda *_, **__: None, task=bench.task)

    started(InlineGrid(6), "kept")
    with pytest.raises(ClientError, match=r"remembers 0 of the 1 rounds .*Context.state"):
        started(Forgetful(6), "lost")


# --- what a review found --------------------------------------------------------------------


def test_noise_adds_up_only_where_nothing_takes_it_away_again():
    masked = {"secure_aggregation": "masked-sum"}

    def told(*after):
        listed = [{"name": "client-dp"}, *({"name": name} for name in after)]
        run = scenario(training=masked, defenses=listed)
        return Budget(run, run.build_task()).spent(2, {0: 2})

    alone = told()
    assert alone["epsilon"] == epsilon(2.0, 1.0, 2, 1e-5)
    for name in ("top-k", "int8", "sign"):
        spoiled = told(name)
        assert spoiled == {"epsilon": epsilon(1.0, 1.0, 2, 1e-5), "delta": 1e-5}, name
    apart = [{"name": "client-dp"}, {"name": "dropout"}]
    run = scenario(training=masked, defenses=apart)
    assert Budget(run, run.build_task()).spent(2, {0: 2}) == alone


def test_where_clients_may_be_dropped_the_global_model_may_hold_one_clients_noise():
    run = scenario(training={"on_failure": "drop"}, defenses=[{"name": "client-dp"}])
    told = Budget(run, run.build_task()).spent(2, {0: 2})
    assert told["epsilon_released"] == epsilon(1.0, 4 / 6, 2, 1e-5)


@pytest.mark.parametrize("key", ["fraction_train", "min_train_nodes", "weighted_by_key"])
def test_a_strategy_cannot_change_who_takes_part_behind_the_accountants_back(key):
    value = "weight" if key == "weighted_by_key" else 1
    run = scenario(training={"algorithm": "fedavg", "strategy": {"name": "FedAvg", key: value}})
    with pytest.raises(ScenarioError, match=rf"strategy.{key}.*clients_per_round"):
        preflight(run)


def test_flowers_mods_reach_parameters_without_dimensions():
    clipped = protect(FixedClipping(clipping_norm=1.0), {"s": torch.tensor(2.0), "w": drawn(3)})
    assert norm(clipped) == pytest.approx(1, rel=1e-5)
    assert clipped["s"].shape == ()
    noisy = protect(LocalDP(epsilon=5.0), {"s": torch.tensor(0.5)})
    assert float(noisy["s"]) != 0.5


@pytest.mark.parametrize("order", [("dropout", "dp-sgd"), ("dp-sgd", "dropout")])
@pytest.mark.parametrize("before", [(), ("head",)])
def test_dropout_and_dp_sgd_work_together_whatever_their_order(order, before):
    """Without a clip that bites, DP-SGD under dropout is dropout's own mean gradient."""
    module, batch = convolutional(), testing.batch(4)
    dropout = Dropout(rate=0.5, before=before)

    def gradient(prepared):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return prepared.gradient(module, batch)[0]

    expected = gradient(dropout.prepare(training(module, batch)))
    for clip in (1e6, 0.1):
        both = {"dropout": dropout, "dp-sgd": DPSGD(clip=clip, noise_multiplier=0)}
        prepared = training(module, batch)
        for name in order:
            prepared = both[name].prepare(prepared)
        found = gradient(prepared)
        if clip > 1:
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-7)
        else:
            assert norm(found) <= clip * (1 + 1e-6)


class Aside(nn.Module):
    """A weight used outside its layer, which Opacus' hooks do not see."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(36, 10)
        self.tied = nn.Linear(36, 10)

    def forward(self, inputs):
        flat = inputs.flatten(1)
        return self.head(flat) + functional.linear(flat.tanh(), self.tied.weight)


def test_weights_used_outside_their_layer_go_by_torch_func():
    module, batch = Aside(), testing.batch(4)
    ours, _ = (
        DPSGD(clip=0.3, noise_multiplier=0).prepare(training(module, batch)).gradient(module, batch)
    )
    total = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    for x, y in zip(batch.inputs, batch.labels, strict=True):
        value = loss(module, Batch(x[None], y[None]))
        grads = torch.autograd.grad(value, list(total_of(module)), materialize_grads=True)
        size = torch.cat([g.flatten() for g in grads]).norm()
        for name, g in zip(total, grads, strict=True):
            total[name] += g * min(1.0, 0.3 / float(size)) / 4
    for name, expected in total.items():
        torch.testing.assert_close(ours[name], expected, rtol=1e-4, atol=1e-7)
    only = DPSGD(clip=0.3, per_example="opacus").prepare(training(module, batch))
    with pytest.raises(ScenarioError, match="outside its layer"):
        only.gradient(module, batch)


def test_an_accountant_that_gives_up_says_so_before_any_training():
    settings = {"name": "client-dp", "noise_multiplier": 1e-200}
    with pytest.raises(ScenarioError, match=r"cannot count noise of 1e-200.*accountant = .rdp"):
        preflight(scenario(defenses=[settings]))
    assert epsilon(50.0, 0.01, 1, 0.5) == 0  # never negative


def test_a_clip_that_is_undone_does_not_count_as_one():
    strategy = {
        "name": f"{DP}ClientSideFixedClipping",
        "noise_multiplier": 0.1,
        "clipping_norm": 1.0,
    }
    clip, sign = {"name": "flower-fixed-clipping"}, {"name": "sign", "scale": 1.0}
    extra = {"algorithm": "fedavg", "strategy": strategy}
    preflight(scenario(training=extra, defenses=[clip, {"name": "top-k"}]))
    with pytest.raises(ScenarioError, match=r"clipping_norm = 1\.0 last"):
        preflight(scenario(training=extra, defenses=[clip, sign]))
    _, cautions = preflight(
        scenario(defenses=[{"name": "flower-local-dp", "delta": 0.9}], training={"clients": 6})
    )
    assert "delta = 0.9 with 6 clients" in cautions[0]
