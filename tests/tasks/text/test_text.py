"""The text task: what may be known of it, its utility and its guesses."""

import pickle
from collections import Counter

import pytest
import torch
from sklearn.metrics import matthews_corrcoef
from support.processes import fresh_python
from support.sequence_tasks import observed
from support.small_text import model, small

from fedsim.errors import DataError, ScenarioError
from fedsim.plugin import make
from fedsim.records import Reconstruction, Truth
from fedsim.tasks.text import Text


@pytest.fixture(scope="module")
def task():
    return small()


@pytest.fixture(scope="module")
def masked():
    return small(task="masked-lm")


# --- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"model": {"name": "transformers"}}, ScenarioError, "hub:NAME.*config"),
        ({"model": {"name": "bert"}}, ScenarioError, r"model\.name"),
        ({"model": model(sttings={})}, ScenarioError, "Did you mean 'settings'"),
        ({"partition": "senders"}, DataError, "Did you mean 'sender'"),
        ({"parameters": "none"}, ScenarioError, "parameters"),
        ({"task": "translation"}, ScenarioError, "masked-lm"),
        ({"masked": 0}, ScenarioError, "masked"),
    ],
)
def test_wrong_settings_are_refused_at_once(settings, error, message):
    with pytest.raises(error, match=message):
        make("tasks", "text", settings)


def test_settings_survive_a_copy_and_a_pickle_but_nothing_worked_out_from_them(task):
    task.num_examples(0)
    again = pickle.loads(pickle.dumps(task))  # noqa: S301
    assert again == task
    assert len(pickle.dumps(task)) < 3000
    assert Text(**task.model_dump()) == task


def test_importing_the_task_loads_nothing_heavy():
    heavy = {"flwr", "ray", "datasets", "transformers", "scipy", "tokenizers", "rouge_score",
             "nltk", "sklearn"}  # fmt: skip
    script = f"import sys, fedsim.tasks.text; print({heavy} & set(sys.modules))"
    assert fresh_python(script) == "set()"


# --- what adversaries may know --------------------------------------------------------------


def test_the_spec_tells_the_tokens_and_no_shape(task):
    spec = task.spec
    tokens = spec.tokens
    assert (spec.classes, spec.vocabulary, spec.input_shape) == (4, 600, None)
    assert tokens.special == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert (tokens.prefix, tokens.suffix, tokens.longest) == ((2,), (3,), 512)
    assert len(tokens.pieces) == 600
    assert tokens.embedding in task.arrays(task.module())
    ids = tokens.encode("The pin is 5")
    assert tokens.spell([2, *ids, 3]) == "the pin is 5"
    assert pickle.loads(pickle.dumps(tokens)).spell(ids) == "the pin is 5"  # noqa: S301


@pytest.mark.parametrize("which", ["task", "masked"])
def test_labels_lengths_and_the_prior_are_granted_text_by_text_in_no_order(which, request):
    task = request.getfixturevalue(which)
    (batch,) = task.batches(0, 1, batch_size=3, steps=1)
    seen = observed(task, "LABELS", "LENGTHS", "PRIOR")
    pairs = list(zip(batch.labels.tolist(), batch.lengths.tolist(), strict=True))
    assert list(zip(seen.labels.tolist(), seen.lengths, strict=True)) == sorted(pairs)
    assert len(seen.prior) == 2000
    withheld = observed(task, "GRADIENT")
    assert withheld.labels is withheld.lengths is withheld.prior is None


def test_the_victims_model_takes_ids_and_embeddings_and_leads_nobody_to_the_data(task):
    victim = observed(task, "MODEL").model
    assert victim.points == ("input", "embedding")
    assert victim.head == "classifier"
    assert victim.embedding.shape == (600, 16)
    assert not victim.embedding.requires_grad
    assert not hasattr(victim._loss, "__self__")
    copied = victim.copy()
    copied.module.get_parameter(copied.words).data.zero_()
    assert not copied.embedding.any()
    assert victim.embedding.any()
    with pytest.raises(ValueError, match="no point 'context'"):
        victim.loss(torch.zeros(1, 2).long(), torch.tensor([0]), at="context")


# --- utility and guesses --------------------------------------------------------------------


