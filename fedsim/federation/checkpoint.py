"""Checkpoints, from which an interrupted run continues.

    checkpoint/global.safetensors     NAME  strategy/FIELD/KEY  client/N/RECORD/NAME

The file holds the global arrays under their own names, and the state that the strategy and the
clients carry from round to round. A checkpoint of a round is written once every attack on it has
ended, so that a run that continues after it misses none. Rounds that end within `EVERY_S` seconds
share one, and those of a large model share more, so that writing takes no more than `SHARE` of the
time: a run that is killed makes those again that ended after its last checkpoint.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result, Strategy
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedsim.federation.wrappers import Wrapper
from fedsim.runs.ledger import Ledger

FILE = "global.safetensors"

GLOBAL = "global/"
"""Begins the names of global arrays that have a / themselves."""

EVERY_S = 0.5
"""Seconds from one checkpoint to the next at least; that of the last round does not wait."""

SHARE = 0.1
"""Largest share of a run's time in which checkpoints are written."""

STATE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ["Bulyan", "FedAvg", "FedMedian", "FedProx", "FedSGD", "FedTrimmedAvg", "Krum"], ()
    ),
    **dict.fromkeys(["MultiKrum", "QFedAvg"], ()),
    "FedAvgM": ("momentum_vector",),
    **dict.fromkeys(["FedAdagrad", "FedAdam", "FedYogi"], ("m_t", "v_t")),
}
"""Fields that a strategy carries from round to round, by the name of its class."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The state of a run after a round.

    Attributes:
        round: The number of the round.
        complete: Whether a run can continue from it.
        tensors: The global arrays, and those that the strategy and the clients carry from round to
            round, by their names in the file.
        taken_part: The number of rounds that each client took part in.
    """

    round: int
    complete: bool
    tensors: dict[str, Tensor]
    taken_part: dict[int, int]

    @property
    def arrays(self) -> dict[str, Tensor]:
        """The global arrays by name."""
        return {
            name.removeprefix(GLOBAL): value
            for name, value in self.tensors.items()
            if not name.startswith(("strategy/", "client/"))
        }

    def write(self, ledger: Ledger, folder: str) -> None:
        """Replace the checkpoint of a run folder atomically."""
        meta = {
            "round": str(self.round),
            "complete": str(self.complete),
            "taken_part": json.dumps(self.taken_part),
        }
        ledger.artifact(f"{folder}/{FILE}", save(self.tensors, meta))

    @classmethod
    def read(cls, ledger: Ledger, folder: str) -> "Checkpoint | None":
        """The checkpoint of a run folder; None if there is none or it cannot be read."""
        try:
            with safe_open(ledger.folder / folder / FILE, framework="pt") as file:
                meta = file.metadata()
                taken_part = {int(k): int(n) for k, n in json.loads(meta["taken_part"]).items()}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                return cls(int(meta["round"]), meta["complete"] == "True", tensors, taken_part)
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError):
            return None


class Checkpoints:
    """The checkpoints of a run's rounds, of which the newest whose attacks have ended is written.

    Args:
        ledger: The run folder.
        folder: The folder of the checkpoint in it.
        settled: Whether every attack on a round and the earlier ones is recorded.
    """

    def __init__(self, ledger: Ledger, folder: str, settled: Callable[[int], bool]) -> None:
        self._ledger, self._folder, self._settled = ledger, folder, settled
        self._waiting: list[Checkpoint] = []
        self._next = 0.0

    def add(self, checkpoint: Checkpoint) -> None:
        """Take the checkpoint of the round that has ended, and write one if it is time."""
        self._waiting.append(checkpoint)
        self.write(due=time.monotonic() >= self._next)
        # Each holds a model, so few may wait: the oldest, whose attacks end first, and the newest.
        del self._waiting[1:-7]

    def write(self, *, due: bool = True) -> None:
        """Write the newest whose attacks have ended, after the utility of its round.

        Args:
            due: Whether it is time to write; else that one waits, and the earlier ones are dropped.
        """
        settled = [one for one in self._waiting if self._settled(one.round)]
        if not settled:
            return
        if due:
            began = time.monotonic()
            self._ledger.sync_utility()
            settled[-1].write(self._ledger, self._folder)
            ended = time.monotonic()
            self._next = ended + max(EVERY_S, (ended - began) * (1 / SHARE - 1))
        self._waiting = self._waiting[len(settled) - (not due) :]


