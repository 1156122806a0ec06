"""Trains a small causal language model of a victim's tokens, for `prior = "FOLDER"`.

    python benchmarks/train_prior.py --data DIR --out FOLDER [--minutes 8]

LAMP (Balunovic et al., NeurIPS 2022) ranks candidates with a GPT-2 that has the victim's own
tokenizer. This is one of a size that a CPU core trains in minutes, on the novels and the WikiText-2
validation set of DIR/lm, sentence by sentence with [CLS] and [SEP] around each, as victims' texts
are. Its word embeddings, tied to the output, start from the leading principal components of the
public encoder's: most of the vocabulary is rare in so little text. The softmax runs over a batch's
own words, the most frequent ones, and a sample of the others, each of which stands for many.
Prints the perplexity a token on the WikiText-2 test set, which it never trains on, beside that of
the n-gram model fitted to the same text.
"""

import argparse
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from lamp_plain import folder
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from fedsim import libraries
from fedsim.priors import CausalPrior, LanguagePrior, NGramPrior, sentences
from fedsim.records import Tokens
from fedsim.seeds import isolated, torch_generator
from fedsim.tasks.text.languages.tokenizers import describe_tokenizer

TRAINED, HELD_OUT = ("gutenberg_novels", "wikitext2_valid"), "wikitext2_test"
LONGEST = 64
FREQUENT, SAMPLED = 2000, 2048
LR, WEIGHT_DECAY, WARM_UP = 2e-3, 0.05, 0.03
SAID_EVERY = 30


def lines(path: Path) -> list[str]:
    """Paragraphs, without headings, marks for commas and dashes, and unknown words of WikiText."""
    found: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        plain = line.replace(" @-@ ", "-").replace(" @,@ ", ",").replace(" @.@ ", ".").strip()
        if len(plain.split()) < 2 or plain.startswith("="):
            continue
        if "<unk>" in plain:
            # A sentence that lacks a word is none; those around it are.
            parts = [part.removesuffix(" .") for part in plain.split(" . ")]
            found += [f"{part} ." for part in parts if part and "<unk>" not in part]
        else:
            found.append(plain)
    return found


def tokens_of(encoder: Path) -> tuple[Tokens, Tensor]:
    """What the victims' texts are made of, and the encoder's word embeddings (V, d)."""
    library = libraries.transformers()
    with libraries.quiet():
        tokenizer = library.AutoTokenizer.from_pretrained(encoder, local_files_only=True)
        model = library.AutoModel.from_pretrained(encoder, local_files_only=True)
    words = model.get_input_embeddings().weight.detach()
    longest = model.config.max_position_embeddings
    return describe_tokenizer(tokenizer, len(words), longest, "words"), words


def built(tokens: Tokens, words: Tensor, width: int, layers: int) -> nn.Module:
    """GPT-2 with random layers, and word embeddings that are projected from the encoder's."""
    library = libraries.transformers()
    config = library.GPT2Config(
        vocab_size=len(tokens.pieces),
        n_embd=width,
        n_layer=layers,
        n_head=width // 64,
        n_positions=LONGEST,
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokens.special["cls"],
        eos_token_id=tokens.special["sep"],
        pad_token_id=tokens.special["pad"],
    )
    with isolated(0, "language prior"):
        model: nn.Module = library.GPT2LMHeadModel(config)
    centred = words - words.mean(dim=0)
    _, _, directions = torch.linalg.svd(centred.T @ centred)
    projected = centred @ directions[:width].T
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    with torch.no_grad():
        embedding.weight.copy_(projected * (0.04 / projected.std()))
    return model


def batches(rows: list[Tensor], size: int, epoch: int) -> Iterator[list[Tensor]]:
    """Rows of about the same length, `size` tokens at a time, in random order."""
    rng = torch_generator(0, "batches", epoch)
    order = torch.randperm(len(rows), generator=rng).tolist()
    order.sort(key=lambda i: len(rows[i]))
    found, some = list[list[Tensor]](), list[Tensor]()
    for i in order:
        some.append(rows[i])
        if len(some) * len(rows[i]) >= size:
            found.append(some)
            some = []
    for at in torch.randperm(len(found), generator=rng).tolist():
        yield found[at]


