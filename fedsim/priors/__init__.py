"""Language priors: how likely a text is, estimated from public data.

prior   the base class, and how texts are split into sentences
ngram   n-grams of the victim's tokens, fitted to public texts
causal  any causal language model of `transformers`
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from fedsim.priors.causal import CausalPrior, causal_model
from fedsim.priors.ngram import NGramPrior
from fedsim.priors.prior import LanguagePrior, sentences
from fedsim.records import Tokens

__all__ = [
    "NGRAM",
    "CausalPrior",
    "LanguagePrior",
    "NGramPrior",
    "causal_model",
    "language_prior",
    "sentences",
]

NGRAM = "n-gram"
KEPT = 4
"""Number of priors that a process caches; a campaign uses one or two."""


def language_prior(
    name: str, texts: Iterable[str] | None, tokens: Tokens, device: torch.device | str = "cpu"
) -> LanguagePrior:
    """Make a prior, or return the one that this process has cached.

    Args:
        name: "n-gram", a folder with a causal language model, or "hub:NAME".
        texts: Public texts, as in `Observation.prior`, for "n-gram" only.
        tokens: The victim's tokens.
        device: Device of a model.

    Raises:
        DataError: There are no texts for "n-gram", or a model cannot be loaded.
    """
    fitted = name == NGRAM
    return _made(
        _Wanted(
            name=name,
            texts=tuple(texts or ()) if fitted else (),
            pieces=tokens.pieces,
            frame=(tokens.prefix, tokens.suffix),
            device="cpu" if fitted else str(device),
            tokens=tokens,
        )
    )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Key of the cache; equal if all fields but the `tokens` record are equal."""

    name: str
    texts: tuple[str, ...]
    pieces: tuple[str, ...]
    frame: tuple[tuple[int, ...], tuple[int, ...]]
    device: str
    tokens: Tokens = field(compare=False)


@functools.lru_cache(maxsize=KEPT)
def _made(wanted: _Wanted) -> LanguagePrior:
    if wanted.name == NGRAM:
        return NGramPrior.fit(wanted.texts, wanted.tokens)
    return CausalPrior.load(wanted.name, wanted.tokens, wanted.device)
