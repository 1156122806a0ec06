"""Differential privacy: budgets are the accountant's own, and count all that is released."""

import math

import numpy as np
import pytest
from opacus.accountants import create_accountant
from support.private import exposure, spent
from support.tiny import scenario

from defenses import DPSGD, ClientDP, GaussianNoise
from fedsim.engine.preflight import preflight
from fedsim.engine.simulate import simulate
from fedsim.errors import PluginError, ScenarioError
from fedsim.privacy import epsilon
from fedsim.scenario.built import build
from fedsim.training.budget import Budget

# --- the accountant -------------------------------------------------------------------------


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_epsilon_is_what_the_accountant_says_itself(accountant):
    theirs = create_accountant(accountant)
    for _ in range(50):
        theirs.step(noise_multiplier=1.1, sample_rate=0.1)
    expected = theirs.get_epsilon(delta=1e-5)
    assert epsilon(1.1, 0.1, 50, 1e-5, accountant) == pytest.approx(expected, rel=1e-9)


def test_for_very_little_noise_prv_gives_the_bound_of_rdp():
    """PRV took 20 GB for the first of these, and found infinity for the second."""
    for noise, rate, steps in ((0.001, 1.0, 100), (0.05, 0.1, 10)):
        bound = epsilon(noise, rate, steps, 1e-5)
        assert math.isfinite(bound)
        assert epsilon(noise, rate, steps, 1e-5, "prv") == bound


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


# --- what a defense spends -------------------------------------------------------------------


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


def test_an_examples_budget_counts_local_steps_and_the_share_of_a_batch():
    told = DPSGD(noise_multiplier=1.5).spent(exposure())
    assert told == {"epsilon": epsilon(1.5, 8 / 80, 4 * 3, 1e-5), "delta": 1e-5}


# --- what a run spends -----------------------------------------------------------------------


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
    told = Budget(build(run)).spent(1, {0: 1})
    assert {"dp-sgd.0 epsilon", "client-dp.1 epsilon", "client-dp.1 epsilon_released"} <= set(told)


def test_only_who_runs_a_defense_counts_for_its_budget():
    run = scenario(defenses=[{"name": "client-dp", "clients": [1]}])
    told = Budget(build(run)).spent(5, {0: 5, 1: 2})
    assert told == {"epsilon": epsilon(1.0, 1.0, 2, 1e-5), "delta": 1e-5}


def test_a_delta_that_promises_nothing_is_warned_of():
    _, quiet = preflight(scenario(defenses=[{"name": "dp-sgd"}]))
    assert quiet == []
    _, cautions = preflight(scenario(defenses=[{"name": "client-dp", "delta": 0.2}]))
    assert "delta = 0.2 with 6 clients" in cautions[0]
    _, cautions = preflight(scenario(defenses=[{"name": "dp-sgd", "delta": 0.1}]))
    assert "examples on one client" in cautions[0]


def test_batches_composed_by_label_have_no_sampling_to_count():
    run = scenario(task={"composition": "balanced"}, defenses=[{"name": "dp-sgd"}])
    _, cautions = preflight(run)
    assert "composed by label" in cautions[0]
    assert Budget(build(run)).spent(1, {0: 1})["epsilon"] == math.inf


def test_sums_of_everybodys_noise_are_cheaper():
    both = {"defenses": [{"name": "client-dp"}]}
    alone = scenario(**both)
    summed = scenario(**both, training={"secure_aggregation": "masked-sum"})
    dropping = scenario(**both, training={"secure_aggregation": "masked-sum", "on_failure": "drop"})
    told = [Budget(build(run)).spent(2, {0: 2})["epsilon"] for run in (alone, summed, dropping)]
    multipliers = (1.0, math.sqrt(4), math.sqrt(2))
    assert told == [epsilon(z, 1.0, 2, 1e-5) for z in multipliers]


def test_noise_adds_up_only_where_nothing_takes_it_away_again():
    masked = {"secure_aggregation": "masked-sum"}

    def told(*after):
        listed = [{"name": "client-dp"}, *({"name": name} for name in after)]
        run = scenario(training=masked, defenses=listed)
        return Budget(build(run)).spent(2, {0: 2})

    alone = told()
    assert alone["epsilon"] == epsilon(2.0, 1.0, 2, 1e-5)
    for name in ("top-k", "int8", "sign"):
        spoiled = told(name)
        assert spoiled == {"epsilon": epsilon(1.0, 1.0, 2, 1e-5), "delta": 1e-5}, name
    apart = [{"name": "client-dp"}, {"name": "dropout"}]
    run = scenario(training=masked, defenses=apart)
    assert Budget(build(run)).spent(2, {0: 2}) == alone


def test_where_clients_may_be_dropped_the_global_model_may_hold_one_clients_noise():
    run = scenario(training={"on_failure": "drop"}, defenses=[{"name": "client-dp"}])
    told = Budget(build(run)).spent(2, {0: 2})
    assert told["epsilon_released"] == epsilon(1.0, 4 / 6, 2, 1e-5)


def test_an_accountant_that_gives_up_says_so_before_any_training():
    settings = {"name": "client-dp", "noise_multiplier": 1e-200}
    with pytest.raises(ScenarioError, match=r"cannot count noise of 1e-200.*accountant = .rdp"):
        preflight(scenario(defenses=[settings]))
    assert epsilon(50.0, 0.01, 1, 0.5) == 0  # never negative


# --- members of somebody's defense -----------------------------------------------------------


def broken(*arguments):
    raise RuntimeError("it broke")


@pytest.mark.parametrize(
    ("member", "value", "words"),
    [
        ("spent", broken, "spent raised RuntimeError: it broke"),
        ("spent", lambda *_: 3.0, "spent returned float 3.0, expected numbers by name"),
        ("spent", lambda *_: {"epsilon": "much"}, "spent returned dict .*, expected numbers"),
        ("spent", lambda *_: {"loss": 3}, "spent reports loss, .*: choose another name"),
        ("cautions", broken, "cautions raised RuntimeError: it broke"),
        ("prepare", broken, "prepare raised RuntimeError: it broke"),
        ("effect", property(broken), "effect raised RuntimeError: it broke"),
        ("effect", "other", "effect is 'other', expected one of 'values', 'zeros', 'format'"),
        ("remembers", property(broken), "remembers raised RuntimeError: it broke"),
    ],
)
def test_a_broken_defense_is_named_before_training(monkeypatch, member, value, words):
    monkeypatch.setattr(GaussianNoise, member, value)
    with pytest.raises(PluginError, match=f"gaussian-noise: {words}"):
        preflight(scenario(defenses=[{"name": "gaussian-noise"}]))


def test_a_caution_in_place_of_a_list_is_one_caution(monkeypatch):
    monkeypatch.setattr(GaussianNoise, "cautions", lambda *_: "one two")
    _, cautions = preflight(scenario(defenses=[{"name": "gaussian-noise"}]))
    assert "one two" in cautions
