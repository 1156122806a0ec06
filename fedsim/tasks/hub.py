"""Data sets of the Hugging Face Hub, the only data that is loaded over the network."""

from typing import Any

from fedsim.errors import DataError
from fedsim.libraries import HUB


def splits(name: str, otherwise: str) -> Any:
    """Load a data set of the Hub.

    Args:
        name: "hub:OWNER/SET[/CONFIG]".
        otherwise: How else to provide its data, for the error message.

    Returns:
        The splits by name, of the `datasets` library.

    Raises:
        DataError: The data set could not be loaded, for whatever reason.
    """
    import datasets
    from huggingface_hub.utils import logging

    # Without a network it would report every retry; the error below reports it once.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    owner, _, rest = name.removeprefix(HUB).partition("/")
    repository, _, config = rest.partition("/")
    try:
        return datasets.load_dataset(f"{owner}/{repository}" if rest else owner, config or None)
    # Any failure, from name resolution to decoding, has the same two remedies.
    except Exception as error:
        reason = (str(error).strip() or "no message").splitlines()[0]
        raise DataError(
            f"data '{name}' could not be loaded from the Hub ({type(error).__name__}: {reason}). "
            "Either load it once where there is a network (it is cached from then on), or save "
            f"it {otherwise}."
        ) from error
