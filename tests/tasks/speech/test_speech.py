"""The speech task: what may be known of it, its utility, its guesses and files."""

import pickle
from collections import Counter

import jiwer
import pytest
import torch
from support.processes import fresh_python
from support.sequence_tasks import observed
from support.small_speech import TASK

from fedsim.errors import DataError, ScenarioError
from fedsim.plugin import make
from fedsim.records import Reconstruction, Truth
from fedsim.tasks.speech import Speech
from fedsim.tasks.speech.recognisers.las import LAS
from fedsim.tasks.transcripts import public_text


@pytest.fixture(scope="module")
def task():
    return Speech(seed=3, clients=4, **TASK)


# --- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"model": "la"}, DataError, "Did you mean 'las'"),
        ({"model": {"name": "las", "encoder": 0}}, ScenarioError, r"encoder"),
        ({"partition": "speakers"}, DataError, "Did you mean 'speaker'"),
        ({"features": {"kind": "mfc"}}, ScenarioError, r"features\.kind"),
        ({"vocabulary": 8}, ScenarioError, "vocabulary"),
        ({"cut": True}, ScenarioError, r"set task\.seconds"),
        ({"vocabulry": 64}, ScenarioError, "Did you mean 'vocabulary'"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings, error, message):
    with pytest.raises(error, match=message):
        make("tasks", "speech", settings)


def test_the_spec_tells_the_vocabulary_and_no_shape(task):
    spec = task.spec
    assert (spec.classes, spec.vocabulary, spec.sample_rate) == (64, 64, 16_000)
    assert spec.input_shape is None
    assert len(spec.pieces) == 64


def test_settings_survive_a_copy_and_a_pickle_but_nothing_worked_out_from_them(task):
    task.num_examples(0)
    again = pickle.loads(pickle.dumps(task))  # noqa: S301
    assert again == task
    assert len(pickle.dumps(task)) < 3000
    assert "recordings" not in again.__dict__
    assert Speech(**task.model_dump()) == task


def test_importing_the_task_loads_nothing_heavy():
    heavy = {"flwr", "ray", "datasets", "flwr_datasets", "transformers", "scipy", "torchaudio",
             "tokenizers", "jiwer", "soundfile"}  # fmt: skip
    script = f"import sys, fedsim.tasks.speech; print({heavy} & set(sys.modules))"
    assert fresh_python(script) == "set()"


# --- knowledge ------------------------------------------------------------------------------


def test_labels_grants_the_sequences_in_no_order_and_lengths_the_frames_of_each(task):
    (batch,) = task.batches(0, 1, batch_size=3, steps=1)
    seen = observed(task, "LABELS", "LENGTHS")
    said = [row[row >= 0].tolist() for row in batch.labels]
    pairs = list(zip(said, batch.lengths.tolist(), strict=True))
    found = [row[row >= 0].tolist() for row in seen.labels]
    assert list(zip(found, seen.lengths, strict=True)) == sorted(pairs) != pairs
    assert seen.labels.shape == batch.labels.shape
    withheld = observed(task, "GRADIENT")
    assert withheld.labels is withheld.lengths is None


def test_the_victims_model_takes_frames_and_context_vectors_and_leads_nobody_to_the_data(task):
    victim = observed(task, "MODEL").model
    assert victim.points == ("input", "context")
    assert victim.head == "speller.head"
    assert not hasattr(victim._loss, "__self__")
    (batch,) = task.batches(0, 1, batch_size=3, steps=1)
    with torch.no_grad():
        heard = victim.loss(batch.inputs, batch.labels, lengths=batch.lengths)
        contexts = torch.zeros(3, batch.labels.shape[1], victim.module.context_size)
        assert victim.loss(contexts, batch.labels, at="context") != heard


# --- utility --------------------------------------------------------------------------------


def test_the_loss_is_the_mean_over_all_word_pieces(task, monkeypatch):
    module = task.module()
    whole = task.evaluate(module)
    monkeypatch.setattr("fedsim.tasks.speech.EVALUATED_AT_ONCE", 1)
    assert task.evaluate(module) == pytest.approx(whole, rel=1e-4)
    total = pieces = 0.0
    with torch.no_grad():
        for i in task.splits[0].tolist():
            batch = task.batch(torch.tensor([i]))
            loss = task.loss(module, batch.inputs, batch.labels, lengths=batch.lengths)
            total, pieces = (
                total + float(loss) * batch.labels.numel(),
                pieces + batch.labels.numel(),
            )
    assert whole["loss"] == pytest.approx(total / pieces, rel=1e-4)
    assert whole["num_examples"] == 6


