"""Gradients of transformers in factors: what autograd says, for every kind of layer, row by row."""

import pytest
import torch
from support.ghosts import (
    BATCH,
    BY_RMS,
    SETTINGS,
    SIZE,
    TOKENS,
    dense,
    distance_of,
    matched,
    observed,
    plain,
    texts,
    victim,
)
from torch import nn
from torch.nn import functional

from fedsim.gradients import Comparison, GhostGradients, TextDistance, nearest_tokens, norm_gap
from fedsim.tasks.text.languages.language import POINTS, classification_loss
from fedsim.victim import VictimModel


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_layers_gradient_is_autograds_row_by_row_and_padded(kind):
    model = victim(kind)
    embedded, labels, lengths = texts(model, 3)
    names = matched(model)
    found = GhostGradients(model, names)(embedded, labels, lengths=lengths, create_graph=False)
    assert list(found) == names
    for row in range(3):
        exact = observed(model, embedded[row], labels[row], lengths[row])
        for name in names:
            mine = dense(tuple(v[row] for v in found[name]) if isinstance(found[name], tuple)
                         else found[name][row])  # fmt: skip
            torch.testing.assert_close(mine, exact[name], rtol=1e-9, atol=1e-13, msg=name)
    assert sum(isinstance(value, tuple) for value in found.values()) >= 6


@pytest.mark.parametrize("kind", ["bert", "roberta", "albert", "distilbert", "gpt2"])
@pytest.mark.parametrize("name", ["cosine", "l2", "l1+l2"])
def test_distances_and_their_slopes_are_autograds(kind, name):
    model = victim(kind)
    far, theirs, (_, labels, lengths) = distance_of(model, name)
    start = texts(model, 1)[0].requires_grad_(True)
    value = far(start, torch.tensor([0]))
    (slope,) = torch.autograd.grad(value.sum(), start)
    exact = plain(name, observed(model, start[0], labels[0], lengths[0]), theirs[0])
    (exact_slope,) = torch.autograd.grad(exact, start)
    torch.testing.assert_close(value[0], exact, rtol=1e-9, atol=0)
    torch.testing.assert_close(slope, exact_slope, rtol=1e-8, atol=1e-9 * float(slope.abs().max()))
    assert torch.equal(far(start.detach(), torch.tensor([0])), value.detach())


@pytest.mark.parametrize("kind", BY_RMS)
def test_normalisation_by_the_root_mean_square_has_a_rule(kind):
    model = victim(kind)
    far, theirs, (embedded, labels, lengths) = distance_of(model)
    names = matched(model)
    assert sum("norm" in name for name in names) >= 5
    found = GhostGradients(model, names)(embedded, labels, lengths=lengths, create_graph=False)
    for name in names:
        value = found[name]
        mine = dense(tuple(v[0] for v in value) if isinstance(value, tuple) else value[0])
        apart = float((mine.detach() - theirs[0][name]).norm() / theirs[0][name].norm())
        assert apart < 1e-5, name
    start = texts(model, 1)[0].requires_grad_(True)
    value = far(start, torch.tensor([0]))
    (slope,) = torch.autograd.grad(value.sum(), start)
    ours = observed(model, start[0], labels[0], lengths[0])
    sent = [name for name in names if not name.endswith("k_proj.bias")]
    exact = plain("cosine", {k: ours[k] for k in sent}, theirs[0])
    (exact_slope,) = torch.autograd.grad(exact, start)
    assert float(value.detach()) == pytest.approx(float(exact.detach()), rel=1e-5)
    assert float((slope - exact_slope).norm() / exact_slope.norm()) < 1e-4


