"""The spanning solver gives the answer of one linear program a class, on everything."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import linprog, nnls

from adversaries.labels.rlg import acceptance
from adversaries.labels.rlg.acceptance import by_majority, otsu
from adversaries.labels.rlg.least_squares import nonnegative
from adversaries.labels.rlg.separability import (
    SolverError,
    by_lp,
    by_perceptron,
    normalised,
    separates,
)
from adversaries.labels.rlg.spanning import by_spanning
from adversaries.labels.rlg.subspace import leading

KINDS = ["normal", "whole", "half space", "twins", "zeros", "softmax", "peaked", "noisy", "half"]


def softmax_gradient(
    rng: np.random.Generator, classes: int, size: int, features: int, *, peak=0.3, distinct=False
):
    """dW (classes, features) float32 and labels, on features behind a tanh."""
    if distinct:
        labels = rng.permutation(classes)[:size]
    else:
        labels = rng.integers(0, max(1, classes // 2), size)
    h = np.tanh(rng.normal(size=(size, features)))
    z = peak * h @ rng.normal(size=(features, classes))
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(size), labels] -= 1
    return (p.T @ h / size).astype(np.float32), labels


def small(kind: str, seed: int) -> np.ndarray:
    """Columns (S, C) of one kind, few and short."""
    rng = np.random.default_rng(seed)
    size, classes = int(rng.integers(1, 7)), int(rng.integers(2, 14))
    if kind in ("softmax", "peaked", "noisy", "half"):
        weight, _ = softmax_gradient(rng, classes, size, 8, peak=3 if kind == "peaked" else 0.3)
        if kind == "half":
            weight = weight.astype(np.float16).astype(np.float32)
        if kind == "noisy":
            level = 10 ** rng.uniform(-6, -1) * np.abs(weight).mean()
            weight = weight + rng.normal(size=weight.shape).astype(np.float32) * level
        values, right = np.linalg.svd(weight.T.astype(float), full_matrices=False)[1:]
        return right[: max(1, min(size, int((values > 1e-6 * values[0]).sum())))]
    q = rng.normal(size=(size, classes))
    if kind == "whole":
        q = rng.integers(-2, 3, size=q.shape).astype(float)
    elif kind == "half space":
        q[0] = np.abs(q[0])
    elif kind == "twins":
        q[:, classes // 2] = 2 * q[:, 0]
    elif kind == "zeros":
        q[:, rng.random(classes) < 0.5] = 0
    return q


def both(q: np.ndarray, against=None):
    lengths, q = np.linalg.norm(q, axis=0), normalised(q)
    return by_lp(q, against=against), by_spanning(q, lengths, against)


def at_once(cases: list[np.ndarray]) -> list[set[int] | None]:
    """What `by_lp` accepts of each case, by one program for all.

    min sum_c r_c.q_c, r_c.q_c >= -1, r_c.q_j >= 0 for the other columns j of c's case. Scaled, a
    separable column's term is -1 and every other's is 0. All are None if the solver fails.
    """
    solved = linprog(
        np.concatenate([q.T.ravel() for q in cases]),
        A_ub=sparse.block_diag([-q.T for q in cases for _ in q.T], format="csr"),
        b_ub=np.concatenate([np.eye(q.shape[1]).ravel() for q in cases]),
        bounds=(None, None),
        method="highs",
    )
    if solved.status != 0:
        return [None] * len(cases)
    parts = np.split(solved.x, np.cumsum([q.size for q in cases])[:-1])
    terms = [(x.reshape(q.T.shape) * q.T).sum(1) for x, q in zip(parts, cases, strict=True)]
    return [set(np.flatnonzero(one < -0.5).tolist()) for one in terms]


DRAWN = st.tuples(st.sampled_from(KINDS), st.integers(0, 2**32 - 1))


@given(drawn=st.lists(DRAWN, min_size=20, max_size=20))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_a_thousand_small_cases_agree_with_the_linear_program(drawn):
    cases = [small(kind, seed) for kind, seed in drawn]
    for q, accepted in zip(cases, at_once([normalised(q) for q in cases]), strict=True):
        spanning = by_spanning(normalised(q), np.linalg.norm(q, axis=0))
        assert not spanning.failed
        if spanning.accepted != accepted:
            # Within the tolerance two ways of posing it may differ: one program a class decides.
            lp = by_lp(normalised(q))
            assert lp.accepted == spanning.accepted
            assert not lp.failed


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_columns_to_separate_from_can_be_chosen(seed):
    q = small("softmax", seed)
    against = np.random.default_rng(seed).permutation(q.shape[1])[: q.shape[1] // 2].tolist()
    lp, spanning = both(q, against)
    assert lp.accepted == spanning.accepted


def exact(weight, rng):
    return weight


def noise(share):
    return lambda weight, rng: weight + share * weight.std() * rng.normal(size=weight.shape)


def halved(weight, rng):
    return weight.astype(np.float16)


def subtracted(weight, rng):
    """What is left of it in the difference of float32 weights, after a step of 0.1."""
    before = rng.uniform(-0.1, 0.1, size=weight.shape).astype(np.float32)
    return before - (before - np.float32(0.1) * weight)


def drifted(weight, rng):
    """With three more local steps of as many labels, on other features."""
    more = [softmax_gradient(rng, *DRIFT)[0] for _ in range(3)]
    return weight + sum(more)


DRIFT = (75, 5, 64)

LARGER = {
    "distinct": (100, 20, 64, {"distinct": True}, exact),
    "repeats": (100, 20, 64, {}, exact),
    "peaked": (75, 15, 64, {"peak": 0.6}, exact),
    "sure of its labels": (75, 15, 64, {"peak": 3}, exact),
    "as many as features": (80, 31, 32, {"distinct": True}, exact),
    "as many as classes": (40, 39, 64, {"distinct": True}, exact),
    "noise of 0.1 %": (75, 12, 64, {}, noise(1e-3)),
    "noise of 3 %": (75, 12, 64, {}, noise(3e-2)),
    "float16": (75, 12, 64, {}, halved),
    "delta": (75, 12, 64, {}, subtracted),
    "four steps": (*DRIFT, {}, drifted),
}


@pytest.mark.parametrize("case", LARGER)
@pytest.mark.parametrize("seed", range(2))
def test_larger_cases_agree_with_the_linear_program(case, seed):
    classes, size, features, given_, changed = LARGER[case]
    rng = np.random.default_rng(seed)
    weight, labels = softmax_gradient(rng, classes, size, features, **given_)
    weight = changed(weight, rng).astype(np.float32)
    label_count = 4 * size if changed is drifted else size
    found = leading(
        torch.from_numpy(weight),
        "oracle",
        torch.Generator(),
        label_count=label_count,
        tolerance=1e-5,
    )
    lp, spanning = both(found.whitened)
    assert lp.accepted == spanning.accepted
    assert not spanning.failed
    if case in ("distinct", "repeats"):
        assert spanning.accepted == set(labels.tolist())
        assert spanning.lps == 0


def test_margins_are_lower_bounds_of_the_distance_to_the_cone():
    rng = np.random.default_rng(0)
    weight, _ = softmax_gradient(rng, 60, 8, 32)
    found = leading(
        torch.from_numpy(weight), "gap", torch.Generator(), label_count=None, tolerance=1e-5
    )
    q = normalised(found.whitened)
    verdict = by_spanning(q, np.linalg.norm(found.whitened, axis=0))
    assert verdict.accepted
    for c, margin in verdict.margins.items():
        assert 0 < margin <= nnls(np.delete(q, c, axis=1), q[:, c])[1] + 1e-9


@pytest.mark.parametrize("distinct", [True, False])
def test_a_sketch_of_many_classes_keeps_the_rows_of_labels_that_follow_each_other(distinct):
    rng = np.random.default_rng(0)
    weight, labels = softmax_gradient(rng, 5000, 40, 128, peak=0.05, distinct=distinct)
    first = np.argsort(~np.isin(np.arange(5000), labels), kind="stable")
    weight = torch.from_numpy(weight[first])
    found = leading(weight, "gap", torch.Generator(), label_count=None, tolerance=1e-5)
    assert found.size == 40
    exact = torch.linalg.svdvals(weight.double())[:40]
    np.testing.assert_allclose(found.values[:40], exact, rtol=1e-10)
    verdict = by_spanning(normalised(found.whitened), np.linalg.norm(found.whitened, axis=0))
    assert verdict.accepted == set(range(len(set(labels.tolist()))))


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_projections_on_a_cone_agree_with_scipy(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(5, int(rng.integers(1, 12)))), rng.normal(size=5)
    solved = nonnegative(a, b, np.flatnonzero(rng.random(a.shape[1]) < 0.3))
    assert solved is not None
    support, x, residual = solved
    assert (x > 0).all()
    assert np.linalg.norm(residual) == pytest.approx(nnls(a, b)[1], abs=1e-9)
    np.testing.assert_allclose(a[:, support] @ x + residual, b, atol=1e-12)


def test_twins_are_left_to_the_linear_program_and_rejected():
    q = np.array([[1.0, 1.0, -1.0, 0.3], [0.0, 0.0, 0.2, -1.0]])
    lp, spanning = both(q)
    assert lp.accepted == spanning.accepted
    assert not {0, 1} & spanning.accepted


class Broken:
    """A solver that ends in an error (HiGHS: status 4, numerical difficulties)."""

    status, x, message = 4, np.zeros(2), "numerical difficulties"


def test_a_solver_in_error_never_says_feasible(monkeypatch):
    monkeypatch.setattr("scipy.optimize.linprog", lambda *_, **__: Broken())
    q = normalised(np.array([[1.0, 1.0, -1.0, 0.3], [0.0, 0.0, 0.2, -1.0]]))
    with pytest.raises(SolverError, match="numerical"):
        separates(q, 0, np.arange(4))
    verdict = by_lp(q)
    assert verdict.accepted == set()
    assert verdict.failed == {0, 1, 2, 3}
    twins = by_spanning(q, np.ones(4))
    assert not {0, 1} & twins.accepted
    assert twins.failed == twins.undecided


def test_where_the_simplex_method_fails_interior_points_decide(monkeypatch):
    def solve(*args, method, **settings):
        return Broken() if method == "highs" else linprog(*args, method=method, **settings)

    q = normalised(np.array([[1.0, 1.0, -1.0, 0.3], [0.0, 0.0, 0.2, -1.0]]))
    expected = by_lp(q)
    monkeypatch.setattr("scipy.optimize.linprog", solve)
    found = by_lp(q)
    assert found.accepted == expected.accepted != set()
    assert not found.failed


def test_the_perceptron_finds_most_labels_and_nothing_inseparable():
    rng = np.random.default_rng(1)
    weight, labels = softmax_gradient(rng, 120, 8, 32, distinct=True)
    found = leading(
        torch.from_numpy(weight), "gap", torch.Generator(), label_count=None, tolerance=1e-5
    )
    lengths = np.linalg.norm(found.whitened, axis=0)
    verdict = by_perceptron(normalised(found.whitened), lengths)
    # Sound, as the LP follows; not complete, as a perceptron may need more passes.
    assert verdict.accepted <= set(labels.tolist())
    assert len(verdict.accepted) >= 6
    assert verdict.lps < 120


def columns_of(classes: int, size: int, *, half=False, **shape):
    """Right singular vectors (S, C) of a head's gradient, of half its values where asked."""
    weight, labels = softmax_gradient(np.random.default_rng(2), classes, size, 32, **shape)
    if half:
        weight[np.abs(weight) < np.median(np.abs(weight))] = 0
    there = torch.from_numpy(weight)
    found = leading(there, "oracle", torch.Generator(), label_count=size, tolerance=1e-5)
    return found.whitened, set(labels.tolist())


