"""Encoders and decoders of `transformers` that classify text or predict masked words.

Their logits are computed from token ids or word embeddings, and so are the training losses.
"""

import re
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim import libraries
from fedsim.errors import DataError
from fedsim.tasks.models.architecture import head_behind
from fedsim.tasks.pretrained import TransformersModel
from fedsim.tasks.text.languages.tokenizers import learn_tokenizer, load_tokenizer

Aim = Literal["classification", "masked-lm"]
Parameters = Literal["all", "no-embeddings", "lamp"]

PADDING = -100
"""The target that losses ignore: padding, and tokens that are not masked."""

POINTS = ("input", "embedding")
"""Where a language model takes inputs: token ids or their word embeddings."""

LEARNED = "learned"
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 128}  # fmt: skip


class Language(TransformersModel):
    """A language model of `transformers` and its tokenizer.

    `model = "hub:prajjwal1/bert-tiny"` downloads weights by name; `{name = "transformers", config =
    "FOLDER"}` loads them from a folder; `{name = "transformers", config = "gpt2", settings =
    {n_embd = 64, n_layer = 2, n_head = 2}}` draws random ones. Parameters keep the names that
    `transformers` gives them. Encoder-decoder models are not supported.
    """

    what = "a language model"
    examples = ("bert", "distilbert", "roberta", "gpt2")

    tokenizer: str | None = None
    """Tokenizer: "learned" from public text, a folder as for `config`, or "hub:NAME". By default it
    is the stored model's own, and a learned one for random weights of a model type."""

    head: str | None = None
    """Name of the final linear layer, which is found automatically unless there are several."""

    @property
    def _learns(self) -> bool:
        """Whether the tokenizer is learned from public text."""
        return self.tokenizer == LEARNED or (self.tokenizer is None and not self.stored)

    @property
    def _own_tokenizer(self) -> str:
        """Where the model's own tokenizer is stored."""
        return self.place if self.local else self.name

    def read(self, public: tuple[str, ...], size: int) -> Any:
        """Load the tokenizer, or learn one.

        Args:
            public: The texts that a tokenizer is learned from.
            size: The number of word pieces of a learned tokenizer.

        Raises:
            DataError: There is no tokenizer, or it is of the wrong kind.
        """
        if not self._learns:
            return load_tokenizer(self.tokenizer or self._own_tokenizer)
        if self.stored and self.pretrained is not False:
            raise DataError(
                f"{self.label} brings weights that were trained with its own tokenizer; "
                'tokenizer = "learned" needs random ones: set pretrained = false'
            )
        config = self.configuration({}, {})
        encodes = type(config) in libraries.transformers().MODEL_FOR_MASKED_LM_MAPPING
        return learn_tokenizer(public, size, encodes)

    def build(self, tokenizer: Any, aim: Aim, classes: int, dropout: bool) -> nn.Module:
        """Build the model, its weights loaded or drawn from torch's global generator.

        Args:
            tokenizer: The tokenizer, of `transformers`.
            aim: Classification or masked language modelling.
            classes: The number of labels of a classifier.
            dropout: Whether to keep the model's dropout.

        Raises:
            DataError: The model is not found, or does not fit the tokenizer or the aim.
        """
        library = libraries.transformers()
        fitting: dict[str, Any] = {
            "vocab_size": len(tokenizer),
            "pad_token_id": padding_id(tokenizer),
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        }
        always: dict[str, Any] = {} if aim == "masked-lm" else {"num_labels": classes}
        if self._learns and self.stored:
            always |= {key: fitting[key] for key in ("vocab_size", "pad_token_id")}
        config = self.configuration(always, fitting)
        if config.is_encoder_decoder:
            raise DataError(
                f"{self.label} is an encoder-decoder; expected an encoder (bert, roberta, ...) "
                "or a decoder (gpt2, ...)"
            )
        held = int(config.vocab_size)
        if len(tokenizer) > held:
            raise DataError(
                f"the tokenizer has {len(tokenizer)} tokens, and {self.label} word embeddings "
                f"for {held}: it is another model's. Take the model's own (leave out "
                "task.model.tokenizer), or name the folder that holds it"
            )
        if self.loads and self.tokenizer is not None:
            self._refuse_foreign(tokenizer)
        if not dropout:
            for key, value in config.to_dict().items():
                if "drop" in key and isinstance(value, float) and key not in self.settings:
                    setattr(config, key, 0.0)
        auto = library.AutoModelForSequenceClassification
        if aim == "masked-lm":
            auto = library.AutoModelForMaskedLM
            if type(config) not in library.MODEL_FOR_MASKED_LM_MAPPING:
                raise DataError(
                    f"{self.label} fills in no masked words (transformers has no such model of "
                    f"type '{config.model_type}'); expected an encoder, or task.task = "
                    '"classification"'
                )
            require_mask(tokenizer)
        return cast(nn.Module, self.create(auto, config))

    def _refuse_foreign(self, tokenizer: Any) -> None:
        """Raise `DataError` if stored weights belong to another vocabulary."""
        try:
            own = load_tokenizer(self._own_tokenizer)
        except DataError:
            return  # no tokenizer is stored, so the user's is taken
        if len(own) > len(own.all_special_ids) and own.get_vocab() != tokenizer.get_vocab():
            raise DataError(
                f"tokenizer '{self.tokenizer}' has {len(tokenizer)} tokens, and those of "
                f"{self.label}, which its weights were trained with, are {len(own)} others. "
                "Take the model's own (leave out task.model.tokenizer), or random weights "
                "(pretrained = false)"
            )

    def longest(self, module: nn.Module, tokenizer: Any) -> int:
        """The largest number of tokens of an input, by the model's positions and its tokenizer."""
        most, limit = int(tokenizer.model_max_length), positions(module)
        return most if limit is None else min(most, limit)

    def find_head(self, module: nn.Module, aim: Aim) -> str:
        """Find the linear layer that returns the logits.

        Returns:
            The name of the layer.

        Raises:
            DataError: No layer or several return the logits, or the layer that the user named is
                not a linear one.
        """
        config: Any = module.config
        shape = (1, 3, config.vocab_size) if aim == "masked-lm" else (1, config.num_labels)
        return head_behind(
            module,
            lambda: logits(module, torch.tensor([[0, 1, 2]])),
            shape,
            label=self.label,
            takes="three token ids",
            named=self.head,
        )


