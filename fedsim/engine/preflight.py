"""Checks of a scenario on this machine, made before a run folder is created."""

import math
from numbers import Integral
from typing import Any

import torch
from torch import nn

from fedsim.attacking.probes import check_probes
from fedsim.defense import Defense
from fedsim.engine import check_address, engine_name, workers
from fedsim.engine.process import attack_cautions, check_gpus, check_importable
from fedsim.errors import DataError, FedsimError, PluginError, ScenarioError
from fedsim.federation.strategies import build_strategy, quiet
from fedsim.libraries import asking, brief
from fedsim.references import references
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun, build
from fedsim.scenario.devices import device_here
from fedsim.seeds import isolated
from fedsim.task import Task
from fedsim.testing.tasks import task_complaints
from fedsim.training.budget import Budget
from fedsim.training.local import local_training
from fedsim.training.together import check_together, train_together


def preflight(
    scenario: Scenario, *, after: BuiltRun | None = None, nodes_decide: bool = False
) -> tuple[BuiltRun, list[str]]:
    """Check that a scenario can run: load its data, build its model, prepare its defenses.

    Args:
        scenario: One point of a sweep, or a scenario without one.
        after: The run that was built before it, whose data are kept if they are the same.
        nodes_decide: Whether the number of clients is that of connected nodes (`flwr run`): more
            victims than clients are then a warning.

    Returns:
        The run, with its data loaded, and warnings for the user.

    Raises:
        ScenarioError: The scenario cannot be run as written, or not on this machine.
        EngineError: `engine.address` is no address of a Ray cluster.
        DataError: Its data is missing or wrong.
        PluginError: A plugin is unknown or refuses its settings.
    """
    check_address(scenario.engine.address)
    if engine_name(scenario) != "inline":
        check_importable(scenario)
    check_gpus(scenario, clients_too=not nodes_decide)
    if engine_name(scenario) == "flower" and not nodes_decide:
        _check_room(scenario)
    too_many = _too_many_victims(scenario)
    if too_many and not nodes_decide:
        raise ScenarioError("\n".join(too_many))
    built = build(scenario, after=after)
    try:
        return built, too_many + _cautions(built, nodes_decide=nodes_decide)
    except FedsimError:
        raise
    except Exception as error:  # a task of the user's own may return anything
        if complaints := own_task_complaints(built):
            raise PluginError(
                "\n  - ".join([f"task '{built.task.name}' cannot be used:", *complaints])
            ) from error
        raise


def _check_room(scenario: Scenario) -> None:
    """Refuse clients that Flower's simulation can never start; its server would wait for them.

    Raises:
        ScenarioError: A client reserves no CPU, or more CPUs or GPUs than there are.
    """
    engine, cpus = scenario.engine, workers(scenario)
    if not 0 < engine.cpus_per_client <= cpus:
        raise ScenarioError(
            f"engine.cpus_per_client = {engine.cpus_per_client:g}, and Flower's simulation has "
            f"engine.workers = {cpus} CPUs: expected more than 0 and at most as many. Change one "
            "of the two"
        )
    if engine.gpus_per_client > (found := torch.cuda.device_count()):
        raise ScenarioError(
            f"engine.gpus_per_client = {engine.gpus_per_client:g}, and PyTorch finds {found} "
            "GPUs. Lower it"
        )


def own_task_complaints(built: BuiltRun) -> list[str]:
    """List what is wrong with a task that is not fedsim's own; empty for one that is."""
    own = type(built.task).__module__.partition(".")[0] != "fedsim"
    return task_complaints(built.task) if own else []


def _cautions(built: BuiltRun, *, nodes_decide: bool) -> list[str]:
    scenario, task, defenses = built.scenario, built.task, built.defenses
    task.num_examples(0)
    task.head  # noqa: B018 - raises where none is found
    module = task.module().train().to(device_here(scenario.engine, "client"))
    trained = task.trained(module)
    with quiet():
        build_strategy(scenario, set(task.arrays(module)) - trained)
    _check_client_half(built)
    if scenario.engine.vectorize not in (0, "auto"):
        check_vectorize(built, module)
    if references(scenario.task):
        _rehearse(scenario, task, module)
    for position, defense in enumerate(defenses):
        if complaint := defense.unknown_layers(trained):
            raise ScenarioError(f"defenses.{position} ({defense.name}).{complaint}")
    clients = range(scenario.training.clients if defenses else 1)
    for guarded in sorted({tuple(one.guards(c) for one in defenses) for c in clients}):
        chain = [one for one, on in zip(defenses, guarded, strict=True) if on]
        with asking(", ".join(one.name for one in chain), "prepare"):
            local_training(scenario, task, module, (), torch.Generator(), chain)
    cautions = task.cautions() + _small_batches(built) + Budget(built).cautions()
    cautions += check_probes(built) + attack_cautions(built)
    if not nodes_decide:
        cautions += _without_effect(scenario)
    cautions += _plain_average(scenario)
    if scenario.engine.vectorize and (nodes_decide or engine_name(scenario) == "flower"):
        cautions.append(
            "engine.vectorize has no effect: Flower asks for each client alone, and none trains "
            'with others. Set it to 0, or leave out engine.name = "flower"'
        )
    return cautions


