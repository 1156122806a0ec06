"""Text: classification or masked words, with any encoder or decoder of `transformers`."""

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, cast

import numpy as np
import torch
from pydantic import BeforeValidator, Field, SerializeAsAny
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from fedsim.errors import DataError
from fedsim.metrics import read
from fedsim.records import Batch, Reconstruction, Reduction, Spec, Tokens, Truth
from fedsim.seeds import torch_generator
from fedsim.tasks import Task, judged
from fedsim.tasks.composition import Composition, composed
from fedsim.tasks.languages import (
    PADDING,
    POINTS,
    SMALL,
    Aim,
    Language,
    Parameters,
    as_language,
    classification_loss,
    logits,
    masked_loss,
    padding,
    sent,
    told,
    words,
)
from fedsim.tasks.messages import public_messages
from fedsim.tasks.partition import PARTITIONS, Iid, Partition, Whole, as_partition
from fedsim.tasks.text_data import MESSAGES, Texts, load, public_texts, same
from fedsim.victim import Loss

__all__ = ["Text"]

EVALUATED_AT_ONCE = 64

_KINDS: dict[str, type[Partition]] = {"sender": Whole, **PARTITIONS}


def _as_partition(value: Any) -> Partition:
    return as_partition(value, _KINDS)


class Text(Task):
    """Text classification, or masked language modelling, on messages, tables or sets of the Hub.

    Inputs are token ids (B, L) int64, padded beyond `lengths` (B,) int64; labels (B,) int64 of a
    classifier. With masked words, `masked` of each text's tokens, one at least, are replaced by the
    mask, and labels (B, L) hold them, -100 elsewhere. Batches are composed as those of images.
    """

    name = "text"

    data: str = Field(
        default=MESSAGES,
        min_length=1,
        description='"messages" (embedded), a jsonl, csv or tsv under --data, or '
        '"hub:OWNER/SET[/CONFIG]"',
    )
    test_data: str | None = Field(
        default=None, description="another table under --data, whose rows are the test split"
    )
    text_column: str | None = Field(default=None, description="column of texts, if unusual")
    label_column: str | None = Field(default=None, description="column of labels, if unusual")
    public: str | None = Field(
        default=None,
        description="texts that everybody knows, for a learned tokenizer, guesses and the PRIOR "
        'knowledge: "messages" (embedded), or a text file or a folder of them under --data; by '
        'default the embedded ones for data = "messages", else those of the auxiliary examples',
    )
    task: Aim = Field(default="classification", description="what the model is trained for")
    masked: float = Field(
        default=0.15, gt=0, lt=1, description="share of a text's tokens that masked-lm masks"
    )
    parameters: Parameters = Field(
        default="all",
        description='what is trained and sent: "all"; "no-embeddings": all but the word '
        'embeddings; "lamp": also without positional embeddings and biases of blocks',
    )
    dropout: bool = Field(default=False, description="train with the model's own dropout")
    model: Annotated[SerializeAsAny[Language], BeforeValidator(as_language)] = Field(
        default=Language(config="bert", settings=SMALL),
        description="a model of transformers: hub:NAME, or a table with a config and its settings",
    )
    vocabulary: int = Field(
        default=1000, ge=128, le=65_536, description="word pieces of a learned tokenizer"
    )
    longest: int | None = Field(
        default=None,
        ge=1,
        description="use texts of so many tokens at most, those around a text included",
    )
    train_examples: int | None = Field(
        default=None, ge=2, description="use so many training examples, drawn by the seed"
    )
    test_examples: int | None = Field(
        default=None, ge=1, description="use so many test examples, drawn by the seed"
    )
    test_fraction: float = Field(
        default=0.2, gt=0, lt=1, description="test share of data that comes without a split"
    )
    auxiliary_fraction: float = Field(
        default=0.1, ge=0, lt=1, description="share of training examples held by no client"
    )
    partition: Annotated[SerializeAsAny[Partition], BeforeValidator(_as_partition)] = Field(
        default=Iid(), description='how data is cut: "sender", or any of the images task'
    )
    composition: Composition = Field(
        default="natural", description="how a client's batches are composed of its examples"
    )

    # --- data -------------------------------------------------------------------------------

    @functools.cached_property
    def texts(self) -> Texts:
        """All texts; loaded when first used."""
        return load(
            self.data,
            self.folder,
            test=self.test_data,
            columns=(self.text_column, self.label_column),
            labelled=self.task == "classification",
            test_fraction=self.test_fraction,
            seed=self.seed,
        )

    @functools.cached_property
    def splits(self) -> tuple[Tensor, Tensor, Tensor]:
        """Indices (int64) of the test, auxiliary and clients' texts, of whatever length.

        No auxiliary text is one of a client's, case and spaces aside.
        """
        tested = self._drawn_from(self.texts.test, self.test_examples, "test examples")
        kept = self._drawn_from(self.texts.train, self.train_examples, "training examples")
        order = kept[torch.randperm(len(kept), generator=torch_generator(self.seed, "auxiliary"))]
        count = int(self.auxiliary_fraction * len(order))
        rest = order[count:].sort().values
        held = {same(self.texts.texts[i]) for i in rest.tolist()}
        free = [i for i in order[:count].tolist() if same(self.texts.texts[i]) not in held]
        return tested, torch.tensor(sorted(free), dtype=torch.int64), rest

    @functools.cached_property
    def public_texts(self) -> tuple[str, ...]:
        """What everybody knows; none of them is a client's text, case and spaces aside."""
        name = self.public or (MESSAGES if self.data == MESSAGES else None)
        _, free, rest = self.splits
        if name is None:
            return tuple(self.texts.texts[i] for i in free.tolist())
        held = {same(self.texts.texts[i]) for i in rest.tolist()}
        return tuple(one for one in public_texts(name, self.folder) if same(one) not in held)

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of `transformers`; loaded, or learned of public texts, when first used."""
        # A few auxiliary texts alone have too few word pieces.
        read = tuple(dict.fromkeys((*self.public_texts, *public_messages())))
        return self.model.read(read, self.vocabulary)

    @functools.cached_property
    def tokens(self) -> Tokens:
        """What inputs are made of; raises `DataError` for a `longest` beyond the model's."""
        module = self._initial
        longest = self.model.longest(module, self.tokenizer)
        if self.longest is not None and self.longest > longest:
            raise DataError(
                f"task.longest = {self.longest}, and the model takes {longest} tokens; expected at "
                "most that"
            )
        size = len(module.get_input_embeddings().weight)  # type: ignore[operator]
        return told(self.tokenizer, size, longest, self.words)

    @functools.cached_property
    def encoded(self) -> dict[int, list[int]]:
        """The token ids of every text in use that is not longer than `longest`, by its index.

        Raises `DataError` for a text that the model cannot take, or the tokenizer cannot read.
        """
        index = torch.cat(self.splits).tolist()
        texts = [self.texts.texts[i] for i in index]
        ids = self.tokenizer(texts, verbose=False)["input_ids"]
        most, unknown = self.tokens.longest, self.tokens.special.get("unk")
        for at, one in zip(index, ids, strict=True):
            if (unknown is None or unknown in one or len(one) < 4) and not self.tokens.spell(one):
                raise DataError(
                    f"data '{self.data}': the tokenizer knows no word of text {at} "
                    f"({self.texts.texts[at][:40]!r}). Leave it out, or choose another model"
                )
            if self.longest is None and len(one) > most:
                raise DataError(
                    f"data '{self.data}': text {at} has {len(one)} tokens, and the model takes "
                    f"{most}. Leave out longer ones with task.longest = {most}, or choose a model "
                    "that takes more"
                )
        longest = self.longest or most
        return {at: one for at, one in zip(index, ids, strict=True) if len(one) <= longest}

    @functools.cached_property
    def used(self) -> tuple[Tensor, Tensor, Tensor]:
        """Indices (int64) of the test, auxiliary and clients' texts that are short enough."""
        test, free, rest = (
            part[torch.tensor([i in self.encoded for i in part.tolist()], dtype=torch.bool)]
            for part in self.splits
        )
        if not len(test) or not len(rest):
            raise DataError(
                f"data '{self.data}': task.longest = {self.longest} leaves {len(test)} test and "
                f"{len(rest)} training texts; expected some of each. Raise it"
            )
        return test, free, rest

    @functools.cached_property
    def shares(self) -> tuple[Tensor, ...]:
        """Indices (int64) of each client's texts."""
        rest = self.used[2]
        by = self.texts.labels[rest].numpy()
        if self.partition.kind in ("sender", "speaker"):
            if self.texts.senders is None:
                raise DataError(
                    f"data '{self.data}' does not say whose a text is; expected a column sender, "
                    'author or user, or another task.partition ("iid")'
                )
            by = np.unique(self.texts.senders, return_inverse=True)[1][rest.numpy()]
        cut = self.partition.cut(by, self.clients, self.seed)
        return tuple(rest[torch.from_numpy(share)] for share in cut)

    @property
    def spec(self) -> Spec:
        """Labels, and the tokens that texts are made of; texts differ in length."""
        size = len(self.tokens.pieces)
        classes = len(self.texts.names) if self.task == "classification" else size
        return Spec(classes, vocabulary=size, tokens=self.tokens)

    def batches(self, client: int, round: int, *, batch_size: int, steps: int) -> list[Batch]:
        """`steps` batches: a pure function of (seed, client, round).

        The first batches are the same however many steps are asked for. Raises `DataError` for a
        client that does not exist.
        """
        rng = torch_generator(self.seed, "masks", client, round)
        drawn = self._drawn(client, round, batch_size, steps)
        return [self._batch(index.tolist(), rng) for index in drawn]

    @property
    def draws_uniformly(self) -> bool:
        """In natural batches."""
        return self.composition == "natural"

    def num_examples(self, client: int) -> int:
        """How many training texts a client holds."""
        return len(self._share(client))

    def fingerprint(self) -> str:
        """SHA-256 of texts, labels and senders."""
        return self.texts.fingerprint()

    def truth(self, clients: Sequence[int], round: int, *, batch_size: int, steps: int) -> Truth:
        """The texts behind an update: ids as fed, ids before masking, text and sender of each.

        Texts are as the tokenizer spells them: in lower case, where it knows no other.
        """
        inputs, labels, index = list[Tensor](), list[Tensor](), list[int]()
        for client in clients:
            index += torch.cat(self._drawn(client, round, batch_size, steps)).tolist()
            for batch in self.batches(client, round, batch_size=batch_size, steps=steps):
                sizes = cast(Tensor, batch.lengths).tolist()
                inputs += [row[:n] for row, n in zip(batch.inputs, sizes, strict=True)]
                labels += [
                    row[:n] if row.ndim else row for row, n in zip(batch.labels, sizes, strict=True)
                ]
        masks = self.task == "masked-lm"
        flat = torch.cat(labels) if masks else torch.stack(labels)
        tokens = [torch.tensor(self.encoded[i]) for i in index]
        whose = self.texts.senders
        return Truth(
            inputs=inputs,
            labels=flat[flat != PADDING],
            sequences=labels if masks else None,
            lengths=[len(one) for one in inputs],
            tokens=tokens,
            text=[self.tokens.spell(one.tolist()) for one in tokens],
            attributes={"sender": [whose[i] for i in index]} if whose else {},
        )

    def auxiliary(self) -> Batch | None:
        """The texts that no client holds, new tensors at every call; None if none."""
        index = self.used[1].tolist()
        return self._batch(index, torch_generator(self.seed, "public masks")) if index else None

    def prior(self) -> tuple[str, ...] | None:
        """The public texts, for a language prior; None if none."""
        return self.public_texts or None

    def _drawn_from(self, index: Tensor, count: int | None, purpose: str) -> Tensor:
        order = torch.randperm(len(index), generator=torch_generator(self.seed, purpose))
        return index[order[:count]].sort().values

    def _drawn(self, client: int, round: int, batch_size: int, steps: int) -> list[Tensor]:
        share = self._share(client)
        rng = torch_generator(self.seed, "batches", client, round)
        size = min(batch_size, len(share))
        labels = self.texts.labels[share]
        return [share[own] for own in composed(self.composition, labels, size, steps, rng)]

    def _share(self, client: int) -> Tensor:
        if not 0 <= client < self.clients:
            raise DataError(
                f"there is no client {client}; clients run from 0 to {self.clients - 1}"
            )
        return self.shares[client]

    def _batch(self, index: Sequence[int], rng: torch.Generator) -> Batch:
        ids = [torch.tensor(self.encoded[i]) for i in index]
        labels = self.texts.labels[torch.tensor(index)]
        if self.task == "masked-lm":
            masked = [self._masked(one, rng) for one in ids]
            ids = [one for one, _ in masked]
            hidden = [target for _, target in masked]
            labels = pad_sequence(hidden, batch_first=True, padding_value=PADDING)
        filled = padding(self.tokenizer)
        return Batch(
            inputs=pad_sequence(ids, batch_first=True, padding_value=filled),
            labels=labels,
            lengths=torch.tensor([len(one) for one in ids]),
        )

    def _masked(self, ids: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Ids (L,) with masks in them, and targets (L,), -100 where nothing was masked."""
        free = torch.tensor([int(i) not in self.tokens.marks for i in ids]).nonzero().flatten()
        count = max(1, round(self.masked * len(free)))
        chosen = free[torch.randperm(len(free), generator=rng)[:count]]
        target = torch.full_like(ids, PADDING)
        target[chosen] = ids[chosen]
        return ids.index_fill(0, chosen, self.tokens.special["mask"]), target

    # --- model ------------------------------------------------------------------------------

    def build(self) -> nn.Module:
        """A new model of `transformers`; what is not stored is drawn from torch's generator."""
        classes = len(self.texts.names)
        return self.model.build(self.tokenizer, self.task, classes, self.dropout)

    @functools.cached_property
    def head(self) -> str:
        """Name of the layer before the softmax."""
        return self.model.find_head(self._initial, self.task)

    @functools.cached_property
    def words(self) -> str:
        """Name of the parameter that holds the word embeddings."""
        return words(self._initial)

    @property
    def loss(self) -> Loss:
        """Cross-entropy, mean over examples, or over all masked tokens of a batch."""
        return masked_loss if self.task == "masked-lm" else classification_loss

    @property
    def reduction(self) -> Reduction:
        """Of a classifier the loss is a mean over examples, else over masked tokens."""
        return "token" if self.task == "masked-lm" else "example"

    @property
    def points(self) -> tuple[str, ...]:
        """Token ids, and word embeddings before positions are added."""
        return POINTS

    def trained(self, module: nn.Module) -> frozenset[str]:
        """Names of the parameters that `parameters` asks for."""
        return sent(module, self.parameters)

    def evaluate(self, module: nn.Module, client: int | None = None) -> dict[str, float]:
        """Mean loss and accuracy on the test split, or on all of one client's texts.

        Of a classifier also Matthews' correlation (`mcc`), 0 where it predicts one label alone.
        Masked tokens are counted one by one. The module is judged in evaluation mode, on its own
        device, and gets its modes back.
        """
        index = self.used[0] if client is None else self._share(client)
        rng = torch_generator(self.seed, "test masks", -1 if client is None else client)
        loss, said, true = 0.0, list[Tensor](), list[Tensor]()
        with judged(module) as device:
            for part in torch.split(index, EVALUATED_AT_ONCE):
                batch = self._batch(part.tolist(), rng).to(device)
                scores = logits(module, batch.inputs, lengths=batch.lengths)
                counted = batch.labels != PADDING
                scores, labels = scores[counted], batch.labels[counted]
                loss += float(functional.cross_entropy(scores, labels, reduction="sum"))
                said.append(scores.argmax(dim=1).cpu())
                true.append(labels.cpu())
        ours, labels = torch.cat(said), torch.cat(true)
        found = {
            "loss": loss / len(labels),
            "accuracy": float((ours == labels).double().mean()),
            "num_examples": float(len(index)),
        }
        if self.task == "classification":
            from sklearn.metrics import matthews_corrcoef

            found["mcc"] = float(matthews_corrcoef(labels.numpy(), ours.numpy()))
        return found

    # --- what a reader sees -----------------------------------------------------------------

    @functools.cached_property
    def frequencies(self) -> tuple[Tensor, Tensor]:
        """Shares of the tokens (V,) in the public texts and of the auxiliary labels (classes,)."""
        counts = torch.zeros(len(self.tokens.pieces), dtype=torch.float64)
        for one in self.tokenizer(list(self.public_texts), verbose=False)["input_ids"]:
            bare = torch.tensor(self.tokens.bare(one), dtype=torch.int64)
            counts.index_add_(0, bare, torch.ones(len(bare), dtype=torch.float64))
        labels = torch.bincount(self.texts.labels[self.used[1]], minlength=len(self.texts.names))
        return (counts / counts.sum()).float(), labels / labels.sum()

    def guess(self, truth: Truth, rng: torch.Generator, *, informed: bool) -> Reconstruction:
        """As many labels, and texts of the same lengths, drawn without having seen an update.

        Not informed: uniform labels and tokens, normal scores. Informed: by the frequencies in the
        public texts and among the auxiliary labels; raises `NotImplementedError` without any.
        """
        spec, tokens = self.spec, self.tokens
        count = 0 if truth.labels is None else len(truth.labels)
        if informed and not (self.public_texts and len(self.used[1])):
            raise NotImplementedError("auxiliary_fraction leaves no public examples")
        weights = torch.ones(len(tokens.pieces))
        weights[list(tokens.marks)] = 0
        shares = torch.full((spec.classes,), 1 / spec.classes)
        if informed:
            weights, shares = self.frequencies
            shares = weights if self.task == "masked-lm" else shares
        labels = torch.multinomial(shares, count, replacement=True, generator=rng)
        scores = count * shares if informed else torch.randn(spec.classes, generator=rng)
        frame, drawn = len(tokens.prefix) + len(tokens.suffix), list[Tensor]()
        for length in truth.lengths or ():
            inner = torch.multinomial(
                weights, max(1, length - frame), replacement=True, generator=rng
            )
            parts = (torch.tensor(tokens.prefix), inner, torch.tensor(tokens.suffix))
            drawn.append(torch.cat([part.long() for part in parts]))
        counts = dict(Counter(labels.tolist()))
        return Reconstruction(
            label_set=frozenset(counts),
            label_counts=counts,
            labels=labels,
            label_scores=scores,
            num_labels=count,
            tokens=drawn,
            token_counts=dict(Counter(tokens.bare(torch.cat(drawn).tolist()) if drawn else [])),
            text=[tokens.spell(one.tolist()) for one in drawn],
        )

    def render(self, claimed: Reconstruction, truth: Truth) -> dict[str, bytes]:
        """Two texts: the originals, a line each, and what was matched to each of them.

        Where only a bag of tokens is claimed, its pieces in one line. No file where neither is.
        """
        lines = list[str]()
        if claimed.tokens is not None or claimed.text is not None:
            lines = read(claimed, truth, self.spec)
        elif claimed.token_counts is not None:
            lines = [self.tokens.spell([i]) for i in sorted(claimed.token_counts)]
            lines = [" ".join(lines)]
        if not lines or truth.text is None:
            return {}
        shown = {"original.txt": truth.text, "reconstruction.txt": lines}
        return {
            name: "".join(" ".join(line.split()) + "\n" for line in text).encode(errors="replace")
            for name, text in shown.items()
        }
