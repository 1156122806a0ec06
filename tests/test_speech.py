"""The speech task: utterances, batches, truth, utility, guesses, and a federation of it."""

import hashlib
import pickle
from collections import Counter

import jiwer
import pytest
import torch
from processes import elsewhere
from sequence_tasks import DP_SGD, clips_one_by_one, observed, of_four
from tiny import ask, meaning, rows, same, sent, timeless

from fedsim.engine.inline import InlineGrid
from fedsim.errors import DataError, ScenarioError
from fedsim.metrics import METRICS, baselines
from fedsim.plugin import make
from fedsim.preflight import preflight
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.scenario import Scenario
from fedsim.simulation import simulate
from fedsim.tasks.recognisers.las import LAS
from fedsim.tasks.speech import Speech
from fedsim.tasks.transcripts import public_text

SMALL = {"name": "las", "encoder": 6, "attention": 6, "embedding": 6, "decoder": 12,
         "projection": 10}  # fmt: skip
TASK = {"speakers": 4, "utterances": 8, "longest": 30, "vocabulary": 64, "model": SMALL}


def scenario(**changes):
    """Four clients, a speaker each; tables are merged with these."""
    return of_four({"name": "speech", "test_examples": 3, **TASK}, 2, **changes)


@pytest.fixture(scope="module")
def task():
    return Speech(seed=3, clients=4, **TASK)


def digest(batches):
    value = hashlib.sha256()
    for batch in batches:
        for part in (batch.inputs, batch.labels, batch.lengths):
            value.update(part.numpy().tobytes())
    return value.hexdigest()


# --- data -----------------------------------------------------------------------------------


def test_every_utterance_is_tested_public_or_with_one_client(task):
    tested, auxiliary, rest = (part.tolist() for part in task.splits)
    assert sorted(torch.cat(task.shares).tolist()) == rest
    assert sorted([*tested, *auxiliary, *rest]) == list(range(32))
    assert (len(tested), len(auxiliary)) == (6, 2)
    assert sum(map(task.num_examples, range(4))) == len(rest)
    assert len(task.auxiliary()) == 2
    assert Speech(clients=4, **TASK, auxiliary_fraction=0.0).auxiliary() is None


@pytest.mark.parametrize("clients", [1, 3, 4])
def test_by_default_a_speaker_is_whole_with_one_client(clients):
    task = Speech(seed=3, clients=clients, **TASK)
    held = [{task.recordings.speakers[i] for i in share.tolist()} for share in task.shares]
    assert sum(map(len, held)) == len(set().union(*held)) == 4
    assert max(map(len, held)) - min(map(len, held)) <= 1


def test_other_partitions_mix_speakers():
    task = Speech(seed=3, clients=8, **TASK, partition="iid")
    assert max(map(len, task.shares)) - min(map(len, task.shares)) <= 1
    assert len({task.recordings.speakers[i] for i in task.shares[0].tolist()}) > 1
    with pytest.raises(DataError, match=r"8 clients: every client needs a speaker of its own.* 4"):
        Speech(clients=8, **TASK).num_examples(0)


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


@pytest.mark.parametrize("client", [-1, 4])
def test_a_client_that_does_not_exist(task, client):
    with pytest.raises(DataError, match="clients run from 0 to 3"):
        task.batches(client, 0, batch_size=1, steps=1)


def test_a_batch_pads_frames_with_zeros_and_word_pieces_with_minus_100(task):
    (batch,) = task.batches(1, 0, batch_size=3, steps=1)
    assert batch.inputs.dtype == torch.float32
    assert batch.labels.dtype == batch.lengths.dtype == torch.int64
    assert batch.inputs.shape == (3, int(batch.lengths.max()), 26)
    assert len(batch.lengths.unique()) > 1
    for frames, labels, length in zip(batch.inputs, batch.labels, batch.lengths, strict=True):
        assert not frames[length:].any()
        assert frames[:length].any(dim=1).all()
        said = labels[labels != -100]
        assert (labels[len(said) :] == -100).all()
        assert said[-1] == 0
        assert (said[:-1] > 0).all()
        assert task.spec.spell(said) in task.recordings.texts


