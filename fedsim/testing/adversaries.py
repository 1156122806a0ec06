"""Conformance check of adversaries."""

import dataclasses
from typing import Any

from pydantic import ValidationError

from fedsim.adversary import Adversary, Job, group_size
from fedsim.errors import NotGranted
from fedsim.knowledge import Knowledge
from fedsim.libraries import brief
from fedsim.metrics import misshapen, plain
from fedsim.records import CLAIMS, Observation, Reconstruction, field_of, of_layer
from fedsim.seeds import torch_generator
from fedsim.testing.examples import SPEC, device_of_tests, example
from fedsim.testing.watching import frozen, same, watched

_FIELDS = {
    flag: field_of(flag)
    for flag in Knowledge
    if flag not in (Knowledge.GRADIENT, Knowledge.HEAD_GRADIENT)
}

BUDGET = 3
"""Iterations of an attack in this check: enough to run through, too few to succeed."""

TOLERANCE = 1e-3
"""How far a victim's numbers may differ between a group and alone, by rounding."""


def adversary_complaints(attack: Adversary, sample: Observation | None) -> list[str]:
    """List what is wrong with an adversary.

    It is run twice on one observation, with the same seed for its own generator and other states of
    the global generators. It must raise `NotGranted` without its knowledge, fill the fields that it
    declares, leave the observation unchanged and return the same reconstruction twice. If it
    attacks several victims at once, each must get the same in a group of two as alone.

    Args:
        attack: The adversary.
        sample: An observation with everything granted; None for the one of `example`. An adversary
            that does not suit the default sample, or refuses it with a `ValueError`, is checked for
            its declarations only.

    Returns:
        One sentence for each complaint, with what to do about it.
    """
    blind = Observation(granted=Knowledge(0), spec=SPEC, head="head")
    found = []
    if dropped := (attack.needs & ~attack.requires()).names():
        found.append(
            f"requires() leaves out {', '.join(dropped)}, which `needs` names: start from "
            "super().requires()"
        )
    try:
        filled = attack.fills()
    except Exception as error:
        return [*found, f"fills() raises {brief(error)}: name fields whatever the settings"]
    if unknown := sorted(filled - CLAIMS):
        found.append(f"fills() names {unknown}, which Reconstruction lacks: use {sorted(CLAIMS)}")
    if left := sorted(attack.recovers - filled):
        found.append(f"fills() leaves out {left}, which `recovers` names: start from self.recovers")
    if attack.over_history and Knowledge.HISTORY not in attack.requires():
        found.append(
            "over_history is set, and HISTORY is not needed: without it there is no other "
            "observation to claim anything of; add it to `needs`"
        )
    if attack.requires():
        try:
            _attack(attack, blind, 0)
        except (NotGranted, ValueError):
            pass
        except (Exception, SystemExit) as error:
            found.append(
                f"with nothing granted it raises {brief(error)}: read knowledge with "
                "seen.know(Knowledge.X), which raises NotGranted"
            )
        else:
            found.append("with nothing granted it claims something all the same: what from?")

    seen = sample if sample is not None else example()
    if not attack.attacks(type(seen.spec)):
        left_out = f"suits leaves out {type(seen.spec).__name__}, which the sample has: add it"
        return found if sample is None else [*found, left_out]
    granted = attack.requires().closed()
    if any(getattr(seen, name) is None for flag, name in _FIELDS.items() if flag in granted):
        return found  # made for another kind of task than the sample's
    seen = dataclasses.replace(seen, granted=granted, **_withheld(seen, granted))
    before = frozen(seen)
    try:
        first, touched = _attack(attack, _with_own_models(seen), 0)
        second, _ = _attack(attack, _with_own_models(seen), 1)
    except NotGranted as error:
        return [*found, f"it asks for more than it declares ({error}): add that to `needs`"]
    except ValidationError as error:
        return [
            *found,
            f"it raises {brief(error)}: an adversary is frozen, so keep nothing on self. What was "
            "seen in earlier rounds is in seen.know(Knowledge.HISTORY)",
        ]
    except ValueError as error:
        refused = f"it refuses the sample: {error}"
        return found if sample is None else [*found, refused]
    except (Exception, SystemExit) as error:
        return [*found, f"it raises {brief(error)} on a small network with one image"]
    for claimed in (first, second):
        if not isinstance(claimed, Reconstruction):
            kind = type(claimed).__name__
            return [*found, f"reconstruct returns {kind}: return a Reconstruction"]
    for name in sorted(filled & CLAIMS):
        value = getattr(first, name)
        if value is None or (name == "attributes" and not value):
            where = "recovers" if name in attack.recovers else "fills()"
            found.append(f"{where} names '{name}', but the reconstruction leaves it empty")
    try:
        claimed = plain(first)
        if wrong := misshapen(claimed, seen.spec) or _outside(claimed, seen.spec.classes):
            found.append(wrong)
    except TypeError as error:
        found.append(str(error))
    if not same(before, frozen(seen)):
        found.append("it changes the observation: work on copies (tensor.clone())")
    if touched:
        found.append(f"it draws from the global generator of {touched}: draw from job.rng")
    if not same(_claim(first), _claim(second)):
        found.append("the same seed gives another answer: draw only from job.rng")
    return found or _group_complaints(attack, seen, first)


