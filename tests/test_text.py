"""The text task: tokens, batches, truth, models, gradients, utility, and a federation of it."""

import pickle
from collections import Counter

import pytest
import torch
from processes import elsewhere
from sequence_tasks import DP_SGD, clips_one_by_one, observed, of_four
from sklearn.metrics import matthews_corrcoef
from tiny import ask, meaning, rows, same, sent

from fedsim.client import local_training
from fedsim.engine.inline import InlineGrid
from fedsim.errors import DataError, ScenarioError
from fedsim.plugin import make
from fedsim.preflight import preflight
from fedsim.records import Reconstruction, Truth
from fedsim.scenario import Scenario
from fedsim.simulation import simulate
from fedsim.tasks.text import Text
from fedsim.tasks.text_examples import same as alike

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 24}  # fmt: skip


def model(config="bert", settings=SMALL, **more):
    return {"name": "transformers", "config": config, "settings": settings, **more}


TASK = {"vocabulary": 600, "model": model()}


def small(**settings):
    return Text(**{"seed": 3, "clients": 4, **TASK, **settings})


def scenario(**changes):
    """Four clients; tables are merged with these."""
    return of_four({"name": "text", "test_examples": 8, **TASK}, 3, **changes)


@pytest.fixture(scope="module")
def task():
    return small()


@pytest.fixture(scope="module")
def masked():
    return small(task="masked-lm")


def parts(batch):
    return (batch.inputs, batch.labels, batch.lengths)


def gathered(batches):
    return [tensor.tolist() for batch in batches for tensor in parts(batch)]


# --- data -----------------------------------------------------------------------------------


def test_every_text_is_tested_public_or_with_one_client(task):
    tested, free, rest = (part.tolist() for part in task.used)
    assert sorted([*tested, *free, *rest]) == list(range(160))
    assert sorted(torch.cat(task.shares).tolist()) == rest
    assert (len(tested), len(free)) == (32, 12)
    assert len(task.auxiliary()) == 12
    assert small(auxiliary_fraction=0.0).auxiliary() is None


def test_a_sender_is_whole_with_one_client_on_request():
    task = small(clients=3, partition="sender")
    held = [{task.texts.senders[i] for i in share.tolist()} for share in task.shares]
    assert sum(map(len, held)) == len(set().union(*held)) == 8
    with pytest.raises(DataError, match=r"every client needs a sender of its own.* 8"):
        small(clients=9, partition="sender").num_examples(0)


def write(folder, texts, name="mine"):
    lines = [f"{text}\t{at % 2}" for at, text in enumerate(texts)]
    (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *lines]), encoding="utf-8")
    return {"data": name, "folder": folder, "public": "messages", "clients": 1}


def test_public_and_auxiliary_text_is_nobodys(tmp_path):
    """Of texts that occur several times, none is both with a client and public."""
    texts = [f"the pin is {at % 7}" for at in range(60)]
    task = small(**write(tmp_path, texts), auxiliary_fraction=0.4)
    held = {alike(task.texts.texts[i]) for i in task.used[2].tolist()}
    free = {alike(task.texts.texts[i]) for i in task.used[1].tolist()}
    assert held
    assert not held & free
    (tmp_path / "lm.txt").write_text("THE  pin is 3\nnobody wrote this\n")
    own = small(**{**write(tmp_path, texts), "public": "lm"})
    assert "the pin is 3" in {alike(own.texts.texts[i]) for i in own.used[2].tolist()}
    assert own.prior() == ("nobody wrote this",)


def test_public_texts_are_the_auxiliary_ones_where_none_are_named(tmp_path):
    texts = [f"the pin is {at}" for at in range(40)]
    task = small(**{**write(tmp_path, texts), "public": None})
    assert set(task.prior()) == {task.texts.texts[i] for i in task.used[1].tolist()}
    assert small().prior()[0] != task.prior()[0]
    assert small(**{**write(tmp_path, texts), "public": None}, auxiliary_fraction=0).prior() is None


