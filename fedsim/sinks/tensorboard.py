"""Curves as TensorBoard's event files."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsim.runs.files import make_folder, match_folder
from fedsim.runs.tables import folder_name
from fedsim.scenario import Scenario
from fedsim.scenario.settings import TensorBoardSink

_LIBRARY: Any = importlib.import_module("torch.utils.tensorboard")
"""Its types depend on whether tensorboard is installed."""


class TensorBoard:
    """Event files of one point, in a folder that TensorBoard shows under the point's name.

    Args:
        settings: The table `[sinks.tensorboard]`.
        run: The run folder.
        point: The name of the point, "" without a sweep.
        scenario: What runs.
    """

    def __init__(
        self, settings: TensorBoardSink, run: Path, point: str, scenario: Scenario
    ) -> None:
        folder = Path(settings.folder) / run.resolve().name if settings.folder else run
        folder = folder if settings.folder else folder / "tensorboard"
        if point:
            folder /= folder_name(point)
        make_folder(folder)
        self._writer: Any = _LIBRARY.SummaryWriter(str(folder))
        self._writer.add_text("scenario", f"```toml\n{scenario.to_toml()}```")
        self._writer.flush()
        for path in folder.glob("events.*"):
            match_folder(path)

    def log(self, values: Mapping[str, float], round: int) -> None:
        """Add a value to each of several curves."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def close(self, status: str) -> None:
        """Close the files."""
        self._writer.close()
