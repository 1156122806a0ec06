"""Nothing that the threat model withholds reaches an observation."""

from itertools import permutations

import pytest
import torch
from torch import nn

from fedsim.errors import NotGranted, ScenarioError
from fedsim.knowledge import PRESETS, Knowledge
from fedsim.records import Batch, Interception, Spec, Truth, Update
from fedsim.threat import ThreatModel
from fedsim.victim import VictimModel, load_arrays

GRADIENTS = Knowledge.GRADIENT | Knowledge.HEAD_GRADIENT

FIELDS = {
    Knowledge.BUFFERS: "buffers",
    Knowledge.MODEL: "model",
    Knowledge.BATCH_SIZE: "num_examples",
    Knowledge.LOCAL_STEPS: "steps",
    Knowledge.LEARNING_RATE: "lr",
    Knowledge.LABELS: "labels",
    Knowledge.LENGTHS: "lengths",
    Knowledge.AUXILIARY: "auxiliary",
    Knowledge.PRIOR: "prior",
    Knowledge.DEFENSE: "defenses",
    Knowledge.HISTORY: "history",
}


class Source:
    """A task's part of an observation, by hand."""

    spec = Spec(classes=3)
    head = "1"

    def victim(self, arrays):
        module = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3))
        load_arrays(module, arrays)
        return VictimModel(module, head="1", loss=lambda m, x, y, **_: (m(x) - y).square().mean())

    def auxiliary(self):
        return Batch(torch.ones(1, 2), torch.ones(1, dtype=torch.int64))

    def prior(self):
        return "a language model"


@pytest.fixture
def intercepted():
    shapes = {"0.weight": (4, 2), "0.bias": (4,), "1.weight": (3, 4), "1.bias": (3,)}
    before = {name: torch.zeros(shape) for name, shape in shapes.items()}
    sent = {name: torch.full(shape, -1.0) for name, shape in shapes.items()}
    update = Update(sent, "delta", buffers={"m": torch.ones(2)}, lr=0.5, steps=2, num_examples=8)
    return Interception(1, (0,), before, update)


TRUTH = Truth(labels=torch.tensor([1, 2]), lengths=(4, 5))


def observe(granted, intercepted):
    threat = ThreatModel(granted, Source(), defenses=("sign",))
    return threat.observe(intercepted, truth=TRUTH, history=["earlier"])


def test_every_flag_is_either_a_gradient_or_a_field():
    assert set(Knowledge) == {*GRADIENTS, *FIELDS}


@pytest.mark.parametrize("flag", list(FIELDS), ids=lambda flag: flag.name)
def test_a_flag_alone_shows_its_own_field_and_no_other(flag, intercepted):
    seen = observe(flag, intercepted)
    assert getattr(seen, FIELDS[flag]) is not None
    assert seen.know(flag) is getattr(seen, FIELDS[flag])
    assert seen.gradient == {}
    for other, field in FIELDS.items():
        if other != flag:
            assert getattr(seen, field) is None, field


@pytest.mark.parametrize("flag", list(Knowledge), ids=lambda flag: flag.name)
def test_everything_but_one_flag_hides_that_one(flag, intercepted):
    # Whoever sees the whole gradient sees the head's, so that pair goes together.
    hidden = GRADIENTS if flag is Knowledge.HEAD_GRADIENT else flag
    seen = observe(~hidden, intercepted)
    with pytest.raises(NotGranted, match=flag.name):
        seen.know(flag)
    for other in Knowledge:
        if other not in hidden:
            seen.know(other)


def test_the_head_gradient_alone_is_the_head_alone(intercepted):
    seen = observe(Knowledge.HEAD_GRADIENT, intercepted)
    assert set(seen.gradient) == {"1.weight", "1.bias"}
    whole = observe(Knowledge.GRADIENT, intercepted)
    assert set(whole.gradient) == set(intercepted.before)
    assert set(whole.know(Knowledge.HEAD_GRADIENT)) == {"1.weight", "1.bias"}
    with pytest.raises(NotGranted):
        seen.know(Knowledge.GRADIENT)


def test_the_scale_gives_away_no_withheld_learning_rate(intercepted):
    known = observe(GRADIENTS | Knowledge.LEARNING_RATE | Knowledge.LOCAL_STEPS, intercepted)
    blind = observe(GRADIENTS, intercepted)
    assert float(known.gradient["1.bias"][0]) == 1.0  # -(-1) / (0.5 * 2)
    assert float(blind.gradient["1.bias"][0]) == 1.0  # the delta's own size: -(-1)
    faster = Interception(1, (0,), intercepted.before, intercepted.update.replace(lr=0.1, steps=7))
    again = observe(GRADIENTS, faster)
    assert torch.equal(again.gradient["1.bias"], blind.gradient["1.bias"])
    assert not known.exact
    assert not blind.exact
    assert known.divisor is None, "a delta was sent"


def test_of_sent_weights_it_is_known_what_their_change_was_divided_by(intercepted):
    moved = {name: torch.full_like(value, -0.1) for name, value in intercepted.before.items()}
    sent = intercepted.update.replace(tensors=moved, kind="weights", lr=0.25)
    weights = Interception(1, (0,), intercepted.before, sent)
    known = observe(GRADIENTS | Knowledge.LEARNING_RATE | Knowledge.LOCAL_STEPS, weights)
    assert known.divisor == 0.5  # 0.25 * 2
    assert torch.equal(0 - known.divisor * known.gradient["1.bias"], moved["1.bias"])
    assert observe(GRADIENTS, weights).divisor == 1.0, "the withheld learning rate is left out"


