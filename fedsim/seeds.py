"""Random generators by purpose; nobody draws from a global one.

A generator depends on the run's seed and on what it is for: (seed, purpose, round, client, ...).
So a client's batch in round 7 is the same whichever process draws it, whatever was drawn before,
and with or without adversaries.
"""

import contextlib
import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

__all__ = ["derive", "isolated", "numpy_generator", "torch_generator"]


def derive(seed: int, purpose: str, *where: int | str) -> int:
    """A 63-bit seed for one purpose, at one place (round, client, ...) of the run."""
    text = "\x1f".join([str(seed), purpose, *map(str, where)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def torch_generator(
    seed: int, purpose: str, *where: int | str, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A torch generator for one purpose, at one place of the run."""
    return torch.Generator(device=device).manual_seed(derive(seed, purpose, *where))


def numpy_generator(seed: int, purpose: str, *where: int | str) -> np.random.Generator:
    """A numpy generator for one purpose, at one place of the run."""
    return np.random.default_rng(derive(seed, purpose, *where))


@contextlib.contextmanager
def isolated(seed: int, purpose: str, *where: int | str) -> Iterator[None]:
    """Seed the global generators inside the block, and put global state back after it.

    For code that cannot be handed a generator (dropout, weight initialisation) and for code that
    is not ours (adversaries): whatever it does to the state of `random`, numpy or torch, to
    torch's gradient mode, default dtype, threads and determinism, or to the working directory,
    changes nothing outside the block.
    """
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    directory = Path.cwd()
    gradients = torch.is_grad_enabled()
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    value = derive(seed, purpose, *where)
    with torch.random.fork_rng(devices=devices):
        try:
            reseed(value)
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            torch.set_grad_enabled(gradients)
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)
            # Asked first, because setting it imports torch's compiler, which takes seconds.
            if torch.are_deterministic_algorithms_enabled() != deterministic:
                torch.use_deterministic_algorithms(deterministic)
            os.chdir(directory)


def reseed(value: int) -> None:
    """Seed the three global generators. Flower's strategies draw from them."""
    random.seed(value)
    np.random.seed(value % 2**32)
    # Not torch.manual_seed: without a GPU it keeps every call, with its stack, until CUDA is
    # initialised, and a long run seeds once a client.
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(value)