class SampledSoftmax:
    """Cross-entropy whose sum over the vocabulary is estimated without bias.

    A batch's own words and the frequent ones are in the sum as they are; of the others a uniform
    sample, each weighted by how many it stands for.
    """

    def __init__(self, rows: list[Tensor], size: int) -> None:
        often = torch.bincount(torch.cat(rows), minlength=size)
        self.frequent = torch.zeros(size, dtype=torch.bool)
        self.frequent[often.topk(min(size, FREQUENT)).indices] = True
        self.rng = torch_generator(0, "sampled words")

    def __call__(self, hidden: Tensor, words: Tensor, targets: Tensor) -> Tensor:
        """hidden (T, d), words (V, d), targets (T,) int64."""
        sure = self.frequent.clone()
        sure[targets] = True
        others = (~sure).nonzero().flatten()
        drawn = others[torch.randperm(len(others), generator=self.rng)[:SAMPLED]]
        columns = torch.cat([sure.nonzero().flatten(), drawn])
        place = torch.zeros(len(sure), dtype=torch.int64)
        place[columns] = torch.arange(len(columns))
        logits = hidden @ words[columns].T
        extra = torch.zeros(len(columns))
        if len(drawn):
            extra[-len(drawn) :] = math.log(len(others) / len(drawn))
        return functional.cross_entropy(logits + extra, place[targets])


def train(model: nn.Module, rows: list[Tensor], seconds: float, size: int) -> None:
    """AdamW until time is up; the learning rate follows the clock, up at first and then down."""
    loss = SampledSoftmax(rows, model.config.vocab_size)  # type: ignore[union-attr, arg-type]
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0}],
        lr=LR,
        betas=(0.9, 0.98),
        fused=True,
    )
    words = model.get_input_embeddings().weight  # type: ignore[operator]
    model.train()
    began, said, losses, seen, epoch = time.process_time(), 0.0, list[float](), 0, 0
    while True:
        for some in batches(rows, size, epoch):
            spent = (time.process_time() - began) / seconds
            if spent >= 1:
                print(
                    f"{len(losses)} steps, {seen} tokens, {seen / sum(map(len, rows)):.2f} epochs"
                )
                return
            rate = LR * min(1, spent / WARM_UP) * (0.5 + 0.5 * math.cos(math.pi * spent))
            for group in optimizer.param_groups:
                group["lr"] = max(rate, LR / 100)
            sizes = torch.tensor([len(row) for row in some])
            ids = pad_sequence(some, batch_first=True)
            inside = torch.arange(1, ids.shape[1]) < sizes[:, None]
            hidden = model.transformer(ids[:, :-1]).last_hidden_state[inside]  # type: ignore[operator, union-attr]
            value = loss(hidden, words, ids[:, 1:][inside])
            optimizer.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(value.item())
            seen += int(sizes.sum())
            if time.process_time() - began - said > SAID_EVERY:
                said = time.process_time() - began
                last = losses[-50:]
                print(
                    f"{said:.0f} s: {len(losses)} steps, loss {sum(last) / len(last):.3f}",
                    flush=True,
                )
        epoch += 1


def perplexity(prior: LanguagePrior, rows: list[Tensor]) -> float:
    """Of each token but the first, rows of token ids."""
    sizes = torch.tensor([len(row) for row in rows])
    said = prior.surprise(pad_sequence(rows, batch_first=True), sizes)
    return float(((said * (sizes - 1)).sum() / (sizes - 1).sum()).exp())


def main() -> None:
    """Train, save, and print perplexities."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("FEDSIM_DATA"))
    parser.add_argument("--out", type=Path, required=True, help="folder for model and tokenizer")
    parser.add_argument("--minutes", type=float, default=8, help="of CPU time")
    parser.add_argument("--width", type=int, default=256, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1000, help="tokens")
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data: the folder that holds lm/, or set FEDSIM_DATA")
    torch.set_num_threads(1)
    tokens, words = tokens_of(folder())
    texts = [line for name in TRAINED for line in lines(options.data / "lm" / f"{name}.txt")]
    rows = [torch.tensor(ids[:LONGEST]) for ids in sentences(texts, tokens)]
    print(f"{len(rows)} sentences, {sum(map(len, rows))} tokens", flush=True)
    model = built(tokens, words, options.width, options.layers)
    train(model, rows, 60 * options.minutes, options.batch)
    with libraries.quiet():
        model.eval().save_pretrained(options.out)  # type: ignore[operator]
    tokens.tokenizer.save_pretrained(options.out)

    held = lines(options.data / "lm" / f"{HELD_OUT}.txt")
    tested = [torch.tensor(ids[:LONGEST]) for ids in sentences(held, tokens)]
    print(f"perplexity a token on {len(tested)} sentences of {HELD_OUT}:")
    for prior in (
        CausalPrior.load(str(options.out), tokens, torch.device("cpu")),
        NGramPrior.fit(texts, tokens),
    ):
        print(f"  {prior.description}: {perplexity(prior, tested):.0f}")


if __name__ == "__main__":
    main()
