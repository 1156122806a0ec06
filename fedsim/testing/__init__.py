"""Tools for plugin authors' tests: hand-made observations and jobs, and a conformance check."""

from fedsim.testing.contract import conformance
from fedsim.testing.examples import SPEC, batch, example, job, network, observation

__all__ = ["SPEC", "batch", "conformance", "example", "job", "network", "observation"]
