"""On a GPU: the loops of attacks allocate there, and gradient matching reads once an evaluation."""

import pytest
import torch
from support import recognised
from support.speakers import SIZE, SMALL, public
from support.spellers import utterance
from support.text_victims import seen as texts
from support.text_victims import small
from support.waits import waits

from adversaries.speech.speaker_inference.deep_speaker import Recipe, train
from fedsim import testing
from fedsim.plugin import make


def image():
    return testing.example()


def several():
    return testing.example(4)


def text():
    return texts(small())[0]


def causal_text():
    return texts(small("gpt2"))[0]


def speech():
    return recognised.observed(recognised.recogniser(), recognised.voice(0, 5))


def two_utterances():
    return recognised.observed(recognised.recogniser(), *(recognised.voice(at, 5) for at in (0, 1)))


def utterances():
    model = recognised.recogniser()
    return [recognised.observed(model, recognised.voice(at, 5 + at)) for at in range(3)]


def spelled():
    return utterance([3, 17, 8, 25], seed=1)


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
    # CTC's loss checks the labels, of changes and of what is kept; which frames change, where the
    # recurrence begins, in each of 5 frames whether it has settled, and which outputs it changed;
    # which changes are kept, and the distance.
    "hfgm": (speech, {}, 12),
    # Besides, the utterance is drawn.
    "hfgm of two": (two_utterances, {}, 13),
    # Every 16 iterations some changes are evaluated, as above.
    "hfgm that predicts": (speech, {"selection": "predicted"}, 6),
    "hfgm of several": (utterances, {"selection": "predicted"}, 12),
    "gm-bow": (spelled, {"labels_from": "given", "starts": 1}, 1),
    "gm-bow of the paper": (
        spelled,
        {"labels_from": "given", "starts": 1, "variant": "paper"},
        1,
    ),
    # Each label by what fits, its distance, and the hypotheses that are kept.
    "span-decoding": (spelled, {"labels_from": "given"}, 4),
    # Each token by what fits, and which sentences end.
    "dager": (causal_text, {}, 4),
    # Gauss-Newton reads whether each step helps.
    "dlg with features": (image, {"features_from": "feature-separation"}, 10),
    "accumulate": (several, {}, 20),
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


def test_conjugate_gradients_read_once_an_iteration():
    def attacked(iterations):
        attack = make("adversaries", "r-gap", {"iterations": iterations})
        with pytest.raises(ValueError, match="no input fits"):
            attack.reconstruct(testing.example(), testing.job())

    (read, made), (later_read, later_made) = (
        waits(lambda count=count: attacked(count)) for count in (2, 4)
    )
    assert later_made - made == {}
    # Two systems: that of the only layer, and that of the error to expect.
    assert sum((later_read - read).values()) == 2 * 2


def test_the_training_of_an_encoder_of_voices_asks_for_its_triplets_alone():
    auxiliary = public()
    frames = [x[:n] for x, n in zip(auxiliary.inputs, auxiliary.lengths, strict=True)]
    speakers = auxiliary.attributes["speaker"]

    def trained(steps):
        recipe = Recipe(**{**SMALL, "steps": steps})
        rng = torch.Generator().manual_seed(0)
        train(recipe.network(SIZE), frames, speakers, recipe, rng=rng)

    (read, made), (later_read, later_made) = (
        waits(lambda steps=steps: trained(steps)) for steps in (2, 4)
    )
    assert later_made - made == {}
    # Besides the loss, all other reads are of what is on the CPU: draws, and Adam's own counts.
    masked = {at: n for at, n in (later_read - read).items() if at.startswith("index")}
    assert sum(masked.values()) == 2 * 2, masked  # the triplets that lose, and their gradient


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
