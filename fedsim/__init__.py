"""fedsim: a federated-learning simulation framework with pluggable adversaries."""

import importlib
from typing import Any

from fedsim.moved import redirect

__version__ = "0.1.0"

# Every public name and the module it lives in. They load when first used, so that importing
# fedsim costs nothing, and needs Flower or Ray only where a name does.
_HOMES = {
    "Adversary": "adversary",
    "Batch": "records",
    "ClientState": "defense",
    "Defense": "defense",
    "Exposure": "defense",
    "FedSGD": "federation.strategies",
    "FedsimError": "errors",
    "Finding": "records",
    "HonestButCurious": "federation.server",
    "Interception": "records",
    "Job": "adversary",
    "Knowledge": "knowledge",
    "MeanGradient": "defense",
    "NotGranted": "errors",
    "Observation": "records",
    "Plugin": "plugin",
    "Reconstruction": "records",
    "Scenario": "scenario",
    "Spec": "spec",
    "Task": "task",
    "ThreatModel": "threat",
    "Training": "defense",
    "Truth": "records",
    "Update": "records",
    "VictimModel": "victim",
    "defend": "federation.client",
    "simulate": "engine.simulate",
    "write_report": "report",
}

_MODULES = frozenset(home for home in _HOMES.values() if "." not in home) | {
    *("gradients", "metrics", "priors", "privacy", "seeds", "testing"),
}

redirect(
    {
        f"fedsim.{old}": f"fedsim.{new}.{old}"
        for new, names in {
            "attacking": ("attack", "campaign"),
            "cli": ("display",),
            "engine": ("app", "preflight"),
            "federation": (
                "checkpoint",
                "client",
                "grid",
                "mods",
                "secure",
                "secure.client",
                "secure.grid",
                "server",
                "strategies",
            ),
            "runs": ("ledger", "tape"),
            "scenario": ("paper", "settings"),
            "training": ("local",),
        }.items()
        for old in names
    }
    | {
        "fedsim.conformance": "fedsim.testing.contract",
        "fedsim.gradients.update": "fedsim.threat",
        "fedsim.report.measures": "fedsim.runs.measures",
        "fedsim.simulation": "fedsim.engine.simulate",
        "fedsim.tasks.speech.commands": "fedsim.tasks.speech.speech_commands",
        "fedsim.tasks.speech.cutting": "fedsim.tasks.speech.segments",
        "fedsim.tasks.speech.enrolment": "fedsim.tasks.speech.auxiliary",
        "fedsim.tasks.speech.exhibits": "fedsim.tasks.speech.rendering",
        "fedsim.tasks.speech.listening": "fedsim.tasks.speech.spectrograms",
        "fedsim.tokens": "fedsim.spec",
    }
)

__all__ = [
    "Adversary",
    "Batch",
    "ClientState",
    "Defense",
    "Exposure",
    "FedSGD",
    "FedsimError",
    "Finding",
    "HonestButCurious",
    "Interception",
    "Job",
    "Knowledge",
    "MeanGradient",
    "NotGranted",
    "Observation",
    "Plugin",
    "Reconstruction",
    "Scenario",
    "Spec",
    "Task",
    "ThreatModel",
    "Training",
    "Truth",
    "Update",
    "VictimModel",
    "__version__",
    "defend",
    "simulate",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"fedsim.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"fedsim.{name}")
    raise AttributeError(f"module 'fedsim' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
