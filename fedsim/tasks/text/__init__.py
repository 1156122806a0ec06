"""Text: classification or masked words, with any encoder or decoder of `transformers`."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from fedsim.errors import DataError
from fedsim.records import Batch, Reconstruction, Reduction, Tokens, Truth
from fedsim.seeds import torch_generator
from fedsim.spec import TextSpec
from fedsim.task import evaluating
from fedsim.tasks.partitioned import divide, sample
from fedsim.tasks.text import examples
from fedsim.tasks.text.data import MESSAGES, Texts, load, public_texts
from fedsim.tasks.text.languages import Language
from fedsim.tasks.text.languages.language import embedding_name, padding_id, sent_parameters
from fedsim.tasks.text.languages.losses import (
    PADDING,
    POINTS,
    classification_loss,
    logits,
    masked_loss,
)
from fedsim.tasks.text.languages.tokenizers import describe_tokenizer
from fedsim.tasks.text.messages import public_messages
from fedsim.tasks.text.settings import TextSettings
from fedsim.victim import Loss

__all__ = ["Text"]

EVALUATED_AT_ONCE = 64


class Text(TextSettings):
    """Text classification, or masked language modelling, on messages, tables or sets of the Hub.

    Inputs are token ids (B, L) int64, padded beyond `lengths` (B,) int64; labels (B,) int64 of a
    classifier. With masked words, `masked` of each text's tokens, one at least, are replaced by the
    mask, and labels (B, L) hold them, -100 elsewhere. Batches are composed as those of images.
    """

    name = "text"
    keywords = (
        "text classification",
        "language model",
        "masked language modelling",
        "NLP",
        "BERT",
        "GPT",
    )
    spec_type = TextSpec
    models: ClassVar[Mapping[str, type[BaseModel]]] = {"transformers": Language}
    sources: ClassVar[Mapping[str, str]] = {
        MESSAGES: "Short messages about access, health, money and plans, by sender; built in",
        "NAME": "NAME.jsonl, .csv or .tsv under --data: a column of texts, one of labels",
        "hub:OWNER/SET[/CONFIG]": "A data set of the Hugging Face Hub with texts and labels",
    }

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

    @property
    def labels(self) -> Tensor:
        """The labels of all texts, int64 of shape (N,)."""
        return self.texts.labels

    @functools.cached_property
    def splits(self) -> tuple[Tensor, Tensor, Tensor]:
        """Indices (int64) of the test, auxiliary and clients' texts, of whatever length.

        No auxiliary text is one of a client's, case and spaces aside.
        """
        texts = self.texts
        tested = sample(texts.test, self.test_examples, self.seed, "test examples")
        kept = sample(texts.train, self.train_examples, self.seed, "training examples")
        free, rest = divide(kept, self.auxiliary_fraction, self.seed)
        unused, held = ([texts.texts[i] for i in part.tolist()] for part in (free, rest))
        return tested, free[examples.indices_not_in(unused, held)], rest

    @functools.cached_property
    def public_texts(self) -> tuple[str, ...]:
        """What everybody knows; none of them is a client's text, case and spaces aside."""
        name = self.public or (MESSAGES if self.data == MESSAGES else None)
        _, free, rest = self.splits
        if name is None:
            return tuple(self.texts.texts[i] for i in free.tolist())
        public = public_texts(name, self.folder)
        held = (self.texts.texts[i] for i in rest.tolist())
        return tuple(public[i] for i in examples.indices_not_in(public, held))

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
        return describe_tokenizer(self.tokenizer, size, longest, self.words)

    @functools.cached_property
    def encoded(self) -> dict[int, list[int]]:
        """The token ids of every text in use that is not longer than `longest`, by its index.

        Raises `DataError` for a text that the model cannot take, or the tokenizer cannot read.
        """
        index = torch.cat(self.splits).tolist()
        return examples.encode_texts(self.data, self.texts.texts, index, self.tokens, self.longest)

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
        by = examples.partition_labels(
            self.data, self.texts, rest, whose=self.partition.kind in ("sender", "speaker")
        )
        shares = self.partition.cut(by, self.clients, self.seed)
        return tuple(rest[torch.from_numpy(share)] for share in shares)

    @property
    def spec(self) -> TextSpec:
        """Labels, and the tokens that texts are made of; texts differ in length."""
        labels = self.texts.names if self.task == "classification" else self.tokens.pieces
        return TextSpec(len(labels), tokens=self.tokens)

    def batches(self, client: int, round: int, *, batch_size: int, steps: int) -> list[Batch]:
        """`steps` batches: a pure function of (seed, client, round).

        The first batches are the same however many steps are asked for. Raises `DataError` for a
        client that does not exist.
        """
        rng = torch_generator(self.seed, "masks", client, round)
        drawn = self.drawn(client, round, batch_size, steps)
        return [self._batch(index.tolist(), rng) for index in drawn]

    def fingerprint(self) -> str:
        """SHA-256 of texts, labels and senders."""
        return self.texts.fingerprint()

    def truth(self, clients: Sequence[int], round: int, *, batch_size: int, steps: int) -> Truth:
        """The texts behind an update: ids as fed, ids before masking, text and sender of each.

        Texts are as the tokenizer spells them: in lower case, where it knows no other.
        """
        inputs, labels, index = list[Tensor](), list[Tensor](), list[int]()
        for client in clients:
            index += torch.cat(self.drawn(client, round, batch_size, steps)).tolist()
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

    def _batch(self, index: Sequence[int], rng: torch.Generator) -> Batch:
        ids = [torch.tensor(self.encoded[i]) for i in index]
        labels = self.labels[torch.tensor(index)]
        if self.task == "masked-lm":
            pairs = [examples.mask_tokens(one, self.masked, self.tokens, rng) for one in ids]
            ids, hidden = [fed for fed, _ in pairs], [target for _, target in pairs]
            labels = pad_sequence(hidden, batch_first=True, padding_value=PADDING)
        filled = padding_id(self.tokenizer)
        return Batch(
            inputs=pad_sequence(ids, batch_first=True, padding_value=filled),
            labels=labels,
            lengths=torch.tensor([len(one) for one in ids]),
        )

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
        return embedding_name(self._initial)

    @property
    def loss(self) -> Loss:
        """Cross-entropy, mean over examples, or over all masked tokens of a batch."""
        masked = self.task == "masked-lm"
        return masked_loss if masked else classification_loss

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
        return sent_parameters(module, self.parameters)

    def evaluate(self, module: nn.Module, client: int | None = None) -> dict[str, float]:
        """Mean loss and accuracy on the test split, or on all of one client's texts.

        Of a classifier also Matthews' correlation (`mcc`), 0 where it predicts one label alone.
        Masked tokens are counted one by one. The module is evaluated in evaluation mode, on its own
        device, and gets its modes back.
        """
        index = self.used[0] if client is None else self.share(client)
        rng = torch_generator(self.seed, "test masks", -1 if client is None else client)
        loss, predicted, true = 0.0, list[Tensor](), list[Tensor]()
        with evaluating(module) as device:
            for part in torch.split(index, EVALUATED_AT_ONCE):
                batch = self._batch(part.tolist(), rng).to(device)
                scores = logits(module, batch.inputs, lengths=batch.lengths)
                counted = batch.labels != PADDING
                scores, labels = scores[counted], batch.labels[counted]
                loss += float(functional.cross_entropy(scores, labels, reduction="sum"))
                predicted.append(scores.argmax(dim=1).cpu())
                true.append(labels.cpu())
        claimed, labels = torch.cat(predicted), torch.cat(true)
        found = {
            "loss": loss / len(labels),
            "num_examples": float(len(index)),
            "accuracy": float((claimed == labels).double().mean()),
        }
        if self.task == "classification":
            from sklearn.metrics import matthews_corrcoef

            found["mcc"] = float(matthews_corrcoef(labels.numpy(), claimed.numpy()))
        return found

    # --- what a reader sees -----------------------------------------------------------------

    @functools.cached_property
    def frequencies(self) -> tuple[Tensor, Tensor]:
        """Shares of the tokens (V,) in the public texts and of the auxiliary labels (classes,).

        Where there are no auxiliary examples, all labels are alike.
        """
        labels = torch.bincount(self.labels[self.used[1]], minlength=len(self.texts.names))
        if not len(self.used[1]):
            labels = torch.ones_like(labels)
        return examples.token_frequencies(self.public_texts, self.tokens), labels / labels.sum()

    def guess(self, truth: Truth, rng: torch.Generator, *, informed: bool) -> Reconstruction:
        """As many labels, and texts of the same lengths, drawn without having seen an update.

        Not informed: uniform labels and tokens, normal scores. Informed: tokens by how often the
        public texts have them, labels by how often auxiliary examples do, uniform where there are
        none; raises `NotImplementedError` without public texts.
        """
        if informed and not self.public_texts:
            raise NotImplementedError("there are no public texts: set task.public")
        if not informed:
            weights = torch.ones(len(self.tokens.pieces))
            weights[list(self.tokens.marks)] = 0
            uniform = torch.full((self.spec.classes,), 1 / self.spec.classes)
            return examples.random_guess(truth, self.tokens, weights, uniform, rng)
        weights, shares = self.frequencies
        shares = weights if self.task == "masked-lm" else shares
        expected = shares * (0 if truth.labels is None else len(truth.labels))
        return examples.random_guess(truth, self.tokens, weights, shares, rng, scores=expected)

    def render(self, claimed: Reconstruction, truth: Truth) -> dict[str, bytes]:
        """Two texts: the originals, a line each, and what was matched to each of them.

        Where only a bag of tokens is claimed, its pieces in one line. No file where neither is.
        """
        return examples.render_texts(claimed, truth, self.spec)
