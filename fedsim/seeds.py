"""Random generators, each for one purpose; no code draws from a global generator.

A generator is seeded by the run's seed and by what it is for: (seed, purpose, round, client, ...).
A client's batch in round 7 is therefore the same in every process, whatever was drawn before, and
with or without adversaries.

PyTorch's generator on a CPU, and numpy's global one, take 32 bits of a seed: whoever sees the noise
of a client can try all of them. With a run's seed of 2**32 or more, their whole state is filled.
"""

import contextlib
import functools
import hashlib
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

WIDE = 2**32
"""Seeds from here on fill the whole state of generators that take 32 bits of a seed."""


def derive(seed: int, purpose: str, *where: int | str) -> int:
    """Derive a 63-bit seed.

    Args:
        seed: The run's seed.
        purpose: What the random numbers are for, such as "batches".
        where: The place in the run, such as client and round.
    """
    text = "\x1f".join([str(seed), purpose, *map(str, where)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def torch_generator(
    seed: int,
    purpose: str,
    *where: int | str,
    device: torch.device | str = "cpu",
    wide: bool | None = None,
) -> torch.Generator:
    """A torch generator for one purpose at one place of the run.

    Args:
        seed: The run's seed.
        purpose: What the random numbers are for; see `derive`.
        where: The place in the run.
        device: Where it draws.
        wide: Whether its whole state is filled, by default if the seed is `WIDE` or larger. False
            for a seed that is itself drawn from a generator and keeps no secret.
    """
    value = derive(seed, purpose, *where)
    generator = torch.Generator(device=device).manual_seed(value)
    if (seed >= WIDE if wide is None else wide) and generator.device.type == "cpu":
        _fill(generator, value)
    return generator


def numpy_generator(seed: int, purpose: str, *where: int | str) -> np.random.Generator:
    """A numpy generator for one purpose at one place of the run; see `derive`."""
    return np.random.default_rng(derive(seed, purpose, *where))


def isolated(
    seed: int, purpose: str, *where: int | str, wide: bool | None = None
) -> contextlib.AbstractContextManager[None]:
    """Seed the global generators for one purpose at one place of the run; see `seeded`.

    The arguments are those of `torch_generator`.
    """
    return seeded(derive(seed, purpose, *where), wide=seed >= WIDE if wide is None else wide)


class seeded(contextlib.AbstractContextManager[None]):  # noqa: N801 - used like a function
    """Seed the global generators inside the block, and restore all global state after it.

    It serves code that cannot be given a generator (dropout, weight initialisation) and foreign
    code (adversaries). Whatever such code does to the state of `random`, numpy or torch, to torch's
    gradient mode, default dtype, threads and determinism, or to the working directory, has no
    effect outside the block. Inside, cuDNN does not take TF32, so that a GPU computes in float32,
    and with `deterministic` no algorithm that sums in a random order.

    A class, and not a generator function, because a client is little more than a millisecond.

    Args:
        value: The seed.
        wide: Whether the whole state of the generators is filled.
    """

    def __init__(self, value: int, *, wide: bool) -> None:
        self._value, self._wide = value, wide

    def __enter__(self) -> None:
        global _held
        self._held, self._directory = _held, os.getcwd()
        self._gradients = torch.is_grad_enabled()
        self._dtype, self._threads = torch.get_default_dtype(), torch.get_num_threads()
        self._before = torch.are_deterministic_algorithms_enabled()
        self._warned = torch.is_deterministic_algorithms_warn_only_enabled()
        devices = _devices()
        plain = _held and not devices
        self._own = contextlib.nullcontext() if plain else _surroundings(devices, keep=not _held)
        self._own.__enter__()
        _held = False  # what is nested in this block must not change its random numbers
        try:
            reseed(self._value, wide=self._wide)
            if devices and _deterministic and not self._before:
                # The setter imports torch's compiler, which takes seconds, so only if needed.
                torch.use_deterministic_algorithms(True, warn_only=True)
        except BaseException:
            self._restore()
            raise

    def __exit__(self, *raised: object) -> None:
        self._restore()

    def _restore(self) -> None:
        global _held
        _held = self._held
        try:
            # Each is set where it was changed.
            if torch.is_grad_enabled() != self._gradients:
                torch.set_grad_enabled(self._gradients)
            if torch.get_default_dtype() != self._dtype:
                torch.set_default_dtype(self._dtype)
            if torch.get_num_threads() != self._threads:
                torch.set_num_threads(self._threads)
            if torch.are_deterministic_algorithms_enabled() != self._before:
                torch.use_deterministic_algorithms(self._before, warn_only=self._warned)
            os.chdir(self._directory)
        finally:
            self._own.__exit__(None, None, None)


@contextlib.contextmanager
def _surroundings(devices: list[int], *, keep: bool) -> Iterator[None]:
    """What the block needs on a GPU, and the global generators' states kept if `keep` says so."""
    with contextlib.ExitStack() as own:
        if devices:
            flags = torch.backends.cudnn.flags
            exact = {"deterministic": _deterministic, "allow_tf32": False}
            own.enter_context(flags(enabled=torch.backends.cudnn.enabled, **exact))
        if keep:
            own.enter_context(_kept())
        yield


def deterministic(wanted: bool) -> None:
    """Set whether GPUs sum in the same order each time inside `isolated` blocks, as by default.

    Where torch has no such algorithm, it warns and takes another. A CPU always does.

    Args:
        wanted: The setting `engine.deterministic` of the run that this process works for.
    """
    global _deterministic
    _deterministic = wanted
    if wanted:  # what cuBLAS reads when it starts, and without which it warns
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def is_deterministic() -> bool:
    """Whether GPUs sum in the same order each time inside `isolated` blocks."""
    return _deterministic


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Keep the global generators' states for several `isolated` blocks, which then only seed.

    Saving and restoring them costs a third of a millisecond, as much as a small model's training
    step. Between the blocks, inside this one, nothing may draw from a global generator.
    """
    global _held
    kept, _held = _held, True
    try:
        with _kept():
            yield
    finally:
        _held = kept


@contextlib.contextmanager
def torch_defaults() -> Iterator[None]:
    """Set torch's modes to their defaults inside the block: gradients, float32, CPU, no autocast.

    A notebook may have set others, on which the results of a run must not depend: workers in other
    processes do not have them.
    """
    dtype = torch.get_default_dtype()
    with contextlib.ExitStack() as modes:
        modes.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        modes.enter_context(torch.inference_mode(mode=False))
        modes.enter_context(torch.enable_grad())
        if torch.get_default_device().type != "cpu":
            modes.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        yield


_deterministic = True
"""The setting `engine.deterministic`."""

_held = False
"""Whether a block of `held` keeps the global generators, as these are the process's own."""


@functools.cache
def _devices() -> list[int]:
    """The GPUs, which have generators of their own."""
    return list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """Restore the states of the global generators of `random`, numpy and torch after the block."""
    states: tuple[Any, Any] = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=_devices()):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def reseed(value: int, *, wide: bool = False) -> None:
    """Seed the global generators of `random`, numpy and torch.

    Flower's strategies draw from them.

    Args:
        value: The seed of 63 bits, as from `derive`.
        wide: Whether numpy and torch on a CPU take all of its bits, and not 32.
    """
    random.seed(value)
    np.random.seed([value % 2**32, value >> 32] if wide else value % 2**32)
    # torch.manual_seed would, without a GPU, keep every call with its stack until CUDA is
    # initialised, and a long run seeds once a client.
    torch.default_generator.manual_seed(value)
    if wide:
        _fill(torch.default_generator, value)
    if _devices():
        torch.cuda.manual_seed_all(value)


def _fill(generator: torch.Generator, value: int) -> None:
    """Fill the state of a Mersenne Twister on the CPU that has just been seeded."""
    state = generator.get_state()
    words = state.numpy().view(np.uint64)  # the seed, two of counters, 624 of state, and the rest
    filled = hashlib.shake_256(str(value).encode()).digest(4 * 624)
    words[3:627] = np.frombuffer(filled, np.uint32)
    generator.set_state(state)
