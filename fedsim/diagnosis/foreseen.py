"""What a scenario alone says about its attacks, before any training."""

from collections.abc import Collection, Iterator
from pathlib import Path

from fedsim.attacking.executor import Observer
from fedsim.diagnosis.counting import counted
from fedsim.diagnosis.measuring import kinked_values, seen_in_model
from fedsim.diagnosis.verdict import expect, sentence, setting
from fedsim.libraries import brief
from fedsim.quantity import QUANTITIES, Value
from fedsim.runs import provenance
from fedsim.scenario.built import BuiltRun
from fedsim.seeds import isolated


def foreseen(
    built: BuiltRun, unknown: Collection[str] = (), optimizer: str = ""
) -> Iterator[tuple[str, str]]:
    """Say of each adversary what is expected, as far as the scenario and its first model show.

    Args:
        built: The scenario's task and plugins; its data are loaded.
        unknown: Keys of the scenario that were not stated, of another Flower project.
        optimizer: The clients' optimizer, if it is not the scenario's.

    What only an update shows, such as noise, is left to `diagnose`.

    Yields:
        The adversary's label, and a sentence. Adversaries that declare no requirements, and those
        that are denied, have none.
    """
    values = stated(built, unknown, optimizer)
    defenses = ", ".join(dict.fromkeys(one.name for one in built.defenses))
    model = built.task.victim({})
    later = f"; how much {defenses} hides is measured by fedsim diagnose" if defenses else ""
    for label, _, adversary in built.adversaries:
        verdict = expect(adversary, built.threat.granted, values)
        if verdict.withheld or verdict.leaks is None:
            continue
        if verdict.leaks and adversary.cautions(model):
            yield (
                label,
                f"of its conditions none speaks against it, but a warning above does{later}",
            )
        elif verdict.leaks:
            yield label, f"nothing in the scenario speaks against it: {setting(values)}{later}"
        else:
            most = values["determined"] if "unknowns" in verdict.reasons else None
            counted = "" if most is None else f"; this is {QUANTITIES['determined'].describe(most)}"
            yield label, sentence(label, verdict, values) + counted


def caution(folder: Path, built: BuiltRun, observer: Observer) -> None:
    """Name the adversaries that are expected to find nothing, before another project is attacked.

    A model that cannot be looked at is a caution as well, and costs the audit nothing.

    Args:
        folder: The run folder, which knows what was not stated.
        built: The project's task and adversaries.
        observer: Called with each caution.
    """
    try:
        written = provenance.read(folder)
        unknown = [str(key) for key in written.get("unknown", [])]
        with isolated(built.scenario.seed, "diagnosis"):
            values = stated(built, unknown, str(written.get("optimizer", "")))
        for label, _, adversary in built.adversaries:
            verdict = expect(adversary, built.threat.granted, values)
            if verdict.leaks is False and not verdict.withheld:
                observer("caution", text=sentence(label, verdict, values))
    except Exception as error:  # whatever a plugin or a model does
        observer("caution", text=f"what attacks can find is not foreseen: {brief(error)}")


def stated(built: BuiltRun, unknown: Collection[str] = (), optimizer: str = "") -> dict[str, Value]:
    """The quantities that follow from a scenario and its first model; see `foreseen`."""
    training, model = _of_training(built, unknown), built.task.victim({})
    examples = training["examples"]
    batches = int(training["steps"] or 1) * int(training["clients"] or 1)
    name = optimizer or built.scenario.training.optimizer
    return {
        **seen_in_model(model, batches),
        **training,
        "kinked_values": kinked_values(model, examples) if examples else None,
        **counted(model, examples),
        "optimizer": None if name == "unknown" else name,
    }


def _of_training(built: BuiltRun, unknown: Collection[str]) -> dict[str, int | None]:
    """Examples, local steps and clients of the largest update; None for what is not known."""
    training = built.scenario.training
    together = training.per_round if training.secure_aggregation else 1
    # The clients of another project have their data themselves: none is known to hold any.
    held = max(map(built.task.num_examples, range(training.clients)), default=0)
    examples: int | None
    steps: int | None = 1
    if training.algorithm == "fedavg":
        steps = training.local_steps
        if training.local_epochs is not None:
            steps = max(map(built.steps, range(training.clients))) if held else None
    if "training.local_steps" in unknown:
        steps = None
    examples = min(training.batch_size, held or training.batch_size) * (steps or 1) * together
    if training.local_epochs is not None:
        examples = held * training.local_epochs * together or None
    if steps is None or "training.batch_size" in unknown:
        examples = None
    return {"examples": examples, "clients": together, "steps": steps}
