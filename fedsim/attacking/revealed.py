"""The task of another Flower project, made from its model and what its clients revealed."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Self

import torch
from pydantic import PrivateAttr
from torch import Tensor, nn

from fedsim.adversary import Adversary
from fedsim.attacking.classifier import Classifier
from fedsim.attacking.consistency import consistency
from fedsim.attacking.guesses import Pool, guess_inputs
from fedsim.attacking.unrepeatable import NO_CLASSES
from fedsim.errors import DataError
from fedsim.knowledge import Knowledge
from fedsim.libraries import brief
from fedsim.records import Batch, Interception, Reconstruction, Truth
from fedsim.runs.truth import Seen, TruthFile
from fedsim.spec import Spec
from fedsim.task import Task
from fedsim.tasks.classification import cross_entropy
from fedsim.victim import Loss, VictimModel

FOLDER = "truth"
"""The folder of a run folder that holds what clients revealed."""


class Revealed(Task):
    """A classifier of another Flower project, whose clients reveal what they train on.

    Nothing can be trained with it: the clients have their data themselves. Its truth is what
    `fedsim.watch` saw, and its guesses are drawn from the examples of the other clients.
    """

    name = "revealed"

    _project: Classifier = PrivateAttr()
    _files: dict[tuple[int, int], TruthFile] = PrivateAttr(default_factory=dict)
    _pool: Pool = PrivateAttr(default_factory=Pool)
    _checks: dict[tuple[int, int], str] = PrivateAttr(default_factory=dict)
    _steps_stated: bool = PrivateAttr(default=True)
    _read: tuple[tuple[int, int], Truth] | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, project: Classifier, *, clients: int, seed: int) -> Self:
        """Make the task of a project that is known; see `fedsim.attacking.modalities`."""
        task = cls(clients=clients, seed=seed)
        task._project = project
        return task

    def add(self, client: int, round: int, file: TruthFile) -> None:
        """Note what a client revealed; the first round serves guesses on other clients."""
        self._files[client, round] = file
        if round == min(at for _, at in self._files):
            self._pool.add(client, self._truth_of(file))

    @property
    def spec(self) -> Spec:
        """The number of classes and, of images, their shape."""
        return self._project.spec

    @property
    def head(self) -> str:
        """The name of the projection layer."""
        return self._project.head

    @property
    def words(self) -> str | None:
        """The name of the parameter that holds the word embeddings; None without texts."""
        return self._project.words

    @property
    def loss(self) -> Loss:
        """The training loss."""
        return self._project.loss

    @property
    def points(self) -> tuple[str, ...]:
        """The points of the model at which the loss takes inputs."""
        return self._project.points

    def unsuited(self, adversary: Adversary) -> str:
        """Say why an adversary cannot work on the project's inputs or its model; "" if it may."""
        for one in (adversary, *adversary.parts().values()):
            if type(self.spec) is Spec and Spec not in one.suits:
                modalities = " or ".join(kind.modality for kind in one.suits)
                return (
                    f"{one.name} attacks {modalities}, and the clients' inputs are none of them: "
                    "of these, labels alone are attacked"
                )
        if found := adversary.unsuited(self.spec_type, self.name):
            return found[0]
        try:
            adversary.cautions(self.victim({}))
        except DataError as impossible:
            return str(impossible)
        return ""

    def build(self) -> nn.Module:
        """Make the model."""
        return self._project.make()

    def batches(self, client: int, round: int, *, batch_size: int, steps: int) -> list[Batch]:
        """Nothing can be trained on what was revealed; raises `DataError`."""
        raise DataError("the clients of another Flower project have their data themselves")

    def num_examples(self, client: int) -> int:
        """Not known; 0."""
        return 0

    def fingerprint(self) -> str:
        """The data are the clients' own, and have no hash."""
        return "revealed by the clients"

    def evaluate(self, module: nn.Module, client: int | None = None) -> dict[str, float]:
        """There are no data to evaluate a model on; raises `DataError`."""
        raise DataError("the clients of another Flower project have their data themselves")

    def truth(self, clients: Sequence[int], round: int, *, batch_size: int, steps: int) -> Truth:
        """What a client revealed; empty if it revealed nothing."""
        key = (clients[0], round)
        if key not in self._files or len(clients) > 1:
            return Truth()
        if self._read is None or self._read[0] != key:  # one row asks for it several times
            self._read = key, self._truth_of(self._files[key])
        return self._read[1]

    def _truth_of(self, file: TruthFile) -> Truth:
        return file.truth(self.spec.classes)

    def seen(self, clients: Sequence[int], round: int) -> Seen | None:
        """What else was seen of a client's training; None if nothing was."""
        file = self._files.get((clients[0], round)) if len(clients) == 1 else None
        return file.seen if file else None

    def stating(self, *, steps: bool) -> None:
        """Note whether the number of local steps is stated, and known of clients that hide it."""
        self._steps_stated = steps

    def unknown(self, clients: Sequence[int], round: int) -> Knowledge:
        """What nobody knows of a client's training, so that no adversary can be granted it."""
        seen = self.seen(clients, round)
        known = self._steps_stated or (seen is not None and seen.steps > 0)
        return Knowledge(0) if known else Knowledge.LOCAL_STEPS

    def state(self, clients: Sequence[int], round: int) -> str:
        """Whether a client's examples are known: "revealed", "partial" or "absent"."""
        found = self.truth(clients, round, batch_size=1, steps=1)
        if found.labels is None and found.inputs is None:
            return "absent"
        return "partial" if found.labels is None or found.inputs is None else "revealed"

    def checked(self, clients: Sequence[int], round: int, before: Mapping[str, Tensor]) -> str:
        """Whether what a client revealed explains its update; see `consistency`.

        The first misfit is a warning at once.
        """
        key = (clients[0], round)
        if key not in self._files:
            return "not checked: the client revealed nothing"
        if key not in self._checks:
            found = self._consistency(key, before)
            if found.startswith("misfit") and not any(
                one.startswith("misfit") for one in self._checks.values()
            ):
                warnings.warn(
                    f"what client {clients[0]} revealed in round {round} does not explain its "
                    f"update ({found}): attacks on it are marked 'unverified', and count nowhere",
                    stacklevel=2,
                )
            assumed = self._project.loss is cross_entropy
            if assumed and found.endswith(NO_CLASSES) and found not in self._checks.values():
                warnings.warn(
                    f"what client {clients[0]} revealed in round {round} has no class labels "
                    f"({NO_CLASSES}), and no loss is stated: attacks that match gradients take "
                    "the cross-entropy of classes for it, and that they find nothing with another "
                    "one proves nothing. Give loss=",
                    stacklevel=2,
                )
            self._checks[key] = found
        return self._checks[key]

    def _consistency(self, key: tuple[int, int], before: Mapping[str, Tensor]) -> str:
        project = self._project
        try:
            return consistency(
                self._files[key],
                before,
                project.make,
                project.loss,
                self._truth_of(self._files[key]),
            )
        except Exception as reason:  # whatever a model, or a client's file, does
            return f"not checked: {brief(reason)}"

    def guess(
        self,
        truth: Truth,
        rng: torch.Generator,
        *,
        informed: bool,
        clients: Collection[int] = (),
    ) -> Reconstruction:
        """Guess as many examples as there are, from those that other clients revealed.

        Args:
            truth: The client's examples; none of them is used.
            rng: Source of randomness.
            informed: Claim the mean input, and labels by their frequencies; otherwise examples of
                other clients, and labels that are uniform at random.
            clients: Whose examples they are, of which no round's example is used.

        Raises:
            NotImplementedError: No other client revealed an example.
        """
        others = self._pool.others(truth, clients, labelled=False)
        count, classes = truth.num_examples, self._project.spec.classes
        return guess_inputs(others, count, classes, rng, informed=informed)


def as_trained(task: Task, model: VictimModel, one: Interception) -> VictimModel:
    """Put a model in the mode in which a client was seen to train it, in place.

    It stays in training mode where nothing was seen, as with any other task.
    """
    if isinstance(task, Revealed) and (seen := task.seen(one.clients, one.round)):
        seen.set_mode(model.module)
    return model
