"""Where a run can be taken up again: global arrays, strategy state, every client's state.

    checkpoint/global.safetensors     NAME  strategy/FIELD/KEY  client/N/RECORD/NAME

The global arrays under their own names, then what the strategy and the clients carry from round
to round. A round is kept once every attack on it has ended, so that taking up after it loses none.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result, Strategy
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedsim.federation.strategies import Following, Wrapper
from fedsim.runs.ledger import Ledger

__all__ = ["Checkpoint", "Later", "capture", "restore"]

FILE = "global.safetensors"

STATE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ["Bulyan", "FedAvg", "FedMedian", "FedProx", "FedSGD", "FedTrimmedAvg", "Krum"], ()
    ),
    **dict.fromkeys(["MultiKrum", "QFedAvg"], ()),
    "FedAvgM": ("momentum_vector",),
    **dict.fromkeys(["FedAdagrad", "FedAdam", "FedYogi"], ("m_t", "v_t")),
}
"""Fields that a strategy carries from round to round, for those that are known."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The state after a round. complete: whether a run can be taken up from it.

    taken_part: by client, the rounds it took part in.
    """

    round: int
    complete: bool
    arrays: dict[str, Tensor]
    strategy: dict[str, Any]
    clients: dict[int, RecordDict]
    taken_part: dict[int, int]

    def write(self, ledger: Ledger, folder: str) -> None:
        """Replace the checkpoint in a run folder, in one step."""
        tensors = dict(self.arrays)
        for field, value in self.strategy.items():
            keyed = value.items() if isinstance(value, dict) else enumerate(value or [])
            for key, array in keyed:
                tensors[f"strategy/{field}/{key}"] = torch.from_numpy(np.ascontiguousarray(array))
        for client, state in self.clients.items():
            for record, arrays in state.array_records.items():
                for name, tensor in arrays.to_torch_state_dict().items():
                    tensors[f"client/{client}/{record}/{name}"] = tensor
        content = save(
            {name: value.contiguous() for name, value in tensors.items()},
            {
                "round": str(self.round),
                "complete": str(self.complete),
                "taken_part": json.dumps(self.taken_part),
            },
        )
        ledger.artifact(f"{folder}/{FILE}", content)

    @classmethod
    def read(cls, ledger: Ledger, folder: str) -> "Checkpoint | None":
        """The checkpoint in a run folder; None where there is none, or it is no use."""
        try:
            with safe_open(ledger.folder / folder / FILE, framework="pt") as file:
                meta = file.metadata()
                round, complete = int(meta["round"]), meta["complete"] == "True"
                taken_part = {int(k): int(n) for k, n in json.loads(meta["taken_part"]).items()}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, ValueError):
            return None
        arrays: dict[str, Tensor] = {}
        strategy: dict[str, Any] = {}
        states: dict[int, dict[str, dict[str, Tensor]]] = {}
        for name, value in tensors.items():
            kind, _, rest = name.partition("/")
            if not rest:
                arrays[name] = value
            elif kind == "strategy":
                field, _, key = rest.partition("/")
                strategy.setdefault(field, {})[key] = value.numpy()
            else:
                client, record, key = rest.split("/", 2)
                states.setdefault(int(client), {}).setdefault(record, {})[key] = value
        for field, entries in strategy.items():
            if all(key.isdigit() for key in entries):
                strategy[field] = [entries[key] for key in sorted(entries, key=int)]
        clients = {
            client: RecordDict({key: ArrayRecord(kept) for key, kept in state.items()})
            for client, state in states.items()
        }
        return cls(round, complete, arrays, strategy, clients, taken_part)


def capture(
    round: int,
    arrays: dict[str, Tensor],
    strategy: Strategy,
    contexts: Mapping[int, Context] | None,
    taken_part: Mapping[int, int],
) -> Checkpoint:
    """The state after a round; not complete where strategy or clients keep more than is known.

    contexts: every client's, by number; None where the engine does not show them.
    """
    inner = _inner(strategy)
    fields = STATE.get(type(inner).__name__)
    states = {c: context.state for c, context in (contexts or {}).items() if context.state}
    complete = (
        fields is not None
        and contexts is not None
        and all(len(state.array_records) == len(state) for state in states.values())
    )
    kept = {field: _copied(getattr(inner, field)) for field in fields or ()}
    clients = {client: RecordDict(dict(state)) for client, state in states.items()}
    return Checkpoint(round, complete, arrays, kept, clients, dict(taken_part))


def restore(kept: Checkpoint, strategy: Strategy, contexts: Mapping[int, Context]) -> None:
    """Put strategy and clients back where they were."""
    for field, value in kept.strategy.items():
        setattr(_inner(strategy), field, value)
    for client, state in kept.clients.items():
        contexts[client].state = state


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: np.array(array) for key, array in value.items()}
    return None if value is None else [np.array(array) for array in value]


def _inner(strategy: Strategy) -> Strategy:
    return strategy.strategy if isinstance(strategy, Following) else strategy


class Later(Wrapper):
    """A strategy whose first round is not round 1: what it wraps is told the true number."""

    def __init__(self, strategy: Strategy, done: int) -> None:
        self.strategy = strategy
        self._done = done

    def round(self, server_round: int) -> int:
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
