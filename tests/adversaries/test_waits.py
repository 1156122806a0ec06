"""On a GPU: the loops of attacks allocate there, and gradient matching reads once an evaluation."""

import pytest
import torch
from support import recognised
from support.text_victims import seen as texts
from support.text_victims import small
from support.waits import waits

from fedsim import testing
from fedsim.plugin import make


def image():
    return testing.example()


def several():
    return testing.example(4)


def text():
    return texts(small())[0]


def speech():
    return recognised.observed(recognised.recogniser(), recognised.voice(0, 5))


LOOPS = {
    "dlg": (image, {"restarts": 0, "tolerance": 0.0}, 20),
    "dlg of a batch": (several, {"restarts": 0, "batch_rule": "cyclic"}, 20),
    "inverting-gradients": (image, {"restarts": 0}, 1),
    "repeated-gradients": (image, {"restarts": 0}, 20),
    # The prior's order, the proof that tokens match, and the masks of the language model.
    "lamp": (text, {"starts": 4, "permutations": 4, "candidates": 4, "continuous": 75}, 5),
    # Besides, each weight matrix is compared row by row, with its own victim's.
    "tag": (text, {}, 20),
    "dlg-text": (text, {}, 20),
    # CTC's loss checks the labels.
    "ctc-matching": (speech, {}, 3),
}
"""By case: an observation, settings, and how often an iteration may read."""


@pytest.mark.parametrize("case", LOOPS)
def test_the_loop_reads_little_and_allocates_on_its_device(case):
    observe, settings, most = LOOPS[case]
    attack = make("adversaries", case.split()[0], settings)
    found = []
    for budget in (2, 4):
        seen, job = observe(), testing.job(budget=budget)
        read, made = waits(lambda seen=seen, job=job: attack.reconstruct(seen, job))
        found.append((read, made, job.iterations))
    (read, made, few), (later_read, later_made, many) = found
    assert many > few
    # What a longer attack does more often is in its loop.
    assert later_made - made == {}
    more = later_read - read
    assert sum(more.values()) <= (many - few) * most, more


def test_what_would_wait_is_seen():
    values = torch.ones(3)

    def call():
        bool(values[0] > 0)
        values.tolist()
        values[values > 0]
        torch.zeros(2)
        torch.zeros(2, device=values.device)
        torch.randn(2, generator=torch.Generator())

    seen, made = waits(call)
    assert sum(seen.values()) == 3
    assert sum(made.values()) == 1