def _group_complaints(attack: Adversary, seen: Observation, alone: Reconstruction) -> list[str]:
    """List what is wrong when it attacks the sample twice at once, with seeds 1 and 0.

    Args:
        attack: The adversary.
        seen: What it is granted of the sample.
        alone: What it claims of the sample alone, with seed 0.
    """
    if group_size(attack) < 2:
        return []
    before, pair = frozen(seen), [_with_own_models(seen) for _ in range(2)]
    try:
        claims, touched = watched(
            lambda: list(attack.reconstruct_many(pair, [_job(1), _job(0)])), 0
        )
    except Exception as error:
        return [f"reconstruct_many raises {brief(error)} where reconstruct does not"]
    if len(claims) != 2 or not all(isinstance(one, Reconstruction) for one in claims):
        kinds = ", ".join(type(one).__name__ for one in claims)
        return [f"reconstruct_many returns [{kinds}] for two victims: a Reconstruction for each"]
    found = []
    if not all(same(before, frozen(one)) for one in pair):
        found.append("reconstruct_many changes an observation: work on copies (tensor.clone())")
    if touched:
        found.append(
            f"reconstruct_many draws from the global generator of {touched}: draw from each "
            "victim's job.rng"
        )
    if not same(_claim(alone), _claim(claims[1]), tolerance=TOLERANCE):
        found.append(
            "reconstruct_many claims something else than reconstruct does of that victim: claims "
            "in the order of the observations, each drawn from its own job.rng"
        )
    return found


def _outside(claimed: Reconstruction, classes: int) -> str:
    """Say which labels of a claim the head has no output for; "" if there are none."""
    named = [*(claimed.label_set or ()), *(claimed.label_counts or ())]
    named += [] if claimed.labels is None else claimed.labels.flatten().tolist()
    odd = sorted({label for label in named if not 0 <= label < max(2, classes)})
    listed = ", ".join(map(str, odd[:3]))
    return f"it claims label {listed}, and the head has outputs 0 to {classes - 1}" if odd else ""


def _attack(attack: Adversary, seen: Observation, world: int) -> tuple[Any, str]:
    """Attack with seed 0, and with global generators seeded by `world`."""
    return watched(lambda: attack.reconstruct(seen, _job(0)), world)


def _job(seed: int) -> Job:
    return Job(torch_generator(seed, "conformance"), budget=BUDGET, device=device_of_tests())


def _with_own_models(seen: Observation) -> Observation:
    """The same observation with copies of the models, which an adversary may change."""
    history = seen.history
    if history is not None:
        history = tuple(map(_with_own_models, history))
    model = None if seen.model is None else seen.model.copy()
    return dataclasses.replace(seen, model=model, history=history)


def _withheld(seen: Observation, granted: Knowledge) -> dict[str, Any]:
    """The fields to replace in an observation so that it holds no more than is granted."""
    gone: dict[str, Any] = {name: None for flag, name in _FIELDS.items() if flag not in granted}
    if Knowledge.GRADIENT not in granted:
        head = of_layer(seen.gradient, seen.head)
        gone["gradient"] = head if Knowledge.HEAD_GRADIENT in granted else {}
    return gone


def _claim(claimed: Reconstruction) -> dict[str, Any]:
    return {name: getattr(claimed, name) for name in sorted(CLAIMS)}
