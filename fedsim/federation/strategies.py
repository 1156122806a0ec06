"""Strategies by name."""

import contextlib
import inspect
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import flwr.serverapp.strategy as flower_strategies
import pydantic
from flwr.serverapp.strategy import Strategy

from fedsim.errors import ScenarioError, did_you_mean
from fedsim.federation.fedsgd import RATES, ServerOptimizer
from fedsim.federation.fedsgd import FedSGD as FedSGD
from fedsim.federation.wrappers import Following as Following
from fedsim.federation.wrappers import Wrapper as Wrapper
from fedsim.federation.wrappers import clients_of as clients_of
from fedsim.plugin import validated
from fedsim.scenario import Scenario

AVERAGING = ("FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedProx", "FedSGD", "FedYogi")
"""Strategies that need only the mean update of a round, weighted by examples."""


PLAIN = (bool, int, float, str, float | None)
"""Types of the settings that a scenario can state; others are functions, or follow from it."""

KEYS = {"arrayrecord_key", "configrecord_key", "weighted_by_key"}
"""Names of what is in messages, by which clients find it."""

PRIVATE = "DifferentialPrivacy"
"""Prefix of the names of Flower's differential-privacy wrappers."""


def build_strategy(scenario: Scenario, buffers: Collection[str] = ()) -> Strategy:
    """Make the strategy that a scenario names.

    `training.strategy` is a name such as "FedAvg", or a table such as
    `{name = "FedTrimmedAvg", beta = 0.1}`. A server-side differential-privacy wrapper takes the
    strategy that it wraps as `inner`.

    Args:
        scenario: The scenario.
        buffers: Names of the arrays that are not trained.

    Returns:
        The strategy, with its own settings and those that follow from `training`.

    Raises:
        ScenarioError: There is no such strategy, it refuses a setting, or it does not suit the
            algorithm or secure aggregation.
    """
    training = scenario.training
    settings = training.strategy_table
    name = str(settings.pop("name"))
    if training.algorithm == "fedsgd" and name == "FedAvg":
        name = "FedSGD"  # FedAvg of gradients: the average, and a step along it
    inner: str | dict[str, Any] = "FedAvg"
    if name.startswith(PRIVATE):
        inner = settings.pop("inner", inner)
        _check_private(name, settings, scenario, buffers)
        if not isinstance(inner, str | dict):
            raise ScenarioError(
                f"training.strategy.inner = {inner!r}: expected the strategy that {name} wraps, "
                'a name such as "FedAvg", or a table with a name and its settings'
            )
    if training.secure_aggregation and name in strategy_names() and name not in AVERAGING:
        raise ScenarioError(
            f'training.strategy = "{name}" looks at single updates, and under '
            "training.secure_aggregation the server gets their sum alone. Use one that averages: "
            f"{', '.join(AVERAGING)}"
        )
    common = {
        "fraction_train": training.per_round / training.clients,
        "fraction_evaluate": training.evaluate_clients / training.clients,
        "min_train_nodes": training.per_round,
        "min_evaluate_nodes": training.evaluate_clients,
        "min_available_nodes": training.clients,
    }

    def make(name: str, settings: Mapping[str, Any]) -> Strategy:
        if name not in strategy_names():
            raise ScenarioError(
                f"training.strategy: no strategy '{name}'. {did_you_mean(name, strategy_names())}"
            )
        cls: Callable[..., Strategy] = getattr(flower_strategies, name, FedSGD)
        takes = inspect.signature(cls).parameters
        given: dict[str, Any] = {key: value for key, value in common.items() if key in takes}
        optimizes = training.algorithm == "fedsgd" and name in RATES
        if training.algorithm == "fedsgd" and cls is not FedSGD and not optimizes:
            raise ScenarioError(
                f'training.strategy = "{name}" combines weights, and algorithm = "fedsgd" sends '
                'gradients. Use strategy = "FedSGD", a server optimizer '
                f'({", ".join(sorted(RATES))}), or algorithm = "fedavg"'
            )
        if training.algorithm != "fedsgd" and cls is FedSGD:
            raise ScenarioError(
                'training.strategy = "FedSGD" combines gradients, and algorithm = "fedavg" sends '
                'weights. Use strategy = "FedAvg", or algorithm = "fedsgd"'
            )
        if cls is FedSGD:
            given = {**common, "lr": training.lr, "buffers": buffers}
        if optimizes:
            given[RATES[name]] = training.lr
        if optimizes or cls is FedSGD:
            rate = RATES.get(name, "lr")
            if rate in settings:
                raise ScenarioError(
                    f"training.strategy.{rate}: under FedSGD the server's learning rate is "
                    "training.lr; set that instead"
                )
        if "strategy" in takes:
            wrapped = {"name": inner} if isinstance(inner, str) else dict(inner)
            if str(wrapped.get("name", "")).startswith(PRIVATE):
                raise ScenarioError(
                    f"training.strategy.inner = {wrapped['name']!r}: {name} wraps a strategy that "
                    'combines updates, such as "FedAvg", and no other wrapper'
                )
            given["strategy"] = make(str(wrapped.pop("name", "FedAvg")), wrapped)
            given["num_sampled_clients"] = training.per_round
        if "client_learning_rate" in takes:  # QFedAvg's
            if training.optimizer != "sgd" or training.lr_schedule.name != "constant":
                raise ScenarioError(
                    f'training.strategy = "{name}" divides updates by the clients\' learning rate, '
                    "as steps of SGD at one rate. Leave out training.optimizer and "
                    "training.lr_schedule, or use another strategy"
                )
            given["client_learning_rate"] = training.lr
        if fixed := sorted((set(common) | {"weighted_by_key"}) & set(settings)):
            raise ScenarioError(
                f"training.strategy.{fixed[0]}: who takes part and how much a client weighs follow "
                "from [training], and budgets are counted by it; set training.clients_per_round "
                "or training.evaluate_clients instead"
            )
        plain = {key for key, one in takes.items() if one.annotation in PLAIN}
        known = sorted(plain - KEYS - {*common, "lr", "num_sampled_clients"})
        if unknown := sorted(set(settings) - set(known)):
            raise ScenarioError(
                f"training.strategy.{unknown[0]}: {name} has no such setting. "
                f"{did_you_mean(unknown[0], known)}"
            )
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        needed = [
            key
            for key, one in takes.items()
            if one.default is one.empty and one.kind not in variable
        ]
        if missing := [key for key in needed if key not in {*given, *settings}]:
            stated = ", ".join(f"{key} = ..." for key in missing)
            raise ScenarioError(
                f"training.strategy: {name} needs {', '.join(missing)}. State it: "
                f'strategy = {{name = "{name}", {stated}}}'
            )
        try:
            made = cls(**{**given, **_typed(settings, takes)})
            return ServerOptimizer(made, buffers) if optimizes else made
        except (TypeError, ValueError, AttributeError) as error:
            raise ScenarioError(f"training.strategy ({name}): {error}") from error

    return make(name, settings)