@pytest.mark.parametrize("tile", [1, 100, 250, 1 << 17])
def test_weight_gradients_are_formed_a_tile_at_a_time(tile, monkeypatch):
    model = victim()
    far, theirs, (_, labels, lengths) = distance_of(model, "l1+l2")
    monkeypatch.setattr("fedsim.gradients.terms.TILE", tile)
    start = texts(model, 1)[0].requires_grad_(True)
    value = far(start, torch.tensor([0]))
    (slope,) = torch.autograd.grad(value.sum(), start)
    exact = plain("l1+l2", observed(model, start[0], labels[0], lengths[0]), theirs[0])
    (exact_slope,) = torch.autograd.grad(exact, start)
    assert float(value.detach()) == pytest.approx(float(exact.detach()), rel=1e-9)
    torch.testing.assert_close(slope, exact_slope, rtol=1e-8, atol=1e-9 * float(slope.abs().max()))


@pytest.mark.parametrize("name", ["cosine", "l2", "l1+l2"])
def test_float32_is_within_1e_5(name):
    model = victim()
    far, theirs, (_, labels, lengths) = distance_of(model, name, dtype=torch.float32)
    start = texts(model, 1)[0]
    exact = plain(name, observed(model, start[0], labels[0], lengths[0]), theirs[0])
    value = far(start.float(), torch.tensor([0]))
    assert value.dtype == torch.float32
    assert float(value) == pytest.approx(float(exact.detach()), rel=1e-5)


@pytest.mark.parametrize("name", ["cosine", "l2", "l1+l2"])
def test_rows_of_several_victims_are_answered_as_alone(name):
    model = victim()
    far, theirs, (_, labels, lengths) = distance_of(model, name, victims=3)
    victims = torch.tensor([2, 0, 1, 2, 2])
    start = texts(model, 5)[0]
    together = far(start, victims)
    for row, victim_ in enumerate(victims.tolist()):
        ours = observed(model, start[row], labels[victim_], lengths[victim_])
        exact = plain(name, ours, theirs[victim_])
        assert float(together[row]) == pytest.approx(float(exact.detach()), rel=1e-9)


def test_many_rows_pass_a_few_at_a_time():
    model = victim()
    far, *_ = distance_of(model)
    start = texts(model, 80)[0]
    assert 80 * BATCH * TOKENS > 2 * 512
    victims = torch.zeros(80, dtype=torch.int64)
    alone = torch.cat([far(one[None], victims[:1]) for one in start[::13]])
    torch.testing.assert_close(far(start, victims)[::13], alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["l2", "l1+l2"])
def test_near_a_match_nothing_cancels(name):
    model = victim()
    far, theirs, (own, labels, lengths) = distance_of(model, name)
    for apart in (1e-3, 1e-6):
        near = own + apart * texts(model, 1, seed=4)[0]
        exact = plain(name, observed(model, near[0], labels[0], lengths[0]), theirs[0])
        assert float(far(near, torch.tensor([0]))) == pytest.approx(float(exact.detach()), rel=1e-6)
    assert float(far(own, torch.tensor([0]))) < 1e-12


def test_at_a_match_the_cosine_distance_is_zero_and_flat():
    far, _, (own, _, _) = distance_of(victim())
    own.requires_grad_(True)
    value = far(own, torch.tensor([0]))
    (slope,) = torch.autograd.grad(value.sum(), own)
    assert abs(float(value.detach())) < 1e-13
    assert float(slope.abs().max()) < 1e-6


def test_a_noisy_gradient_has_no_factors_and_is_matched_all_the_same():
    model = victim()
    _, theirs, (_, labels, lengths) = distance_of(model)
    rng = torch.Generator().manual_seed(2)
    noisy = {
        k: g + 0.1 * g.norm() * torch.randn(g.shape, generator=rng, dtype=g.dtype)
        for k, g in theirs[0].items()
    }
    start = texts(model, 1)[0]
    ours = observed(model, start[0], labels[0], lengths[0])
    for name in ("cosine", "l2"):
        comparison = Comparison(name, dtype=torch.float64)
        far = TextDistance(model, [noisy], labels, lengths, comparison=comparison)
        exact = float(plain(name, ours, noisy).detach())
        assert float(far(start, torch.tensor([0]))) == pytest.approx(exact, rel=1e-9)


