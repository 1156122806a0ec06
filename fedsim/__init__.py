"""fedsim: a federated-learning simulation framework with pluggable adversaries."""

import importlib
from typing import Any

from fedsim.moved import redirect

__version__ = "0.1.0"

# The public names of each module. A module is loaded when one of its names is first used, so that
# importing fedsim is cheap and needs neither Flower nor Ray.
_HOMES = {
    name: module
    for module, names in {
        "adversary": "Adversary",
        "attacking.inversion": "invert",
        "defense": "ClientState Defense Exposure MeanGradient Training",
        "diagnosis.diagnose": "diagnose",
        "engine.attack": "attack",
        "engine.simulate": "simulate train",
        "errors": "FedsimError NotGranted",
        "federation.defended": "defend",
        "federation.fedsgd": "FedSGD",
        "federation.server": "HonestButCurious",
        "federation.watching": "reveal watch",
        "job": "Job",
        "knowledge": "Knowledge",
        "plugin": "Plugin",
        "records": "Batch Finding Interception Observation Reconstruction Truth",
        "update": "Update",
        "report": "write_report",
        "requirement": "Requirement",
        "results.loading": "load",
        "scenario": "Scenario",
        "spec": "ImageSpec Spec SpeechSpec TabularSpec TextSpec",
        "task": "Task",
        "threat": "ThreatModel",
        "victim": "VictimModel",
    }.items()
    for name in names.split()
}

__all__ = sorted([*_HOMES, "__version__"])

_MODULES = frozenset(home for home in _HOMES.values() if "." not in home) | {
    *("gradients", "metrics", "priors", "privacy", "seeds", "testing"),
}

redirect(
    {
        f"fedsim.{old}": f"fedsim.{new}.{old}"
        for new, names in {
            "attacking": "attack campaign",
            "cli": "display",
            "engine": "app preflight",
            "federation": "checkpoint client grid mods secure server strategies",
            "runs": "ledger",
            "scenario": "paper settings",
            "training": "local",
        }.items()
        for old in names.split()
    }
    | {
        "fedsim.conformance": "fedsim.testing.contract",
        "fedsim.gradients.update": "fedsim.threat",
        "fedsim.gradients.utterances": "fedsim.gradients.head",
        "fedsim.gradients.whitening": "fedsim.gradients.distances",
        "fedsim.runs.loading": "fedsim.results.loading",
        "fedsim.runs.tape": "fedsim.runs.recording",
        "fedsim.tape": "fedsim.runs.recording",
        "fedsim.report.measures": "fedsim.runs.reading",
        "fedsim.runs.measures": "fedsim.runs.reading",
        "fedsim.simulation": "fedsim.engine.simulate",
        "fedsim.tasks.speech.commands": "fedsim.tasks.speech.local",
        "fedsim.tasks.speech.cutting": "fedsim.tasks.speech.segments",
        "fedsim.tasks.speech.enrolment": "fedsim.tasks.speech.utterances",
        "fedsim.tasks.speech.exhibits": "fedsim.tasks.speech.spectrograms",
        "fedsim.tasks.speech.listening": "fedsim.tasks.speech.spectrograms",
        "fedsim.training.defenses": "fedsim.training.local",
        "fedsim.tokens": "fedsim.spec",
    }
)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"fedsim.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"fedsim.{name}")
    raise AttributeError(f"module 'fedsim' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
