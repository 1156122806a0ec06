"""What the victim's model says of itself."""

import pytest
import torch
from torch import nn

from fedsim.victim import VictimModel


@pytest.mark.parametrize(
    ("layer", "drops"),
    [
        (nn.Dropout(0.5), True),
        (nn.Dropout2d(0.5), True),
        (nn.AlphaDropout(0.5), True),
        (nn.LSTM(3, 3, num_layers=2, dropout=0.5), True),
        (nn.MultiheadAttention(4, 2, dropout=0.5), True),
        (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5), True),
        (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), False),
        (nn.LSTM(3, 3), False),
        (nn.Dropout(0.0), False),
        (nn.Linear(3, 3), False),
    ],
    ids=str,
)
def test_a_layer_that_drops_units_is_seen_in_training_alone(layer, drops):
    victim = VictimModel(nn.Sequential(layer), head="head", loss=lambda *_: None)
    assert victim.drops is drops
    victim.module.eval()
    assert not victim.drops


class Scaled(nn.Embedding):
    """Scales what it looks up, as Gemma's does."""

    def forward(self, input):
        return 3 * super().forward(input)


@pytest.mark.parametrize(("kind", "scale"), [(nn.Embedding, 1), (Scaled, 3)])
def test_word_embeddings_are_those_that_the_layer_gives(kind, scale):
    layer = kind(5, 2)
    victim = VictimModel(nn.Sequential(layer), head="head", loss=lambda *_: None, words="0.weight")
    assert torch.equal(victim.embedding, scale * layer.weight.detach())
