"""Tokenizers: a model's own, or byte-pair encoding learned from public text."""

import functools
from typing import Any

from fedsim import libraries
from fedsim.errors import DataError
from fedsim.libraries import HUB, brief, quiet
from fedsim.records import WORD_START, Tokens
from fedsim.tasks.pretrained import resolve_folder
from fedsim.tasks.wordpieces import train_tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Special tokens of a learned tokenizer; the first has id 0."""

ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")


@functools.lru_cache(maxsize=4)
def learn_tokenizer(text: tuple[str, ...], size: int, frame: bool) -> Any:
    """Learn a lower-case tokenizer by byte-pair encoding, the same in every process.

    Args:
        text: Public texts.
        size: The number of word pieces.
        frame: Whether [CLS] and [SEP] enclose a text, as in BERT.

    Raises:
        DataError: The text has fewer pieces than `size`.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, processors
    from tokenizers.pre_tokenizers import Metaspace, Sequence, Split

    model = Tokenizer(models.BPE(unk_token=SPECIAL[1]))
    blank = normalizers.Replace(Regex(r"[^\S ]"), " ")  # a tab or a line's end parts words, too
    model.normalizer = normalizers.Sequence([normalizers.NFKC(), blank, normalizers.Lowercase()])
    marks = Split(Regex(r"[^\p{L}\p{N}▁]"), "isolated")
    model.pre_tokenizer = Sequence([Metaspace(WORD_START, "always"), marks])
    printable = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    train_tokenizer(model, text, size, SPECIAL, [WORD_START, *printable])
    model.decoder = decoders.Metaspace(replacement=WORD_START, prepend_scheme="always")
    if frame:
        model.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    fast: Any = libraries.transformers().PreTrainedTokenizerFast
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    if frame:
        named |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return fast(tokenizer_object=model, clean_up_tokenization_spaces=False, **named)


@functools.lru_cache(maxsize=4)
def load_tokenizer(place: str) -> Any:
    """Load a tokenizer.

    Args:
        place: A folder, "package:NAME/FOLDER", or "hub:NAME".

    Raises:
        DataError: There is none.
    """
    library: Any = libraries.transformers()
    try:
        with quiet():
            return library.AutoTokenizer.from_pretrained(
                resolve_folder(place.removeprefix(HUB)),
                local_files_only=not place.startswith(HUB),
                clean_up_tokenization_spaces=False,
            )
    except (OSError, ValueError, KeyError, ImportError, TypeError) as error:
        raise DataError(
            f"no tokenizer in '{place}': {brief(error)} Name a folder that holds one "
            '(model = {name = "transformers", config = ..., tokenizer = "FOLDER"}), or learn one '
            'from public text (tokenizer = "learned", with random weights).'
        ) from error


def special_affixes(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Find the token ids that a tokenizer puts before and after every text.

    Raises:
        DataError: The ids of a text do not contain those of the text alone.
    """
    bare, whole = (
        list(tokenizer("a", add_special_tokens=special, verbose=False)["input_ids"])
        for special in (False, True)
    )
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return tuple(whole[:start]), tuple(whole[start + len(bare) :])
    raise DataError(
        f"the tokenizer turns 'a' into {bare}, and with special tokens into {whole}, which does "
        "not hold it. Choose another with task.model.tokenizer."
    )


def describe_tokenizer(tokenizer: Any, size: int, longest: int, embedding: str) -> Tokens:
    """What adversaries may know of a tokenizer and of the word embeddings behind it.

    Args:
        tokenizer: The tokenizer, of `transformers`.
        size: The number of word embeddings.
        longest: The largest number of tokens of an input.
        embedding: The name of the parameter that holds the word embeddings.
    """
    known: list[str | None] = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    pieces = [piece or f"[{at}]" for at, piece in enumerate(known)]
    pieces += [f"[{at}]" for at in range(len(pieces), size)]
    found = {role: getattr(tokenizer, f"{role}_token_id") for role in ROLES}
    prefix, suffix = special_affixes(tokenizer)
    return Tokens(
        pieces=tuple(pieces),
        special={role: int(at) for role, at in found.items() if at is not None},
        marks=frozenset(tokenizer.all_special_ids),
        prefix=prefix,
        suffix=suffix,
        longest=longest,
        embedding=embedding,
        tokenizer=tokenizer,
    )
