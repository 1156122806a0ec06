"""Originals beside reconstructions: files of a run folder, embedded in its report up to a limit."""

import base64
import fnmatch
import re
from collections import Counter
from collections.abc import Mapping
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.inert import legible
from fedsim.runs.reading import TENSORS, Measures, inside, probe_of

if TYPE_CHECKING:
    import pandas as pd

# Only these may be embedded: SVG and HTML can contain scripts.
KINDS = {
    ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp",
    ".wav": "audio/wav", ".flac": "audio/flac", ".mp3": "audio/mpeg", ".txt": "text/plain",
}  # fmt: skip
FILE_LIMIT, PAGE_LIMIT, TEXT_LIMIT = 2_000_000, 24_000_000, 2000
SHOWN, EACH = 12, 5
TALL, WIDE, LARGEST = 208, 640, 20_000
"""Height and width in pixels at which a picture is shown at most, and those that are believed."""

ABOUT = "about.txt"

Exhibit = dict[str, Any]
Pair = tuple[Exhibit | None, Exhibit | None]


class Exhibits:
    """Embeds artifacts, and counts those that it refuses.

    Args:
        run_dir: The run folder.
        measures: How metrics are read.
        shown: The largest number of attacks of one adversary that are shown.
        limit: The largest number of bytes of all files together.
    """

    def __init__(
        self, run_dir: Path, measures: Measures, *, shown: int = SHOWN, limit: int = PAGE_LIMIT
    ) -> None:
        self.run_dir, self.measures, self.used, self.refused = run_dir, measures, 0, 0
        self.shown, self.limit = shown, limit

    def of(self, order: "pd.DataFrame", rows: "pd.DataFrame") -> dict[str, Any]:
        """Exhibits of attacks in the given order, evenly chosen if there are too many to show.

        Args:
            order: One row for each attack, from the best to the worst.
            rows: All rows of these attacks, for their scores.

        Returns:
            The keys items (the best, the median and the worst attack come first, named by `rank`),
            has_audio, notes, and the numbers of attacks shown and total.
        """
        order = order[order["artifact"] != ""]
        step = max(1.0, (len(order) - 1) / (self.shown - 1))
        places = [round(at * step) for at in range(min(len(order), self.shown))]
        middle = len(places) // 2
        first = {0: "Best", middle: "Median", len(places) - 1: "Worst"} if len(places) > 2 else {}
        apart = [at for at in range(len(places)) if at not in first]
        chosen = order.iloc[[places[at] for at in [*first, *apart]]]
        items: list[dict[str, Any]] = []
        notes: dict[str, None] = {}
        repeated = order["seed"].nunique() > 1
        for row, rank in zip(
            chosen.to_dict("records"), [*first.values(), *[""] * len(apart)], strict=True
        ):
            same = rows[(rows["victim"] == row["victim"]) & (rows["seed"] == row["seed"])]
            artifact = str(row["artifact"]).replace("\\", "/").rstrip("/")
            for pairs in self._figures(artifact):
                items.append(
                    {
                        "rank": rank,
                        "who": _who(row, repeated=repeated),
                        "of": {
                            "point": str(row["point"]),
                            "seed": str(row["seed"]),
                            "round": f"{row['round']:g}",
                            "client": str(row["client"]),
                            "status": str(row["status"]),
                        },
                        "scores": scores(same, self.measures, details=False),
                        "pairs": pairs,
                    }
                )
            about = f"{artifact}/{ABOUT}"
            note = self.embed(about) if inside(self.run_dir, about) else None
            if note:
                notes[note["text"]] = None
        shown = [one for item in items for pair in item["pairs"] for one in pair if one]
        return {
            "items": items,
            "has_audio": any(one["kind"] == "audio" for one in shown),
            "notes": [*notes],
            "shown": len(chosen),
            "total": len(order),
        }

    def _figures(self, artifact: str) -> list[list[Pair]]:
        """The files of one attack, grouped into figures: files that differ only in their suffix.

        The artifact is a file `reconstruction*`, or a folder of such files with a note `about.txt`
        about all of them. The file `original*` with the same suffix stands beside it, or one folder
        up if several adversaries share it. An image without an original is a sheet, with originals
        in the top row and the reconstruction of each below (`Task.render`); a text
        without one shows both as well. The file of tensors is not shown.
        """
        names = [artifact]
        if inside(self.run_dir, artifact, folder=True):
            found = sorted(path.name for path in (self.run_dir / artifact).iterdir())
            shown = [name for name in fnmatch.filter(found, "reconstruction*") if name != TENSORS]
            names = [f"{artifact}/{name}" for name in shown]
        figures: dict[str, list[str]] = {}
        for name in names:
            figures.setdefault(name.rpartition(".")[0], []).append(name)
        return [[self._pair(name) for name in own] for own in [*figures.values()][:EACH]]

    def _pair(self, name: str) -> Pair:
        """The original and the reconstruction, given the file name of the reconstruction."""
        folder, _, leaf = name.rpartition("/")
        twin = leaf.replace("reconstruction", "original")
        above = folder.rpartition("/")[0]
        places = [f"{folder}/{twin}", f"{above}/{twin}"] if twin != leaf else []
        place = next((place for place in places if inside(self.run_dir, place)), None)
        original, made = (self.embed(place) if place else None), self.embed(name)
        if original and made and original["kind"] == made["kind"] == "text":
            parts = marked(made["raw"], original["raw"])
            made["marked"] = [(legible(text), mark) for text, mark in parts]
        return original, made

    def embed(self, relative: str) -> Exhibit | None:
        """Embed a file of the run folder; None if it is missing, too large or of another kind."""
        path = inside(self.run_dir, relative)
        kind = KINDS.get(path.suffix.lower()) if path else None
        try:
            data = b"" if path is None or path.stat().st_size > FILE_LIMIT else path.read_bytes()
        except OSError:
            data = b""
        if path is None or kind is None or not data or self.used + len(data) > self.limit:
            self.refused += 1
            return None
        self.used += len(data)
        if kind == "text/plain":
            text = data.decode("utf-8", errors="replace").replace("\r\n", "\n")[:TEXT_LIMIT]
            return {"kind": "text", "text": legible(text), "raw": text}
        uri = f"data:{kind};base64,{base64.b64encode(data).decode()}"
        path_shown = path.relative_to(self.run_dir).as_posix()
        return {
            "kind": kind.split("/")[0],
            "uri": uri,
            "path": path_shown,
            "size": shown_size(data),
        }