def test_the_word_error_rate_is_that_of_what_was_transcribed(task, monkeypatch):
    said = [task.recordings.texts[i] for i in task.splits[0].tolist()]
    heard = [text.rpartition(" ")[0] + " carpet" for text in said]
    bounds = []

    def transcribe(self, module, inputs, lengths, longest):
        bounds.append((longest, int(lengths.max())))
        return [task.pieces.encode(text)[:-1] for text in heard]

    monkeypatch.setattr(LAS, "transcribe", transcribe)
    found = task.evaluate(task.module())
    assert found["wer"] == pytest.approx(jiwer.wer(said, heard))
    assert 0 < found["wer"] < 1
    assert all(longest == frames // 2 + 1 for longest, frames in bounds)


def test_the_word_error_rate_does_not_depend_on_who_is_evaluated_together(task, monkeypatch):
    """Of a recogniser that never ends: a transcript has a piece for two frames of its own."""

    def transcribe(self, module, inputs, lengths, longest):
        word = task.pieces.encode("the")[:1]
        return [word.repeat(longest) for _ in lengths]

    monkeypatch.setattr(LAS, "transcribe", transcribe)
    module = task.module()
    together = task.evaluate(module)["wer"]
    monkeypatch.setattr("fedsim.tasks.speech.EVALUATED_AT_ONCE", 1)
    assert task.evaluate(module)["wer"] == together


def test_evaluation_leaves_the_modes_and_judges_a_client_on_its_own(task):
    module = task.module().train()
    assert task.evaluate(module, client=2)["num_examples"] == task.num_examples(2)
    assert all(part.training for part in module.modules())


def test_a_recogniser_learns_what_its_utterances_say(task):
    module = task.module()
    (batch,) = task.batches(0, 0, batch_size=2, steps=1)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = task.loss(module, batch.inputs, batch.labels, lengths=batch.lengths)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 1


# --- guesses and files -----------------------------------------------------------------------


def test_guesses_have_the_shapes_of_the_truth_and_nothing_else_of_it(task):
    truth = task.truth([0], 0, batch_size=3, steps=1)
    sizes = [len(one) for one in truth.sequences]
    blank = Truth(sequences=[torch.zeros_like(one) for one in truth.sequences])
    for informed in (False, True):
        first, second = (
            task.guess(known, torch.Generator().manual_seed(3), informed=informed)
            for known in (truth, blank)
        )
        assert torch.equal(first.labels, second.labels)
        assert [len(one) for one in first.sequences] == sizes
        assert first.num_labels == len(first.labels) == sum(sizes)
        assert first.label_counts == Counter(first.labels.tolist())
        assert first.text == [task.spec.spell(one) for one in first.sequences]


def test_an_informed_guess_follows_public_text(task):
    many = Truth(sequences=[torch.zeros(200_000, dtype=torch.int64)])
    rng = torch.Generator().manual_seed(0)
    for informed, expected in ((False, torch.full((64,), 1 / 64)), (True, task.pieces.frequencies)):
        labels = task.guess(many, rng, informed=informed).labels
        shares = torch.bincount(labels, minlength=64) / len(labels)
        torch.testing.assert_close(shares, expected, atol=0.003, rtol=0)
    text = public_text("sentences", None)
    assert float(task.pieces.frequencies[0]) == pytest.approx(
        len(text) / sum(len(task.pieces.encode(one)) for one in text)
    )


def test_transcripts_stand_beside_what_was_matched_to_them(task):
    truth = task.truth([0], 0, batch_size=2, steps=1)
    first, second = truth.text
    files = task.render(Reconstruction(text=[second + "\n<b>more</b>", first]), truth)
    assert files["original.txt"].decode().splitlines() == [first, second]
    assert files["reconstruction.txt"].decode().splitlines() == [first, f"{second} <b>more</b>"]
    spelled = task.render(Reconstruction(sequences=truth.sequences), truth)
    assert spelled["reconstruction.txt"] == spelled["original.txt"]
    pieces = task.render(Reconstruction(label_set=frozenset({0, 30, 9999})), truth)
    assert pieces["reconstruction.txt"].decode() == f"<end> {task.spec.pieces[30]}\n"
    assert task.render(Reconstruction(), truth) == {}
    assert task.render(Reconstruction(text=["\ud800", "a"]), truth)["reconstruction.txt"]