def test_the_authors_rule_for_images_asks_few_columns(monkeypatch):
    monkeypatch.setattr(acceptance, "IMAGES", 20)
    q, _ = columns_of(300, 10, peak=3)
    accepted, voted = by_majority(q, np.random.default_rng(0), speech=False)
    longest = np.argsort(-np.linalg.norm(q, axis=0), kind="stable")[:20]
    assert accepted == by_lp(normalised(q), against=longest.tolist()).accepted
    assert voted == 0


def test_the_authors_rule_for_speech_names_the_labels(monkeypatch):
    monkeypatch.setattr(acceptance, "SCREEN", 100)
    q, labels = columns_of(300, 8, distinct=True)
    assert by_majority(q, np.random.default_rng(0), speech=True) == (frozenset(labels), 0)


def test_behind_dropped_values_the_authors_rule_has_labels_that_are_not_separable():
    q, labels = columns_of(300, 8, half=True, distinct=True)
    assert not by_spanning(normalised(q), np.linalg.norm(q, axis=0)).accepted & labels
    assert by_majority(q, np.random.default_rng(0), speech=True) == (frozenset(labels), 0)


ENDS = [
    ("dual infeasible", 1, True, 0),
    ("dual infeasible", -1, False, 0),
    ("unknown", 1, True, 1),
    ("optimal", -1, False, 0),
    ("primal infeasible", None, False, 0),
]


