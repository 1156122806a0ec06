"""The tasks of other Flower projects, by the modality of their inputs."""

import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedsim.attacking.classifier import Classifier, firsts, seen_range
from fedsim.attacking.guesses import guess_texts, guess_transcripts
from fedsim.attacking.revealed import FOLDER, Revealed
from fedsim.attacking.texts import shown_texts
from fedsim.attacking.utterances import sequences_of, shown_utterances
from fedsim.errors import ScenarioError
from fedsim.records import Reconstruction, Truth
from fedsim.runs.truth import TruthFile
from fedsim.scenario import Scenario
from fedsim.spec import ImageSpec, Spec, SpeechSpec, TabularSpec, TextSpec
from fedsim.tasks.images import side_by_side
from fedsim.tasks.tabular import side_by_side as rows_side_by_side
from fedsim.victim import Loss


class RevealedImages(Revealed):
    """Images that clients of another Flower project reveal."""

    spec_type: ClassVar[type[Spec]] = ImageSpec

    def render(self, claimed: Reconstruction, truth: Truth) -> dict[str, bytes]:
        """A PNG of up to 16 originals, with what was matched to each of them below it.

        Inputs that the clients normalised are scaled to the range of the originals.
        """
        if not claimed.inputs or not truth.inputs or truth.inputs[0].shape[0] not in (1, 3):
            return {}
        originals = torch.stack(list(truth.inputs))
        low, high = self._project.spec.input_range or (
            float(originals.min()),
            float(originals.max()),
        )
        span = (high - low) or 1.0
        claims, shown = ([(x - low) / span for x in each] for each in (claimed.inputs, originals))
        return {"reconstruction.png": side_by_side(claims, shown)}


class RevealedTables(Revealed):
    """Rows of tables that clients of another Flower project reveal; columns are x0, x1, ..."""

    spec_type: ClassVar[type[Spec]] = TabularSpec

    def render(self, claimed: Reconstruction, truth: Truth) -> dict[str, bytes]:
        """Original rows and what was matched to each, as text and as CSV."""
        if not claimed.inputs or not truth.inputs:
            return {}
        spec = self.spec.require(TabularSpec)
        return rows_side_by_side(claimed.inputs, truth.inputs, spec)


class RevealedTexts(Revealed):
    """Texts that clients of another Flower project reveal, as token ids without padding."""

    spec_type: ClassVar[type[Spec]] = TextSpec

    def _truth_of(self, file: TruthFile) -> Truth:
        found, tokens = super()._truth_of(file), self.spec.require(TextSpec).tokens
        if found.inputs is None:
            return found
        padding = tokens.special.get("pad", -1)
        ids = [one[one != padding].long() for one in found.inputs]
        return dataclasses.replace(
            found,
            inputs=ids,
            tokens=ids,
            lengths=[len(one) for one in ids],
            text=[tokens.spell(one.tolist()) for one in ids],
        )

    def guess(
        self,
        truth: Truth,
        rng: torch.Generator,
        *,
        informed: bool,
        clients: Collection[int] = (),
    ) -> Reconstruction:
        """Guess labels, and texts of the same lengths.

        If informed, tokens and labels are drawn by their frequencies among the examples of other
        clients; otherwise both are uniform.

        Raises:
            NotImplementedError: No other client revealed an example.
        """
        others = self._pool.others(truth, clients, labelled=False) if informed else []
        tokens = self.spec.require(TextSpec).tokens
        return guess_texts(others, truth, tokens, self.spec.classes, rng)

    def render(self, claimed: Reconstruction, truth: Truth) -> dict[str, bytes]:
        """Original texts and what was matched to each, one a line; or the claims alone."""
        return shown_texts(claimed, truth, self.spec.require(TextSpec))


