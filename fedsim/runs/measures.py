"""How the metrics of a run are read: from its metrics.json, or from fedsim's own table."""

from pathlib import Path

from pydantic import TypeAdapter

from fedsim.metric import Measure

__all__ = ["MEASURES", "Measure", "Measures", "budget", "measure", "parse"]

_FORMAT = TypeAdapter(dict[str, Measure])


class Measures(dict[str, Measure]):
    """How each metric is read, by name; the title of an unknown metric is its name."""

    def __missing__(self, metric: str) -> Measure:
        return Measure(
            metric or "no metric",
            "A metric that this report has no words for; higher is taken as better.",
            "value {value} over {n} updates",
        )

    def rank(self, metric: str) -> float:
        """The rank of a metric; the one with the lowest rank is an adversary's main metric."""
        return self[metric].rank


def parse(text: bytes) -> Measures:
    """Parse metrics.json; metrics that it lacks are read as in fedsim's own table.

    Raises:
        ValueError: The text is not such a file.
    """
    return Measures(MEASURES | _FORMAT.validate_json(text))


MEASURES = Measures(_FORMAT.validate_json(Path(__file__).with_name("metrics.json").read_bytes()))
"""fedsim's own metrics, for run folders without metrics.json."""


def measure(metric: str) -> Measure:
    """How one of fedsim's own metrics is read."""
    return MEASURES[metric]


def budget(metric: str) -> str | None:
    """Which part of a privacy budget a metric of utility.csv is: "epsilon", "delta" ...; or None.

    If several defenses report, the name of the defense comes first: `client-dp.1 epsilon`.
    """
    part = metric.rpartition(" ")[2]
    return part if part in ("epsilon", "epsilon_released", "delta") else None