def test_masked_words_weigh_by_how_many_a_batch_has():
    model = victim(head="MaskedLM")
    rng = torch.Generator().manual_seed(3)
    embedded, _, lengths = texts(model, 2)
    lengths[:] = TOKENS
    labels = torch.full((2, BATCH, TOKENS), -100)
    labels[0, 0, 2] = 5
    labels[1, :, 1:4] = torch.randint(SIZE, (BATCH, 3), generator=rng)
    names = matched(model)
    assert "cls.predictions.bias" in names
    for targets in (labels, functional.one_hot(labels.clamp(min=0), SIZE) * 1.0
                    * (labels != -100)[..., None]):  # fmt: skip
        found = GhostGradients(model, names)(embedded, targets, lengths=lengths)
        for row in range(2):
            exact = observed(model, embedded[row], labels[row], lengths[row])
            for name in names:
                mine = found[name]
                mine = tuple(v[row] for v in mine) if isinstance(mine, tuple) else mine[row]
                torch.testing.assert_close(dense(mine), exact[name], rtol=1e-8, atol=1e-12)


def test_the_model_is_left_as_it_was_and_may_be_frozen():
    model = victim()
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    model.module.get_parameter(model.words).requires_grad_(False)
    model.trained = frozenset(n for n in model.trained if n != model.words)
    far, _, (own, _, _) = distance_of(model)
    far(texts(model, 1)[0].requires_grad_(True), torch.tensor([0])).sum().backward()
    assert all(torch.equal(before[k], v) for k, v in model.module.state_dict().items())
    assert not model.module.get_parameter(model.words).requires_grad
    assert all(not layer._forward_hooks for layer in model.module.modules())
    assert own.shape[2] == TOKENS


def test_parameters_are_chosen_by_pattern_and_key_biases_never_count():
    model = victim()
    parts = {"*attention*": 2.0, "classifier.weight": 1.0}
    _, theirs, (_, labels, lengths) = distance_of(model)
    start = texts(model, 1)[0]
    ours = observed(model, start[0], labels[0], lengths[0])
    noise = {n: torch.ones(16) for n in model.parameters() if n.endswith("key.bias")}
    assert len(noise) == 2
    comparison = Comparison("l2", parts, dtype=torch.float64)
    far = TextDistance(model, [theirs[0] | noise], labels, lengths, comparison=comparison)
    exact = sum(
        (2 if "attention" in name else 1)
        * float((ours[name] - theirs[0][name]).detach().square().sum())
        for name in ours
        if "attention" in name or name == "classifier.weight"
    )
    assert float(far(start, torch.tensor([0]))) == pytest.approx(exact, rel=1e-9)
    with pytest.raises(ValueError, match="rounding noise"):
        TextDistance(model, [noise], labels, lengths)


def test_what_is_compared_drops_nothing():
    model = victim()
    far, theirs, (embedded, labels, lengths) = distance_of(model)
    dropping = victim(dropout=True)
    dropping.module.load_state_dict(model.module.state_dict())
    assert dropping.drops
    exactly = Comparison("cosine", dtype=torch.float64)
    same = TextDistance(dropping, theirs, labels, lengths, comparison=exactly)
    assert torch.equal(*(one(embedded, torch.tensor([0])) for one in (far, same)))
    assert dropping.drops  # a copy's were turned off


def test_a_tensor_that_is_zero_says_nothing():
    model = victim()
    _, theirs, (_, labels, lengths) = distance_of(model)
    start = texts(model, 1)[0]
    ours = observed(model, start[0], labels[0], lengths[0])
    gone = "bert.pooler.dense.weight"
    zeroed = theirs[0] | {gone: torch.zeros_like(theirs[0][gone])}
    exactly = Comparison("cosine", dtype=torch.float64)
    far = TextDistance(model, [zeroed], labels, lengths, comparison=exactly)
    del ours[gone]
    exact = float(plain("cosine", ours, theirs[0]).detach())
    assert float(far(start, torch.tensor([0]))) == pytest.approx(exact, rel=1e-9)
    nothing = {name: torch.zeros_like(value) for name, value in theirs[0].items()}
    with pytest.raises(ValueError, match="zero throughout"):
        TextDistance(model, [nothing], labels, lengths)