def _typed(settings: Mapping[str, Any], takes: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Settings as numbers and texts where a strategy's signature says so; Flower checks none."""
    kinds = {key: takes[key].annotation for key in settings if takes[key].annotation in PLAIN}
    fields: dict[str, Any] = {key: (kind, ...) for key, kind in kinds.items()}
    model = pydantic.create_model("Settings", **fields)
    checked = validated(model, {key: settings[key] for key in kinds}, "training.strategy")
    return {**settings, **checked.model_dump()}


def _check_private(
    name: str, settings: Mapping[str, Any], scenario: Scenario, buffers: Collection[str]
) -> None:
    """Check what Flower's differential-privacy wrappers do not check themselves."""
    where = f"training.strategy ({name})"
    if "num_sampled_clients" in settings:
        raise ScenarioError(
            f"{where}: num_sampled_clients is training.clients_per_round = "
            f"{scenario.training.per_round}, by which the noise is scaled; leave it out"
        )
    if buffers:
        raise ScenarioError(
            f"{where} clips and adds noise to all that clients send, running statistics too "
            f"({min(buffers)}), which destroys them. Use a model without BatchNorm"
        )


def strategy_names() -> list[str]:
    """Names of the strategies that a scenario can use, fedsim's and Flower's, sorted."""
    flower = [
        name
        for name, cls in vars(flower_strategies).items()
        if isinstance(cls, type) and issubclass(cls, Strategy) and not inspect.isabstract(cls)
    ]
    return sorted({*flower, "FedSGD"} - {"FedXgbBagging", "FedXgbCyclic"})


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Reduce Flower's log to errors, unless FEDSIM_DEBUG is set."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.DEBUG if os.environ.get("FEDSIM_DEBUG") else logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