@pytest.mark.parametrize("which", ["task", "masked"])
def test_utility_does_not_depend_on_how_many_are_judged_at_once(which, request, monkeypatch):
    task = request.getfixturevalue(which)
    module = task.module().train()
    whole = task.evaluate(module)
    monkeypatch.setattr("fedsim.tasks.text.EVALUATED_AT_ONCE", 5)
    assert task.evaluate(module) == pytest.approx(whole, rel=1e-5)
    assert whole["num_examples"] == 32
    assert task.evaluate(module, client=2)["num_examples"] == task.num_examples(2)
    assert all(part.training for part in module.modules())
    assert ("mcc" in whole) == (which == "task")


def test_accuracy_and_matthews_correlation_are_those_of_the_predictions(task, monkeypatch):
    true = task.texts.labels[task.used[0]]
    said = true.clone()
    said[::3] = (said[::3] + 1) % 4
    queue = iter(torch.split(torch.nn.functional.one_hot(said, 4).float(), 64))
    monkeypatch.setattr("fedsim.tasks.text.logits", lambda *_, **__: next(queue))
    found = task.evaluate(task.module())
    assert found["accuracy"] == pytest.approx(float((said == true).float().mean()))
    assert found["mcc"] == pytest.approx(matthews_corrcoef(true, said))
    assert 0 < found["mcc"] < 1


def test_a_model_learns_the_topics_of_its_texts(task):
    module = task.module()
    (batch,) = task.batches(0, 0, batch_size=8, steps=1)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = task.loss(module, batch.inputs, batch.labels, lengths=batch.lengths)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("which", ["task", "masked"])
def test_guesses_have_the_shapes_of_the_truth_and_nothing_else_of_it(which, request):
    task = request.getfixturevalue(which)
    truth = task.truth([0], 0, batch_size=3, steps=1)
    blank = Truth(labels=torch.zeros_like(truth.labels), lengths=truth.lengths)
    for informed in (False, True):
        first, second = (
            task.guess(known, torch.Generator().manual_seed(3), informed=informed)
            for known in (truth, blank)
        )
        assert torch.equal(first.labels, second.labels)
        assert first.text == second.text
        assert [len(one) for one in first.tokens] == truth.lengths
        assert all((one[0], one[-1]) == (2, 3) for one in first.tokens)
        bare = [task.spec.tokens.bare(one.tolist()) for one in first.tokens]
        assert first.token_counts == Counter(i for one in bare for i in one)
        assert len(first.labels) == len(truth.labels)


def test_an_informed_guess_follows_public_text(task):
    many = Truth(labels=torch.zeros(1).long(), lengths=[100_002])
    rng = torch.Generator().manual_seed(0)
    ids = [i for one in task.tokenizer(list(task.public_texts))["input_ids"] for i in one]
    counts = torch.bincount(torch.tensor(ids), minlength=600).float()
    counts[list(task.spec.tokens.marks)] = 0
    drawn = task.guess(many, rng, informed=True).tokens[0][1:-1]
    shares = torch.bincount(drawn, minlength=600) / len(drawn)
    torch.testing.assert_close(shares, counts / counts.sum(), atol=0.004, rtol=0)


def test_without_auxiliary_examples_an_informed_guess_takes_all_labels_alike():
    bare = small(auxiliary_fraction=0.0)
    many = Truth(labels=torch.zeros(4000).long(), lengths=[12])
    guessed = bare.guess(many, torch.Generator().manual_seed(0), informed=True)
    shares = torch.bincount(guessed.labels) / 4000
    torch.testing.assert_close(shares, torch.full((4,), 0.25), atol=0.03, rtol=0)
    assert guessed.label_scores.tolist() == [1000.0] * 4
    bare.__dict__["public_texts"] = ()
    with pytest.raises(NotImplementedError, match=r"task\.public"):
        bare.guess(many, torch.Generator(), informed=True)


def test_what_was_recovered_stands_beside_the_originals(task):
    truth = task.truth([0], 0, batch_size=2, steps=1)
    first, second = truth.text
    files = task.render(Reconstruction(text=[second + "\n<b>more</b>", first]), truth)
    assert files["original.txt"].decode().splitlines() == [first, second]
    assert files["reconstruction.txt"].decode().splitlines() == [first, f"{second} <b>more</b>"]
    spelled = task.render(Reconstruction(tokens=truth.tokens), truth)
    assert spelled["reconstruction.txt"] == spelled["original.txt"]
    word = task.spec.tokens.encode("password")[0]
    bag = task.render(Reconstruction(token_counts={word: 1}), truth)
    assert bag["reconstruction.txt"] == b"password\n"
    assert task.render(Reconstruction(label_set=frozenset({1})), truth) == {}
