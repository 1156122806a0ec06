"""Which attacks an earlier call of the same run folder ended, and which of those are made again."""

from collections.abc import Sequence

from fedsim.attacking.attack import Attack
from fedsim.attacking.identity import plans, seen
from fedsim.records import Interception
from fedsim.runs.ledger import Ledger
from fedsim.scenario.built import BuiltRun


class EndedAttacks:
    """The attacks of one point that an earlier call ended, with the same adversaries.

    Args:
        ledger: The run folder. What is made again is removed from it.
        built: The scenario's plugins.
        point: The name of the sweep's point.
        retry: Whether attacks that failed or timed out are repeated.

    Attributes:
        digests: The digest of each adversary's plan, by its label.
        new: The digests of plans that the run folder did not have.
    """

    def __init__(self, ledger: Ledger, built: BuiltRun, point: str, *, retry: bool) -> None:
        self._ledger, self._point = ledger, point
        known = {*ledger.attacks.plans}
        self.digests = {
            label: ledger.attacks.plan(plan) for label, plan in plans(built, point).items()
        }
        self.new = {*self.digests.values()} - known
        ended = {
            key: one
            for key, one in ledger.finished(point).items()
            if one.plan == self.digests.get(one.label)
        }
        repeated = ("failed", "timeout") if retry else ()
        self._repeated = {key: one for key, one in ended.items() if one.status in repeated}
        self._done = {key: one for key, one in ended.items() if key not in self._repeated}
        self._selected: dict[tuple[str, str, str], float] = {}

    def attempt(self, one: Interception, label: str) -> int:
        """How often an attack was made when it is made now."""
        before = self._repeated.get((one.victim, label))
        return before.attempt + 1 if before else 1

    def left(self, attacks: Sequence[Attack], label: str) -> list[Attack]:
        """The attacks that are to be made: those that have not ended with these interceptions.

        Rows of an attack that ended with another interception are removed. Of attacks that ended
        with this one, `inclusion` is kept for `raise_inclusion`.
        """
        left = [one for one in attacks if not self._is_done(one, label)]
        for one in attacks:
            if (key := (one.interception.victim, label)) in self._done:
                self._selected[self._point, *key] = one.inclusion
        return left

    def _is_done(self, attack: Attack, label: str) -> bool:
        ended = self._done.get((attack.interception.victim, label))
        if ended is None:
            return False
        pairs = zip(ended.seen, seen(attack), strict=False)
        same = all(before == now or not (before and now) for before, now in pairs)
        if not same:
            self._ledger.drop(lambda *key: key == ended.key)
        return same

    def repeat_answered(self, group: Sequence[Attack], label: str) -> None:
        """Forget the attacks of a group of which one was refused before: values depend on it."""
        keys = [(one.interception.victim, label) for one in group if not one.refused]
        ended = [self._done[key] for key in keys if key in self._done]
        if any(one.refused for one in ended):
            gone = {self._done.pop(one.key[1:]).key for one in ended}
            self._ledger.drop(lambda *key: key in gone)

    def raise_inclusion(self) -> None:
        """Raise `inclusion` in the rows of attacks that `left` found ended."""
        self._ledger.raise_inclusion(self._selected)
