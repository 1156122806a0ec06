"""Keeps what the committed results rest on: the tables of the run folders, without their pictures.

    python benchmarks/results_rows.py keep OUT/llg [OUT/rlg/table2 ...]
    python benchmarks/results_rows.py restore OUT [llg rlg/table2 ...]

`keep` zips scenario, provenance and rows of every run folder below into `docs/results/rows/`, one
file a run folder, where `reproduce --out OUT` put them, or below `study/` if its scenario is of no
paper; a file whose content is the same stays as it is. `restore` puts them back where no run folder
is, so that on another machine `fedsim reproduce` goes on with the repetitions that are there, and
`--show` makes pages of them.
"""

import argparse
import io
import re
import tomllib
import zipfile
from pathlib import Path

ROWS = Path(__file__).parent.parent / "docs" / "results" / "rows"
TABLES = ("scenario.toml", "provenance.json", "points.csv", "utility.csv", "findings.csv")
FIRST = (1980, 1, 1, 0, 0, 0)
"""The time of every entry, so that equal rows make equal files."""
WHERE = re.compile(rb"^data_dir = .*\n", re.MULTILINE)
"""What of a scenario says where somebody keeps data, which is nobody else's business."""


def zipped(run: Path) -> bytes:
    """The tables of a run folder, as a zip file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name in TABLES:
            if (run / name).is_file():
                entry = zipfile.ZipInfo(name, FIRST)
                entry.compress_type = zipfile.ZIP_DEFLATED
                content = (run / name).read_bytes()
                file.writestr(entry, WHERE.sub(b"", content) if name == TABLES[0] else content)
    return packed.getvalue()


def place(run: Path) -> Path:
    """Where below a folder of results a run lies: PAPER/FIGURE/SCALE/SCENARIO, or study/RUN."""
    scenario = tomllib.loads((run / TABLES[0]).read_text(encoding="utf-8"))
    return Path(*run.resolve().parts[-4:]) if "paper" in scenario else Path("study", run.name)


def keep(folders: list[Path], rows: Path = ROWS) -> list[Path]:
    """Zip the run folders below these that hold a row; returns the files."""
    kept = []
    for run in sorted(path.parent for each in folders for path in each.rglob("findings.csv")):
        if not any(_lines(run / name) > 1 for name in ("findings.csv", "points.csv")):
            continue
        path = rows / f"{place(run)}.zip"  # with_suffix would cut off what follows a dot
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != zipped(run):
            path.write_bytes(zipped(run))
        kept.append(path)
    return kept


def _lines(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.is_file() else 0


def restore(out: Path, which: list[str], rows: Path = ROWS) -> list[Path]:
    """Unpack what was kept, all or of these papers and figures; returns the run folders made."""
    made = []
    for path in sorted(rows.rglob("*.zip")):
        run = path.relative_to(rows).with_suffix("")
        chosen = not which or {run.parts[0], f"{run.parts[0]}/{run.parts[1]}"} & {*which}
        if chosen and not (out / run).exists():
            (out / run).mkdir(parents=True)
            with zipfile.ZipFile(path) as file:
                for name in {*TABLES} & {*file.namelist()}:
                    (out / run / name).write_bytes(file.read(name))
            made.append(out / run)
    return made


def main() -> None:
    """Keep or restore, and say what."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["keep", "restore"])
    parser.add_argument("folder", type=Path, nargs=1)
    parser.add_argument("more", nargs="*", help="keep: folders; restore: papers and figures")
    options = parser.parse_args()
    if options.what == "keep":
        done = keep([*options.folder, *map(Path, options.more)])
    else:
        done = restore(*options.folder, options.more)
    if not done:
        raise SystemExit("no rows there, or their run folders exist already")
    for path in done:
        print(path)


if __name__ == "__main__":
    main()
