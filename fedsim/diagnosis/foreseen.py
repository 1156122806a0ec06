"""What a scenario alone says about its attacks, before any training."""

from collections.abc import Iterator

from fedsim.diagnosis.measuring import seen_in_model
from fedsim.diagnosis.verdict import expect, sentence, setting
from fedsim.quantity import Value
from fedsim.scenario.built import BuiltRun


def foreseen(built: BuiltRun) -> Iterator[tuple[str, str]]:
    """Say of each adversary what is expected, as far as the scenario and its first model show.

    Args:
        built: The scenario's task and plugins; its data are loaded.

    What only an update shows, such as noise, is left to `diagnose`.

    Yields:
        The adversary's label, and a sentence. Adversaries that declare no requirements, and those
        that are denied, have none.
    """
    training = _of_training(built)
    batches = training["steps"] * training["clients"]
    values: dict[str, Value] = {**seen_in_model(built.task.victim({}), batches), **training}
    values["optimizer"] = built.scenario.training.optimizer
    defenses = ", ".join(dict.fromkeys(one.name for one in built.defenses))
    later = f"; how much {defenses} hides is measured by fedsim diagnose" if defenses else ""
    for label, _, adversary in built.adversaries:
        verdict = expect(adversary, built.threat.granted, values)
        if verdict.withheld or verdict.leaks is None:
            continue
        if verdict.leaks:
            yield label, f"nothing in the scenario speaks against it: {setting(values)}{later}"
        else:
            yield label, sentence(label, verdict, values)


def _of_training(built: BuiltRun) -> dict[str, int]:
    """Examples, local steps and clients of the largest update."""
    training = built.scenario.training
    together = training.per_round if training.secure_aggregation else 1
    clients = range(training.clients)
    steps, held = 1, max(built.task.num_examples(client) for client in clients)
    if training.algorithm == "fedavg":
        steps = max(built.steps(client) for client in clients)
    examples = min(training.batch_size, held) * steps
    if training.local_epochs is not None:
        examples = held * training.local_epochs
    return {
        "examples": examples * together,
        "clients": together,
        "steps": steps,
    }
