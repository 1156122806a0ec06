"""The smallest federation that still trains on real images, and one client of it, asked alone."""

import csv
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from torch import Tensor

from fedsim.engine.inline import InlineGrid
from fedsim.engine.simulate import simulate
from fedsim.errors import EngineError
from fedsim.federation.client import UPDATE_KEY
from fedsim.scenario import Scenario
from fedsim.seeds import derive, reseed
from fedsim.testing.examples import device_of_tests

TASK = {"data": "digits", "model": "cnn", "test_examples": 20}
TRAINING = {
    "algorithm": "fedsgd",
    "rounds": 2,
    "clients": 6,
    "clients_per_round": 4,
    "batch_size": 4,
}


def scenario(**changes: Any) -> Scenario:
    """Six clients, four a round, two rounds, LLG on all; tables are merged with these.

    Adversaries run in the process that attacks; `tests/isolation` has those that do not. What runs
    in this process computes on the device of FEDSIM_TEST_DEVICE, if it is set.
    """
    engine = changes.get("engine", {"workers": 1})
    if engine.get("name", "inline") == "inline" and engine.get("workers") == 1:
        engine = {"device": device_of_tests("auto"), **engine}
    table: dict[str, Any] = {
        "name": "tiny",
        "seed": 3,
        "adversaries": [{"name": "llg"}],
        **changes,
        "engine": engine,
        "threat": {"isolation": "none", **changes.get("threat", {})},
        "task": {**TASK, **changes.get("task", {})},
        "training": {**TRAINING, **changes.get("training", {})},
    }
    return Scenario.parse(table)


def faulty(how: str, **changes: Any) -> Scenario:
    """All six clients take part, and client 2 fails in round 2."""
    settings = {"clients_per_round": 6, **changes.pop("training", {})}
    return scenario(defenses=[{"name": "faulty", "how": how}], training=settings, **changes)


def rows(folder: Path, name: str = "findings.csv", *, empty: bool = False) -> list[dict[str, str]]:
    """A table of a run folder, which has rows unless it may be empty."""
    with (folder / name).open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert found or empty, f"{folder / name} has no rows"
    return found


def timeless(folder: Path) -> list[dict[str, str]]:
    """The findings without the one column that differs from run to run."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows(folder)]


def initial(scenario: Scenario) -> ArrayRecord:
    """The global arrays of round 1."""
    task = scenario.build_task()
    return ArrayRecord({name: value.clone() for name, value in task.arrays(task.module()).items()})


def config(scenario: Scenario, **more: Any) -> ConfigRecord:
    """What the server tells fedsim's clients."""
    told = {"scenario": scenario.model_dump_json(), "lr": scenario.training.lr, **more}
    return ConfigRecord(told)


def reseeding(scenario: Scenario) -> Any:
    """An evaluate_fn that seeds the global generators once, before round 1, and never again."""

    def evaluate(round: int, arrays: ArrayRecord) -> None:
        if round == 0:
            reseed(derive(scenario.seed, "round", round))

    return evaluate


def ask(
    grid: InlineGrid,
    scenario: Scenario,
    client: int,
    round: int = 1,
    arrays: ArrayRecord | None = None,
    **told: Any,
) -> Message:
    """One client's reply to a training message."""
    content = RecordDict(
        {
            "arrays": arrays if arrays is not None else initial(scenario),
            "config": config(scenario, **{"server-round": round, **told}),
        }
    )
    node = {number: node for node, number in grid.clients.items()}[client]
    (reply,) = grid.send_and_receive([Message(content, node, MessageType.TRAIN)])
    if reply.has_error():
        raise AssertionError(reply.error.reason)
    return reply


def sent(reply: Message) -> dict[str, Tensor]:
    """The arrays in a reply."""
    (arrays,) = reply.content.array_records.values()
    return dict(arrays.to_torch_state_dict())


def meaning(reply: Message) -> dict[str, Any]:
    """What a reply says of its arrays."""
    return dict(reply.content.config_records[UPDATE_KEY])


def same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> bool:
    """Whether two sets of arrays are bit-identical; NaN equals NaN.

    Where clients train on a GPU, arrays made on the CPU differ by rounding.
    """
    if torch.cuda.is_available():
        return list(ours) == list(theirs) and all(
            torch.allclose(value, theirs[name], rtol=1e-4, atol=1e-6, equal_nan=True)
            for name, value in ours.items()
        )
    return list(ours) == list(theirs) and all(
        value.dtype == theirs[name].dtype
        and value.numpy().tobytes() == theirs[name].numpy().tobytes()
        for name, value in ours.items()
    )


def weights(arrays: ArrayRecord) -> dict[str, Tensor]:
    """An ArrayRecord as tensors."""
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}


def leads_nowhere(address: str, said: str, folder: Path) -> None:
    """Expect a run at an address without a Ray cluster to end soon, in a sentence, with no folder.

    Args:
        address: `engine.address`.
        said: A pattern that the error matches.
        folder: The run folder.
    """
    nowhere = scenario(engine={"name": "ray", "workers": 2, "address": address})
    began = time.monotonic()
    with pytest.raises(EngineError, match=said) as error:
        simulate(nowhere, folder)
    assert "\n" not in str(error.value)
    assert time.monotonic() - began < 20
    assert not folder.exists()
