"""Imports of libraries that need preparation.

The torchaudio wheel on PyPI contains an extension for one CUDA version. With a torch for another
CUDA version, or for none, `import torchaudio` raises, although everything that fedsim uses of it is
plain PyTorch; and transformers imports torchaudio wherever it is installed.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fedsim.errors import FedsimError, PluginError

if TYPE_CHECKING:
    import pandas as pd

HUB = "hub:"
"""Prefix of the names of data sets and models on the Hugging Face Hub."""


def transformers() -> ModuleType:
    """Import the transformers library, whichever torchaudio is installed."""
    torchaudio()
    return importlib.import_module("transformers")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence progress bars and reports of new heads inside the block.

    A run builds its model many times, and would print them each time.
    """
    from huggingface_hub.utils import logging as hub

    library: Any = transformers().logging
    verbosity, bars = library.get_verbosity(), library.is_progress_bar_enabled()
    # Without a network the Hub would report every retry; the error reports it once.
    hub.set_verbosity_error()  # type: ignore[no-untyped-call]
    library.set_verbosity_error()
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.set_verbosity(verbosity)
        if bars:
            library.enable_progress_bar()


def read_csv(file: Any, **options: Any) -> "pd.DataFrame":
    """pandas' reader; numbers are read as they were written, to the last digit."""
    import pandas as pd

    if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):  # later ones always do
        options["float_precision"] = "round_trip"
    frame: pd.DataFrame = pd.read_csv(file, **options)
    return frame


def installing(name: str) -> str:
    """The command that installs an extra.

    It names the source folder, because fedsim is on no package index yet; there it will be
    fedsim-privacy, since the name fedsim belongs to another project.
    """
    return f"pip install -e '.[{name}]' in fedsim's folder"


def brief(error: BaseException) -> str:
    """The kind of an error and the first line of its message."""
    if isinstance(error, ValidationError):  # its first line says how many there are
        first = error.errors()[0]
        return f"ValidationError: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


@contextlib.contextmanager
def asking(plugin: str, member: str) -> Iterator[None]:
    """Say in a sentence what a member of a plugin raises.

    Args:
        plugin: The name of the plugin.
        member: The name of the member.

    Raises:
        PluginError: It raised an error that is not fedsim's.
    """
    try:
        yield
    except FedsimError:
        raise
    except Exception as error:
        raise PluginError(f"{plugin}: {member} raised {brief(error)}") from error


NO_MEMORY = "can't allocate memory"
"""What PyTorch says where its machine has too little memory."""


def memory_is_short(error: BaseException) -> bool:
    """Whether an error of Python, NumPy or PyTorch says that the machine (no GPU) has no memory."""
    return isinstance(error, MemoryError) or NO_MEMORY in str(error)


def torchaudio() -> ModuleType | None:
    """Import torchaudio, without its compiled extension if that cannot be loaded.

    Returns:
        The module; None if torchaudio is not installed.
    """
    try:
        return importlib.import_module("torchaudio")
    except ModuleNotFoundError:
        return None
    except (OSError, RuntimeError, ImportError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchaudio"]:
            del sys.modules[name]
        sys.modules["torchaudio._extension"] = _without_extension()
        return importlib.import_module("torchaudio")


def _without_extension() -> ModuleType:
    """What torchaudio's extension module contains if there is no extension file."""

    def missing(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "this torchaudio was compiled for another torch or CUDA version, so its compiled "
            "parts (forced alignment, CUDA decoding) are not there"
        )

    module = ModuleType("torchaudio._extension")
    vars(module).update(
        _IS_TORCHAUDIO_EXT_AVAILABLE=False,
        _IS_ALIGN_AVAILABLE=False,
        _check_cuda_version=lambda: None,
        _load_lib=missing,
        fail_if_no_align=lambda function: missing,
    )
    return module