def test_copies_are_private(intercepted):
    first = observe(Knowledge.parse("full"), intercepted)
    for tensor in (*first.gradient.values(), *first.buffers.values(), first.labels):
        tensor.zero_()
    with torch.no_grad():
        for parameter in first.model.module.parameters():
            parameter.fill_(9)
    second = observe(Knowledge.parse("full"), intercepted)
    assert second.labels.tolist() == [1, 2]
    assert second.buffers["m"].tolist() == [1, 1]
    assert float(second.gradient["1.bias"][0]) == 1.0
    assert not any(p.any() for p in second.model.module.parameters())
    assert float(intercepted.update.tensors["1.bias"][0]) == -1.0
    assert not any(value.any() for value in intercepted.before.values())
    assert TRUTH.labels.tolist() == [1, 2]


# Labels and lengths as a bag


def granted(truth, intercepted, *names):
    threat = ThreatModel(Knowledge.parse(names), Source())
    seen = threat.observe(intercepted, truth=truth)
    labels = None if seen.labels is None else seen.labels.tolist()
    return labels, None if seen.lengths is None else list(seen.lengths)


def test_labels_and_lengths_do_not_tell_the_order_of_the_examples(intercepted):
    labels, lengths = torch.tensor([2, 0, 1, 0]), (5, 9, 5, 4)
    for order in permutations(range(4)):
        shuffled = Truth(labels=labels[list(order)], lengths=[lengths[i] for i in order])
        assert granted(shuffled, intercepted, "LABELS") == ([0, 0, 1, 2], None)
        # Sorted by labels that are withheld, lengths would tell which labels are alike.
        assert granted(shuffled, intercepted, "LENGTHS") == (None, [4, 5, 5, 9])
        both = granted(shuffled, intercepted, "LABELS", "LENGTHS")
        assert both == ([0, 0, 1, 2], [4, 9, 5, 5])


def test_sequences_of_labels_stay_whole_and_with_their_lengths(intercepted):
    sequences = [torch.tensor([2, 1, 2]), torch.tensor([1]), torch.tensor([1, 3])]
    for order in permutations(range(3)):
        own = [sequences[i] for i in order]
        truth = Truth(labels=torch.cat(own), sequences=own, lengths=[(7, 8, 9)[i] for i in order])
        rows = [[1, -100, -100], [1, 3, -100], [2, 1, 2]]
        assert granted(truth, intercepted, "LABELS", "LENGTHS") == (rows, [8, 9, 7])


def test_labels_of_masked_words_do_not_tell_how_long_a_text_is(intercepted):
    own = [torch.tensor([-100, 7, -100, 5, -100, -100]), torch.tensor([4, -100, -100])]
    truth = Truth(labels=torch.cat(own), sequences=own, lengths=[6, 3])
    labels, _ = granted(truth, intercepted, "LABELS")
    assert labels == [[-100, 7, -100, 5], [4, -100, -100, -100]]
    labels, lengths = granted(truth, intercepted, "LABELS", "LENGTHS")
    assert (list(map(len, labels)), lengths) == ([6, 6], [6, 3])


def test_a_truth_without_labels_grants_none(intercepted):
    seen = ThreatModel(Knowledge.parse("full"), Source()).observe(intercepted)
    assert seen.labels is seen.lengths is None


def test_a_gradient_sent_as_such_is_copied(intercepted):
    update = intercepted.update.replace(kind="gradient")
    sent = Interception(1, (0,), intercepted.before, update)
    observe(GRADIENTS, sent).gradient["1.bias"].zero_()
    assert float(update.tensors["1.bias"][0]) == -1.0


def test_an_observation_holds_no_way_back_to_the_truth(intercepted):
    seen = observe(~(Knowledge.LABELS | Knowledge.LENGTHS), intercepted)
    held = [getattr(seen, name) for name in type(seen).__slots__]
    assert not any(isinstance(value, Truth | Interception | Update) for value in held)
    assert seen.labels is None


@pytest.mark.parametrize(
    ("preset", "more"),
    [
        ("gradients", ["HEAD_GRADIENT", "GRADIENT", "BATCH_SIZE", "LOCAL_STEPS", "LEARNING_RATE"]),
        ("white-box", ["BUFFERS", "MODEL"]),
        ("auxiliary", ["AUXILIARY"]),
        ("full", ["LABELS", "LENGTHS", "PRIOR", "DEFENSE", "HISTORY"]),
    ],
)
def test_each_preset_adds_to_the_one_before(preset, more):
    order = list(PRESETS)
    index = order.index(preset)
    before = PRESETS[order[index - 1]] if index else Knowledge(0)
    assert Knowledge.parse(preset) & ~before == Knowledge.parse(more) & ~before
    assert before in PRESETS[preset]
    assert set((PRESETS[preset] & ~before).names()) == set(more)


def test_the_whole_gradient_includes_the_heads():
    assert Knowledge.HEAD_GRADIENT in Knowledge.parse(["GRADIENT"])
    assert Knowledge.parse([]) == Knowledge(0)


@pytest.mark.parametrize(
    ("grants", "hint"),
    [("white_box", "white-box"), (["LABLES"], "LABELS"), (["labels"], "LABELS")],
)
def test_unknown_grants_name_the_nearest(grants, hint):
    with pytest.raises(ScenarioError, match=hint):
        Knowledge.parse(grants)
