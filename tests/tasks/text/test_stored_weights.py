"""Stored weights and the tokenizer they were trained with: what does not fit is refused."""

import pytest
import torch

from fedsim import libraries
from fedsim.errors import DataError
from fedsim.tasks.text.languages.language import Language
from fedsim.tasks.text.languages.tokenizers import learn_tokenizer
from fedsim.tasks.text.messages import public_messages

TINY = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
VOCABULARY = 300


@pytest.fixture(scope="module")
def tokenizer():
    return learn_tokenizer(public_messages(), VOCABULARY, True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    """An encoder without a head or a pooler, its vocabulary padded, and its tokenizer."""
    library, place = libraries.transformers(), tmp_path_factory.mktemp("stored")
    config = library.AutoConfig.for_model("bert", vocab_size=VOCABULARY + 4, **TINY)
    library.AutoModel.from_config(config, add_pooling_layer=False).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def built(folder, settings=None, pretrained=None, head="SequenceClassification"):
    model = Language(config=str(folder), settings=settings or {}, pretrained=pretrained)
    auto = getattr(libraries.transformers(), f"AutoModelFor{head}")
    return model.create(auto, model.configuration({}, {}))


@pytest.mark.parametrize("head", ["SequenceClassification", "MaskedLM"])
def test_a_head_and_a_pooler_may_be_new(folder, head):
    first, second = built(folder, head=head), built(folder, head=head)
    key = "bert.encoder.layer.0.output.dense.weight"
    assert torch.equal(first.get_parameter(key), second.get_parameter(key))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"hidden_size": 16}, r"bert\.embeddings\.LayerNorm"),
        ({"num_hidden_layers": 2}, r"16 weights .*bert\.encoder\.layer\.1"),
    ],
)
def test_settings_that_stored_weights_do_not_fit_are_refused(folder, settings, told):
    with pytest.raises(DataError, match=told):
        built(folder, settings)
    built(folder, settings, pretrained=False)


def test_a_tokenizer_that_weights_were_not_trained_with_is_refused(folder, tokenizer, tmp_path):
    def module(named, with_tokenizer, **more):
        model = Language(config=str(folder), tokenizer=named, **more)
        return model.build(with_tokenizer, "classification", 2, dropout=False)

    smaller = learn_tokenizer(public_messages(), VOCABULARY - 20, True)
    with pytest.raises(DataError, match=r"has 280 tokens, and those of .* are 300 others"):
        module("smaller", smaller)
    module("smaller", smaller, pretrained=False)
    module(None, tokenizer)
    tokenizer.save_pretrained(tmp_path)
    module(str(tmp_path), tokenizer)
