"""Tensors in files of a recording, the lines of its index, and how both are read."""

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as save_arrays
from safetensors.torch import save
from torch import Tensor

from fedsim.errors import RunFolderError
from fedsim.records import Kind, Reduction, Update

OPEN_FILES = 16
"""Number of recorded files that a process keeps open."""


class _Record(BaseModel):
    # Keys alone: names and digests of files are each other ones, and would fill a cache.
    model_config = ConfigDict(frozen=True, cache_strings="keys")


class Meaning(_Record):
    """The fields of an `Update` other than its arrays; `buffers` are names of arrays."""

    kind: Kind
    optimizer: str
    momentum: float
    weight_decay: float
    steps: int
    num_examples: int
    reduction: Reduction
    buffers: list[str]
    lr: float | None = None

    @classmethod
    def of(cls, update: Update) -> "Meaning":
        """What the arrays of an update mean."""
        fields = {name: getattr(update, name) for name in cls.model_fields}
        return cls(**{**fields, "buffers": list(update.buffers)})


class File(_Record):
    """A file of a recording: its path in there, the SHA-256 of its bytes, and their number."""

    name: Annotated[str, StringConstraints(pattern=r"^r\d{4,}/[\w+-]+\.safetensors$")]
    digest: str
    bytes: int

    @classmethod
    def found(cls, folder: Path, path: Path) -> "File":
        """Describe a file that is there already; raises `OSError`."""
        content, name = path.read_bytes(), path.relative_to(folder).as_posix()
        return cls(name=name, digest=hashlib.sha256(content).hexdigest(), bytes=len(content))


class Stored(_Record):
    """The files of an update: the arrays that its clients received, and the update itself."""

    meaning: Meaning
    before: File
    update: File


class Entry(_Record):
    """An update of a round; `files` is None if it was intercepted and not written."""

    clients: Annotated[tuple[int, ...], Field(min_length=1)]
    files: Stored | None = None
    kept: bool = False
    """Whether the files stay in the run folder after the run."""


class Round(_Record):
    """A round as the server saw it: its updates, and why other replies were refused, by client."""

    round: int
    updates: tuple[Entry, ...] = ()
    refused: dict[int, str] = {}
    before: File | None = None
    """The global arrays, if they stay for probes, whether or not an update does."""

    @property
    def kept(self) -> dict[str, int]:
        """The bytes of each file that stays after the run, by its path in the recording."""
        return self._bytes(one for one in self.updates if one.kept)

    @property
    def written(self) -> dict[str, int]:
        """The bytes of each file that was written, by its path in the recording."""
        return self._bytes(self.updates)

    def _bytes(self, updates: Iterable[Entry]) -> dict[str, int]:
        files = [self.before] if self.before else []
        for one in updates:
            files += [one.files.before, one.files.update] if one.files else []
        return {file.name: file.bytes for file in files}


class StoredTensors(Mapping[str, Tensor]):
    """Tensors of a recorded file, read when they are used; pickled as the file's path.

    Args:
        path: The file.
        digest: The SHA-256 that its bytes must have when it is opened.
        buffers: Names of the file's buffers.
        only_buffers: Whether these are the buffers, and not the other tensors.
    """

    def __init__(
        self, path: Path, digest: str, buffers: Iterable[str] = (), *, only_buffers: bool = False
    ) -> None:
        self.path, self.digest = path, digest
        self._buffers, self._only_buffers = frozenset(buffers), only_buffers

    def bytes_of_file(self) -> int:
        """The bytes of all tensors of the file, buffers or not, by its length and its header's.

        Raises:
            RunFolderError: The file cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                header = int.from_bytes(file.read(8), "little")
            return self.path.stat().st_size - 8 - header
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be read: {error}") from error

    def __getitem__(self, name: str) -> Tensor:
        if (name in self._buffers) != self._only_buffers:
            raise KeyError(name)
        tensor: Tensor = opened(self.path, self.digest).get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        names = opened(self.path, self.digest).keys()
        return (name for name in names if (name in self._buffers) == self._only_buffers)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def serialised(tensors: Mapping[str, Tensor], meta: dict[str, str]) -> bytes:
    """The content of a safetensors file."""
    try:  # three times as fast for a small model, and the same bytes
        arrays = {name: t.contiguous().numpy(force=True) for name, t in tensors.items()}
        return save_arrays(arrays, meta or None)
    except TypeError:  # NumPy has no bfloat16
        plain = {name: t.detach().contiguous().cpu() for name, t in tensors.items()}
        return save(plain, meta or None)


@functools.lru_cache(maxsize=OPEN_FILES)
def opened(path: Path, digest: str) -> Any:
    """Open a file of tensors.

    Args:
        path: The file.
        digest: The SHA-256 that its bytes must have.

    Returns:
        The file as safetensors opens it; its tensors are mapped into memory when they are used.

    Raises:
        RunFolderError: The file is missing, broken, or was changed.
    """
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != digest:
            raise RunFolderError(
                f"{path} cannot be read: it was changed after it was recorded (SHA-256 "
                f"{found[:12]}, expected {digest[:12]})"
            )
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error
