"""Causal language models of `transformers` as priors."""

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

PASS = 16
"""Texts in one pass: the logits of more do not fit a CPU's caches."""
PASS_TOKENS = 1024
"""Tokens in one pass: the logits of each are as wide as the vocabulary."""
SAME = 1e-3
"""Largest change of a token's logits by a later token that counts as rounding."""
WAYS_OUT = (
    'Name a local folder that holds its weights (config.json, *.safetensors, tokenizer; "FOLDER"), '
    'or set prior = "n-gram", which is fitted to public texts'
)


class CausalPrior(LanguagePrior):
    """A causal language model as a prior.

    If both vocabularies hold the same pieces, the victim's token ids are the model's inputs.
    Otherwise texts are decoded and tokenized again, and the log-likelihood is divided by the
    number of the victim's tokens, so that no word order gains by splitting into more pieces.

    Args:
        model: A model of `transformers`, on its device. It is put into evaluation mode.
        tokenizer: The model's tokenizer.
        tokens: The victim's tokens.
        name: The model's name, for messages.
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
        """Load a model as a prior for a victim's tokens.

        Args:
            name: A folder, or "hub:NAME", as for `causal_model`.
            tokens: The victim's tokens.
            device: Device of the model.

        Raises:
            DataError: The model cannot be loaded.
        """
        model, tokenizer = causal_model(name)
        own = model if torch.device(device).type == "cpu" else copy.deepcopy(model).to(device)
        return cls(own, tokenizer, tokens, name)

    def surprise(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute the mean negative log-likelihood per token, as in the base class.

        Raises:
            DataError: A text is longer than the model's largest input.
        """
        rows, sizes = counted(ids, lengths, len(self._tokens.pieces))
        # Candidates are permutations of a few tokens, and many of them are equal.
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
        """Convert the victim's ids of a text to the model's, with a first token that is given."""
        special = self._tokenizer
        begin = [] if special.bos_token_id is None else [int(special.bos_token_id)]
        if not self.deviation:
            return text if self._tokens.prefix else [*begin, *text]
        start, end = self._tokens.prefix, self._tokens.suffix
        if start and tuple(text[: len(start)]) == start:
            text = text[len(start) :]
        if end and tuple(text[-len(end) :]) == end:
            text = text[: -len(end)]
        # Marks inside a text are decoded, too: without them the text would seem more likely.
        found = list(special(self._tokens.spell(text, special=True), verbose=False)["input_ids"])
        framed = bool(found) and found[0] in special.all_special_ids
        return found if framed else [*begin, *found]

    def _totals(self, texts: list[Tensor]) -> Tensor:
        """Compute negative log-likelihoods of texts, (R,) float64, each without its first token."""
        longest = max((len(text) for text in texts), default=0)
        most = getattr(self._model.config, "max_position_embeddings", None)
        if most is not None and longest > most:
            raise DataError(
                f"prior '{self._name}' takes {most} tokens, and a text has {longest}. Choose "
                'another, or set prior = "n-gram", or use shorter texts (task.longest)'
            )
        found = torch.zeros(len(texts), dtype=torch.float64)
        # Texts are sorted by length, so that those of one pass need little padding.
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
        # Flattened, because a softmax over a middle dimension is several times slower.
        each = functional.cross_entropy(
            logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        ).view(inside.shape)
        total: Tensor = (each * inside).double().sum(dim=1)
        return total.cpu()


@functools.lru_cache(maxsize=1)
def causal_model(name: str) -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer, float32, on the CPU.

    The last model is cached, so callers must not change it. Weights are read from safetensors
    alone, and code that comes with a model does not run.

    Args:
        name: A local folder, or "hub:NAME" for a model of the Hugging Face Hub.

    Returns:
        The model in evaluation mode, and the tokenizer.

    Raises:
        DataError: The model cannot be loaded, lacks weights, or is not a causal language model.
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
            model, report = library.AutoModelForCausalLM.from_pretrained(
                place, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **common
            )
    # Any error of a download or a file has the same two remedies.
    except Exception as error:
        raise DataError(
            f"prior '{name}' could not be loaded as a causal language model "
            f"({brief(error).rstrip('.')}). {WAYS_OUT}"
        ) from error
    if missing := sorted(report["missing_keys"]):
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
    """Return whether a token's logits depend on later tokens, as in a masked language model."""
    size = len(model.get_input_embeddings().weight)
    ids = torch.tensor([[1, 2, 3], [1, 2, 4]]) % size
    first, second = model(ids, use_cache=False).logits[:, :2]
    return not torch.allclose(first, second, atol=SAME, rtol=SAME)