def test_what_cannot_be_matched_is_one_clear_error():
    model = victim()
    _, theirs, (_, labels, lengths) = distance_of(model)
    with pytest.raises(ValueError, match="names none of the model's"):
        TextDistance(model, [{"other": torch.ones(2)}], labels, lengths)
    broken = theirs[0] | {"classifier.bias": torch.full((3,), torch.nan)}
    with pytest.raises(ValueError, match=r"'classifier\.bias' holds NaN"):
        TextDistance(model, [broken], labels, lengths)
    with pytest.raises(ValueError, match=r"'classifier\.bias' has the shape \(2,\)"):
        TextDistance(model, [theirs[0] | {"classifier.bias": torch.ones(2)}], labels, lengths)
    with pytest.raises(ValueError, match="1 gradients, 2 targets and 2 lengths"):
        TextDistance(model, theirs, [labels[0]] * 2, [lengths[0]] * 2)
    with pytest.raises(ValueError, match="other numbers of texts apart"):
        TextDistance(model, theirs * 2, [labels[0], labels[0, :1]], [lengths[0], lengths[0, :1]])
    model.module.scale = nn.PReLU().double()
    with pytest.raises(ValueError, match=r"no rule for .* 'scale\.weight' \(PReLU\)"):
        GhostGradients(model, ["classifier.weight", "scale.weight"])
    model.module.spare = nn.Linear(2, 2).double()
    with pytest.raises(ValueError, match=r"does not call the layers of spare\.bias"):
        GhostGradients(model, ["spare.bias"])(*texts(model, 1)[:2])


def test_texts_that_see_one_another_are_found_out():
    model = victim()
    _, theirs, (_, labels, lengths) = distance_of(model)

    def mixed(module, inputs, target, *, lengths=None, at="input"):
        return classification_loss(
            module, inputs + inputs.mean(dim=0), target, lengths=lengths, at=at
        )

    other = VictimModel(
        model.module, head="classifier", loss=mixed, words=model.words, points=POINTS
    )
    with pytest.raises(ValueError, match="mix the texts of a batch"):
        TextDistance(other, theirs, labels, lengths)


def test_the_norm_gap_counts_what_is_no_padding():
    embedded = torch.tensor([[[[3.0, 4.0], [0.0, 1.0]], [[6.0, 8.0], [9.0, 9.0]]]])
    lengths = torch.tensor([[2, 1]])
    assert norm_gap(embedded, 1.0, lengths=lengths).tolist() == pytest.approx([(16 / 3 - 1) ** 2])
    assert norm_gap(embedded[:, :, :1], 1.0).tolist() == pytest.approx([(7.5 - 1) ** 2])
    padded = torch.zeros(1, 1, 2, 2).index_fill(2, torch.tensor([0]), 1.0).requires_grad_(True)
    norm_gap(padded, 0.0, lengths=torch.tensor([[1]])).sum().backward()
    assert padded.grad[0, 0].isfinite().all()
    assert not padded.grad[0, 0, 1].any()


def test_the_nearest_token_has_the_largest_cosine():
    words = torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 5.0], [0.0, 0.1]])
    embedded = torch.tensor([[[2.0, 0.1], [0.1, 9.0]], [[1.0, 0.9], [-1.0, 0.5]]])
    assert nearest_tokens(embedded, words).tolist() == [[1, 3], [2, 3]]
    assert nearest_tokens(embedded, words, forbidden=[3]).tolist() == [[1, 2], [2, 2]]