def _without_effect(scenario: Scenario) -> list[str]:
    """A warning of stated workers, or an address, that the run's engine does not have."""
    name, engine = engine_name(scenario), scenario.engine
    stated = ["address"] * bool(engine.address)
    stated += ["attack_workers"] * (engine.attack_workers not in ("auto", 1))
    if name == "inline":
        stated += ["workers"] * (engine.workers not in ("auto", 1))
    if name == "ray" or not stated:
        return []
    keys = " and ".join(f"engine.{key} = {getattr(engine, key)}" for key in stated)
    verb = "has" if len(stated) == 1 else "have"
    return [f'{keys} {verb} no effect on engine "{name}". Set engine.name = "ray"']


def _plain_average(scenario: Scenario) -> list[str]:
    """A warning of a strategy that averages as plainly as `FedAvg`, with the settings it has."""
    training = scenario.training
    settings = training.strategy_table
    if settings["name"] == "FedAvgM" and not settings.get("server_momentum"):
        return [
            "FedAvgM without momentum is FedAvg, and Flower's default is 0. Set training.strategy ="
            ' {name = "FedAvgM", server_momentum = 0.9}'
        ]
    beta, clients = settings.get("beta", 0.2), training.per_round
    if settings["name"] == "FedTrimmedAvg" and int(beta * clients) == 0:
        return [
            f"FedTrimmedAvg leaves out no value: beta = {beta} of {clients} clients is less than "
            "one. Raise beta, which is below 0.5, or let more clients take part"
        ]
    return []


def _small_batches(built: BuiltRun) -> list[str]:
    """A warning if clients hold fewer examples than a batch has."""
    size, clients = built.scenario.training.batch_size, built.scenario.training.clients
    counts = [built.task.num_examples(client) for client in range(clients)]
    for client, count in enumerate(counts):
        if not isinstance(count, Integral) or count < 1:
            raise DataError(
                f"task: client {client} holds {count!r:.40} examples; expected an integer of 1 or "
                "more"
            )
    if (fewest := min(counts)) >= size:
        return []
    cut = sum(count < size for count in counts)
    return [
        f"a batch is cut to what a client holds: training.batch_size is {size}, and {cut} of "
        f"{clients} clients hold fewer examples (client {counts.index(fewest)}: {fewest})"
    ]