def positions(module: nn.Module) -> int | None:
    """The largest number of tokens by a model's positions; None if it has no limit."""
    found = getattr(getattr(module, "config", None), "max_position_embeddings", None)
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Embedding) and "position" in name.rpartition(".")[2]:
            # RoBERTa numbers positions from the one after the padding's.
            offset = 0 if layer.padding_idx is None else layer.padding_idx + 1
            found = layer.num_embeddings - offset
            break
    # XLNet has -1, for no limit.
    return None if found is None or int(found) < 1 else int(found)


def require_mask(tokenizer: Any) -> None:
    """Raise `DataError` if a tokenizer has no token for a masked word."""
    if tokenizer.mask_token_id is None:
        raise DataError(
            "the tokenizer has no token for a masked word. Choose another with "
            'task.model.tokenizer, or task.task = "classification"'
        )


def padding_id(tokenizer: Any) -> int:
    """The token id that fills up the shorter inputs of a batch; attention ignores it."""
    known = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return int(next(one for one in known if one is not None))


def embedding_name(module: nn.Module) -> str:
    """The name of the parameter that holds the word embeddings."""
    weight = module.get_input_embeddings().weight  # type: ignore[operator]
    return next(name for name, one in module.named_parameters() if one is weight)


def sent_parameters(module: nn.Module, which: Parameters) -> frozenset[str]:
    """The names of the parameters that are trained and sent.

    Args:
        module: The model.
        which: "all"; "no-embeddings", all but the word embeddings and what is tied to them; or
            "lamp", without embeddings of words and positions and without the biases inside the
            transformer's blocks, normalisation included (Balunovic et al., NeurIPS 2022, section
            5).
    """
    names = [name for name, one in module.named_parameters() if one.requires_grad]
    if which == "all":
        return frozenset(names)
    left_out = {embedding_name(module)}
    if which == "lamp":
        for name, layer in module.named_modules():
            own = name.rpartition(".")[2]
            if isinstance(layer, nn.Embedding) and ("position" in own or own == "wpe"):
                left_out.add(f"{name}.weight")
        block = re.compile(r"\.(\w*layers?|h|blocks?)\.\d+\..*bias$")
        left_out |= {name for name in names if block.search(name)}
    return frozenset(names) - left_out