class RevealedUtterances(Revealed):
    """Utterances that clients of another Flower project reveal: frames, and labels for CTC.

    An utterance has the frames that the model received, those of padding among them. A label is
    written as its number.
    """

    spec_type: ClassVar[type[Spec]] = SpeechSpec

    def _truth_of(self, file: TruthFile) -> Truth:
        spec, inputs = self.spec.require(SpeechSpec), super()._truth_of(file).inputs
        sequences = sequences_of(file.labels, spec.classes)
        if sequences is None or len(sequences) != sum(file.seen.sizes):
            return Truth(inputs=inputs)
        return Truth(
            inputs=inputs,
            labels=torch.cat(sequences),
            sequences=sequences,
            lengths=None if inputs is None else [len(one) for one in inputs],
            text=[spec.spell(one.tolist()) for one in sequences],
        )

    def guess(
        self,
        truth: Truth,
        rng: torch.Generator,
        *,
        informed: bool,
        clients: Collection[int] = (),
    ) -> Reconstruction:
        """Guess label sequences of the same lengths, no frames.

        If informed, labels are drawn by their frequencies among the utterances of other clients;
        otherwise they are uniform.

        Raises:
            NotImplementedError: No other client revealed an utterance.
        """
        others = self._pool.others(truth, clients) if informed else []
        return guess_transcripts(others, truth, self.spec.require(SpeechSpec), rng)

    def render(self, claimed: Reconstruction, truth: Truth) -> dict[str, bytes]:
        """Label sequences beside the true ones, and frames as pictures; see `shown_utterances`."""
        return shown_utterances(claimed, truth, self.spec.require(SpeechSpec))


KINDS: tuple[type[Revealed], ...] = (
    RevealedImages,
    RevealedTables,
    RevealedTexts,
    RevealedUtterances,
)
"""The tasks whose inputs are attacked; of other inputs, the labels alone."""


def revealed_task(
    make: Callable[[], nn.Module],
    example: Tensor,
    *,
    loss: Loss | None = None,
    clients: int = 1,
    seed: int = 0,
    input_range: tuple[float, float] | None = None,
) -> Revealed:
    """Make the task from the project's model and one of its inputs.

    Args:
        make: Makes the model, such as its class.
        example: One input, without the batch dimension: an image (C, H, W), a row of a table (F,)
            or, for a model with logits of each frame, frames (T, F), in floating point; token ids
            (L,), integers; or anything else, of which labels alone are attacked.
        loss: The training loss, called as `cross_entropy` is, which is the default; for frames
            as `utterance_loss`, CTC.
        clients: The number of clients.
        seed: The run's seed.
        input_range: Smallest and largest value of an image's inputs, None if unbounded.

    Raises:
        ScenarioError: `make` makes no module, or it cannot take the example.
    """
    known = Classifier.of(make, example, loss=loss, seed=seed, input_range=input_range)
    kind = next((one for one in KINDS if type(known.spec) is one.spec_type), Revealed)
    return kind.of(known, clients=clients, seed=seed)


def revealed_task_of_run(
    folder: Path, make: Callable[[], nn.Module], loss: Loss | None, scenario: Scenario
) -> Revealed:
    """Make the task of a recorded run again, from what its clients revealed then.

    Args:
        folder: The run folder.
        make: Makes the model, such as its class.
        loss: The training loss; cross-entropy by default.
        scenario: The run's scenario, for its seed and number of clients.

    Raises:
        ScenarioError: Nothing was revealed, or the model does not fit.
        RunFolderError: A file cannot be read.
    """
    files = [TruthFile(path) for path in sorted((folder / FOLDER).glob("r*-c*.safetensors"))]
    example = next((batch[0] for batch in firsts(files)), None)
    if example is None:
        raise ScenarioError(f"{folder} has no examples that clients revealed; give a task")
    clients, seed = scenario.training.clients, scenario.seed
    begun = [one for one in files if one.path.stem[:5] == files[0].path.stem[:5]]
    bounds = seen_range(example, firsts(begun))
    task = revealed_task(make, example, loss=loss, clients=clients, seed=seed, input_range=bounds)
    for one in files:
        round, client = one.path.stem.split("-c")
        task.add(int(client), int(round[1:]), one)
    return task
