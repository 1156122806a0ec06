"""DeepSpeech and CTC: the loss, its derivatives, what the model sees, says and learns."""

import itertools

import pytest
import torch
from support.sequence_tasks import sent_and_computed
from support.small_speech import scenario
from support.tiny import meaning, sent
from torch.nn import functional

from defenses.dropout import Dropout
from fedsim.defense import MeanGradient, Training
from fedsim.errors import DataError, ScenarioError
from fedsim.gradients import ctc, ctc_loss, frames_needed
from fedsim.records import Batch
from fedsim.seeds import isolated
from fedsim.tasks.speech import Speech
from fedsim.tasks.speech.recognisers import PADDING, as_recogniser
from fedsim.tasks.speech.recognisers.ctc import DeepSpeech, windows
from fedsim.tasks.wordpieces import characters
from fedsim.victim import VictimModel

FEATURES, CLASSES = 4, 6
SMALL = {"name": "deepspeech", "hidden": 16, "recurrent": 12, "context": 2}
TASK = {"speakers": 4, "utterances": 8, "longest": 30, "model": SMALL}


def small(seed: int = 0, **changes):
    """A small recogniser and its model."""
    recogniser = as_recogniser({**SMALL, **changes})
    with isolated(seed, "test"):
        return recogniser, recogniser.build(FEATURES, CLASSES)


def scores(*shape: int, seed: int = 0, dtype=torch.float64):
    """Random log-probabilities (B, T, C)."""
    rng = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(*shape, generator=rng, dtype=dtype)).log_softmax(dim=2)


def padded(*rows: list[int]):
    width = max(map(len, rows))
    return torch.tensor([[*row, *[PADDING] * (width - len(row))] for row in rows])


TARGET = padded([1, 2, 3, 2, 1], [5, 5, 5], [4])
"""Three sequences, one of a single label thrice, one of one label."""

LENGTHS = torch.tensor([11, 5, 1])


# --- the loss -------------------------------------------------------------------------------


def theirs(logits):
    return functional.ctc_loss(
        logits.log_softmax(dim=2).transpose(0, 1),
        TARGET.clamp(min=0),
        LENGTHS,
        (TARGET >= 0).sum(dim=1),
        reduction="none",
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(4))
def test_the_loss_and_its_gradient_are_torchs_with_a_graph_and_without(seed, dtype):
    logits = scores(3, 11, CLASSES, seed=seed, dtype=dtype).requires_grad_()
    ours = ctc_loss(logits, TARGET, LENGTHS)
    written_out = ctc._written_out(logits, TARGET, LENGTHS)
    for losses in (ours, written_out):
        torch.testing.assert_close(losses, theirs(logits), rtol=1e-5, atol=1e-5)
    (expected,) = torch.autograd.grad(theirs(logits).sum(), logits)
    for graph in (False, True):
        (found,) = torch.autograd.grad(ours.sum(), logits, retain_graph=True, create_graph=graph)
        assert found.requires_grad is graph
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_loss_is_the_sum_over_all_alignments():
    frames = scores(1, 4, 3)
    for labels in ([1], [1, 2], [1, 1], [2, 1, 2]):
        paths = [
            path
            for path in itertools.product(range(3), repeat=4)
            if [k for k, _ in itertools.groupby(path) if k] == labels
        ]
        total = sum(frames[0, range(4), path].sum().exp() for path in paths)
        assert float(ctc_loss(frames, padded(labels))) == pytest.approx(float(-total.log()))


def test_what_is_beyond_an_utterances_end_does_not_matter():
    frames = scores(3, 11, CLASSES).requires_grad_()
    loss = ctc_loss(frames, TARGET, LENGTHS)
    (gradient,) = torch.autograd.grad(loss.sum(), frames)
    for row, length, labels, value in zip(frames, LENGTHS, TARGET, loss, strict=True):
        assert torch.allclose(value, ctc_loss(row[None, :length], labels[None])[0])
    assert gradient[0].any(dim=1).all()
    assert not gradient[1, 5:].any()
    assert not gradient[2, 1:].any()


def test_the_loss_can_be_differentiated_twice():
    frames = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1)).double()
    target, lengths = padded([1, 1, 2], [3]), torch.tensor([6, 2])

    def loss(logits):
        return ctc_loss(logits, target, lengths)

    assert torch.autograd.gradcheck(loss, frames.requires_grad_())
    assert torch.autograd.gradgradcheck(loss, frames)


