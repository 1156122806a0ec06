"""The index of a recording: its rounds, each read from the file when it is asked for.

A process that trains for thousands of rounds keeps the places of their lines, not their contents.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from fedsim.errors import RunFolderError
from fedsim.runs.files import make_folder, opened, write_whole
from fedsim.runs.stored import Round
from fedsim.runs.tables import cut_to_lines, writing


class Index(Mapping[int, Round]):
    """The recorded rounds by number, in order.

    Args:
        path: The file, a line a round; a later line for a round replaces the earlier one.

    Raises:
        FileNotFoundError: There is no such file.
        RunFolderError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read()

    def __getitem__(self, round: int) -> Round:
        place = self._places[round]
        try:
            with self.path.open("rb") as file:
                file.seek(place)
                line = file.readline()
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be read: {error}") from error
        return self._parsed(line, f"byte {place}")

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._places))

    def __len__(self) -> int:
        return len(self._places)

    def of(self, client: int) -> list[int]:
        """The rounds that may have an update of a client, in order."""
        return sorted({*self._rounds_of.get(client, ())})

    def append(self, round: Round) -> None:
        """Write the line of a round; raises `RunFolderError`."""
        with writing(self.path):
            make_folder(self.path.parent)
            with opened(self.path, "a+b") as file:
                cut_to_lines(file)
                place = file.seek(0, 2)
                file.write(_line(round))
        self._note(place, round)

    def replace(self, rounds: Iterable[Round]) -> None:
        """Write all lines again; raises `RunFolderError`."""
        with writing(self.path):
            write_whole(self.path, b"".join(map(_line, rounds)))
        self._read()

    def _read(self) -> None:
        """Find the places of the lines, and see that each can be read."""
        path = self.path
        self._places: dict[int, int] = {}
        self._rounds_of: dict[int, list[int]] = {}
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from error
        place = 0
        # What follows the last newline is incomplete.
        for number, line in enumerate(content.split(b"\n")[:-1], 1):
            self._note(place, self._parsed(line, f"line {number}"))
            place += len(line) + 1

    def _note(self, place: int, round: Round) -> None:
        number = round.round
        self._places[number] = place
        for one in round.updates:
            for client in one.clients:
                self._rounds_of.setdefault(client, []).append(number)

    def _parsed(self, line: bytes, where: str) -> Round:
        try:
            return Round.model_validate_json(line)
        except ValidationError as error:
            why = error.errors()[0]["msg"]
            raise RunFolderError(f"{self.path} cannot be read: {where}: {why}") from error


def _line(round: Round) -> bytes:
    return round.model_dump_json(exclude_defaults=True).encode() + b"\n"
