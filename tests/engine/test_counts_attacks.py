"""Forward passes and gradients that attacks on texts and speech compute: once, and an iteration.

They are exact: an attack that computes one more of either costs more, and fails here.
"""

import pytest
import torch
from support import recognised
from support.text_victims import seen as texts
from support.text_victims import small

from fedsim import testing
from fedsim.plugin import make


def text():
    return texts(small())[0]


def speech():
    return recognised.observed(recognised.recogniser(), recognised.voice(0, 5))


FEW = {"starts": 4, "permutations": 4, "candidates": 4}

COSTS = {
    # Once: three passes try how gradients are computed, and one compares the tokens in the end.
    "tag": (text, {}, (4, 4), (1, 2)),
    "dlg-text": (text, {}, (4, 4), (1, 2)),
    # Besides, the starts are compared in one pass, and the orders of the best in another.
    "lamp": (text, FEW, (6, 6), (1, 2)),
    # Orders of the text in one pass, and the best one's tokens in another; the last point once.
    "lamp that reorders each time": (
        text,
        {**FEW, "continuous": 1, "fidelity": "paper"},
        (7, 7),
        (3, 4),
    ),
    # Gradients of CTC by the head and, within that, by its outputs; then that of the distance.
    "ctc-matching": (speech, {"restarts": 0}, (0, 0), (1, 3)),
    # Once: the closed form and the shortened passes are checked, these for changes, too. Then all
    # changes of an iteration take one pass, and what was kept of them another.
    "hfgm": (speech, {}, (6, 6), (2, 4)),
    "hfgm that predicts": (speech, {"selection": "predicted"}, (8, 8), (1, 3)),
}
"""By case: an observation, settings, and (passes, gradients) that are taken once and each time."""


def counted(monkeypatch, case, budget):
    """Passes through the model's head and gradients by autograd, of so many iterations."""
    observe, settings, *_ = COSTS[case]
    seen, counts = observe(), {"passes": 0, "gradients": 0}
    grad, backward = torch.autograd.grad, torch.autograd.backward

    def counting(what, call):
        def counted(*args, **more):
            counts[what] += 1
            return call(*args, **more)

        return counted

    head = seen.model.module.get_submodule(seen.model.head)
    head.register_forward_hook(counting("passes", lambda *call: None))
    job = testing.job(budget=budget)
    with monkeypatch.context() as patch:
        patch.setattr(torch.autograd, "grad", counting("gradients", grad))
        patch.setattr(torch.autograd, "backward", counting("gradients", backward))
        make("adversaries", case.split()[0], settings).reconstruct(seen, job)
    assert job.iterations == budget
    return tuple(counts.values())


@pytest.mark.parametrize("case", COSTS)
def test_an_attack_takes_so_many_passes_and_gradients_an_iteration(case, monkeypatch):
    *_, once, each = COSTS[case]
    for budget in (2, 5):
        expected = tuple(one + budget * more for one, more in zip(once, each, strict=True))
        assert counted(monkeypatch, case, budget) == expected
