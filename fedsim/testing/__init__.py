"""Tools for plugin authors' tests: hand-made observations and jobs, and a conformance check.

examples      hand-made observations and jobs, and a small network
contract      the conformance check: declarations, then behaviour
adversaries   its part for adversaries
defenses      for defenses
metrics       for metrics
tasks         for tasks
watching      checks that calls are pure
"""

from fedsim.testing.contract import conformance
from fedsim.testing.examples import SPEC, batch, example, job, network, observation

__all__ = ["SPEC", "batch", "conformance", "example", "job", "network", "observation"]
