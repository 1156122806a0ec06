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


def utterances():
    model = recognised.recogniser()
    return [recognised.observed(model, recognised.voice(at, 5 + at)) for at in range(3)]


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
    # CTC's loss checks the labels, in the model's pass and in the head's; packing sequences copies
    # lengths that are on the CPU.
    "ctc-matching": (speech, {"restarts": 0}, 5),
    # Besides, CTC's loss reads unequal lengths.
    "ctc-matching of several": (utterances, {"shared_passes": True, "restarts": 0}, 7),
}
"""By case: an observation or several, settings, and how often an iteration may read."""


@pytest.mark.parametrize("case", LOOPS)
def test_the_loop_reads_little_and_allocates_on_its_device(case):
    observe, settings, most = LOOPS[case]
    attack = make("adversaries", case.split()[0], settings)
    found = []
    for budget in (2, 4):
        seen = observe()
        each = seen if isinstance(seen, list) else [seen]
        jobs = [testing.job(budget=budget) for _ in each]
        read, made = waits(lambda each=each, jobs=jobs: attack.reconstruct_many(each, jobs))
        found.append((read, made, jobs[0].iterations))
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
