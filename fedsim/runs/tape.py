"""Recorded interceptions, which further adversaries can attack without training again.

    tape/POINT/r0003/before.safetensors          the global arrays of the round
    tape/POINT/r0003/c0017.safetensors           one update, described in the file's metadata

Tensors are stored as safetensors, never pickle.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedsim.errors import RunFolderError
from fedsim.records import Interception, Update

_META = [field.name for field in fields(Update) if field.name not in ("tensors", "buffers")]


class Tape:
    """The recorded interceptions of one point of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def record(self, interception: Interception) -> None:
        """Write an interception; the global arrays of a round are written once."""
        place = self.folder / f"r{interception.round:04d}"
        place.mkdir(parents=True, exist_ok=True)
        before = place / "before.safetensors"
        if not before.exists():
            _save(interception.before, before, {})
        update = interception.update
        meta = {key: getattr(update, key) for key in _META} | {
            "round": interception.round,
            "clients": interception.clients,
            "buffers": list(update.buffers),
        }
        name = interception.victim.partition("-")[2]
        _save(
            {**update.tensors, **update.buffers},
            place / f"{name}.safetensors",
            {"fedsim": json.dumps(meta)},
        )

    def __iter__(self) -> Iterator[Interception]:
        """Read all interceptions, by round and client; raises `RunFolderError`."""
        for place in sorted(self.folder.glob("r*")):
            before, _ = _load(place / "before.safetensors")
            for path in sorted(place.glob("c*.safetensors")):
                tensors, stored = _load(path)
                if "fedsim" not in stored:
                    raise RunFolderError(f"{path} cannot be read: it was not recorded by fedsim")
                meta: dict[str, Any] = json.loads(stored["fedsim"])
                buffers = {name: tensors.pop(name) for name in meta["buffers"]}
                update = Update(tensors=tensors, buffers=buffers, **{k: meta[k] for k in _META})
                yield Interception(meta["round"], tuple(meta["clients"]), before, update)


def _save(tensors: Mapping[str, Tensor], path: Path, meta: dict[str, str]) -> None:
    partial = path.with_name(path.name + ".part")
    save_file({k: v.detach().contiguous().cpu() for k, v in tensors.items()}, partial, meta)
    partial.replace(path)


def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error
