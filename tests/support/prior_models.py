"""Small language models and texts for priors."""

import torch

from fedsim import libraries
from fedsim.tasks.text import Text
from fedsim.tasks.text.messages import public_messages

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 24}  # fmt: skip
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}


def small(config, settings, **more):
    model = {"name": "transformers", "config": config, "settings": settings}
    return Text(**{"seed": 3, "clients": 4, "vocabulary": 600, "model": model, **more})


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


def padded(rows, filler=0):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=filler)


def whole(tokens, count, start=1):
    """Every other public message from there on, as ids with those around every text."""
    texts = list(public_messages())[start : start + 2 * count : 2]
    return [torch.tensor([*tokens.prefix, *tokens.encode(t), *tokens.suffix]) for t in texts]
