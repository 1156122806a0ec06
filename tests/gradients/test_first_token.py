"""What a classifier's last layer computes, when gradients of texts are matched."""

import pytest
import torch
from support.ghosts import BATCH, SIZE, TOKENS, distance_of, matched, observed, texts, victim
from torch.nn import Linear

from fedsim.gradients import Comparison, TextDistance


def tokens_behind_each_attention(far, embedded):
    """Number of tokens that the first linear layer behind each attention computes."""
    seen = []
    for layer in far._gradients.model.module.modules():
        if isinstance(layer, Linear) and layer.out_features == 24:
            layer.register_forward_hook(lambda _, args, __: seen.append(args[0].shape[1]))
    far(embedded, torch.zeros(len(embedded), dtype=torch.int64))
    return seen


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [("bert", [TOKENS, 1]), ("roberta", [TOKENS, 1]), ("distilbert", [TOKENS, TOKENS])],
)
def test_berts_last_layer_goes_on_with_its_first_token(kind, tokens):
    far, _, (embedded, _, _) = distance_of(victim(kind))
    assert tokens_behind_each_attention(far, embedded) == tokens


def test_masked_words_need_every_token_even_if_the_first_alone_is_masked():
    model = victim(head="MaskedLM")
    embedded, _, lengths = texts(model, 1)
    lengths[:] = TOKENS
    labels = torch.full((1, BATCH, TOKENS), -100)
    labels[:, :, 0] = SIZE - 1
    names = matched(model)
    gradient = observed(model, embedded[0], labels[0], lengths[0])
    theirs = {name: gradient[name].detach() for name in names}
    comparison = Comparison(dtype=torch.float64)
    far = TextDistance(model, [theirs], labels, lengths, comparison=comparison)
    assert tokens_behind_each_attention(far, embedded) == [TOKENS, TOKENS]
