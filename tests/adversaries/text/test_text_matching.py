"""LAMP, TAG and DLG for texts: real gradients of small transformers, matched."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.text_victims import BERT, GPT2, LAMP_QUICK, QUICK, Scored, seen, small

from adversaries import LAMP, TAG, DLGText
from adversaries.text.dummy_texts import DummyTexts
from adversaries.text.lamp.reordering import Reordering, moved
from adversaries.text.text_attack import Candidate
from fedsim import testing
from fedsim.gradients import Match, TextDistance, to_gradient
from fedsim.knowledge import Knowledge
from fedsim.metrics import METRICS
from fedsim.priors import language_prior
from fedsim.records import Truth, Update


def score(found, truth, spec, name="token_f1"):
    return METRICS[name].score(found, truth, spec)


@pytest.mark.parametrize(("config", "client", "steps"), [("bert", 1, 200), ("gpt2", 3, 300)])
def test_lamp_reads_words_of_a_text(config, client, steps):
    observed, truth = seen(small(config), client)
    found = LAMP(**LAMP_QUICK | {"steps": steps}).reconstruct(observed, testing.job())
    unmoved = LAMP(**{**LAMP_QUICK, "steps": 1}).reconstruct(observed, testing.job())
    assert score(found, truth, observed.spec) >= 0.4
    assert score(found, truth, observed.spec) > score(unmoved, truth, observed.spec) + 0.2
    assert [len(one) for one in found.tokens] == [len(one) for one in truth.tokens]
    assert found.diagnostics["prior"]
    assert found.diagnostics["prior_deviation"] is False
    assert found.objective < 0.5


@pytest.mark.parametrize(("attack", "start"), [(TAG, "normal"), (DLGText, "vocabulary")])
def test_the_baselines_beat_chance(attack, start):
    observed, truth = seen(small())
    found = attack(steps=300, start_length=start).reconstruct(observed, testing.job())
    wrong = attack(steps=1, start_length=start).reconstruct(observed, testing.job())
    assert score(found, truth, observed.spec) > score(wrong, truth, observed.spec) + 0.15


def test_dlg_text_takes_the_optimizer_of_dlg():
    observed, truth = seen(small(), client=1)
    found = DLGText(search="lbfgs", steps=100).reconstruct(observed, testing.job())
    wrong = DLGText(search="lbfgs", steps=1).reconstruct(observed, testing.job())
    other = DLGText(steps=100).reconstruct(observed, testing.job())
    assert score(found, truth, observed.spec) > score(wrong, truth, observed.spec) + 0.15
    assert found.objective < wrong.objective
    assert found.objective != other.objective


@pytest.mark.parametrize("attack", [TAG, DLGText])
def test_the_baselines_start_unscaled_as_in_lamps_comparison(attack):
    _, _, texts, _, _ = shuffled()
    for settings, length in (
        ({}, texts.shape[2] ** 0.5),
        ({"start_length": "vocabulary"}, texts.typical),
    ):
        start = attack(**settings).first(texts, 0, testing.job()).view(texts.shape)
        lengths = start[texts.sought[0]].norm(dim=1)
        assert float(lengths.mean()) == pytest.approx(length, rel=0.1)


@pytest.mark.parametrize(
    "attack", [LAMP(**QUICK | {"continuous": 8}, steps=10), TAG(steps=10), DLGText(steps=10)]
)
def test_victims_together_are_attacked_as_alone(attack):
    attack = attack.model_copy(update={"precision": "float64", "restarts": 1})
    both = [seen(small(), client)[0] for client in (0, 1, 2)]
    together = attack.reconstruct_many(both, [testing.job(seed=i) for i in range(3)])
    for index, one in enumerate(both):
        alone = attack.reconstruct(one, testing.job(seed=index))
        assert alone.text == together[index].text
        assert alone.objective == pytest.approx(together[index].objective, rel=1e-6)


def test_a_start_ends_when_its_tokens_no_longer_change():
    observed, _ = seen(small(), 1)
    settings = LAMP_QUICK | {"steps": 200, "decay": 0.05, "fidelity": "paper"}
    whole = LAMP(**settings).reconstruct(observed, testing.job())
    short = LAMP(**settings, unchanged=50).reconstruct(observed, testing.job())
    assert short.outcomes == ("stalled",)
    assert 50 < short.diagnostics["evaluations"] < 200
    assert whole.diagnostics["evaluations"] == 200
    assert torch.equal(short.tokens[0], whole.tokens[0])


def test_tokens_are_not_settled_before_lamp_has_reordered_them():
    assert LAMP().settles_after == 225
    assert LAMP(continuous=50).settles_after == 250
    assert LAMP(fidelity="paper").settles_after == 75
    assert LAMP(discrete="end").settles_after == TAG().settles_after == 0


def test_a_batch_of_texts_of_unequal_lengths():
    observed, truth = seen(small(), size=2)
    assert len({len(one) for one in truth.tokens}) == 2
    found = LAMP(**QUICK, steps=50).reconstruct(observed, testing.job())
    assert [len(one) for one in found.tokens] == [len(one) for one in truth.tokens]
    for ids in found.tokens:
        tokens = observed.spec.tokens
        assert tuple(ids[: len(tokens.prefix)].tolist()) == tokens.prefix
        assert tuple(ids[len(ids) - len(tokens.suffix) :].tolist()) == tokens.suffix
        assert not set(ids.tolist()[1:-1]) & tokens.marks


def test_several_local_steps_are_matched_by_their_mean_gradient():
    task, lr = small(), 1e-3
    module, batches = task.module(), task.batches(0, 1, batch_size=1, steps=2)
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    for batch in batches:
        optimizer.zero_grad()
        task.loss(module, batch.inputs, batch.labels, lengths=batch.lengths).backward()
        optimizer.step()
    delta = {name: value.detach() - before[name] for name, value in module.named_parameters()}
    update = Update(delta, "delta", optimizer="sgd", lr=lr, steps=2, num_examples=2)
    gradient, exact = to_gradient(update, before, lr=lr, steps=2)
    truth = [batch.inputs[0] for batch in batches]
    labels, lengths = torch.cat([batch.labels for batch in batches]), [len(ids) for ids in truth]
    one, _ = seen(task, labels=labels, lengths=lengths)
    observed = dataclasses.replace(one, gradient=gradient, exact=exact, num_examples=2, steps=2)
    settings = QUICK | {"starts": 10, "permutations": 0, "lr": 0.05}
    found = LAMP(**settings, steps=120).reconstruct(observed, testing.job())
    assert not found.diagnostics["exact_gradient"]
    assert [len(ids) for ids in found.tokens] == lengths
    both = Truth(tokens=truth, text=[task.spec.tokens.spell(ids.tolist()) for ids in truth])
    wrong = LAMP(**settings, steps=1).reconstruct(observed, testing.job())
    assert score(found, both, task.spec) > score(wrong, both, task.spec) + 0.1


def test_masked_words_are_known_to_who_has_the_labels():
    observed, truth = seen(small(task="masked-lm"))
    found = LAMP(**QUICK, steps=10).reconstruct(observed, testing.job())
    masked = observed.labels[0] >= 0
    assert masked.any()
    assert torch.equal(found.tokens[0][masked], truth.tokens[0][masked])


def shuffled(order=(0, 3, 1, 2)):
    """The texts of a candidate, its tokens in the wrong order, and the point they make."""
    observed, truth = seen(small(), 1)
    candidate = Candidate(observed.labels, torch.tensor(observed.lengths))
    words = observed.model.embedding
    far = TextDistance(observed.model, [observed.gradient], [candidate.labels], [candidate.lengths])
    texts = DummyTexts(far, [candidate], observed.spec.tokens, words)
    ids = truth.tokens[0].clone()
    inner = texts.sought[0, 0].nonzero().flatten()[: len(order)]
    ids[inner] = ids[inner[list(order)]]
    at = torch.tensor([0])
    return observed, truth, texts, texts.fed(ids[None, None], at), at


def test_a_discrete_step_puts_tokens_into_order():
    observed, truth, texts, point, at = shuffled()
    prior = language_prior("n-gram", observed.prior, observed.spec.tokens)
    reordering = Reordering(texts, prior, candidates=200, weight=0.001)
    rng = torch.Generator().manual_seed(0)
    for _ in range(8):
        point = reordering(point, at, [rng])
    assert torch.equal(texts.read(point, at)[0, 0], truth.tokens[0])
    assert float(texts(point, at)) < float(texts.matched[0])


def test_the_prior_decides_where_its_weight_is_great():
    observed, _, texts, point, at = shuffled()
    prior = language_prior("n-gram", observed.prior, observed.spec.tokens)
    before = prior.surprise(texts.read(point, at)[0])
    reordering = Reordering(texts, prior, candidates=200, weight=1e6)
    after = prior.surprise(texts.read(reordering(point, at, [testing.job().rng]), at)[0])
    assert float(after) < float(before)


@pytest.mark.parametrize("weight", [0.0, 0.02, 1e6])
def test_orders_that_the_prior_alone_rules_out_change_no_choice(weight, monkeypatch):
    _, truth, texts, point, at = shuffled((2, 0, 3, 1))
    reordering = Reordering(texts, Scored(truth.tokens[0]), candidates=60, weight=weight)
    passed = []
    whole = TextDistance.__call__
    monkeypatch.setattr(TextDistance, "together", lambda *_: 8)
    monkeypatch.setattr(
        TextDistance, "__call__", lambda *args: passed.append(len(args[1])) or whole(*args)
    )
    reordering(point, at, [testing.job().rng])
    looked = sum(passed) - 1
    passed.clear()
    chosen = reordering(point, at, [testing.job().rng])
    rng, inner = testing.job().rng, texts.sought[0, 0].nonzero().flatten()
    orders = list(dict.fromkeys(tuple(moved(list(range(len(inner))), rng)) for _ in range(60)))
    orders = torch.tensor([list(range(len(inner))), *orders]).unique(dim=0)
    ids = texts.read(point, at)[0, 0].repeat(len(orders), 1)
    ids[:, inner] = ids[0, inner][orders]
    batches = point.view(texts.shape).repeat(len(orders), 1, 1, 1)
    batches[:, 0, inner] = batches[0, 0, inner][orders]
    rows = at.expand(len(orders))
    totals = weight * (ids != truth.tokens[0]).sum(dim=1) + texts.far(
        texts.embedded(batches.flatten(1), rows), rows
    )
    assert torch.equal(texts.read(chosen, at)[0, 0], ids[totals.argmin()])
    assert (looked < len(orders)) == (weight > 0)


@given(st.lists(st.integers(), min_size=1, max_size=8), st.integers(0, 2**16))
def test_moved_loses_nothing(order, seed):
    before = list(order)
    found = moved(order, torch.Generator().manual_seed(seed))
    assert sorted(found) == sorted(order)
    assert order == before


def test_discrete_steps_at_the_end_or_never():
    observed, _ = seen(small())
    settings = {**LAMP_QUICK, "steps": 40}
    claims = {
        when: LAMP(**settings, discrete=when).reconstruct(observed, testing.job())
        for when in ("end", "none")
    }
    end, none = (claims[when].tokens[0] for when in ("end", "none"))
    assert sorted(end.tolist()) == sorted(none.tolist())
    assert claims["end"].objective == claims["none"].objective


@pytest.mark.parametrize(("discrete", "reordered"), [("end", True), ("none", False)])
def test_a_shuffled_match_is_put_into_order_at_the_end_or_never(discrete, reordered):
    observed, truth, texts, point, at = shuffled()
    match = Match(point[0].clone())
    settings = QUICK | {"candidates": 200, "continuous": 1}
    attack = LAMP(**settings, steps=12, discrete=discrete, prior_weight=0.0)
    attack.finished(match, 0, texts, observed, testing.job())
    assert torch.equal(match.point, point[0]) != reordered
    assert torch.equal(texts.read(match.point[None], at)[0, 0], truth.tokens[0]) == reordered


def test_a_proven_match_is_not_reordered_at_the_end():
    observed, truth, texts, _, at = shuffled()
    point = texts.fed(truth.tokens[0][None, None], at)[0]
    match = Match(point.clone(), outcomes=["matched"])
    attack = LAMP(**QUICK, steps=100, discrete="end", prior_weight=1e6)
    attack.finished(match, 0, texts, observed, testing.job())
    assert torch.equal(match.point, point)


def test_a_start_ends_where_the_tokens_have_the_observed_gradient():
    observed, truth, _, point, _ = shuffled()

    class Nearly(LAMP):
        def first(self, texts, candidate, job):
            return point[0].to(job.device)

    settings = QUICK | {"candidates": 200, "continuous": 1}
    attack = Nearly(**settings, steps=60, lr=1e-6, prior_weight=0.0, fidelity="paper")
    found = attack.reconstruct(observed, testing.job())
    assert found.outcomes == ("matched",)
    assert found.diagnostics["evaluations"] < 60
    assert found.diagnostics["verified"]
    assert torch.equal(found.tokens[0], truth.tokens[0])


def test_only_tokens_prove_a_match():
    _, truth, texts, wrong, at = shuffled()
    right = texts.fed(truth.tokens[0][None, None], at)
    points, which = torch.cat([wrong, right]), at.repeat(2)
    texts(points, which)
    texts._last.zero_()  # as dummy embeddings between tokens may have it
    proof = texts.proof(points, which)
    assert proof[0] == torch.inf
    assert proof[1] < texts.matched[0]
    texts(points, which)
    texts._last.fill_(1.0)
    assert bool((texts.proof(points, which) == torch.inf).all())


def test_the_authors_start_at_the_vocabularys_length_and_reorder_later(monkeypatch):
    _, _, texts, _, _ = shuffled()
    for fidelity, length in (("paper", texts.shape[2] ** 0.5), ("authors", texts.typical)):
        attack = LAMP(**QUICK | {"permutations": 0}, fidelity=fidelity)
        start = attack.first(texts, 0, testing.job()).view(texts.shape)[texts.sought[0]]
        assert float(start.norm(dim=1).mean()) == pytest.approx(length, rel=0.1)
    steps = []
    monkeypatch.setattr(Reordering, "__call__", lambda self, points, *_: steps.append(1) or points)
    observed, _ = seen(small(), 1)
    for fidelity, count in (("paper", 10), ("authors", 9)):
        steps.clear()
        attack = LAMP(**QUICK | {"continuous": 3}, steps=30, fidelity=fidelity, prior_weight=0.0)
        attack.reconstruct(observed, testing.job())
        assert len(steps) == count


@pytest.mark.parametrize(("fidelity", "ends"), [("paper", True), ("authors", False)])
def test_the_paper_claims_the_last_point_and_the_authors_code_the_lowest(fidelity, ends):
    observed, _ = seen(small(), 1)
    settings = QUICK | {"continuous": 50, "start_length": "vocabulary", "prior_weight": 0.0}
    attack = LAMP(**settings, steps=40, lr=0.5, fidelity=fidelity)
    found = attack.reconstruct(observed, testing.job())
    lowest = min(value for _, value in found.trace)
    assert (found.objective > lowest) == ends


def test_polishing_reorders_the_claimed_tokens_by_their_own_gradient():
    observed, truth, texts, point, at = shuffled()
    match = Match(point[0])
    attack = LAMP(**QUICK | {"candidates": 200}, polish=12, prior_weight=0.0)
    attack.finished(match, 0, texts, observed, testing.job())
    assert torch.equal(texts.read(match.point[None], at)[0, 0], truth.tokens[0])


@pytest.mark.parametrize("config", ["bert", "gpt2"])
def test_the_rank_tells_the_length_of_a_text_that_an_untrained_model_hardly_changes(config):
    settings = {"bert": BERT, "gpt2": GPT2}[config] | {"initializer_range": 0.02}
    model = {"name": "transformers", "config": config, "settings": settings}
    for client in range(4):
        observed, truth = seen(small(model=model), client, lengths=None)
        (length,) = TAG(unknown="enumerate")._lengths(
            observed, testing.job(), observed.spec.tokens, 1
        )
        assert length.tolist() == [len(truth.tokens[0])]


def test_dropout_is_off_in_what_is_compared():
    observed, _ = seen(small(dropout=True))
    attack = DLGText(steps=3)
    assert observed.model.drops
    assert attack.reconstruct(observed, testing.job()).objective < float("inf")
    assert any("drops units" in one for one in attack.cautions(observed.model))


def test_labels_and_the_length_are_found_on_request():
    observed, truth = seen(small(), labels=None, lengths=None)
    attack = LAMP(**QUICK, steps=100, lr=0.05, unknown="enumerate")
    assert not attack.requires() & (Knowledge.LABELS | Knowledge.LENGTHS)
    found = attack.reconstruct(observed, testing.job())
    assert found.diagnostics["cases"] == observed.spec.classes
    assert found.diagnostics["lengths"] == [len(truth.tokens[0])]
    known, _ = seen(small())
    assert found.diagnostics["labels"] == known.labels.tolist()


def test_l_bfgs_has_no_learning_rate():
    with pytest.raises(ValueError, match=r"lr is the learning rate of Adam.*Leave one"):
        DLGText(search="lbfgs", lr=0.1)
