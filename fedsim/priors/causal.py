"""Any causal language model of `transformers` as a prior."""

import copy
import functools
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from fedsim import libraries
from fedsim.errors import DataError
from fedsim.libraries import HUB, brief, quiet
from fedsim.priors.prior import LanguagePrior, counted
from fedsim.records import Tokens
from fedsim.seeds import isolated

__all__ = ["CausalPrior", "causal_model"]

PASS = 16
"""Texts at a time: logits of more do not fit the caches."""
PASS_TOKENS = 1024
"""Tokens at a time: logits are as wide as the vocabulary."""
SAME = 1e-3
"""What a later word may change of the logits of an earlier one, by rounding."""
WAYS_OUT = (
    'Name a local folder that holds its weights (config.json, *.safetensors, tokenizer; "FOLDER"), '
    'or set prior = "n-gram", which is fitted to public texts'
)


class CausalPrior(LanguagePrior):
    """A causal language model; it is put into evaluation mode, and never differentiated.

    model: of `transformers`, on its device. tokenizer: its own. tokens: the victim's. name: for
    messages. Where both vocabularies hold the same pieces, ids go in as they are; else texts are
    spelled and tokenized anew, and their likelihood is shared among the victim's tokens, so that
    no order of words gains by falling into more pieces.
    """

    def __init__(self, model: Any, tokenizer: Any, tokens: Tokens, name: str) -> None:
        self._model, self._tokenizer, self._tokens = model.eval(), tokenizer, tokens
        self._name = name
        rows = len(model.get_input_embeddings().weight)
        pieces = tuple(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))
        self.deviation = pieces != tokens.pieces or rows < len(pieces)
        how = "its own tokens, not the victim's" if self.deviation else "the victim's tokens"
        self.description = f"causal language model '{name}' of {how}"

    @classmethod
    def load(cls, name: str, tokens: Tokens, device: torch.device | str = "cpu") -> Self:
        """What `causal_model` loads, for a victim's tokens; raises `DataError` as that does."""
        model, tokenizer = causal_model(name)
        own = model if torch.device(device).type == "cpu" else copy.deepcopy(model).to(device)
        return cls(own, tokenizer, tokens, name)

    def surprise(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """As the base class says. Raises `DataError` for a text longer than the model takes."""
        rows, sizes = counted(ids, lengths, len(self._tokens.pieces))
        # Candidates are permutations of a few tokens: many of them are the same.
        known, inverse = torch.unique(
            torch.cat([rows, sizes[:, None]], dim=1), dim=0, return_inverse=True
        )
        texts = [row[: int(row[-1])].tolist() for row in known]
        own = [self._own(text) for text in texts]
        total = self._totals([torch.tensor(one) for one in own])
        count = known[:, -1] - (1 if self._tokens.prefix else 0)
        if not self.deviation:
            count = torch.tensor([len(one) - 1 for one in own], dtype=torch.int64)
        each: Tensor = (total / count.clamp(min=1))[inverse].float()
        return each.to(ids.device)

    def _own(self, text: list[int]) -> list[int]:
        """What the model reads of a text, from the victim's ids: its first token is given."""
        special = self._tokenizer
        begin = [] if special.bos_token_id is None else [int(special.bos_token_id)]
        if not self.deviation:
            return text if self._tokens.prefix else [*begin, *text]
        start, end = self._tokens.prefix, self._tokens.suffix
        if start and tuple(text[: len(start)]) == start:
            text = text[len(start) :]
        if end and tuple(text[-len(end) :]) == end:
            text = text[: -len(end)]
        # Marks inside a text are spelled out, because leaving them out would hide how odd it is.
        found = list(special(self._tokens.spell(text, special=True), verbose=False)["input_ids"])
        framed = bool(found) and found[0] in special.all_special_ids
        return found if framed else [*begin, *found]

    def _totals(self, texts: list[Tensor]) -> Tensor:
        """Negative log-likelihoods of texts (R,) float64, each without its first token."""
        longest = max((len(text) for text in texts), default=0)
        most = getattr(self._model.config, "max_position_embeddings", None)
        if most is not None and longest > most:
            raise DataError(
                f"prior '{self._name}' takes {most} tokens, and a text has {longest}. Choose "
                'another, or set prior = "n-gram", or use shorter texts (task.longest)'
            )
        found = torch.zeros(len(texts), dtype=torch.float64)
        # Longest first, so that texts of one pass need little padding.
        order = sorted(
            (i for i, text in enumerate(texts) if len(text) > 1), key=lambda i: -len(texts[i])
        )
        while order:
            many = max(1, min(PASS, PASS_TOKENS // len(texts[order[0]])))
            some, order = order[:many], order[many:]
            with torch.no_grad():
                found[some] = self._pass([texts[i] for i in some])
        return found

    def _pass(self, texts: list[Tensor]) -> Tensor:
        device = self._model.device
        sizes = torch.tensor([len(text) for text in texts])
        ids = pad_sequence(texts, batch_first=True)
        inside = (torch.arange(1, ids.shape[1]) < sizes[:, None]).to(device)
        ids = ids.to(device)
        mask = None if bool(inside.all()) else inside.long()
        logits = self._model(ids[:, :-1], attention_mask=mask, use_cache=False).logits
        # Flat, because over a dimension in the middle the softmax is several times slower.
        each = functional.cross_entropy(
            logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        ).view(inside.shape)
        total: Tensor = (each * inside).double().sum(dim=1)
        return total.cpu()


@functools.lru_cache(maxsize=1)
def causal_model(name: str) -> tuple[Any, Any]:
    """The model and tokenizer in a folder, or of the Hub ("hub:NAME"), float32, on the CPU.

    The last one is kept: it is not to be changed. Weights are read from safetensors alone, and no
    code that comes with a model runs. Raises `DataError` for what cannot be loaded, lacks weights,
    or is not a causal language model.
    """
    place, local = name.removeprefix(HUB), not name.startswith(HUB)
    if local and not (Path(place) / "config.json").is_file():
        raise DataError(
            f'prior \'{name}\' is neither "n-gram", nor "hub:NAME", nor a folder with a '
            f"config.json. {WAYS_OUT}"
        )
    library: Any = libraries.transformers()
    common = {"local_files_only": local, "trust_remote_code": False}
    try:
        with quiet(), isolated(0, "language prior"):
            tokenizer = library.AutoTokenizer.from_pretrained(
                place, clean_up_tokenization_spaces=False, **common
            )
            model, told = library.AutoModelForCausalLM.from_pretrained(
                place,
                dtype=torch.float32,
                use_safetensors=True,
                output_loading_info=True,
                **common,
            )
    # Whatever stops a download or a file from being read has the same two ways out.
    except Exception as error:
        raise DataError(
            f"prior '{name}' could not be loaded as a causal language model "
            f"({brief(error).rstrip('.')}). {WAYS_OUT}"
        ) from error
    if missing := sorted(told["missing_keys"]):
        raise DataError(
            f"prior '{name}' holds no weights for {', '.join(missing[:3])}"
            f"{' and others' if len(missing) > 3 else ''}, so it was not trained as a causal "
            f"language model. {WAYS_OUT}"
        )
    if _looks_ahead(model.eval()):
        raise DataError(
            f"prior '{name}' ({type(model).__name__}) sees the words that it is to predict, as "
            "models of masked words do; expected a causal language model, such as GPT-2. "
            f"{WAYS_OUT}"
        )
    return model, tokenizer


@torch.no_grad()
def _looks_ahead(model: Any) -> bool:
    """Whether a later token changes what is said of an earlier one."""
    size = len(model.get_input_embeddings().weight)
    ids = torch.tensor([[1, 2, 3], [1, 2, 4]]) % size
    first, second = model(ids, use_cache=False).logits[:, :2]
    return not torch.allclose(first, second, atol=SAME, rtol=SAME)