def shown_size(data: bytes) -> tuple[int, int] | None:
    """The width and height at which the page shows a PNG file; None for other files.

    Small pictures are enlarged to `TALL` pixels of height, or `WIDE` of width.
    """
    if data[:8] != b"\x89PNG\r\n\x1a\n" or len(data) < 24:
        return None
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    if not 0 < width <= LARGEST or not 0 < height <= LARGEST:
        return None
    scale = min(TALL / height, WIDE / width)
    return max(1, round(width * scale)), max(1, round(height * scale))


def _who(row: Mapping[Any, Any], *, repeated: bool) -> str:
    """Whose update was attacked, with its seed if the exhibits are of several."""
    probe = probe_of(str(row["victim"])).rpartition("-")[2]
    seed = f", seed {row['seed']}" if repeated else ""
    return f"Client {row['client']}{probe and f', probe {probe}'}, round {row['round']:g}{seed}"


def scores(rows: "pd.DataFrame", measures: Measures, *, details: bool = True) -> str:
    """The scores of one attack in one line, or how it ended.

    Args:
        rows: The rows of the attack.
        measures: How metrics are read.
        details: Whether to include measures of detail; if there are no others, they are always
            included.
    """
    status = str(rows["status"].iloc[0])
    if status != "ok":
        return {"failed": "failed", "timeout": "ran out of time"}.get(status, status)
    every = [(measures[str(a)], b) for a, b in zip(rows["metric"], rows["value"], strict=True)]
    chief = [(how, value) for how, value in every if not how.detail]
    shown = []
    for how, value in every if details or not chief else chief:
        yes = how.kind == "yes/no" and value in (0, 1)
        shown.append(f"{how.title} {('no', 'yes')[int(value)] if yes else how.show(value)}")
    return ", ".join(shown)


Segment = tuple[str, str]


def marked(reconstruction: str, original: str) -> list[Segment]:
    """Split a reconstruction into segments (text, mark).

    The mark is "run" for words that follow or precede the same neighbour in the original, "word"
    for other words that occur in it, at most as often as they do, and "" for the rest. Case is
    ignored. Texts with the same number of lines are compared line by line, others as a whole.
    """
    ours, true = reconstruction.splitlines(keepends=True), original.splitlines()
    if len(ours) != len(true):
        ours, true = [reconstruction], [original]
    return [one for pair in zip(ours, true, strict=True) for one in _line(*pair)]


def _line(ours: str, true: str) -> list[Segment]:
    parts = re.findall(r"\w+|\W+", ours)
    places = [at for at, part in enumerate(parts) if re.match(r"\w", part)]
    words = [parts[at].casefold() for at in places]
    known = re.findall(r"\w+", true.casefold())
    marks = [""] * len(parts)
    left = Counter(known)
    blocks = SequenceMatcher(None, words, known, autojunk=False).get_matching_blocks()
    for block in blocks:
        for at in range(block.a, block.a + block.size):
            marks[places[at]] = "run" if block.size > 1 else "word"
            left[words[at]] -= 1
    for at, word in zip(places, words, strict=True):
        if not marks[at] and left[word] > 0:
            marks[at] = "word"
            left[word] -= 1
    return list(zip(parts, marks, strict=True))
