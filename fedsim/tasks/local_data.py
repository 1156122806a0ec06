"""The folder of local data sets that `--data` or `FEDSIM_DATA` names."""

from pathlib import Path

from fedsim.errors import DataError

__all__ = ["data_folder"]


def data_folder(folder: Path | None, *, what: str, use: str) -> Path:
    """Check the folder in which a data set is looked up by name.

    Args:
        folder: The folder; None if neither `--data` nor `FEDSIM_DATA` names one.
        what: What is looked up, for the message: "data 'mnist'".
        use: A setting that needs no folder, for the message: 'data = "digits"'.

    Returns:
        The folder, which exists and is not empty.

    Raises:
        DataError: no folder is given, it does not exist, it cannot be read, or it is empty.
    """
    ways = f"Use {use} (built in), or name a folder with --data DIR or FEDSIM_DATA"
    if folder is None:
        raise DataError(f"{what} is looked up in a folder, and none is given. {ways}")
    if not folder.is_dir():
        raise DataError(f"{what} is looked up in {folder}, which is not there. {ways}")
    try:
        empty = not any(folder.iterdir())
    except OSError as error:
        raise DataError(
            f"{what} is looked up in {folder}, which cannot be read: {error.strerror}. {ways}"
        ) from error
    if empty:
        raise DataError(
            f"{what} is looked up in {folder}, which is empty. {ways}; in a container, mount one "
            f"(--volume DIR:{folder}:ro)"
        )
    return folder
