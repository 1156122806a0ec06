"""The encoder of voices: its loss, its size, and what training makes of it."""

import pytest
import torch
from support.speakers import ENOUGH, SIZE, SMALL, public

from adversaries.speech.speaker_inference.deep_speaker import (
    DeepSpeaker,
    Recipe,
    train,
    triplet_loss,
)
from fedsim.seeds import isolated


@pytest.fixture(scope="module")
def auxiliary():
    return public()


def test_training_draws_speakers_together(auxiliary):
    frames = [x[:n] for x, n in zip(auxiliary.inputs, auxiliary.lengths, strict=True)]
    speakers = auxiliary.attributes["speaker"]

    def spread(steps):
        recipe = Recipe(**{**SMALL, "steps": steps})
        with isolated(0, "test"):
            network = recipe.network(SIZE)
        train(network, frames, speakers, recipe, rng=torch.Generator().manual_seed(0))
        cosines = network.embed(frames) @ network.embed(frames).T
        same = torch.tensor([[a == b for a in speakers] for b in speakers])
        return float(cosines[same].mean() - cosines[~same].mean())

    assert spread(ENOUGH) > spread(1) + 0.3


def test_triplets_lose_what_they_lack_in_cosine():
    # Cosines: anchor-positive 0.6, each to the other speaker 0 and 0.8.
    embedded = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    loss = triplet_loss(embedded, torch.tensor([0, 0, 1]), 0.1)
    # Of (1, 2 | 3): 0 - 0.6 + 0.1 is apart; of (2, 1 | 3): 0.8 - 0.6 + 0.1 is not.
    assert float(loss) == pytest.approx(0.3)
    assert float(triplet_loss(embedded, torch.tensor([0, 0, 1]), 0.7)) == pytest.approx(0.5)
    assert float(triplet_loss(embedded, torch.tensor([0, 1, 2]), 0.1)) == 0


def test_the_papers_encoder_has_24_million_weights():
    network = DeepSpeaker(26, (64, 128, 256, 512), blocks=3, embedding=512)
    assert sum(p.numel() for p in network.parameters()) == pytest.approx(24e6, rel=0.02)


@pytest.mark.parametrize("frames", [1, 2, 7, 16, 33])
def test_an_embedding_is_of_length_one_and_knows_no_padding(frames):
    torch.manual_seed(0)
    network = DeepSpeaker(SIZE, (4, 6, 8), blocks=1, embedding=10).eval()
    utterance = torch.randn(frames, SIZE)
    alone = network.embed([utterance])
    padded = torch.nn.functional.pad(utterance, (0, 0, 0, 21))[None].repeat(2, 1, 1)
    padded[1] = torch.randn(frames + 21, SIZE)
    together = network(padded, torch.tensor([frames, frames + 21]))
    assert alone.shape == (1, 10)
    assert torch.allclose(together[:1], alone, atol=1e-6)
    assert float(alone.norm()) == pytest.approx(1)
