"""A figure of a paper on the embedded digits, small enough to be run whole."""

from pathlib import Path

TOML = """
description = "tiny"
seed = 3
[paper]
id = "test/{id}"
title = "Labels by batch size"
measure = {measure}
x = "{x}"
repetitions = 3
needs = "a data set of the moon"
remark = "the model is smaller"
{paper}
[paper.scale.paper]
"paper.repetitions" = 4
"sweep" = {{"training.batch_size" = [1, 4, 8]}}
{published}
[task]
data = "{data}"
composition = "unbalanced"
test_examples = 20
[training]
algorithm = "fedsgd"
rounds = {rounds}
clients = 1
[[adversaries]]
name = "llg"
[[adversaries]]
name = "idlg"
[engine]
workers = 1
[sweep]
"training.batch_size" = [1, 4]
"""
PUBLISHED = """
[[paper.published]]
series = ["llg"]
at_least = 0.9
[[paper.published]]
series = ["idlg"]
at = {"training.batch_size" = 1}
value = 1.0
source = "table"
[[paper.published]]
series = "llg"
at = {"training.batch_size" = [1, 4]}
at_most = 0.1
"""


def toml(folder: Path, name: str = "tiny", **changes: object) -> str:
    """The path of the figure's file; parts of it are replaced by these."""
    settings: dict[str, object] = {
        "id": "tiny",
        "measure": '"asr"',
        "x": "training.batch_size",
        "data": "digits",
        "rounds": 1,
        "paper": "",
        "published": PUBLISHED,
    }
    path = folder / f"{name}.toml"
    path.write_text(TOML.format(**{**settings, **changes}))
    return str(path)


def table(markdown: str, head: str) -> list[list[str]]:
    """The rows of the Markdown table whose head begins so."""
    text = markdown.split(f"| {head} |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]


def key(row: dict[str, str]) -> tuple[str, str]:
    return row["point"].rpartition("=")[2], row["label"]