def test_no_text_is_cut_longer_ones_are_left_out_on_request(tmp_path, task):
    most = 20
    limited = small(longest=most)
    kept = torch.cat(limited.used).tolist()
    assert kept
    assert {i for i, ids in task.encoded.items() if len(ids) <= most} == set(kept)
    long = ["my pin is 5", "we meet at noon", "the bank " * 40 + "is", "a card", "I see"]
    narrow = model(settings={**SMALL, "max_position_embeddings": 24})
    with pytest.raises(DataError, match=r"text 2 has 83 tokens, and the model takes 24.*longest"):
        small(**write(tmp_path, long), model=narrow).num_examples(0)
    assert small(**write(tmp_path, long), model=narrow, longest=24).num_examples(0) > 0
    with pytest.raises(DataError, match=r"longest = 25, and the model takes 24"):
        small(**write(tmp_path, long), model=narrow, longest=25).num_examples(0)
    with pytest.raises(DataError, match=r"longest = 2 leaves 0 test and 0 training"):
        small(longest=2).num_examples(0)


def test_a_text_of_unknown_words_is_refused_and_one_among_others_is_not(tmp_path):
    known = ["my pin is 5", "we meet at noon", "the bank \u4e2d", "a card", "I see"]
    task = small(**write(tmp_path, known))
    assert task.num_examples(0) > 0
    with pytest.raises(DataError, match=r"knows no word of text 2 \('\u4e2d\u6587'\)"):
        small(**write(tmp_path, [*known[:2], "\u4e2d\u6587", *known[3:]])).num_examples(0)


def test_data_without_senders_cannot_be_cut_by_them(tmp_path):
    given = write(tmp_path, ["my pin", "a card", "the bank", "we meet"])
    with pytest.raises(DataError, match="does not say whose a text is"):
        small(**given, partition="sender").num_examples(0)


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


@pytest.mark.parametrize("client", [-1, 4])
def test_a_client_that_does_not_exist(task, client):
    with pytest.raises(DataError, match="clients run from 0 to 3"):
        task.batches(client, 0, batch_size=1, steps=1)


def test_a_batch_is_padded_ids_of_different_lengths(task):
    (batch,) = task.batches(1, 0, batch_size=3, steps=1)
    assert batch.inputs.dtype == batch.labels.dtype == batch.lengths.dtype == torch.int64
    assert batch.inputs.shape == (3, int(batch.lengths.max()))
    assert len(batch.lengths.unique()) > 1
    for ids, length in zip(batch.inputs, batch.lengths.tolist(), strict=True):
        assert (ids[0], ids[length - 1]) == (2, 3)
        assert (ids[:length] != 0).all()
        assert (ids[length:] == 0).all()


DRAW = f"""
from fedsim.tasks.text import Text
task = Text(seed=3, clients=4, task="masked-lm", **{TASK!r})
print([t.tolist() for b in task.batches(2, 5, batch_size=2, steps=2)
       for t in (b.inputs, b.labels, b.lengths)])
print(sum(float(p.detach().double().sum()) for p in task.module().parameters()))
"""


def test_batches_and_weights_are_the_same_in_another_process(masked):
    ours = gathered(masked.batches(2, 5, batch_size=2, steps=2))
    weights = sum(float(p.detach().double().sum()) for p in masked.module().parameters())
    assert elsewhere(DRAW) == f"{ours}\n{weights}"


@pytest.mark.parametrize("which", ["task", "masked"])
def test_batches_depend_on_seed_client_and_round_alone(which, request):
    task = request.getfixturevalue(which)

    def drawn(task, client, round, steps=2):
        return gathered(task.batches(client, round, batch_size=2, steps=steps)[:2])

    assert drawn(task, 1, 1, steps=5) == drawn(task, 1, 1)
    others = [drawn(task, 1, 2), drawn(task, 2, 1)]
    others.append(drawn(task.model_copy(update={"seed": 8}), 1, 1))
    assert drawn(task, 1, 1) not in others


