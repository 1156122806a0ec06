"""Small encoders, dummy texts and their gradients, by autograd."""

import torch

from fedsim import libraries
from fedsim.gradients import Comparison, TextDistance
from fedsim.tasks.text.languages.language import POINTS, classification_loss, masked_loss
from fedsim.victim import VictimModel

SIZE, TOKENS, BATCH = 60, 7, 2
ENCODER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
           "intermediate_size": 24}  # fmt: skip
SETTINGS = {
    "bert": ENCODER,
    "roberta": {**ENCODER, "pad_token_id": 1},
    "albert": {**ENCODER, "embedding_size": 8},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
}
WORDS = {
    "distilbert": "distilbert.embeddings.word_embeddings.weight",
    "gpt2": "transformer.wte.weight",
}
BY_RMS = {
    "llama": ENCODER,
    "mistral": {**ENCODER, "num_key_value_heads": 1},
    "qwen2": {**ENCODER, "num_key_value_heads": 2},
    "gemma": {**ENCODER, "num_key_value_heads": 1, "head_dim": 8},
    "qwen3": {**ENCODER, "num_key_value_heads": 1, "head_dim": 8},
}
"""Decoders with rotated positions, whose normalisations compute in float32 whatever comes in."""
KEYS = ("key.bias", "k_lin.bias")


def victim(kind="bert", *, dropout=False, head="SequenceClassification"):
    """A model with random weights, in float64; biases and scales are not zeros and ones."""
    library = libraries.transformers()
    config = library.AutoConfig.for_model(
        kind,
        vocab_size=SIZE,
        num_labels=3,
        attn_implementation="eager",
        **(SETTINGS | BY_RMS)[kind],
    )
    torch.manual_seed(1)
    module = getattr(library, f"AutoModelFor{head}").from_config(config).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return VictimModel(
        module.train(dropout),
        head="classifier",
        loss=masked_loss if head == "MaskedLM" else classification_loss,
        words="model.embed_tokens.weight"
        if kind in BY_RMS
        else WORDS.get(kind, f"{kind}.embeddings.word_embeddings.weight"),
        points=POINTS,
    )


def matched(model):
    return [n for n in model.parameters() if n != model.words and not n.endswith(KEYS)]


def texts(model, rows, *, seed=0):
    """Embeddings (R, B, L, d), labels (R, B) and lengths (R, B), some of them short."""
    rng = torch.Generator().manual_seed(seed)
    width = model.embedding.shape[1]
    embedded = torch.randn(rows, BATCH, TOKENS, width, generator=rng, dtype=torch.float64)
    labels = torch.randint(3, (rows, BATCH), generator=rng)
    lengths = torch.randint(3, TOKENS + 1, (rows, BATCH), generator=rng)
    lengths[0, 0] = TOKENS
    return embedded, labels, lengths


def dense(value):
    return value[0].mT @ value[1] if isinstance(value, tuple) else value


def observed(model, embedded, labels, lengths):
    """The gradient by autograd, through which one can differentiate."""
    return model.gradient(
        embedded, labels, lengths=lengths, at="embedding", names=matched(model), create_graph=True
    )


def plain(name, ours, theirs):
    """The distance from whole gradients, as papers write it."""
    gaps = [ours[key] - theirs[key] for key in ours]
    if name == "cosine":
        alike = [(ours[k] * theirs[k]).sum() / (ours[k].norm() * theirs[k].norm()) for k in ours]
        return torch.stack([1 - one for one in alike]).mean()
    squares = sum(gap.square().sum() for gap in gaps)
    return squares + (0.01 * sum(gap.abs().sum() for gap in gaps) if name == "l1+l2" else 0)


def distance_of(model, name="cosine", *, victims=1, seed=9, dtype=torch.float64, **settings):
    embedded, labels, lengths = texts(model, victims, seed=seed)
    theirs = [
        {k: g.detach() for k, g in observed(model, *one).items()}
        for one in zip(embedded, labels, lengths, strict=True)
    ]
    comparison = Comparison(name, dtype=dtype)
    made = TextDistance(model, theirs, labels, lengths, comparison=comparison, **settings)
    return made, theirs, (embedded, labels, lengths)
