"""Refuse what cannot be attacked in a recorded run, before any attack."""

from collections.abc import Iterator, Sequence
from itertools import starmap
from typing import Any

from fedsim.attacking.attack import Attack
from fedsim.attacking.campaign import Campaign, Clients, Lost, Wanted
from fedsim.attacking.executor import Executor
from fedsim.attacking.identity import forget, plans, settle
from fedsim.errors import RunFolderError, ScenarioError
from fedsim.runs.ledger import Ledger, place
from fedsim.runs.recording import Recording
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun


def check_attackable(
    ledger: Ledger,
    prepared: Sequence[tuple[str, BuiltRun]],
    wanted: Wanted,
    *,
    retry: bool,
    overwrite: bool,
) -> int:
    """Check a run folder for the attacks on it, and forget those that are made again.

    Args:
        ledger: The run folder.
        prepared: The points by name, with their adversaries.
        wanted: Whether an attack is wanted, by round and clients.
        retry: Whether attacks that failed or timed out are repeated.
        overwrite: Whether the rows of another adversary of the same label are dropped.

    Returns:
        The number of attacks that will be made.

    Raises:
        RunFolderError: A label has rows of another adversary, nothing is recorded, or a victim's
            interception was not kept.
        ScenarioError: No victim is selected.
    """
    empty = [
        name for name, _ in prepared if not Recording(ledger.folder / place("tape", name)).rounds
    ]
    if empty:
        record = prepared[0][1].scenario.record
        if record.keep != "nothing" and not ledger.last_round(empty[0]):
            raise RunFolderError(
                f"{ledger.folder} has no recording{' of point ' * any(empty)}{empty[0]}: no round "
                f"of it has ended. fedsim run {ledger.folder} --resume goes on with it"
                f"{', and --points attacks other points alone' * any(empty)}"
            )
        raise RunFolderError(
            f"{ledger.folder} has no recording{' of point ' * any(empty)}{empty[0]}: the run kept "
            f'nothing (record.keep = "{record.keep}", record.max_bytes = {record.max_bytes}). Run '
            'it again with record.keep = "all" and enough bytes, or record it with fedsim train'
        )
    dropped = set[tuple[str, str]]()
    for name, built in prepared:
        dropped |= settle(ledger, plans(built, name), overwrite=overwrite)
    lost: dict[int, set[Lost]] = {}
    selected = left = 0
    for name, built in prepared:
        campaign = Campaign(built, ledger, _Nowhere(), point=name, retry=retry)
        selected += campaign.selects(wanted)
        queued, lacking = campaign.recorded(wanted)
        left += sum(len(group) for groups in queued.values() for group in groups)
        for round, missing in lacking.items():
            lost.setdefault(round, set()).update(missing)
    if not selected:
        raise ScenarioError(
            "no victim: threat.rounds and threat.victims, --rounds and --clients together select "
            "no update of this run"
        )
    if lost:
        each = [
            f"  round {round}: clients {', '.join(starmap(_named, sorted(missing)))}"
            for round, missing in sorted(lost.items())
        ]
        raise RunFolderError(
            "these victims are to be attacked, and their updates were not kept:\n"
            + "\n".join(each[:20])
            + (f"\n  and {len(each) - 20} more rounds" if len(each) > 20 else "")
            + f"\nRun it again with {_kept_by(prepared[0][1].scenario)}, or choose others with "
            "threat.victims, --rounds and --clients"
        )
    forget(ledger, dropped)
    for name, built in prepared:
        ledger.drop_incomplete(name, [label for label, _, _ in built.adversaries])
    return left


def _kept_by(scenario: Scenario) -> str:
    """The setting with which more updates would have been kept."""
    if scenario.keeps != "all":
        return 'record.keep = "all"'
    return f"a larger record.max_bytes than {scenario.record.max_bytes:,}"


def _named(clients: Clients, probe: bool) -> str:
    return "+".join(map(str, clients)) + (" (probes)" if probe else "")


class _Nowhere(Executor):
    """Takes no attacks; of a campaign that only plans."""

    def submit(self, groups: Sequence[Sequence[Attack]]) -> None:
        raise NotImplementedError

    def collect(self, *, wait: bool) -> Iterator[Any]:
        return iter(())

    @property
    def pending(self) -> int:
        return 0

    def cancel(self) -> None:
        return