def test_a_long_utterance_neither_overflows_nor_loses_its_gradient():
    frames = 30 * scores(1, 400, CLASSES, dtype=torch.float32)
    loss = ctc_loss(frames.requires_grad_(), padded([1, 2] * 60))
    (gradient,) = torch.autograd.grad(loss.sum(), frames, create_graph=True)
    assert loss.isfinite().all()
    assert gradient.abs().sum().item() > 100
    (second,) = torch.autograd.grad(gradient.square().sum(), frames)
    assert second.isfinite().all()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (padded([1], []), "utterance 1 of the batch has no label"),
        (padded([1], [2, 0]), "labels from 0 to 2; expected 1 to 5"),
        (padded([6], [1]), "labels from 6 to 6; expected 1 to 5"),
        (padded([1], [2, 2, 2]), r"utterance 1 .* 4 frames, and its 3 labels take 5 .*infinite"),
        (padded([1, 2, 3, 4, 5], [2]), r"utterance 0 .* 5 labels take 5 .*stride"),
    ],
)
def test_what_ctc_cannot_say_is_refused(target, message):
    with pytest.raises(DataError, match=message):
        ctc_loss(scores(2, 4, CLASSES), target)
    assert frames_needed(torch.tensor([2, 2, 2])) == 5


def test_smooth_labels_are_refused():
    recogniser, module = small()
    with pytest.raises(ValueError, match="hard labels"):
        recogniser.loss(module, torch.zeros(1, 3, FEATURES), torch.zeros(1, 2, CLASSES))


# --- the model ------------------------------------------------------------------------------


def test_a_window_is_a_frame_between_its_neighbours_and_zeros_at_the_ends():
    frames = torch.arange(1.0, 11).view(1, 5, 2)
    seen = windows(frames, 2)
    assert seen.shape == (1, 5, 10)
    assert seen[0, 0].tolist() == [0, 0, 0, 0, 1, 2, 3, 4, 5, 6]
    assert seen[0, 2].tolist() == list(range(1, 11))
    assert seen[0, 4].tolist() == [5, 6, 7, 8, 9, 10, 0, 0, 0, 0]
    assert torch.equal(windows(frames, 0), frames)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_at_the_papers_size_it_has_the_papers_parameters(bidirectional):
    full = DeepSpeech(hidden=2048, recurrent=2048, bidirectional=bidirectional)
    with torch.device("meta"):
        module = full.build(26, 29)
    counts = {n: sum(p.numel() for p in m.parameters()) for n, m in module.named_modules()}
    sizes = [counts[n] / 1e6 for n in ("dense.0", "dense.3", "dense.6", "recurrent", "joint.0")]
    both = 1 + bidirectional
    assert sizes == pytest.approx([1.0, 4.2, 4.2, 33.6 * both, 4.2 * both], abs=0.05 * both)
    assert counts["head"] / 1e6 == pytest.approx(0.1, abs=0.05)
    assert module.dense[0].in_features == 494


def test_fully_connected_layers_start_xavier_uniform_without_bias():
    _, module = small(hidden=64)
    weight = module.dense[3].weight
    bound = (6 / 128) ** 0.5
    weight = weight.detach()
    assert float(weight.abs().max()) == pytest.approx(bound, rel=0.01)
    assert float(weight.var()) == pytest.approx(bound**2 / 3, rel=0.1)
    for name in ("dense.0", "dense.3", "dense.6", "joint.0", "head"):
        assert not module.get_submodule(name).bias.any()


def utterances(seed: int = 0):
    """Random frames, padded with 0, and what is said in them."""
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.randn(3, 11, FEATURES, generator=rng)
    for row, length in zip(inputs, LENGTHS, strict=True):
        row[length:] = 0
    return inputs, TARGET, LENGTHS


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_loss_is_the_mean_over_utterances_and_padding_changes_nothing(bidirectional):
    recogniser, module = small(bidirectional=bidirectional)
    inputs, target, lengths = utterances()
    together = recogniser.loss(module, inputs, target, lengths=lengths)
    alone = [
        recogniser.loss(module, x[None, :t], y[y != PADDING][None]).item()
        for x, t, y in zip(inputs, lengths, target, strict=True)
    ]
    assert together.item() == pytest.approx(sum(alone) / 3, rel=1e-5)


def test_gradient_matching_can_differentiate_through_the_model():
    recogniser, module = small(hidden=5, recurrent=4)
    model = VictimModel(module.double(), head="head", loss=recogniser.loss)
    inputs, target, _ = utterances()

    def size_of_gradient(frames):
        found = model.gradient(frames, target[:1], create_graph=True)
        return sum(g.square().sum() for g in found.values())

    frames = inputs[:1, :8].double().requires_grad_()
    assert torch.autograd.gradcheck(size_of_gradient, frames, atol=1e-7)


def test_dropout_is_off_unless_asked_for_and_then_only_in_training():
    inputs, *_ = utterances()
    for rate, differs in ((0.0, False), (0.5, True)):
        _, module = small(dropout=rate)
        with torch.no_grad(), isolated(0, "dropout"):
            assert torch.equal(module.train()(inputs), module(inputs)) is not differs
            assert torch.equal(module.eval()(inputs), module(inputs))


