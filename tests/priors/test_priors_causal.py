"""Priors from causal language models, and priors by name."""

import shutil

import pytest
import torch
from support.prior_models import GPT2, SMALL, padded, saved, small, whole

from fedsim import libraries
from fedsim.errors import DataError
from fedsim.priors import CausalPrior, language_prior
from fedsim.tasks.text.messages import public_messages

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
