"""What an audit of another Flower project says, in Flower's log."""

import logging
import time
from pathlib import Path
from typing import Any

from fedsim.attacking.executor import Observer
from fedsim.inert import line
from fedsim.report import verdicts

LOG = logging.getLogger("flwr")
EVERY = 10.0
"""Seconds between two lines on the progress of an attack."""


def audit_observer() -> Observer:
    """An observer that logs how many attacks begin, cautions, and how far a long attack is.

    The first attack of each adversary that fails, is denied or is out of time is logged, too.
    """
    said, without = time.monotonic(), set[str]()

    def observe(event: str, **fields: Any) -> None:
        nonlocal said
        if event == "attacks" and fields["queued"]:
            LOG.info("fedsim: %d attacks to make, %d waiting", fields["queued"], fields["pending"])
        elif event == "caution":
            LOG.warning("fedsim: %s", fields["text"])
        elif event == "findings":
            row = fields["findings"][0]
            if row.status in ("failed", "denied", "timeout") and row.label not in without:
                without.add(row.label)
                text = (row.victim, row.label, row.status, line(row.error))
                LOG.warning("fedsim: %s %s: %s: %s", *text)
        elif event == "progress" and time.monotonic() - said >= EVERY:
            LOG.info("fedsim: %s", fields["progress"])
            said = time.monotonic()

    return observe


def log_results(report: Path) -> None:
    """Log what leaked, a line for each adversary, and where the report is.

    Args:
        report: The report, or the run folder if nothing was attacked.
    """
    if report.is_file():
        for row in verdicts(report.parent):
            said = ". ".join(filter(None, (row["badge"], row["sentence"])))
            LOG.info("fedsim: %s: %s", row["label"], said)
    LOG.info("fedsim: the results are in %s", report)


def log_left(folder: Path, number: int, watched: bool) -> None:
    """Log how attacks that an interrupted training left are made.

    Args:
        folder: The run folder.
        number: The number of the attacks.
        watched: Whether the project has a model in place of a task.
    """
    given = "model" if watched else "task"
    call = f'fedsim.attack("{folder}", adversaries, {given}={given})'
    LOG.warning("fedsim: attacks that were not made: %d; %s makes them", number, call)
