"""Curves as a run of MLflow, on a tracking server or in a database."""

import logging
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from fedsim.scenario import Scenario
from fedsim.scenario.settings import MLflowSink

ENDS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
ASIDE = ("data_dir", "search_dirs", "sinks", "sweep", "paper")
"""Keys of the scenario that are no parameters."""
AT_ONCE, LONGEST = 100, 500
"""The largest number of parameters in a request, and of characters in one."""


class MLflow:
    """A run of MLflow for one point, whose parameters are the keys of the scenario.

    Args:
        settings: The table `[sinks.mlflow]`.
        point: The name of the point, "" without a sweep.
        scenario: What runs.
    """

    def __init__(self, settings: MLflowSink, point: str, scenario: Scenario) -> None:
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self._client = MlflowClient(settings.uri or None)
        found = self._client.get_experiment_by_name(settings.experiment)
        number = (
            self._client.create_experiment(settings.experiment)
            if found is None
            else found.experiment_id
        )
        name = f"{scenario.name}: {point}" if point else scenario.name
        run = self._client.create_run(number, run_name=name, tags={"fedsim.point": point})
        self._run = run.info.run_id
        table = {key: value for key, value in scenario.to_dict().items() if key not in ASIDE}
        params = [Param(_name(key), str(value)[:LONGEST]) for key, value in _flat(table, "")]
        for start in range(0, len(params), AT_ONCE):
            self._client.log_batch(self._run, params=params[start : start + AT_ONCE])

    def log(self, values: Mapping[str, float], round: int) -> None:
        """Add a value to each of several curves."""
        now = int(1000 * time.time())
        curves = [Metric(_name(name), value, now, round) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=curves)

    def close(self, status: str) -> None:
        """End the run of MLflow."""
        self._client.set_terminated(self._run, ENDS[status])


def _name(text: str) -> str:
    """A name with the characters that MLflow allows."""
    return re.sub(r"[^\w./ :-]", "_", text)


def _flat(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Nested tables as pairs of a dotted key and a value; tables of a list by their position."""
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        yield key, value
        return
    for name, one in value.items():
        yield from _flat(one, f"{key}.{name}" if key else str(name))
