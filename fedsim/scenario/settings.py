"""The tables of a scenario: training, threat, engine, and one an adversary."""

import re
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fedsim.adversary import Adversary
from fedsim.plugin import make, title

__all__ = [
    "AttackPlan",
    "Engine",
    "PlainName",
    "Sweep",
    "Table",
    "Threat",
    "Training",
    "default_strategy",
    "planned",
]


def _plain(value: str) -> str:
    if not re.fullmatch(r"[^/\\\x00-\x1f.][^/\\\x00-\x1f]{0,99}", value):
        raise ValueError(
            "expected what can name a file: 1 to 100 characters, none of them / or \\ or a control "
            "character, and no dot at the beginning"
        )
    return value


PlainName = Annotated[str, AfterValidator(_plain)]
"""What may name a file: no separators, control characters, leading dot, or great length."""


class Table(BaseModel):
    """A table of a scenario: frozen, unknown keys are errors."""

    # Infinity is a setting (no clipping), and must survive the trip to the clients.
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="constants"
    )


def _whom(value: Any) -> Any:
    numbers = value if isinstance(value, list) else [value]
    if value not in ("all", None) and not all(type(number) is int for number in numbers):
        raise ValueError("expected 'all', a number, or a list of client numbers")
    return value


def _when(value: Any) -> Any:
    listed = isinstance(value, list) and all(type(number) is int for number in value)
    if value not in ("all", None) and not listed:
        raise ValueError("expected 'all', or a list of round numbers")
    return value


Victims = Annotated[Literal["all"] | int | list[int], BeforeValidator(_whom)]
Rounds = Annotated[Literal["all"] | list[int], BeforeValidator(_when)]


def _which(value: Any) -> Any:
    if value is True:
        return "secagg+"
    if value is not False and value not in ("secagg+", "masked-sum"):
        raise ValueError("expected false, 'secagg+' (or true), or 'masked-sum'")
    return value


Protocol = Annotated[Literal[False, "secagg+", "masked-sum"], BeforeValidator(_which)]


class Training(Table):
    """How clients train and how the server combines them."""

    algorithm: Literal["fedsgd", "fedavg"] = "fedavg"
    rounds: int = Field(default=5, ge=1)
    clients: int = Field(default=20, ge=1)
    clients_per_round: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=8, ge=1)
    local_steps: int = Field(default=1, ge=1)
    lr: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    strategy: str | dict[str, Any] = "FedAvg"
    evaluate_clients: int = Field(default=0, ge=0)
    on_failure: Literal["stop", "drop"] = "stop"
    secure_aggregation: Protocol = False

    @model_validator(mode="before")
    @classmethod
    def _matching_strategy(cls, values: Any) -> Any:
        if isinstance(values, dict) and "strategy" not in values:
            return {**values, "strategy": default_strategy(values.get("algorithm"))}
        return values

    @property
    def strategy_table(self) -> dict[str, Any]:
        """The strategy as a table that has a `name`; a new one at each access."""
        named = {"name": self.strategy} if isinstance(self.strategy, str) else self.strategy
        return {"name": "FedAvg", **named}

    @property
    def per_round(self) -> int:
        """Clients that take part in a round; all of them where it is not set."""
        return self.clients_per_round or self.clients


def default_strategy(algorithm: Any) -> str:
    """How the server combines what this algorithm's clients send, where nothing is said."""
    return "FedSGD" if algorithm == "fedsgd" else "FedAvg"


class Threat(Table):
    """What the curious server knows, and whom it attacks."""

    grants: str | list[str] = "gradients"
    rounds: Rounds = "all"
    victims: Victims = "all"
    follow: list[int] = []
    timeout: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    record: bool = False


class Engine(Table):
    """Where clients and attacks run."""

    name: Literal["auto", "inline", "ray", "flower"] = "auto"
    workers: Literal["auto"] | int = "auto"
    attack_workers: Literal["auto"] | int = "auto"
    cpus_per_client: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    gpus_per_client: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    gpus_per_attack: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    address: str = ""


class AttackPlan(Table):
    """One `[[adversaries]]` table: which adversary, its settings, whom and how long it attacks.

    label tells two settings of one adversary apart in the findings. victims, rounds, timeout:
    those of `[threat]` where left out. budget: iterations allowed an attack.
    """

    name: str
    """The name of an adversary, or "module:Class"."""

    label: Annotated[str, AfterValidator(lambda text: text and _plain(text))] = ""
    victims: Victims | None = None
    rounds: Rounds | None = None
    budget: int | None = Field(default=None, ge=1)
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    settings: dict[str, Any] = {}

    @property
    def title(self) -> str:
        """What tables call it: its label, or else the adversary's name."""
        return self.label or title("adversaries", self.name)

    def adversary(self, where: str = "") -> Adversary:
        """The configured plugin."""
        made = cast(Adversary, make("adversaries", self.name, dict(self.settings), where))
        made.parts(where)  # so that a mistake in them is told by its place
        return made


def planned(entry: Any) -> Any:
    """Move an adversary's own settings into `settings`, beside the keys that plan the attack."""
    if not isinstance(entry, dict) or not isinstance(entry.get("settings", {}), dict):
        return entry
    plan = {key: value for key, value in entry.items() if key in AttackPlan.model_fields}
    own = {key: value for key, value in entry.items() if key not in plan}
    plan["settings"] = {**entry.get("settings", {}), **own}
    return plan


def _quoted(value: Any) -> Any:
    for key, options in value.items() if isinstance(value, dict) else ():
        if isinstance(options, dict):
            dotted = ".".join([key, *list(options)[:1]])
            raise ValueError(f'a key of the sweep goes in quotes, such as "{dotted}" = [...]')
    return value


Sweep = Annotated[dict[str, list[Any]], BeforeValidator(_quoted)]
"""The values of each key of a sweep, by its dotted path."""
