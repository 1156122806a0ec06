"""What clients of another Flower project trained on, in files that stay on their machine.

A client's own process writes what `fedsim.watch` saw to a file of the truth store, and sends the
random name of that file along with its update. A server of the same user on the same machine moves
the file into its run folder, to score attacks. The examples never travel over the network.
"""

import contextlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedsim.errors import RunFolderError
from fedsim.records import Truth
from fedsim.runs.tables import writing

VARIABLE = "FEDSIM_TRUTH"
"""The environment variable that names another folder for the truth store."""

KEPT_SECONDS = 86_400
"""Age from which files that no server has taken are removed."""

NAME = re.compile(r"[0-9a-f]{32}")
"""Names of files in the truth store, which are drawn at random."""

OURS = re.compile(NAME.pattern + r"\.safetensors(\.part)?")
"""Files that the truth store may remove; the folder may hold others, which are not fedsim's."""


class Seen(BaseModel):
    """What hooks saw of one client's training in one round, apart from its examples.

    Attributes:
        round: The round, from 1.
        steps: Number of steps of its optimizers; 0 if none was used, as in FedSGD.
        optimizer: Class of the optimizer in lower case, such as "sgd"; "unknown" if there was none,
            "several" if there were two.
        lr: Learning rate of the first step; None without an optimizer. `momentum` and
            `weight_decay` likewise.
        training: Whether the model was in training mode.
        sizes: Number of examples of each batch, in the order of training.
        partial: Whether some inputs are missing, because they were too large.
        kind: Name of the optimizer's class.
        settings: Its arguments at the first step.
        rates: Its learning rate at each step.
        ends: For each step the number of batches so far.
        groups: Number of its groups of parameters.
        warm: Whether it had state before the first step.
    """

    model_config = ConfigDict(frozen=True)

    round: int
    steps: int = 0
    optimizer: str = "unknown"
    lr: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    training: bool = True
    sizes: tuple[int, ...] = ()
    partial: bool = False
    kind: str = ""
    settings: dict[str, Any] = {}
    rates: tuple[float, ...] = ()
    ends: tuple[int, ...] = ()
    groups: int = 0
    warm: bool = False


class TruthFile:
    """One client's batches of one round, read from a file.

    Args:
        path: The file.

    Attributes:
        seen: What else was seen of the training.

    Raises:
        RunFolderError: There is no such file, or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with safe_open(path, framework="pt") as file:
                self.seen = Seen.model_validate_json((file.metadata() or {})["fedsim"])
                self._tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, ValidationError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from error

    def _each(self, kind: str) -> list[Tensor]:
        names = (f"{kind}.{place}" for place in range(len(self.seen.sizes)))
        return [self._tensors[name] for name in names if name in self._tensors]

    @property
    def inputs(self) -> list[Tensor]:
        """The inputs of each batch, (B, ...), as the model received them; fewer if partial."""
        return self._each("inputs")

    @property
    def labels(self) -> list[Tensor]:
        """The labels of each batch, (B,) int64; empty if they were not found."""
        return self._each("labels")

    @property
    def rng(self) -> list[Tensor]:
        """The state of torch's generator before the model received each batch, uint8."""
        return self._each("rng")

    @property
    def after(self) -> dict[str, Tensor]:
        """The arrays that the training function replied with, before any defense, by name."""
        found = self._tensors.items()
        return {key.removeprefix("after."): one for key, one in found if key.startswith("after.")}

    def truth(self) -> Truth:
        """The examples, those of all batches together; inputs only if they are complete."""
        inputs, labels = self.inputs, self.labels
        whole = len(inputs) == len(self.seen.sizes)
        return Truth(
            inputs=[one for batch in inputs for one in batch] if whole and inputs else None,
            labels=torch.cat(labels) if labels else None,
        )


def store() -> Path:
    """The folder of the truth store, readable by its user alone; made if it is not there.

    Files that no server has taken for a day are removed.

    Raises:
        RunFolderError: It cannot be made, or belongs to another user.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    named = os.environ.get(VARIABLE)
    folder = Path(named) if named else Path(tempfile.gettempdir(), f"fedsim-truth-{user}")
    with writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != user or (folder.is_symlink() and not named):
            raise RunFolderError(
                f"{folder} belongs to another user; set {VARIABLE} to a folder of your own"
            )
        _sweep(folder)
    return folder


def _sweep(folder: Path) -> None:
    """Remove old files of servers that ended, or that are on another machine."""
    for path in folder.iterdir():
        if not OURS.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):  # another process removes them, too
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and time.time() - found.st_mtime > KEPT_SECONDS:
                path.unlink()


def discard(name: object) -> None:
    """Remove a file of the truth store, such as that of a client whose update was refused."""
    if isinstance(name, str) and NAME.fullmatch(name):
        (store() / f"{name}.safetensors").unlink(missing_ok=True)


def write(name: str, seen: Seen, tensors: Mapping[str, Tensor]) -> None:
    """Write a file of the truth store under a partial name, and rename it.

    Raises:
        RunFolderError: It cannot be written, such as on a full disk.
    """
    path = store() / f"{name}.safetensors"
    partial = path.with_name(f"{path.name}.part")
    plain = {key: value.contiguous() for key, value in tensors.items()}
    with writing(path):
        partial.write_bytes(save(plain, {"fedsim": seen.model_dump_json()}))
        partial.chmod(0o600)
        partial.replace(path)


def take(name: object, to: Path) -> TruthFile | None:
    """Move a file of the truth store into a run folder.

    Args:
        name: Its name, as a client sent it.
        to: Where it goes.

    Returns:
        The file; None if the name is none or there is no such file on this machine.

    Raises:
        RunFolderError: It cannot be moved or read.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return None
    path = store() / f"{name}.safetensors"
    if not path.is_file():
        return None
    with writing(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(path.read_bytes())
        path.unlink()
    return TruthFile(to)