def logits(module: nn.Module, inputs: Tensor, *, lengths: Any = None, at: str = "input") -> Tensor:
    """Compute the logits of a language model.

    Args:
        module: The model.
        inputs: Token ids, int64 of shape (B, L), or at "embedding" word embeddings of shape (B, L,
            d) before positions are added.
        lengths: The number of tokens of each input, int64 of shape (B,); attention ignores what is
            beyond. None if all inputs are full.
        at: The kind of inputs, one of `POINTS`.

    Returns:
        Logits of shape (B, classes) for a classifier, (B, L, V) for a masked language model.

    Raises:
        ValueError: The model cannot start from word embeddings.
    """
    if at not in POINTS:
        raise ValueError(f"no point '{at}' to feed text at; there are {POINTS}")
    count, size = inputs.shape[:2]
    ends = torch.as_tensor(size if lengths is None else lengths, device=inputs.device).expand(count)
    mask = (torch.arange(size, device=inputs.device) < ends[:, None]).long()
    fed = {"input_ids" if at == "input" else "inputs_embeds": inputs, "attention_mask": mask}
    score = getattr(module, "score", None)
    try:
        made = module(**fed) if score is None else module.base_model(**fed)  # type: ignore[operator]
    except TypeError as error:
        if at == "input":
            raise
        raise ValueError(
            f"{type(module).__name__} cannot start from word embeddings, which this attack needs; "
            f"token-leak does not need them. The model's error: {error}"
        ) from error
    if score is None:
        # A watched model returns the logits themselves (`fedsim.attacking.classifier`).
        return cast(Tensor, getattr(made, "logits", made))
    # A decoder classifies by its last token. transformers finds it by the id of the padding, which
    # embeddings do not have.
    states: Tensor = made[0]
    last = (ends - 1).view(-1, 1, 1).expand(-1, 1, states.shape[2])
    return cast(Tensor, score(states.gather(1, last).squeeze(1)))


def classification_loss(
    module: nn.Module, inputs: Tensor, target: Tensor, *, lengths: Any = None, at: str = "input"
) -> Tensor:
    """Cross-entropy, mean over examples.

    Args:
        module: The model.
        inputs: Inputs as of `logits`.
        target: Labels, int64 of shape (B,), or soft labels of shape (B, classes).
        lengths: Numbers of tokens as of `logits`.
        at: The kind of inputs.
    """
    return functional.cross_entropy(logits(module, inputs, lengths=lengths, at=at), target)


def masked_loss(
    module: nn.Module, inputs: Tensor, target: Tensor, *, lengths: Any = None, at: str = "input"
) -> Tensor:
    """Cross-entropy, mean over the masked tokens of the batch (Devlin et al., 2019).

    Args:
        module: The model.
        inputs: Inputs as of `logits`.
        target: Token ids, int64 of shape (B, L), -100 where nothing is masked; or soft targets of
            shape (B, L, V), zero there.
        lengths: Numbers of tokens as of `logits`.
        at: The kind of inputs.
    """
    scores = logits(module, inputs, lengths=lengths, at=at)
    if target.is_floating_point():
        return -(target * scores.log_softmax(dim=2)).sum() / target.sum()
    return functional.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=PADDING)