DRAW = f"""
import hashlib
from fedsim.tasks.speech import Speech
task = Speech(seed=3, clients=4, **{TASK!r})
value = hashlib.sha256()
for batch in task.batches(2, 5, batch_size=2, steps=2):
    for part in (batch.inputs, batch.labels, batch.lengths):
        value.update(part.numpy().tobytes())
print(value.hexdigest())
"""


def test_a_batch_is_the_same_in_another_process(task):
    ours = digest(task.batches(2, 5, batch_size=2, steps=2))
    assert elsewhere(DRAW) == ours


def test_batches_depend_on_seed_client_and_round_alone(task):
    def drawn(task, client, round, steps=2):
        return digest(task.batches(client, round, batch_size=2, steps=steps)[:2])

    assert drawn(task, 1, 1, steps=5) == drawn(task, 1, 1)
    others = [drawn(task, 1, 2), drawn(task, 2, 1)]
    others.append(drawn(task.model_copy(update={"seed": 8}), 1, 1))
    assert drawn(task, 1, 1) not in others


def test_truth_is_what_was_said_in_the_batches(task):
    batches = [b for c in (0, 2) for b in task.batches(c, 4, batch_size=2, steps=2)]
    truth = task.truth([0, 2], 4, batch_size=2, steps=2)
    assert truth.num_examples == 8
    targets = [row[row != -100] for batch in batches for row in batch.labels]
    assert all(torch.equal(a, b) for a, b in zip(truth.sequences, targets, strict=True))
    assert torch.equal(truth.labels, torch.cat(targets))
    assert truth.lengths == [int(n) for batch in batches for n in batch.lengths]
    heard = [row[:n] for b in batches for row, n in zip(b.inputs, b.lengths, strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(truth.inputs, heard, strict=True))
    assert truth.text == [task.spec.spell(one) for one in truth.sequences]
    assert len(set(truth.attributes["speaker"])) == 2


def test_nobody_can_change_what_later_batches_hold(task):
    before = digest(task.batches(0, 0, batch_size=2, steps=1))
    truth, (batch,) = (f(0, 0) for f in (
        lambda c, r: task.truth([c], r, batch_size=2, steps=1),
        lambda c, r: task.batches(c, r, batch_size=2, steps=1),
    ))  # fmt: skip
    truth.inputs[0].zero_()
    batch.inputs.zero_()
    task.auxiliary().inputs.zero_()
    assert digest(task.batches(0, 0, batch_size=2, steps=1)) == before


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
    assert elsewhere(script) == "set()"


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
            batch = task._batch([i])
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


# --- guesses, metrics, files ----------------------------------------------------------------


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


def score(name, claimed, truth, spec):
    return METRICS[name].score(claimed, truth, spec)


WORDS = Spec(classes=5, pieces=("<end>", "▁one", "▁two", "▁th", "ree"))
SAID = Truth(text=["one two three", "two two"])


@pytest.mark.parametrize(
    ("claimed", "wer", "exact"),
    [
        ({"text": ["one two three", "two two"]}, 0, 1),
        ({"text": ["Two  TWO", "one two three"]}, 0, 1),
        ({"sequences": [torch.tensor([2, 2, 0]), torch.tensor([1, 2, 3, 4])]}, 0, 1),
        ({"text": ["one two", "two two"]}, 0.2, 0.5),
        ({"text": ["two two"]}, 0.6, 0.5),
        ({"text": []}, 1, 0),
        ({"text": ["", ""]}, 1, 0),
        ({"text": ["one two three one", "a b c d"]}, 1, 0),
        ({"text": ["x x x", "y", "one two three", "two two"]}, 1, 0),
        ({"sequences": [torch.tensor([0, 1, 2])]}, 1, 0),
    ],
)
def test_words_are_counted_after_matching(claimed, wer, exact):
    claim = Reconstruction(**claimed)
    assert score("wer", claim, SAID, WORDS) == pytest.approx(wer)
    assert score("text_exact", claim, SAID, WORDS) == exact


def test_metrics_of_words_are_for_tasks_with_transcripts():
    assert not METRICS["wer"].suits(Spec(classes=3))
    with pytest.raises(ValueError, match="no transcripts"):
        score("wer", Reconstruction(text=["a"]), Truth(), WORDS)


def test_every_metric_of_words_and_labels_has_its_baselines(task):
    truth = task.truth([0, 1], 0, batch_size=2, steps=1)
    found = {
        name: baselines(METRICS[name], truth, task.spec, task.guess, 0)
        for name in ("wer", "text_exact", "asr", "label_f1", "label_precision", "label_recall",
                     "label_exact", "label_correlation")
    }  # fmt: skip
    assert found["wer"][0] > 0.9
    assert found["text_exact"] == (0.0, 0.0)
    for name in ("asr", "label_f1", "label_precision", "label_recall", "label_correlation"):
        random, informed = found[name]
        assert 0 < random < 1, name
        assert 0 < informed < 1, name
    assert found["asr"][0] < found["asr"][1]
    assert found["label_correlation"][0] < found["label_correlation"][1]


def test_label_metrics_score_all_word_pieces_of_all_transcripts(task):
    truth = task.truth([0], 0, batch_size=3, steps=1)
    present = frozenset(torch.cat(list(truth.sequences)).tolist())
    assert 0 in present
    claim = Reconstruction(label_set=present, labels=truth.labels)
    for name in ("label_f1", "label_precision", "label_recall", "label_exact", "asr"):
        assert score(name, claim, truth, task.spec) == 1
    without = Reconstruction(label_set=present - {0})
    assert score("label_recall", without, truth, task.spec) == 1 - 1 / len(present)
    assert score("label_precision", without, truth, task.spec) == 1


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


# --- a federation ---------------------------------------------------------------------------


def test_fedsgd_sends_the_gradient_of_the_padded_batch():
    run = scenario()
    reply = ask(InlineGrid(4), run, 2)
    task = run.build_task()
    module = task.module().train()
    (batch,) = task.batches(2, 1, batch_size=2, steps=1)
    loss = task.loss(module, batch.inputs, batch.labels, lengths=batch.lengths)
    gradient = torch.autograd.grad(loss, list(module.parameters()))
    names = [name for name, _ in module.named_parameters()]
    assert same(sent(reply), dict(zip(names, gradient, strict=True)))
    assert meaning(reply)["reduction"] == "token"
    assert meaning(reply)["num_examples"] == 2


def test_the_head_gradient_tells_what_was_said(task):
    """Its bias has the mean of p - y over all word pieces: negative only where one occurs."""
    (batch,) = task.batches(0, 0, batch_size=2, steps=1)
    gradient = task.victim({}).gradient(batch.inputs, batch.labels, lengths=batch.lengths)
    said = batch.labels[batch.labels != -100]
    negative = (gradient["speller.head.bias"] < 0).nonzero().flatten()
    assert set(negative.tolist()) == set(said.tolist())


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_a_run_finds_words_and_its_report_escapes_them(tmp_path, algorithm):
    steps = {"fedsgd": 1, "fedavg": 2}[algorithm]
    run = scenario(training={"algorithm": algorithm, "local_steps": steps})
    simulate(run, tmp_path / "run")
    found = {row["metric"]: row for row in rows(tmp_path / "run")}
    assert float(found["label_precision"]["value"]) == 1
    assert 0 < float(found["label_recall"]["value"]) <= 1
    assert {row["batch_size"] for row in found.values()} == {"2"}
    assert found["label_f1"]["artifact"].endswith("bias-signs/reconstruction.txt")
    assert {row["metric"] for row in rows(tmp_path / "run", "utility.csv")} >= {"loss", "wer"}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "&lt;end&gt;" in page
    assert "<end>" not in page


def test_engines_find_the_same(tmp_path):
    ray = pytest.importorskip("ray")
    training = {"algorithm": "fedavg", "local_steps": 2}
    try:
        for name, workers in (("inline", 1), ("ray", 2)):
            engine = {"name": name, "workers": workers}
            simulate(scenario(training=training, engine=engine), tmp_path / name)
    finally:
        ray.shutdown()
    assert timeless(tmp_path / "inline") == timeless(tmp_path / "ray")


def test_dp_sgd_clips_utterance_by_utterance(task):
    clips_one_by_one(scenario(defenses=[DP_SGD]), task)
    refused = scenario(defenses=[{"name": "dp-sgd", "per_example": "opacus"}])
    with pytest.raises(ScenarioError, match="Opacus"):
        preflight(refused)


def test_the_shipped_scenario_holds():
    run = Scenario.load("speech")
    task, cautions = preflight(run)
    assert task.spec.classes == 256
    assert cautions == []
