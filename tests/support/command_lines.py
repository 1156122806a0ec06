"""Command lines that are written somewhere: whether their programs take them."""

import re
import shlex
import warnings
from itertools import pairwise

import typer
from ray.scripts.scripts import cli as ray

from fedsim.cli import app
from fedsim.scenario import Scenario

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of Typer, about Flower's options
    from flwr.cli.app import app as flwr


def accepted(command: list[str]) -> None:
    """Fail unless the command line of fedsim, Ray or Flower takes these words."""
    program, *words = command
    group = {"fedsim": app, "flwr": flwr, "ray": ray}[program]
    found = typer.main.get_command(group) if isinstance(group, typer.Typer) else group
    while hasattr(found, "commands"):
        name, *words = words
        found = found.commands[name]
    found.make_context(program, words)


def loaded(command: list[str]) -> None:
    """Fail unless the scenario of `fedsim run` or `fedsim check` takes its overrides."""
    program, verb, *words = command
    if program == "fedsim" and verb in ("run", "check"):
        Scenario.load(words[0], [b for a, b in pairwise(words) if a == "--set"]).points()


def commands(text: str) -> list[list[str]]:
    """The commands of fedsim, Ray and Flower in a text, also those that another program starts."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        # What a Slurm script is given are arguments of `fedsim run`.
        plain = re.sub(r"^sbatch (.* )?fedsim\.sbatch", "fedsim run", line)
        if words := re.search(r"(?:^| )((?:fedsim|flwr|ray) [a-z].*)", plain):
            found.append(shlex.split(words[1]))
    return found