def test_the_dropout_defense_finds_every_clipped_relu():
    recogniser, module = small()
    inputs, target, lengths = utterances()
    seen = []

    def loss(module, batch):
        seen.append(module(batch.inputs, batch.lengths))
        return recogniser.loss(module, batch.inputs, batch.labels, lengths=batch.lengths)

    batch = Batch(inputs, target, lengths)
    plain = Training(
        module=module,
        batches=(batch,),
        loss=loss,
        gradient=MeanGradient(loss, tuple(name for name, _ in module.named_parameters())),
        algorithm="fedsgd",
        lr=0.1,
        momentum=0.0,
        weight_decay=0.0,
        rng=torch.Generator(),
    )
    with isolated(0, "defense"):
        Dropout(rate=0.5).prepare(plain).loss(module, batch)
    loss(module, batch)
    assert not torch.allclose(*seen)


# --- transcripts ----------------------------------------------------------------------------


@pytest.mark.parametrize("beam", [1, 8])
def test_it_learns_what_it_is_told_and_then_says_it(beam):
    if beam > 1:
        pytest.importorskip("flashlight")
    recogniser, module = small(hidden=48, recurrent=32, beam=beam)
    inputs, target, lengths = utterances()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(80):
        optimizer.zero_grad()
        recogniser.loss(module, inputs, target, lengths=lengths).backward()
        optimizer.step()
    said = recogniser.transcribe(module, inputs, lengths, longest=11)
    assert [one.tolist() for one in said] == [row[row >= 0].tolist() for row in target]
    assert all(len(one) <= 2 for one in recogniser.transcribe(module, inputs, None, longest=2))


def test_characters_are_29_and_others_are_named():
    known = characters(("it's a b", "bb"))
    assert len(known.names) == 29
    assert known.encode("a b'z").tolist() == [2, 1, 3, 28, 27]
    assert float(known.frequencies[3]) == pytest.approx(3 / 10)
    assert float(known.frequencies[0]) == 0
    with pytest.raises(DataError, match=r"'3\.14 pi' has '\.', '1', '3', '4'; expected a-z"):
        known.encode("3.14 pi")


# --- the task -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def task():
    return Speech(seed=3, clients=4, **TASK)


def test_the_task_speaks_the_recognisers_units(task):
    spec = task.spec
    assert (spec.classes, spec.vocabulary) == (29, 29)
    assert task.head == "head"
    assert task.reduction == "example"
    (batch,) = task.batches(1, 0, batch_size=3, steps=1)
    for labels in batch.labels:
        said = labels[labels != PADDING]
        assert (said > 0).all()
        assert spec.spell(said) in task.recordings.texts
    truth = task.truth([1], 0, batch_size=3, steps=1)
    assert truth.text == [spec.spell(one) for one in truth.sequences]
    guess = task.guess(truth, torch.Generator().manual_seed(0), informed=True)
    assert 0 not in guess.label_counts
    assert Speech(**task.model_dump()) == task


def test_utility_is_the_mean_over_utterances_and_the_word_error_rate(task, monkeypatch):
    module = task.module()
    found = task.evaluate(module)
    monkeypatch.setattr("fedsim.tasks.speech.EVALUATED_AT_ONCE", 4)
    assert task.evaluate(module) == pytest.approx(found, rel=1e-4)
    losses = []
    with torch.no_grad():
        for i in task.splits[0].tolist():
            batch = task.batch(torch.tensor([i]))
            losses.append(float(task.loss(module, batch.inputs, batch.labels)))
    assert found["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert found["wer"] > 0


def test_fedsgd_sends_the_gradient_of_the_padded_batch():
    run = scenario(task=TASK, adversaries=[{"name": "rlg"}])
    reply, gradient = sent_and_computed(run, 2)
    for name, ours in gradient.items():
        # Of the small values some differ by .1 % even from their own in float64. On a GPU, where
        # clients train if there is one, others do.
        limit = 1e-4 * float(ours.norm())
        assert float((sent(reply)[name] - ours).norm()) <= limit, name
    assert meaning(reply)["reduction"] == "example"


def test_a_transcript_too_long_for_its_frames_is_told_of():
    coarse = Speech(seed=3, clients=4, **TASK, features={"stride": 4000})
    (batch,) = coarse.batches(0, 0, batch_size=1, steps=1)
    with pytest.raises(DataError, match=r"frames, and its \d+ labels take \d+ .*stride"):
        coarse.loss(coarse.module(), batch.inputs, batch.labels, lengths=batch.lengths)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"hidden": 0}, "hidden"), ({"dropout": 1.0}, "dropout"), ({"encoder": 3}, "encoder")],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ScenarioError, match=message):
        as_recogniser({"name": "deepspeech", **settings})