@pytest.mark.parametrize(("status", "side", "claimed", "votes"), ENDS)
def test_the_authors_program_counts_on_whose_side_most_columns_lie(
    status, side, claimed, votes, monkeypatch
):
    """Whatever the solver says of its vector, if it has one."""
    q, labels = columns_of(300, 4, distinct=True)
    chosen = min(labels)
    monkeypatch.setattr(acceptance, "_screened", lambda *_: np.array([chosen]))
    matrix, _ = acceptance.cvxopt()

    def lp(c, rows, bounds, *, options):
        assert options == {"show_progress": False}
        assert rows.size == (300, 4)
        assert list(bounds) == [-1e-8] + 299 * [0]
        mean = np.array(rows)[1:].mean(axis=0)
        return {"status": status, "x": None if side is None else matrix(-side * mean)}

    monkeypatch.setattr(acceptance, "cvxopt", lambda: (matrix, SimpleNamespace(lp=lp)))
    accepted, voted = by_majority(q, np.random.default_rng(0), speech=True)
    assert accepted == ({chosen} if claimed else set())
    assert voted == votes


def test_without_their_solver_the_authors_rule_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "cvxopt", None)
    q, _ = columns_of(300, 4, distinct=True)
    with pytest.raises(ModuleNotFoundError, match=r"pip install -e '\.\[authors\]' in"):
        by_majority(q, np.random.default_rng(0), speech=True)


def test_otsu_splits_between_two_groups():
    low, high = np.linspace(0, 1, 40), np.linspace(5, 5.5, 4)
    assert 1 < otsu(np.concatenate([high, low])) < 5
