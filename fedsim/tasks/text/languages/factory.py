"""Language models that a function of the user's own makes: `task.model = "module:function"`."""

from types import SimpleNamespace
from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fedsim.errors import DataError
from fedsim.task import evaluating
from fedsim.tasks.models.factory import Factory
from fedsim.tasks.text.languages.language import LEARNED, Aim, logits, require_mask
from fedsim.tasks.text.languages.tokenizers import learn_tokenizer, load_tokenizer


class OwnNetwork(nn.Module):
    """A module of the user's own (`own`), called as a model of `transformers` is.

    Attributes:
        own: The module; its parameters are named "own." and the names it gives them.
        words: The name of the layer with the word embeddings, inside `own`.
        classes: The number of logits, of a text or of each of its tokens.
    """

    def __init__(self, own: nn.Module, words: str, classes: int) -> None:
        super().__init__()
        self.own, self.words, self.classes = own, words, classes
        self.config = SimpleNamespace()

    def get_input_embeddings(self) -> nn.Module:
        """The layer with the word embeddings."""
        return self.own.get_submodule(self.words)

    def forward(
        self,
        attention_mask: Tensor,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> SimpleNamespace:
        """Compute logits (B, classes) or (B, L, V) from token ids or their word embeddings.

        Args:
            attention_mask: int64 of shape (B, L), 0 where a text is padded and 1 elsewhere.
            input_ids: Token ids, int64 of shape (B, L).
            inputs_embeds: Word embeddings, of shape (B, L, d), which take the place of what the
                embedding layer returns.
        """
        if input_ids is not None:
            made = self.own(input_ids, attention_mask)
        else:
            layer = self.get_input_embeddings()
            hook = layer.register_forward_hook(lambda *_: inputs_embeds)
            try:
                made = self.own(torch.zeros_like(attention_mask), attention_mask)
            finally:
                hook.remove()
        return SimpleNamespace(logits=getattr(made, "logits", made))


class OwnLanguage(Factory):
    """A model that your own function makes, as `make(vocabulary=1000, classes=4, length=128)`.

    It takes token ids (B, L) int64 and a mask (B, L) int64, 0 where a text is padded, and returns
    logits, or an object with `logits`: (B, classes) for a classifier, and (B, L, classes) where
    masked words are predicted and the classes are the vocabulary. The word embeddings are its one
    `nn.Embedding` with `vocabulary` rows.
    """

    tokenizer: str = LEARNED
    """Tokenizer: "learned" from public text, a folder, or "hub:NAME"."""

    length: int = Field(default=128, ge=3)
    """Largest number of tokens of a text, special tokens included."""

    def read(self, public: tuple[str, ...], size: int) -> Any:
        """Load the tokenizer, or learn one of `size` word pieces from public texts."""
        if self.tokenizer == LEARNED:
            return learn_tokenizer(public, size, True)
        return load_tokenizer(self.tokenizer)

    def build(self, tokenizer: Any, aim: Aim, classes: int, dropout: bool) -> OwnNetwork:
        """Call the function; without `dropout` the module's own is switched off.

        Raises:
            DataError: It has no layer or several that could hold the word embeddings, or the
                tokenizer has no mask for `aim`.
        """
        vocabulary = len(tokenizer)
        if aim == "masked-lm":
            require_mask(tokenizer)
            classes = vocabulary
        own = self.make(vocabulary=vocabulary, classes=classes, length=self.length)
        rows = {
            name: layer.num_embeddings
            for name, layer in own.named_modules()
            if isinstance(layer, nn.Embedding)
        }
        words = [name for name, count in rows.items() if count == vocabulary]
        if len(words) != 1:
            raise DataError(
                f"task.model: {self.name} needs one nn.Embedding with {vocabulary} rows "
                f"(vocabulary), which holds the word embeddings; found {len(words)} (rows of each "
                f"nn.Embedding: {rows or 'none'})"
            )
        if not dropout:
            for part in own.modules():
                if isinstance(part, nn.modules.dropout._DropoutNd):
                    part.p = 0.0
                elif isinstance(part, nn.RNNBase | nn.MultiheadAttention):
                    part.dropout = 0.0
        return OwnNetwork(own, words[0], classes)

    def longest(self, module: nn.Module, tokenizer: Any) -> int:
        """The largest number of tokens of an input."""
        return min(self.length, int(tokenizer.model_max_length))

    def find_head(self, module: nn.Module, aim: Aim) -> str:
        """Find the linear layer that returns the logits, with a text of `length` tokens.

        Raises:
            DataError: There is none, it shares its weight, or the model uses token ids for more
                than the word embeddings.
        """
        network = cast(OwnNetwork, module)
        words = network.get_input_embeddings()
        ids = torch.arange(self.length).remainder(cast(Any, words).num_embeddings)[None]
        shape = (1, self.length) if aim == "masked-lm" else (1,)
        takes = f"token ids {tuple(ids.shape)} and a mask of that shape"
        head = self.head_behind(
            network.own, lambda: logits(network, ids), (*shape, network.classes), takes
        )
        with evaluating(network):
            embedded = logits(network, words(ids), at="embedding")
            if not torch.allclose(embedded, logits(network, ids), atol=1e-5):
                raise DataError(
                    f"task.model: the logits of {self.name} depend on the token ids in another way "
                    f"than through the layer '{network.words}', or differ from call to call; "
                    "attacks start from word embeddings. Take padding from the mask, not the ids"
                )
        return f"own.{head}"
