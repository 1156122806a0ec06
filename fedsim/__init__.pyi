"""The types of the public names, which `fedsim/__init__.py` loads when they are first used."""

from fedsim.adversary import Adversary
from fedsim.attacking.inversion import invert
from fedsim.defense import ClientState, Defense, Exposure, MeanGradient, Training
from fedsim.diagnosis.diagnose import diagnose
from fedsim.engine.attack import attack
from fedsim.engine.simulate import simulate, train
from fedsim.errors import FedsimError, NotGranted
from fedsim.federation.defended import defend
from fedsim.federation.fedsgd import FedSGD
from fedsim.federation.server import HonestButCurious
from fedsim.federation.watching import reveal, watch
from fedsim.job import Job
from fedsim.knowledge import Knowledge
from fedsim.plugin import Plugin
from fedsim.records import Batch, Finding, Interception, Observation, Reconstruction, Truth
from fedsim.report import write_report
from fedsim.requirement import Requirement
from fedsim.results.loading import load
from fedsim.scenario import Scenario
from fedsim.spec import ImageSpec, Spec, SpeechSpec, TabularSpec, TextSpec
from fedsim.task import Task
from fedsim.threat import ThreatModel
from fedsim.update import Update
from fedsim.victim import VictimModel

__all__ = [
    "Adversary", "Batch", "ClientState", "Defense", "Exposure", "FedSGD", "FedsimError", "Finding",
    "HonestButCurious", "ImageSpec", "Interception", "Job", "Knowledge", "MeanGradient",
    "NotGranted", "Observation", "Plugin", "Reconstruction", "Requirement", "Scenario", "Spec",
    "SpeechSpec", "TabularSpec", "Task", "TextSpec", "ThreatModel", "Training", "Truth", "Update",
    "VictimModel", "__version__", "attack", "defend", "diagnose", "invert", "load", "reveal",
    "simulate", "train", "watch", "write_report",
]  # fmt: skip

__version__: str