def test_truth_is_what_the_batches_hold(task):
    batches = [b for c in (0, 2) for b in task.batches(c, 4, batch_size=2, steps=2)]
    truth = task.truth([0, 2], 4, batch_size=2, steps=2)
    assert truth.num_examples == 8
    assert torch.equal(truth.labels, torch.cat([batch.labels for batch in batches]))
    fed = [row[:n] for b in batches for row, n in zip(b.inputs, b.lengths, strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(truth.inputs, fed, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(truth.tokens, fed, strict=True))
    assert truth.lengths == [len(one) for one in fed]
    assert truth.sequences is None
    originals = {text.lower() for text in task.texts.texts}
    assert set(truth.text) <= originals
    assert len(truth.attributes["sender"]) == 8


def test_masked_words_are_told_by_the_labels_and_the_truth_has_them(masked):
    (batch,) = masked.batches(0, 1, batch_size=4, steps=1)
    truth = masked.truth([0], 1, batch_size=4, steps=1)
    mask = masked.spec.tokens.special["mask"]
    told = batch.labels != -100
    assert ((batch.inputs == mask) == told).all()
    for row, target, whole, n in zip(
        batch.inputs, batch.labels, truth.tokens, batch.lengths.tolist(), strict=True
    ):
        filled = torch.where(target == -100, row, target)[:n]
        assert torch.equal(filled, whole)
        words = len(masked.spec.tokens.bare(whole.tolist()))
        assert int((target != -100).sum()) == max(1, round(0.15 * words))
    assert torch.equal(truth.labels, batch.labels[told])
    assert truth.num_examples == 4
    assert masked.spec.classes == masked.spec.vocabulary == 600


def test_nobody_can_change_what_later_batches_hold(task):
    before = gathered(task.batches(0, 0, batch_size=2, steps=1))
    truth = task.truth([0], 0, batch_size=2, steps=1)
    for tensor in (*truth.tokens, *truth.inputs, task.auxiliary().inputs):
        tensor.zero_()
    assert gathered(task.batches(0, 0, batch_size=2, steps=1)) == before


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
    assert elsewhere(script) == "set()"


# --- what adversaries may know --------------------------------------------------------------


def test_the_spec_tells_the_tokens_and_no_shape(task):
    spec = task.spec
    tokens = spec.tokens
    assert (spec.classes, spec.vocabulary, spec.input_shape, spec.pieces) == (4, 600, None, None)
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
    with pytest.raises(NotImplementedError):
        small(auxiliary_fraction=0.0).guess(many, rng, informed=True)


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


# --- a federation ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classification", "masked-lm"])
def test_fedsgd_sends_the_gradient_of_the_padded_batch(kind):
    run = scenario(task={"task": kind, "parameters": "lamp"})
    reply = ask(InlineGrid(4), run, 2)
    task = run.build_task()
    module = task.module().train()
    (batch,) = task.batches(2, 1, batch_size=3, steps=1)
    loss = task.loss(module, batch.inputs, batch.labels, lengths=batch.lengths)
    chosen = {k: p for k, p in module.named_parameters() if k in task.trained(module)}
    gradient = torch.autograd.grad(loss, list(chosen.values()))
    assert same(sent(reply), dict(zip(chosen, gradient, strict=True)))
    assert meaning(reply)["reduction"] == ("token" if kind == "masked-lm" else "example")
    assert meaning(reply)["num_examples"] == 3


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_a_run_finds_topics_and_tells_its_utility(tmp_path, algorithm):
    steps = {"fedsgd": 1, "fedavg": 2}[algorithm]
    run = scenario(training={"algorithm": algorithm, "local_steps": steps, "batch_size": 1})
    simulate(run, tmp_path / "run")
    found = {row["metric"]: row for row in rows(tmp_path / "run")}
    assert {row["status"] for row in found.values()} == {"ok"}
    assert float(found["label_precision"]["value"]) == 1
    utility = {row["metric"] for row in rows(tmp_path / "run", "utility.csv")}
    assert utility >= {"loss", "accuracy", "mcc"}


def test_dp_sgd_clips_text_by_text(task):
    clips_one_by_one(scenario(defenses=[DP_SGD]), task)
    run = scenario(defenses=[{**DP_SGD, "per_example": "opacus"}])
    module, batches = task.module(), task.batches(1, 0, batch_size=3, steps=1)
    defenses = run.build_defenses()
    training = local_training(run, task, module, batches, torch.Generator(), defenses)
    with pytest.raises(ScenarioError, match="gradient of each example"):
        training.gradient(module, batches[0])


def test_the_shipped_scenario_holds():
    run = Scenario.load("text")
    task, cautions = preflight(run)
    assert (task.spec.classes, task.spec.vocabulary) == (4, 1000)
    assert cautions == []
