"""The text task: encoders and decoders of `transformers`, for classification or masked words."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
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
from fedsim.tasks.local_data import names_in
from fedsim.tasks.models.factory import FACTORY
from fedsim.tasks.partitioned import divide, sample, shares_of
from fedsim.tasks.text import examples
from fedsim.tasks.text.data import ENDINGS, MESSAGES, Texts, load, public_texts
from fedsim.tasks.text.languages import Language, OwnLanguage
from fedsim.tasks.text.languages.language import (
    PADDING,
    POINTS,
    classification_loss,
    embedding_name,
    logits,
    masked_loss,
    padding_id,
    sent_parameters,
)
from fedsim.tasks.text.languages.tokenizers import describe_tokenizer
from fedsim.tasks.text.messages import public_messages
from fedsim.tasks.text.settings import TextSettings
from fedsim.victim import Loss

EVALUATED_AT_ONCE = 64
"""The number of texts in a batch of an evaluation."""


class Text(TextSettings):
    """Text classification or masked language modelling on messages, tables or sets of the Hub.

    Inputs are token ids, int64 of shape (B, L), padded beyond `lengths`, int64 of shape (B,).
    Labels of a classifier are int64 of shape (B,). In masked language modelling the share `masked`
    of each text's tokens, but at least one, is replaced by the mask; labels of shape (B, L) hold
    the masked tokens, and -100 elsewhere. Batches are composed as those of the images task.
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
    models: ClassVar[Mapping[str, type[BaseModel]]] = {
        "transformers": Language,
        FACTORY: OwnLanguage,
    }
    sources: ClassVar[Mapping[str, str]] = {
        MESSAGES: "Short messages about access, health, money and plans, by sender; built in",
        "NAME": "NAME.jsonl, .csv, .tsv or .parquet under --data: a column of texts, one of labels",
        "module:function": "A function of your own that returns texts and labels",
        "hub:OWNER/SET[/CONFIG]": "A data set of the Hugging Face Hub with texts and labels",
    }

    @classmethod
    def local_data(cls, folder: Path) -> list[str]:
        """The tables in a folder."""
        return names_in(folder, inside="text", endings=ENDINGS)

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
        """Indices of the test, auxiliary and clients' texts of any length, int64.

        No auxiliary text equals a client's text, apart from case and spaces.
        """
        texts = self.texts
        tested = sample(texts.test, self.test_examples, self.seed, "test examples")
        kept = sample(texts.train, self.train_examples, self.seed, "training examples")
        free, rest = divide(kept, self.auxiliary_fraction, self.seed)
        unused, held = ([texts.texts[i] for i in part.tolist()] for part in (free, rest))
        return tested, free[examples.indices_not_in(unused, held)], rest

    @functools.cached_property
    def public_texts(self) -> tuple[str, ...]:
        """The public texts; none equals a client's text, apart from case and spaces."""
        name = self.public or (MESSAGES if self.data == MESSAGES else None)
        _, free, rest = self.splits
        if name is None:
            return tuple(self.texts.texts[i] for i in free.tolist())
        public = public_texts(name, self.folder)
        held = (self.texts.texts[i] for i in rest.tolist())
        return tuple(public[i] for i in examples.indices_not_in(public, held))

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of `transformers`, loaded or learned from public texts when first used."""
        # A few auxiliary texts contain too few word pieces, so embedded messages are added.
        read = tuple(dict.fromkeys((*self.public_texts, *public_messages())))
        return self.model.read(read, self.vocabulary)

    @functools.cached_property
    def tokens(self) -> Tokens:
        """What adversaries may know of the tokenizer; checks that the model can take `longest`."""
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

        Raises:
            DataError: A text is too long for the model, or the tokenizer knows no word of it.
        """
        index = torch.cat(self.splits).tolist()
        return examples.encode_texts(self.data, self.texts.texts, index, self.tokens, self.longest)

    def cautions(self) -> list[str]:
        """Those of any task, and one of texts that the tokenizer does not know whole."""
        more = examples.cut_texts(self.data, self.texts.texts, self.encoded, self.tokens)
        return [*super().cautions(), *more]

    @functools.cached_property
    def used(self) -> tuple[Tensor, Tensor, Tensor]:
        """Indices of the test, auxiliary and clients' texts that are short enough, int64."""
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
    def shares(self) -> Sequence[Tensor]:
        """For each client the indices of its texts, int64."""
        rest = self.used[2]
        by = examples.partition_labels(
            self.data, self.texts, rest, whose=self.partition.kind in ("sender", "speaker")
        )
        return shares_of(rest, self.partition.cut(by, self.clients, self.seed))

    @property
    def spec(self) -> TextSpec:
        """The labels, and the tokens that texts are made of."""
        labels = self.texts.names if self.task == "classification" else self.tokens.pieces
        return TextSpec(len(labels), tokens=self.tokens)

    def fingerprint(self) -> str:
        """SHA-256 of texts, labels and senders."""
        return self.texts.fingerprint()

    def truth(self, clients: Sequence[int], round: int, *, batch_size: int, steps: int) -> Truth:
        """The texts behind an update, as the tokenizer spells them, and their senders."""
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
        """The texts that no client holds, as new tensors at every call; None if there are none."""
        index = self.used[1]
        return self.batch(index) if len(index) else None

    def prior(self) -> tuple[str, ...] | None:
        """The public texts, from which language priors are estimated; None if there are none."""
        return self.public_texts or None

    def batch(self, index: Tensor, rng: torch.Generator | None = None) -> Batch:
        """The texts with these indices, int64 of shape (B,), padded to one length."""
        ids = [torch.tensor(self.encoded[i]) for i in index.tolist()]
        labels = self.labels[index]
        if self.task == "masked-lm":
            rng = rng or torch_generator(self.seed, "public masks")
            pairs = [examples.mask_tokens(one, self.masked, self.tokens, rng) for one in ids]
            ids, hidden = [fed for fed, _ in pairs], [target for _, target in pairs]
            labels = pad_sequence(hidden, batch_first=True, padding_value=PADDING)
        filled = padding_id(self.tokenizer)
        return Batch(
            inputs=pad_sequence(ids, batch_first=True, padding_value=filled),
            labels=labels,
            lengths=torch.tensor([len(one) for one in ids]),
        )

    def build(self) -> nn.Module:
        """Build a model, weights that are not stored drawn from torch's global generator."""
        classes = len(self.texts.names)
        return self.model.build(self.tokenizer, self.task, classes, self.dropout)

    @functools.cached_property
    def head(self) -> str:
        """The name of the layer before the softmax."""
        return self.model.find_head(self._initial, self.task)

    @functools.cached_property
    def words(self) -> str:
        """The name of the parameter that holds the word embeddings."""
        return embedding_name(self._initial)

    @property
    def loss(self) -> Loss:
        """Cross-entropy, mean over examples, or over all masked tokens of a batch."""
        masked = self.task == "masked-lm"
        return masked_loss if masked else classification_loss

    @property
    def reduction(self) -> Reduction:
        """What the loss is a mean over: examples of a classifier, otherwise masked tokens."""
        return "token" if self.task == "masked-lm" else "example"

    @property
    def points(self) -> tuple[str, ...]:
        """The kinds of inputs: token ids, and word embeddings before positions are added."""
        return POINTS

    def trained(self, module: nn.Module) -> frozenset[str]:
        """The names of the parameters that `parameters` selects."""
        return sent_parameters(module, self.parameters)

    def evaluate(self, module: nn.Module, client: int | None = None) -> dict[str, float]:
        """Compute mean loss and accuracy on the test split or on all of one client's texts.

        For a classifier, Matthews' correlation (`mcc`) is added, which is 0 if only one label is
        predicted. Masked tokens count one by one. The module keeps its device and its modes.
        """
        index = self.used[0] if client is None else self.share(client)
        rng = torch_generator(self.seed, "test masks", -1 if client is None else client)
        loss, predicted, true = 0.0, list[Tensor](), list[Tensor]()
        with evaluating(module) as device:
            for part in torch.split(index, EVALUATED_AT_ONCE):
                batch = self.batch(part, rng).to(device)
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

    @functools.cached_property
    def frequencies(self) -> tuple[Tensor, Tensor]:
        """The shares of tokens in public texts, of shape (V,), and of auxiliary labels, (classes,).

        Labels are uniform if there are no auxiliary examples.
        """
        labels = torch.bincount(self.labels[self.used[1]], minlength=len(self.texts.names))
        if not len(self.used[1]):
            labels = torch.ones_like(labels)
        return examples.token_frequencies(self.public_texts, self.tokens), labels / labels.sum()

    def guess(self, truth: Truth, rng: torch.Generator, *, informed: bool) -> Reconstruction:
        """A random guess: as many labels as there are, and texts of the same lengths.

        Labels and tokens are uniform and scores standard normal. If informed, tokens follow their
        frequencies in the public texts, and labels theirs among auxiliary examples.

        Raises:
            NotImplementedError: An informed guess is asked for and there are no public texts.
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
        """Files that show the original texts and what was matched to each, one text a line.

        If only a bag of tokens is claimed, its pieces stand in one line. There is no file if
        neither is claimed.
        """
        return examples.render_texts(claimed, truth, self.spec)