def _rehearse(scenario: Scenario, task: Task, module: nn.Module) -> None:
    """Take the gradient of one batch, the smallest that a client has, by code of the user's own."""
    t, steps = scenario.training, 1
    if t.batching == "epochs":  # the last batch of an epoch may be smaller than the others
        client = min(range(t.clients), key=lambda c: (task.num_examples(c) - 1) % t.batch_size)
        steps = math.ceil(task.num_examples(client) / t.batch_size)
    else:
        client = min(range(t.clients), key=task.num_examples)
    batch = task.batches(client, 1, batch_size=t.batch_size, steps=steps)[-1]
    batch = batch.to(next(module.parameters()).device)
    what = f"on a batch of {len(batch)} (inputs {tuple(batch.inputs.shape)})"
    parameters = {k: p for k, p in module.named_parameters() if k in task.trained(module)}
    short = [k for k, one in module.state_dict().items() if one.dtype == torch.bfloat16]
    if short:
        raise DataError(
            f"task.model: '{short[0]}' is bfloat16, which NumPy, and with it Flower, cannot hold; "
            "expected float32. Compute in bfloat16 within torch.autocast instead"
        )
    given = batch.inputs.clone()
    try:
        with isolated(scenario.seed, "rehearsal"):
            loss = task.loss(module, batch.inputs, batch.labels, lengths=batch.lengths)
            gradient = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    except Exception as error:
        fix = ""
        if len(batch) == 1 and any("BatchNorm" in type(m).__name__ for m in module.modules()):
            fix = ". Batch normalisation needs two examples: raise training.batch_size, lower "
            fix += "training.clients, or use GroupNorm"
        elif batch.inputs.device.type != "cpu" and "same device" in str(error):
            fix = ". Make tensors where the inputs are (device=inputs.device), or set "
            fix += 'engine.device = "cpu"'
        raise DataError(f"task: the model cannot be trained {what}: {brief(error)}{fix}") from error
    if not torch.equal(given.nan_to_num(), batch.inputs.nan_to_num()):
        raise DataError(
            "task.model: the model changes its inputs in place, and attacks hand it inputs that "
            "they still need: write x = x * 2, say, instead of x.mul_(2)"
        )
    if unused := [k for k, g in zip(parameters, gradient, strict=True) if g is None]:
        raise DataError(
            f"task.model: the loss does not depend on {', '.join(unused)}; leave these parameters "
            "out of the model, or set requires_grad to False"
        )
    if not all(bool(g.isfinite().all()) for g in (loss, *gradient)):
        raise DataError(f"task: the loss or its gradient is NaN or infinite {what}")


def check_vectorize(built: BuiltRun, module: nn.Module) -> None:
    """Train two clients at once.

    Args:
        built: The run.
        module: Its model, in training mode.

    Raises:
        ScenarioError: The run's clients cannot be trained at once.
    """
    task, settings = built.task, built.scenario.training
    check_together(built.defenses, settings.optimizer, drops=task.victim({}).drops)
    batches = task.batches(0, 1, batch_size=min(2, settings.batch_size), steps=1)
    one = local_training(built.scenario, task, module, batches, torch.Generator(), ())
    before, trained = task.arrays(module), task.trained(module)
    try:
        train_together(one, [batches, batches], before, loss=task.loss, trained=trained)
    except Exception as error:
        raise ScenarioError(
            "engine.vectorize trains several clients at once, and this model allows no batch of "
            f"models: {brief(error)}. Set engine.vectorize = 0"
        ) from error


def _too_many_victims(scenario: Scenario) -> list[str]:
    """One message for each number of victims above the number of clients in a round."""
    most = scenario.training.per_round
    asked: dict[str, Any] = {}
    for index, plan in enumerate(scenario.adversaries):
        if plan.victims is None:
            asked["threat.victims"] = scenario.threat.victims
        else:
            asked[f"adversaries.{index}.victims"] = plan.victims
    return [
        f"{key} = {number}, and {most} clients take part in a round "
        f'(training.clients_per_round). Lower it, or set {key} = "all"'
        for key, number in asked.items()
        if isinstance(number, int) and number > most
    ]


def _check_client_half(built: BuiltRun) -> None:
    """Refuse strategies of Flower that need clients to clip, if these do not."""
    settings = built.scenario.training.strategy_table
    name, norm = str(settings["name"]), settings.get("clipping_norm")
    where = f"training.strategy ({name})"
    if name.endswith("ClientSideAdaptiveClipping"):
        raise ScenarioError(
            f"{where} needs a bit from every client beside its update, which no defense here sends."
            ' Use "DifferentialPrivacyServerSideAdaptiveClipping"'
        )
    bounds, clipped = set[float](), set[float]()
    for defense in built.defenses:
        if defense.name == "flower-fixed-clipping":
            clipped.add(defense.model_dump()["clipping_norm"])
        if type(defense).protect is Defense.protect or defense.effect == "zeros":
            continue
        bounds.clear()  # whatever changes values may undo a clip before it
        if defense.name == "flower-fixed-clipping" and defense.clients == defense.layers == "all":
            bounds.add(defense.model_dump()["clipping_norm"])
    if name.endswith("ClientSideFixedClipping") and norm not in bounds:
        found = "none does"
        if norm in clipped:
            found = "a part of them is not, or is changed afterwards"
        elif clipped:
            found = f"they are clipped to {', '.join(map(str, sorted(clipped)))}"
        raise ScenarioError(
            f"{where} adds noise for updates that clients have clipped to {norm}, and {found}. "
            f'List [[defenses]] name = "flower-fixed-clipping", clipping_norm = {norm} last, for '
            "all clients and layers"
        )
