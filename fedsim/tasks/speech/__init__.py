"""The speech task: recognisers trained on the utterances of speakers."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fedsim.metrics import framed, word_errors, worded
from fedsim.records import Batch, Reconstruction, Reduction, Truth
from fedsim.seeds import torch_generator
from fedsim.spec import SpeechSpec
from fedsim.task import evaluating
from fedsim.tasks.models.factory import FACTORY
from fedsim.tasks.partition import ByLength
from fedsim.tasks.partitioned import claim_labels, render_lines, sample, shares_of
from fedsim.tasks.speech.checks import cautions, check_lengths
from fedsim.tasks.speech.data import Limits, frequent_speakers, load
from fedsim.tasks.speech.local import recordings_in
from fedsim.tasks.speech.recognisers import PADDING, RECOGNISERS, OwnRecogniser
from fedsim.tasks.speech.segments import select_by_duration
from fedsim.tasks.speech.settings import SpeechSettings
from fedsim.tasks.speech.spectrograms import Level, public_level, render_frames
from fedsim.tasks.speech.utterances import Recordings, Utterance, candidates, frames, held_out
from fedsim.tasks.speech.voices import RATE
from fedsim.tasks.transcripts import public_text
from fedsim.tasks.wordpieces import Pieces, characters, learn
from fedsim.victim import Loss

EVALUATED_AT_ONCE = 32
"""The number of utterances in a batch of an evaluation."""


class Speech(SpeechSettings):
    """Speech recognition on synthetic voices, local recordings or data sets of the Hub.

    Inputs are frames, float32 of shape (B, T, F), padded with 0 beyond `lengths`, int64 of shape
    (B,). Labels are int64 of shape (B, L), padded with -100. They are word pieces, each sequence
    ending with label 0, or characters without an end, as the recogniser needs them. A client's
    batches in a round are slices of a random permutation of its utterances, so that none repeats.
    If fewer than a batch are left, they are skipped and a new permutation begins.
    """

    name = "speech"
    keywords = ("speech recognition", "ASR", "audio", "voice", "transcription", "LibriSpeech")
    spec_type = SpeechSpec
    models: ClassVar[Mapping[str, type[BaseModel]]] = {**RECOGNISERS, FACTORY: OwnRecogniser}
    sources: ClassVar[Mapping[str, str]] = {
        "voices": "Synthetic voices that read sentences; built in",
        "NAME": "NAME.csv under --data: sound files, speakers, transcripts; or a folder NAME in "
        "the layout of LibriSpeech",
        "FOLDER": "Sound files in one subfolder a word: a folder under --data, or a path",
        "module:function": "A function of your own that returns samples, transcripts and speakers",
        "speech-commands": "Spoken words in the layout of Speech Commands, under --data",
        "hub:OWNER/SET[/CONFIG]": "A data set of the Hugging Face Hub with sound and transcripts",
    }

    @classmethod
    def local_data(cls, folder: Path) -> list[str]:
        """The recordings in a folder."""
        return recordings_in(folder)

    @functools.cached_property
    def recordings(self) -> Recordings:
        """All utterances that the settings select; their sound is decoded when it is needed."""
        limits = Limits(self.speakers, self.utterances, self.longest, self.per_length)
        found = load(self.data, self.folder, self.text, limits)
        if self.seconds is not None:
            found = select_by_duration(found, self.seconds, self.cut)
        if self.least_utterances is not None:
            found = frequent_speakers(found, self.least_utterances)
        return found

    @functools.cached_property
    def pieces(self) -> Pieces:
        """The labels of the recogniser: word pieces, learned when first used, or characters."""
        text = public_text(self.text, self.folder)
        if self.model.units == "characters":
            return characters(text)
        return learn(text, self.vocabulary)

    @functools.cached_property
    def splits(self) -> tuple[Tensor, Tensor, Tensor]:
        """Indices of the test, auxiliary and clients' utterances, int64."""
        tested, rest = self.recordings.split(self.test_fraction, self.seed)
        rest = rest[torch.randperm(len(rest), generator=torch_generator(self.seed, "auxiliary"))]
        held = held_out(
            [self.recordings[i].speaker for i in rest.tolist()],
            self.auxiliary_fraction,
            self.auxiliary_utterances,
            self.auxiliary_speakers,
            self.seed,
        )
        tested = sample(tested, self.test_examples, self.seed, "test examples")
        return tested.sort().values, rest[held].sort().values, rest[~held].sort().values

    @functools.cached_property
    def shares(self) -> Sequence[Tensor]:
        """For each client the indices of its utterances, int64."""
        rest = self.splits[2]
        if isinstance(self.partition, ByLength):
            labels = np.array([self.recordings[i].samples for i in rest.tolist()])
        else:
            labels = np.unique(self.recordings.speakers, return_inverse=True)[1][rest.numpy()]
        return shares_of(rest, self.partition.cut(labels, self.clients, self.seed))

    @property
    def spec(self) -> SpeechSpec:
        """The labels, the sample rate, the size of a frame, and the public speakers."""
        names, speakers = self.pieces.names, self.recordings.speakers
        _, public, private = self.splits
        known = candidates(*([speakers[i] for i in one.tolist()] for one in (public, private)))
        return SpeechSpec(
            len(names),
            sample_rate=RATE,
            features=self.features.size,
            pieces=names,
            attributes={"speaker": known} if known else {},
        )

    @property
    def draws_uniformly(self) -> bool:
        """Always true."""
        return True

    def fingerprint(self) -> str:
        """SHA-256 of the speakers, the transcripts and the sound."""
        return self.recordings.fingerprint()

    def cautions(self) -> list[str]:
        """What a user should know about the recordings, one sentence each.

        Raises:
            DataError: A recording has too few frames for its transcript under CTC.
        """
        found = [*super().cautions(), *cautions(self.recordings, self.features)]
        if self.model.units == "characters":
            found += check_lengths(self.recordings, self.features, self.pieces)
        if self.seconds is not None and self.features.trim is not None:
            found.append(
                "task.seconds is the length of recordings before task.features.trim cuts silence "
                "off their ends: clients train on shorter ones, and LENGTHS grants those lengths"
            )
        return found

    def truth(self, clients: Sequence[int], round: int, *, batch_size: int, steps: int) -> Truth:
        """The utterances behind an update: frames, labels, transcript and speaker of each."""
        drawn = [one for c in clients for one in self.drawn(c, round, batch_size, steps)]
        utterances = [self.recordings[i] for i in torch.cat(drawn).tolist()]
        inputs, sequences = self._examples(utterances)
        return Truth(
            inputs=[one.clone() for one in inputs],
            labels=torch.cat(sequences),
            sequences=sequences,
            lengths=[len(one) for one in inputs],
            text=[one.text for one in utterances],
            attributes={"speaker": [one.speaker for one in utterances]},
        )

    def auxiliary(self) -> Batch | None:
        """The utterances that no client holds, with their speakers; None if there are none.

        Tensors are new at every call.
        """
        index = self.splits[1]
        if not len(index):
            return None
        speakers = tuple(self.recordings[i].speaker for i in index.tolist())
        return replace(self.batch(index), attributes={"speaker": speakers})

    def _examples(self, utterances: Sequence[Utterance]) -> tuple[list[Tensor], list[Tensor]]:
        """The frames of utterances, shared and not to be written to, and their labels."""
        inputs = [frames(one, self.features) for one in utterances]
        return inputs, [self.pieces.encode(one.text) for one in utterances]

    def batch(self, index: Tensor, rng: torch.Generator | None = None) -> Batch:
        """The utterances with these indices, int64 of shape (B,), padded to one length."""
        inputs, labels = self._examples([self.recordings[i] for i in index.tolist()])
        return Batch(
            inputs=pad_sequence(inputs, batch_first=True),
            labels=pad_sequence(labels, batch_first=True, padding_value=PADDING),
            lengths=torch.tensor([len(one) for one in inputs]),
        )

    def build(self) -> nn.Module:
        """Build a recogniser of these frames, its weights drawn from torch's global generator."""
        return self.model.build(self.features.size, len(self.pieces.names))

    @functools.cached_property
    def head(self) -> str:
        """The name of the layer before the softmax over labels."""
        return self.model.find_head(self._initial, self.features.size, len(self.pieces.names))

    @property
    def loss(self) -> Loss:
        """The recogniser's training loss: cross-entropy or CTC."""
        return self.model.loss

    @property
    def reduction(self) -> Reduction:
        """What the loss is a mean over: word pieces, or utterances with CTC."""
        return self.model.reduction

    @property
    def points(self) -> tuple[str, ...]:
        """The points of the recogniser that take inputs."""
        return self.model.points

    def evaluate(self, module: nn.Module, client: int | None = None) -> dict[str, float]:
        """Compute mean loss and word error rate on the test split or on one client's utterances.

        The loss is a mean over word pieces, or over utterances with CTC. A transcript has at most
        one character per frame, or one word piece for every two frames. The module is put into
        evaluation mode, stays on its device, and gets its modes back.
        """
        index = self.splits[0] if client is None else self.share(client)
        spec, loss, summed, wrong, words = self.spec, 0.0, 0, 0, 0
        with evaluating(module) as device:
            for part in torch.split(index, EVALUATED_AT_ONCE):
                batch = self.batch(part).to(device)
                lengths = cast(Tensor, batch.lengths)
                count = len(batch)
                if self.reduction == "token":
                    count = int((batch.labels != PADDING).sum())
                loss += count * float(
                    self.loss(module, batch.inputs, batch.labels, lengths=lengths)
                )
                summed += count
                limits = lengths // 2 + 1 if self.model.units == "wordpieces" else lengths
                most = int(limits.max())
                transcripts = self.model.transcribe(module, batch.inputs, lengths, most)
                for i, limit, sequence in zip(
                    part.tolist(), limits.tolist(), transcripts, strict=True
                ):
                    original = self.recordings[i].text
                    wrong += word_errors(spec.spell(sequence[:limit].tolist()), original)
                    words += len(original.split())
        return {"loss": loss / summed, "wer": wrong / words, "num_examples": float(len(index))}

    def guess(self, truth: Truth, rng: torch.Generator, *, informed: bool) -> Reconstruction:
        """A random guess: as many labels as there are, in as many sequences of the same lengths.

        Labels are uniform and their scores standard normal. If informed, both follow the
        frequencies of labels in the public text.
        """
        sizes = [len(one) for one in truth.sequences or ()]
        count, classes = sum(sizes), len(self.pieces.names)
        if informed:
            frequencies = self.pieces.frequencies
            labels = torch.multinomial(frequencies, count, replacement=True, generator=rng)
            scores = count * frequencies
        else:
            labels = torch.randint(classes, (count,), generator=rng)
            scores = torch.randn(classes, generator=rng)
        sequences = torch.split(labels, sizes)
        return claim_labels(
            labels,
            scores,
            sequences=list(sequences),
            text=[self.spec.spell(one.tolist()) for one in sequences],
        )

    @functools.cached_property
    def level(self) -> Level | None:
        """The level at which normalised frames are shown: that of public utterances.

        It is None if frames are not normalised.
        """
        normalised = self.features.normalised
        return public_level(self.recordings, self.splits[1], self.features) if normalised else None

    def render(self, claimed: Reconstruction, truth: Truth) -> dict[str, bytes]:
        """Files that show the originals and what was matched to each.

        If transcripts are claimed, there are two texts with one utterance a line; if only labels
        are claimed, their pieces stand in one line. If frames are claimed, there is a picture and
        two sounds for each of up to four utterances (`fedsim.tasks.speech.spectrograms`). There is
        no file if nothing of this is claimed.
        """
        lines = list[str]()
        if claimed.text is not None or claimed.sequences is not None:
            lines = [ours for ours, _ in worded(claimed, truth, self.spec)]
        elif claimed.label_set is not None:
            pieces = self.pieces.names
            lines = [" ".join(pieces[k] for k in sorted(claimed.label_set) if 0 <= k < len(pieces))]
        files = render_lines(truth.text, lines)
        claims = framed(claimed, truth)
        if any(claim is not None for claim in claims):
            files |= render_frames(claims, list(truth.inputs or ()), self.features, self.level)
        return files
