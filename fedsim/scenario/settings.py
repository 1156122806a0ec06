"""The tables of a scenario: `[training]`, `[threat]`, `[engine]` and `[[adversaries]]`."""

import re
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fedsim.adversary import Adversary
from fedsim.plugin import make, title


def _plain(value: str) -> str:
    if not re.fullmatch(r"[^/\\\x00-\x1f.][^/\\\x00-\x1f]{0,99}", value):
        raise ValueError(
            "expected what can name a file: 1 to 100 characters, none of them / or \\ or a control "
            "character, and no dot at the beginning"
        )
    return value


PlainName = Annotated[str, AfterValidator(_plain)]
"""A text that can name a file: no separator, control character or leading dot, not too long."""


class Table(BaseModel):
    """Base class of a scenario's tables, which are frozen and refuse unknown keys."""

    # Infinity is a valid setting (no clipping) and must survive serialisation to the clients.
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="constants"
    )


def _whom(value: Any) -> Any:
    listed = isinstance(value, list) and all(type(number) is int for number in value)
    counted = type(value) is int and value >= 1
    if value not in ("all", None) and not listed and not counted:
        raise ValueError("expected 'all', a number of at least 1, or a list of client numbers")
    return value


def _when(value: Any) -> Any:
    listed = isinstance(value, list) and all(type(number) is int for number in value)
    if value not in ("all", None) and not listed:
        raise ValueError("expected 'all', or a list of round numbers")
    return value


Victims = Annotated[Literal["all"] | int | list[int], BeforeValidator(_whom)]
Workers = Literal["auto"] | Annotated[int, Field(ge=1)]
Rounds = Annotated[Literal["all"] | list[int], BeforeValidator(_when)]


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

    rounds: int = Field(default=5, ge=1)
    """Number of rounds."""

    clients: int = Field(default=20, ge=1)
    """Number of clients in all."""

    clients_per_round: int | None = Field(default=None, ge=1)
    """Number of clients that take part in a round; all if left out."""

    batch_size: int = Field(default=8, ge=1)
    """Number of examples in a local batch."""

    local_steps: int = Field(default=1, ge=1)
    """Number of local steps in a round, with one batch each; always 1 under FedSGD."""

    lr: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    """Learning rate: the clients' under FedAvg, the server's under FedSGD."""

    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum of local SGD; only under FedAvg."""

    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight decay of local SGD; only under FedAvg."""

    strategy: str | dict[str, Any] = "FedAvg"
    """Name of a Flower strategy, or a table such as {name = "FedTrimmedAvg", beta = 0.1}; by
    default "FedSGD" if the algorithm is "fedsgd"."""

    evaluate_clients: int = Field(default=0, ge=0)
    """Number of clients that evaluate the new model in each round."""

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

    @property
    def strategy_table(self) -> dict[str, Any]:
        """The strategy as a table with a `name`, a new one at each access."""
        named = {"name": self.strategy} if isinstance(self.strategy, str) else self.strategy
        return {"name": "FedAvg", **named}

    @property
    def per_round(self) -> int:
        """Number of clients that take part in a round: all unless set otherwise."""
        return self.clients_per_round or self.clients


def default_strategy(algorithm: Any) -> str:
    """Return the name of the strategy that an algorithm uses by default."""
    return "FedSGD" if algorithm == "fedsgd" else "FedAvg"


class Threat(Table):
    """The `[threat]` table: what the curious server knows, and which updates it attacks."""

    grants: str | list[str] = "gradients"
    """Knowledge of the adversaries: a preset, or a list of names of knowledge."""

    rounds: Rounds = "all"
    """Rounds that are attacked: "all", or a list of them."""

    victims: Victims = "all"
    """Updates attacked in each round: "all", a number drawn by the seed, or a list of clients."""

    follow: list[int] = []
    """Clients that take part in every round."""

    timeout: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    """Time limit of an attack, in seconds for each victim."""

    record: bool = False
    """Whether every interception is kept in the run folder, as with record.keep = "all"."""


class Record(Table):
    """The `[record]` table: which interceptions stay in the run folder, for later attacks."""

    keep: Literal["nothing", "attacked", "all"] = "attacked"
    """Interceptions that are kept: "nothing"; what is "attacked", with the history that these
    attacks were shown; or "all"."""

    max_bytes: int = Field(default=2 * 2**30, ge=0)
    """Largest size of the kept files of a run, in bytes; those beyond it are left out."""


class Engine(Table):
    """The `[engine]` table: where clients and attacks run."""

    name: Literal["auto", "inline", "ray", "flower"] = "auto"
    """Engine; "auto" is "inline" for one worker and "ray" for several."""

    workers: Workers = "auto"
    """Number of clients trained at the same time; "auto": one for each CPU core, but at most one
    for each client of a round."""

    attack_workers: Workers = "auto"
    """Number of attacks run at the same time by Ray; "auto": as many as workers."""

    cpus_per_client: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """CPUs that Ray reserves for a worker."""

    gpus_per_client: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """GPUs, or a share of one, that Ray reserves for a worker."""

    gpus_per_attack: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """GPUs, or a share of one, that Ray reserves for an attack worker."""

    address: str = ""
    """Address of an existing Ray cluster to join; a new one is started if empty."""


class AttackPlan(Table):
    """One `[[adversaries]]` table: an adversary with its settings, and the plan of its attacks.

    `victims`, `rounds` and `timeout` are those of `[threat]` if left out.
    """

    name: str
    """The name of an adversary, or "module:Class"."""

    label: Annotated[str, AfterValidator(lambda text: text and _plain(text))] = ""
    """Name in the findings, which distinguishes two settings of one adversary."""

    victims: Victims | None = None
    """Updates that it attacks in each round."""

    rounds: Rounds | None = None
    """Rounds that it attacks."""

    budget: int | None = Field(default=None, ge=1)
    """Largest number of iterations of an attack, restarts included."""

    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Time limit of an attack, in seconds for each victim."""

    settings: dict[str, Any] = {}
    """The adversary's own settings."""

    @model_validator(mode="before")
    @classmethod
    def _own_settings(cls, values: Any) -> Any:
        """Move the keys that are the adversary's own into `settings`."""
        if not isinstance(values, dict) or not isinstance(values.get("settings", {}), dict):
            return values
        plan = {key: value for key, value in values.items() if key in cls.model_fields}
        own = {key: value for key, value in values.items() if key not in plan}
        return {**plan, "settings": {**plan.get("settings", {}), **own}}

    @property
    def title(self) -> str:
        """Name in tables: the label, or the adversary's name without one."""
        return self.label or title("adversaries", self.name)

    def adversary(self, where: str = "") -> Adversary:
        """Make the adversary with its settings.

        Args:
            where: Place of its table in the scenario, for messages.
        """
        made = cast(Adversary, make("adversaries", self.name, dict(self.settings), where))
        made.parts(where)  # so that an error in their settings names its place
        return made


def _quoted(value: Any) -> Any:
    for key, options in value.items() if isinstance(value, dict) else ():
        if isinstance(options, dict):
            dotted = ".".join([key, *list(options)[:1]])
            raise ValueError(f'a key of the sweep goes in quotes, such as "{dotted}" = [...]')
    return value


Sweep = Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], BeforeValidator(_quoted)]
"""The values of each key of a sweep, by its dotted path."""