def capture(
    round: int,
    arrays: Mapping[str, Tensor],
    strategy: Strategy,
    states: Mapping[int, RecordDict] | None,
    taken_part: Mapping[int, int],
) -> Checkpoint:
    """Take the state of a run after a round.

    Args:
        round: The number of the round.
        arrays: The global arrays by name.
        strategy: The strategy.
        states: The state of each client that has any, by number; None if the engine does not
            provide them.
        taken_part: The number of rounds that each client took part in.

    Returns:
        The checkpoint. It is not complete if the strategy's fields are not known, or clients keep
        records other than arrays.
    """
    inner = _inner(strategy)
    fields = STATE.get(type(inner).__name__)
    complete = (
        fields is not None
        and states is not None
        and all(len(state.array_records) == len(state) for state in states.values())
    )
    # Names of modules may have a /; a name without one stands for itself, as in earlier versions.
    tensors = {f"{GLOBAL}{name}" if "/" in name else name: one for name, one in arrays.items()}
    for field in fields or ():
        value = getattr(inner, field)
        for key, array in value.items() if isinstance(value, dict) else enumerate(value or []):
            tensors[f"strategy/{field}/{key}"] = torch.tensor(array)
    for client, state in (states or {}).items():
        for record, held in state.array_records.items():
            for name, tensor in held.to_torch_state_dict().items():
                tensors[f"client/{client}/{record}/{name}"] = tensor
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    return Checkpoint(round, complete, tensors, dict(taken_part))


def restore(kept: Checkpoint, strategy: Strategy, context: Callable[[int], Context]) -> None:
    """Restore the state of the strategy and the clients from a checkpoint.

    Args:
        kept: The checkpoint.
        strategy: The strategy.
        context: Returns the context of a client.
    """
    fields = defaultdict[str, dict[str, Any]](dict)
    records = defaultdict[tuple[str, str], dict[str, Tensor]](dict)
    for name, value in kept.tensors.items():
        kind, *path = name.split("/", 3)
        if not path:  # a tensor of the model, whose name may be "strategy" or "client"
            continue
        if kind == "strategy":
            fields[path[0]]["/".join(path[1:])] = value.numpy()
        elif kind == "client":
            records[path[0], path[1]][path[2]] = value
    for field, entries in fields.items():
        listed = all(key.isdigit() for key in entries)
        arrays = [entries[key] for key in sorted(entries, key=int)] if listed else entries
        setattr(_inner(strategy), field, arrays)
    for (client, record), tensors in records.items():
        context(int(client)).state[record] = ArrayRecord(tensors)


def _inner(strategy: Strategy) -> Strategy:
    """The strategy of Flower, or `FedSGD`, within wrappers."""
    while isinstance(strategy, Wrapper):
        strategy = strategy.strategy
    return strategy


class Later(Wrapper):
    """Continues after a number of finished rounds: the strategy inside sees true round numbers.

    Args:
        strategy: The strategy.
        done: The number of rounds that are finished.
    """

    def __init__(self, strategy: Strategy, done: int) -> None:
        self.strategy = strategy
        self._done = done

    def round(self, server_round: int) -> int:
        """The true number of a round."""
        return server_round + self._done

    def start(self, *args: Any, **settings: Any) -> Result:
        """Train the rounds that are left.

        Args:
            args: Grid and initial arrays.
            settings: Those of `Strategy.start`, `num_rounds` and `evaluate_fn` among them.
        """
        evaluate, rounds = settings["evaluate_fn"], settings["num_rounds"]

        def after_round(round: int, arrays: ArrayRecord) -> MetricRecord | None:
            return evaluate(self.round(round), arrays) if round else None

        settings |= {"num_rounds": rounds - self._done, "evaluate_fn": after_round}
        return super().start(*args, **settings)
