"""The recording: what the server intercepted, for attacks at the same time or a month later.

    tape/POINT/index.jsonl                   a line for each round, which names its files
    tape/POINT/r0003/before.safetensors      the global arrays of the round
    tape/POINT/r0003/c0017.safetensors       one update, described in the file's metadata

Tensors are stored as safetensors, never pickle, in the dtype that was sent. A file is written under
a partial name and renamed; the line of its round, with its SHA-256 digest, follows when the round's
files are complete. A later line for the same round replaces the earlier one. A killed process
loses no closed round; after a power failure the digests show which files were lost.
"""

import contextlib
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedsim.records import Interception, Update
from fedsim.runs.files import make_folder, opened, write_whole
from fedsim.runs.index import Index
from fedsim.runs.stored import Entry, File, Meaning, Round, Stored, StoredTensors, serialised
from fedsim.runs.tables import writing

INDEX = "index.jsonl"

AHEAD = 8
"""Files that wait to be written while training goes on."""


@functools.cache
def _writers(process: int) -> ThreadPoolExecutor:
    """The threads that write the files of a process; its forks do not have them."""
    return ThreadPoolExecutor(max_workers=2, thread_name_prefix="fedsim-recording")


class Recording:
    """The recorded interceptions of one point of a run.

    Args:
        folder: The point's folder, which is made with the first file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._open: dict[str, Entry] = {}
        self._writes: list[Future[None]] = []
        self._sent: list[tuple[Mapping[str, Tensor], File]] = []
        self._model: File | None = None
        self._rounds: Mapping[int, Round] | None = None

    @property
    def rounds(self) -> Mapping[int, Round]:
        """The recorded rounds by number, in order, each read when it is asked for.

        Raises:
            RunFolderError: The index cannot be read.
        """
        if self._rounds is None:
            try:
                self._rounds = Index(self.folder / INDEX)
            except FileNotFoundError:
                self._rounds = self._unindexed()
        return self._rounds

    def is_whole(self, last: int) -> bool:
        """Whether nothing recorded of the rounds up to one is lost; True if nothing is recorded."""
        if not (self.folder / INDEX).exists():
            return True
        lines = [self.rounds.get(round) for round in range(1, last + 1)]
        files = [
            (name, size, line.kept) for line in lines if line for name, size in line.written.items()
        ]
        return all(lines) and all(
            path.stat().st_size == size
            if (path := self.folder / name).exists()
            else name not in kept
            for name, size, kept in files
        )

    def has_all(self, last: int) -> bool:
        """Whether every update of the rounds up to one can be read."""
        lines = [self.rounds[round] for round in range(1, last + 1)]
        return all(self._there(one) for line in lines for one in line.updates)

    def write(self, interception: Interception) -> Interception:
        """Write an interception, if it is not written yet; the global arrays are written once.

        Files are written by threads; they are there after `flush` or `close`.

        Returns:
            The interception, with tensors that are read from the files.

        Raises:
            RunFolderError: A file cannot be written, such as on a full disk.
        """
        if not self._open:
            self._begin()
        if interception.victim not in self._open:
            update, place = interception.update, f"r{interception.round:04d}"
            meaning = Meaning.of(update)
            round = {"round": interception.round, "clients": interception.clients}
            before = self._before(interception)
            file = self._save(
                f"{place}/{interception.victim.partition('-')[2]}.safetensors",
                {**update.tensors, **update.buffers},
                {"fedsim": json.dumps({**meaning.model_dump(), **round})},
            )
            files = Stored(meaning=meaning, before=before, update=file)
            self._open[interception.victim] = Entry(clients=interception.clients, files=files)
        return self._read(interception.round, self._open[interception.victim])

    def write_model(self, interception: Interception) -> None:
        """Write the global arrays that an interception's clients received, to stay for probes.

        Raises:
            RunFolderError: The file cannot be written, such as on a full disk.
        """
        self._begin()
        self._model = self._before(interception)

    def flush(self) -> None:
        """Wait until all files are written; raises `RunFolderError` as `write` does."""
        while self._writes:
            self._writes.pop(0).result()

    @property
    def is_open(self) -> bool:
        """Whether files were written whose round is not closed."""
        return bool(self._open or self._model)

    record = write
    """The name that `write` had."""

    def close(
        self,
        round: int,
        interceptions: Iterable[Interception],
        refused: Mapping[int, str],
        kept: Iterable[str],
    ) -> None:
        """Write the line of a round to the index.

        Args:
            round: The number of the round.
            interceptions: All of the round's interceptions, written or not.
            refused: Why replies could not be used, by client.
            kept: Keys of the written interceptions that stay after the run.
        """
        self.flush()
        stay, updates = frozenset(kept), []
        for one in sorted(interceptions, key=lambda one: one.clients):
            entry = self._open.pop(one.victim, Entry(clients=one.clients))
            updates.append(entry.model_copy(update={"kept": one.victim in stay}))
        line = Round(round=round, updates=tuple(updates), refused=dict(refused), before=self._model)
        self._sent.clear()
        self._open.clear()  # also updates that were refused after they waited on disk
        self._model = None
        self._begin().append(line)

    def interceptions(self, round: int) -> dict[tuple[int, ...], Interception]:
        """The interceptions of a round that can be read, by their clients."""
        updates = self.rounds[round].updates if round in self.rounds else ()
        return {one.clients: self._read(round, one) for one in updates if self._there(one)}

    def model(self, round: int) -> StoredTensors | None:
        """The global arrays of a round, those that its first client received; None if lost."""
        line = self.rounds.get(round, Round(round=round))
        files = [line.before] if line.before else []
        files += [one.files.before for one in line.updates if one.files]
        kept = line.kept
        for file in files:
            if file.name in kept or (self.folder / file.name).exists():
                return StoredTensors(self.folder / file.name, file.digest)
        return None

    def history(self, client: int, before: int) -> tuple[list[Interception], bool]:
        """A client's interceptions in the rounds before one.

        Returns:
            Those that can be read, in order, and whether these are all.
        """
        rounds = self.rounds
        found = [
            (number, one)
            for number in (rounds.of(client) if isinstance(rounds, Index) else rounds)
            if number < before
            for one in rounds[number].updates
            if client in one.clients
        ]
        there = [self._read(number, one) for number, one in found if self._there(one)]
        return there, len(there) == len(found)

    def __iter__(self) -> Iterator[Interception]:
        """All interceptions that can be read, by round and client."""
        for number in self.rounds:
            yield from self.interceptions(number).values()

    @property
    def kept(self) -> dict[str, int]:
        """The bytes of each file that stays after the run, by its path in the folder."""
        rounds = self.rounds.values()
        return {name: size for round in rounds for name, size in round.kept.items()}

    def keep(self, kept: Mapping[int, Iterable[str]], models: Collection[int] = ()) -> None:
        """Decide anew which interceptions stay, and write the index again.

        Args:
            kept: Their keys, by round.
            models: Rounds whose global arrays stay for probes.
        """
        changed = dict[int, Round]()
        for number, round in self.rounds.items():
            stay = frozenset(kept.get(number, ()))
            updates = [
                one.model_copy(update={"kept": bool(one.files) and _key(number, one) in stay})
                for one in round.updates
            ]
            before = round.before if number in models else None
            changed[number] = round.model_copy(update={"updates": tuple(updates), "before": before})
        if isinstance(self.rounds, Index):
            self.rounds.replace(changed.values())
        else:
            self._rounds = changed

    def prune(self, round: int) -> None:
        """Remove the files of a round that do not stay."""
        kept = self.rounds[round].kept
        for path in (self.folder / f"r{round:04d}").glob("*.safetensors"):
            if path.relative_to(self.folder).as_posix() not in kept:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty, or not there
            (self.folder / f"r{round:04d}").rmdir()

    def remove(self) -> None:
        """Remove the whole folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._rounds = {}

    def _begin(self) -> Index:
        """Make an index before the first file: without one, a folder counts as of schema 1."""
        path = self.folder / INDEX
        if not isinstance(self._rounds, Index) or not path.exists():
            with writing(path):
                make_folder(self.folder)
                opened(path, "a").close()
            self._rounds = Index(path)
        return self._rounds

    def _before(self, interception: Interception) -> File:
        """The file of the arrays that an interception's clients received."""
        known = [file for arrays, file in self._sent if arrays is interception.before]
        if not known:
            number = f"-{len(self._sent)}" if self._sent else ""
            name = f"r{interception.round:04d}/before{number}.safetensors"
            known = [self._save(name, interception.before, {})]
            self._sent.append((interception.before, known[0]))
        return known[0]

    def _save(self, name: str, tensors: Mapping[str, Tensor], meta: dict[str, str]) -> File:
        """Write tensors under a partial name, and rename the file."""
        path = self.folder / name
        content = serialised(tensors, meta)

        def put() -> None:
            with writing(path):
                write_whole(path, content)

        self._writes.append(_writers(os.getpid()).submit(put))
        if len(self._writes) > AHEAD:
            self._writes.pop(0).result()
        return File(name=name, digest=hashlib.sha256(content).hexdigest(), bytes=len(content))

    def _there(self, entry: Entry) -> bool:
        """Whether an update can be read; that one which was kept is missing is found by reading."""
        if entry.files is None:
            return False
        return entry.kept or (self.folder / entry.files.update.name).exists()

    def _read(self, round: int, entry: Entry) -> Interception:
        """An interception whose tensors are read from its files."""
        assert entry.files is not None  # noqa: S101 - the caller has looked
        meaning = entry.files.meaning.model_dump()
        buffers, file = meaning.pop("buffers"), entry.files.update
        path, before = self.folder / file.name, entry.files.before
        update = Update(
            tensors=StoredTensors(path, file.digest, buffers),
            buffers=StoredTensors(path, file.digest, buffers, only_buffers=True),
            **meaning,
        )
        arrays = StoredTensors(self.folder / before.name, before.digest)
        return Interception(round, entry.clients, arrays, update)

    def _unindexed(self) -> dict[int, Round]:
        """The rounds that schema 1 of the run folder recorded, which had no index."""
        found: dict[int, Round] = {}
        for path in sorted(self.folder.glob("r*/c*.safetensors")):
            number, first = int(path.parent.name[1:]), int(path.stem[1:].partition("+")[0])
            round = found.get(number, Round(round=number))
            before = path.with_name("before.safetensors")
            try:
                with safe_open(path, framework="pt") as file:
                    meta = json.loads(file.metadata()["fedsim"])
                files = Stored(
                    meaning=Meaning.model_validate(meta),
                    before=File.found(self.folder, before),
                    update=File.found(self.folder, path),
                )
                entry = Entry(clients=meta["clients"], files=files, kept=True)
                change: dict[str, Any] = {"updates": (*round.updates, entry)}
            except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
                why = f"RunFolderError: {path} cannot be read: {type(error).__name__}: {error}"
                change = {"refused": {**round.refused, first: why}}
            found[number] = round.model_copy(update=change)
        return dict(sorted(found.items()))


def _key(round: int, entry: Entry) -> str:
    nothing = Update(tensors={}, kind="gradient")
    return Interception(round, entry.clients, {}, nothing).victim


Tape = Recording
"""The name that `Recording` had."""
