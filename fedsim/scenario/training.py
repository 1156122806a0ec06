"""The `[training]` table of a scenario: how clients train, and how the server combines updates."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from fedsim.scenario.rounds import Rounds, chosen_rounds
from fedsim.scenario.schedules import Schedule, as_schedule
from fedsim.scenario.tables import Table


def _which(value: Any) -> Any:
    if value is True:
        return "secagg+"
    if value is not False and value not in ("secagg+", "masked-sum"):
        raise ValueError("expected false, 'secagg+' (or true), or 'masked-sum'")
    return value


Protocol = Annotated[Literal[False, "secagg+", "masked-sum"], BeforeValidator(_which)]


class Training(Table):
    """The `[training]` table: how clients train, and how the server combines their updates."""

    algorithm: Literal["fedsgd", "fedavg"] = "fedavg"
    """What clients send: "fedsgd": the gradient of one batch; "fedavg": weights after training."""

    rounds: int = Field(default=5, ge=1, le=1_000_000)
    """Number of rounds."""

    clients: int = Field(default=20, ge=1, le=10_000_000)
    """Number of clients in all."""

    clients_per_round: int | None = Field(default=None, ge=1)
    """Number of clients that take part in a round; all if left out."""

    batch_size: int = Field(default=8, ge=1)
    """Number of examples in a local batch."""

    local_steps: int = Field(default=1, ge=1)
    """Number of local steps in a round, with one batch each; always 1 under FedSGD."""

    local_epochs: int | None = Field(default=None, ge=1)
    """Number of local epochs in a round, instead of `local_steps`: a client with n examples takes
    ceil(n / batch_size) steps for each."""

    batching: Literal["draw", "epochs"] = "draw"
    """How a client's batches follow each other: every round draws batches of its own ("draw"), or
    continues through shuffled epochs, so that examples recur in later rounds ("epochs")."""

    lr: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    """Learning rate: the clients' under FedAvg, the server's under FedSGD."""

    lr_schedule: Annotated[SerializeAsAny[Schedule], BeforeValidator(as_schedule)] = Schedule()
    """Learning rate by round: "constant", "cosine", or a table such as
    {name = "step", every = 10, gamma = 0.1}."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Optimizer of the local steps, which starts anew in each round, with torch's defaults; under
    FedSGD clients take no step, and it is "sgd"."""

    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum of local SGD; only under FedAvg."""

    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight decay of the local optimizer; only under FedAvg."""

    strategy: str | dict[str, Any] = "FedAvg"
    """Name of a Flower strategy, or a table such as {name = "FedTrimmedAvg", beta = 0.1}; by
    default "FedSGD" if the algorithm is "fedsgd"."""

    evaluate_clients: int = Field(default=0, ge=0)
    """Number of clients that evaluate the new model in each round."""

    evaluate_rounds: Rounds = "all"
    """Rounds after which the model is evaluated, besides the last: "all"; "log" (1, 2, 4, 8, ...);
    "every 10" (1, 11, 21, ...); or a list of them. The first model is evaluated always."""

    on_failure: Literal["stop", "drop"] = "stop"
    """If a client raises an error or sends NaN: "stop" the run, or "drop" that client."""

    secure_aggregation: Protocol = False
    """Protocol by which the server receives only the sum of the updates: Flower's "secagg+" (or
    true), or "masked-sum", an emulation."""

    @model_validator(mode="before")
    @classmethod
    def _matching_strategy(cls, values: Any) -> Any:
        if isinstance(values, dict) and "strategy" not in values:
            return {**values, "strategy": default_strategy(values.get("algorithm"))}
        return values

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.local_epochs is not None and "local_steps" in self.model_fields_set:
            raise ValueError(
                "local_epochs and local_steps both say how long a client trains; leave one out"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_unused_steps(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `local_steps` if epochs count, so that the table can be read again."""
        table: dict[str, Any] = handler(self)
        if self.local_epochs is not None:
            table.pop("local_steps", None)
        return table

    @property
    def strategy_table(self) -> dict[str, Any]:
        """The strategy as a table with a `name`, a new one at each access."""
        named = {"name": self.strategy} if isinstance(self.strategy, str) else self.strategy
        return {"name": "FedAvg", **named}

    @property
    def per_round(self) -> int:
        """Number of clients that take part in a round: all unless set otherwise."""
        return self.clients_per_round or self.clients

    def evaluates(self, round: int) -> bool:
        """Whether the model is evaluated after a round, or at the start, which is round 0."""
        return (
            self.evaluate_rounds == "all"
            or round in (0, self.rounds)
            or round in chosen_rounds(self.evaluate_rounds, self.rounds)
        )

    def rate(self, round: int) -> float:
        """The learning rate of a round, from 1: the clients' under FedAvg, else the server's."""
        return self.lr_schedule.rate(self.lr, round, self.rounds)

    def complaints(self) -> list[str]:
        """What contradicts itself in the table, one error message each."""
        found = []
        if self.per_round > self.clients:
            found.append(
                f"training.clients_per_round = {self.per_round}, of only {self.clients} clients"
            )
        if self.algorithm == "fedsgd" and self.local_steps != 1:
            found.append(
                f"training.local_steps = {self.local_steps}: FedSGD sends the gradient of one "
                'step. Set it to 1, or algorithm = "fedavg"'
            )
        if self.algorithm == "fedsgd" and self.local_epochs is not None:
            found.append(
                f"training.local_epochs = {self.local_epochs}: FedSGD sends the gradient of one "
                'step. Leave it out, or set algorithm = "fedavg"'
            )
        if self.algorithm == "fedsgd" and (self.momentum or self.weight_decay):
            found.append(
                "training.momentum and training.weight_decay belong to local steps, and FedSGD "
                'takes none. Leave them out, or set algorithm = "fedavg"'
            )
        if self.algorithm == "fedsgd" and self.optimizer != "sgd":
            found.append(
                f'training.optimizer = "{self.optimizer}": under FedSGD a client sends a gradient '
                'and takes no step. Leave it out, or set algorithm = "fedavg"'
            )
        if self.momentum and self.optimizer != "sgd":
            found.append(
                f"training.momentum = {self.momentum:g} belongs to SGD, and training.optimizer is "
                f'"{self.optimizer}". Leave one of them out'
            )
        if self.evaluate_clients > self.clients:
            found.append(
                f"training.evaluate_clients = {self.evaluate_clients}, of only {self.clients} "
                "clients"
            )
        named = self.evaluate_rounds if isinstance(self.evaluate_rounds, list) else ()
        found += [
            f"training.evaluate_rounds: there is no round {round}; rounds go from 1 to "
            f"{self.rounds}"
            for round in named
            if not 1 <= round <= self.rounds
        ]
        if self.secure_aggregation and self.per_round == 1:
            found.append(
                "training.secure_aggregation with one client a round protects nothing: the sum of "
                "one update is that update. Set training.clients_per_round to 2 or more, or leave "
                "secure_aggregation out"
            )
        return found


def default_strategy(algorithm: Any) -> str:
    """Return the name of the strategy that an algorithm uses by default."""
    return "FedSGD" if algorithm == "fedsgd" else "FedAvg"
