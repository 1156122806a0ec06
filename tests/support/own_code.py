"""Modules and scenarios as a user has them beside each other, with nothing installed."""

import itertools
from pathlib import Path

PLUGINS = '''
"""An adversary, a defense, a metric and a task of one's own."""

from fedsim.adversary import Adversary
from fedsim.defense import Defense
from fedsim.knowledge import Knowledge
from fedsim.metric import Measure, Metric
from fedsim.records import Reconstruction
from fedsim.tasks.images import Images


class Mine(Adversary):
    """Claims the label whose bias gradient is lowest."""

    name = "lowest-bias"
    needs = Knowledge.HEAD_GRADIENT
    recovers = frozenset({"label_set"})

    def reconstruct(self, seen, job):
        bias = seen.know(Knowledge.HEAD_GRADIENT)[f"{seen.head}.bias"]
        return Reconstruction(label_set=frozenset({int(bias.argmin())}))


class Nameless(Mine):
    """The same without a name."""

    name = ""


class Halved(Defense):
    """Halves what is sent."""

    name = "halved"

    def protect(self, update, rng, state):
        return update.replace(tensors={k: v / 2 for k, v in update.tensors.items()})


class Size(Metric):
    """How many labels are claimed."""

    name = "claimed-labels"
    fields = ("label_set",)
    shown = Measure(title="Labels claimed", words="Labels claimed.", phrase="{value} claimed")

    def compute(self, claimed, truth, spec):
        return float(len(claimed.label_set))


class Few(Images):
    """Digits with fewer test examples."""

    name = "few-digits"


value = 3
'''

_NUMBER = itertools.count()


def fresh() -> str:
    """A name for a module that no other test of this process uses."""
    return f"own_code_{next(_NUMBER)}"


def beside(folder: Path, scenario: str, **modules: str) -> Path:
    """Write modules and a scenario (`scenario.toml`) into a folder; returns the scenario's path."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    path = folder / "scenario.toml"
    path.write_text(scenario)
    return path
