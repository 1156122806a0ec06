"""Scores and pictures of a reconstruction, against a truth that is derived after the attack."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from fedsim import metrics
from fedsim.adversary import Adversary
from fedsim.attacking.contradiction import CONTENT, contradiction
from fedsim.attacking.revealed import Revealed, as_trained
from fedsim.attacking.truths import distinct, union
from fedsim.errors import DataError
from fedsim.gradients.true_features import candidates, true_features
from fedsim.inert import visible
from fedsim.isolation.claims import MOST_VALUES as MOST_VALUES
from fedsim.isolation.claims import as_json as as_json
from fedsim.records import Batch, Finding, Interception, Reconstruction, Status, Truth
from fedsim.runs.reading import TENSORS
from fedsim.runs.reconstructions import to_bytes
from fedsim.runs.tables import artifacts_place
from fedsim.scenario.built import BuiltRun
from fedsim.seeds import derive, torch_generator

PUBLIC = 256
"""The largest number of public examples that a victim's are told from by their features."""

REMEMBERED = 1000
"""The number of baselines that a scorer caches, for other attacks on the victims of a round."""


@dataclass(frozen=True, slots=True, eq=False)
class Attack:
    """One adversary against one victim.

    Attributes:
        interception: The victim's update.
        adversary: The adversary's place in the scenario.
        inclusion: The probability with which the victim was chosen.
        refused: Why the update cannot be attacked, "" if it can.
        history: Earlier interceptions of the victim, for `HISTORY`.
        whole_history: Whether these are all; the others were not kept.
        attempt: How often this attack was made, this time included.
        caution: A warning for the user when the attack has ended.
    """

    interception: Interception
    adversary: int
    inclusion: float
    refused: str = ""
    history: tuple[Interception, ...] = ()
    whole_history: bool = True
    attempt: int = 1
    caution: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The result of an attack.

    Attributes:
        round: The round of its victim.
        findings: Rows of the run's table.
        files: Contents by path in the run folder.
        caution: A warning for the user.
        diagnostics: The adversary's diagnostics as JSON values.
    """

    round: int
    findings: tuple[Finding, ...]
    files: Mapping[str, bytes]
    caution: str = ""
    diagnostics: Mapping[str, Any] = field(default_factory=dict)


class Scorer:
    """Scores the attacks of a run. The truth that it derives never reaches an adversary.

    Args:
        built: The scenario's task and plugins.
        point: The name of the sweep's point, "" without a sweep.
        batch_size_stated: Whether the scenario states the clients' batch size. If not, the number
            of examples in the truth is taken from the update.
    """

    def __init__(self, built: BuiltRun, point: str, *, batch_size_stated: bool) -> None:
        self.built, self.point, self.batch_size_stated = built, point, batch_size_stated
        self.scenario, self.task = built.scenario, built.task
        self._chances: dict[tuple[str, str, bool], tuple[float | None, float | None]] = {}

    def truth(self, interception: Interception) -> Truth:
        """Derive the examples of a victim from seed, clients and round (a probe: its number)."""
        round, size, probe = interception.draw, self._batch_size(interception), interception.probe
        if isinstance(self.task, Revealed):
            return self.task.truth(interception.clients, round, batch_size=size, steps=1)
        by_steps: dict[int, list[int]] = {}
        for client in interception.clients:
            by_steps.setdefault(self.built.steps(client, size), []).append(client)
        if not self.batch_size_stated and probe is None:
            steps_in_all = sum(steps * len(clients) for steps, clients in by_steps.items())
            size = max(1, interception.update.num_examples // steps_in_all)
        truths = [
            self.task.truth(tuple(clients), round, batch_size=size, steps=steps)
            for steps, clients in by_steps.items()
        ]
        return truths[0] if len(truths) == 1 else union(truths)

    def _batch_size(self, interception: Interception) -> int:
        """Examples in a local batch, as far as the client has as many."""
        probe = interception.probe
        return self.scenario.training.batch_size if probe is None else probe.batch_size

    def _adversary(self, attack: Attack) -> Adversary:
        return self.built.adversaries[attack.adversary][2]

    def _scored(self, attack: Attack, truth: Truth) -> Truth:
        """The examples that an attack is scored on, given those of the update itself."""
        if not self._adversary(attack).over_history:
            return truth
        return distinct(union([*map(self.truth, attack.history), truth]))

    def _with_features(self, truth: Truth, interception: Interception) -> Truth:
        """Add the true features of the examples of one step, and the candidates to find them in."""
        model = as_trained(self.task, self.task.victim(interception.before), interception)
        return dataclasses.replace(
            truth,
            features=true_features(model, truth),
            candidates=candidates(model, truth, self._public),
        )

    @functools.cached_property
    def _public(self) -> Batch | None:
        """Up to `PUBLIC` of the task's public examples, drawn by the seed."""
        every = self.task.auxiliary()
        if every is None:
            return None
        rng = torch_generator(self.scenario.seed, "candidates")
        kept = torch.randperm(len(every), generator=rng)[:PUBLIC]
        lengths = None if every.lengths is None else every.lengths[kept]
        return Batch(every.inputs[kept], every.labels[kept], lengths)

    def _steps(self, interception: Interception) -> list[int]:
        """The number of local steps of each client."""
        clients, size = interception.clients, self._batch_size(interception)
        if isinstance(self.task, Revealed):
            return [interception.update.steps]
        with suppress(DataError):
            return [self.built.steps(client, size) for client in clients]
        return [1] * len(clients)  # a node that did not say which client it is

    def _held(self, one: Interception, steps: int) -> int:
        """Examples in a local batch of a victim whose truth is not known."""
        if isinstance(self.task, Revealed):
            return one.update.num_examples // steps or 1
        return self._batch_size(one)

    def _stepped(self, one: Interception) -> bool:
        """Whether the number of local steps is known."""
        if not isinstance(self.task, Revealed):
            return True
        return not self.task.unknown(one.clients, one.round)

    def _verified(self, one: Interception) -> tuple[str, str]:
        """Where the truth comes from, and whether it explains the update, as columns of a row."""
        if not isinstance(self.task, Revealed):
            return "derived", ""
        try:
            origin = self.task.state(one.clients, one.round)
        except Exception as reason:  # a file that is not there any more
            return "absent", f"not checked: {type(reason).__name__}: {reason}"[:300]
        return origin, self.task.checked(one.clients, one.round, one.before)

    def _guess(self, one: Interception) -> metrics.Guess:
        """The task's guesses, without examples of the victim's own clients."""
        if not isinstance(self.task, Revealed):
            return self.task.guess
        return functools.partial(self.task.guess, clients=one.clients)

    def _is_hidden(self, metric: metrics.Metric, truth: Truth) -> bool:
        """Whether a metric scores what a client of another project did not reveal."""
        if not isinstance(self.task, Revealed):
            return False
        inputs = truth.inputs is None and not CONTENT.isdisjoint(metric.fields)
        return inputs or (truth.labels is None and any("label" in one for one in metric.fields))

    def _baselines(
        self, metric: metrics.Metric, truth: Truth, attack: Attack, guess: metrics.Guess
    ) -> tuple[float | None, float | None]:
        """`metrics.baselines`, computed once a victim and truth, as they are alike for attacks."""
        interception = attack.interception
        key = (interception.victim, metric.name, self._adversary(attack).over_history)
        if key not in self._chances:
            if len(self._chances) >= REMEMBERED:
                del self._chances[next(iter(self._chances))]
            seed = derive(self.scenario.seed, "baseline", interception.draw, *interception.clients)
            self._chances[key] = metrics.baselines(metric, truth, self.task.spec, guess, seed)
        return self._chances[key]

    def score(
        self,
        attack: Attack,
        claimed: Reconstruction,
        status: Status,
        error: str,
        seconds: float,
        iterations: int,
    ) -> Outcome:
        """Score and render a reconstruction. There is a row for each metric, or an empty one.

        Args:
            attack: The attack.
            claimed: The adversary's reconstruction, empty if it made none.
            status: How the attack ended.
            error: Why it failed, was denied or timed out.
            seconds: How long it took.
            iterations: How many iterations it reported.
        """
        label, plan, adversary = self.built.adversaries[attack.adversary]
        scenario, interception = self.scenario, attack.interception
        steps = self._steps(interception)
        truth, held = Truth(), self._held(interception, sum(steps))
        files: dict[str, bytes] = {}
        values: dict[str, float | None] = {}
        try:
            fields = adversary.fills()
        except (Exception, SystemExit) as reason:
            fields = adversary.recovers
            if status == "ok":
                status, error = "failed", f"fills() raised {type(reason).__name__}: {reason}"
        measured = metrics.applicable(fields, self.task.spec, self.built.metrics)
        try:
            truth = self.truth(interception)
            if truth.num_examples:
                held = truth.num_examples // sum(steps) or 1
            truth = self._scored(attack, truth)
            if "features" in fields and sum(steps) == 1:
                truth = self._with_features(truth, interception)
        except (Exception, SystemExit) as reason:
            if status == "ok":
                status = "failed"
                error = f"its truth cannot be re-derived: {type(reason).__name__}: {reason}"
        known = truth.labels is not None or truth.inputs is not None
        stepped = self._stepped(interception)
        origin, checked = self._verified(interception)
        broken = ""
        for each in measured if status == "ok" else ():
            if self._is_hidden(each, truth):
                continue
            try:
                value = each.score(claimed, truth, self.task.spec)
                values[each.name] = None if math.isnan(value) else value
            except (Exception, SystemExit) as reason:
                why = f"{type(reason).__name__}: {reason}"
                if type(each).__module__.startswith(metrics.__name__):
                    status, values = "failed", {}
                    error = f"its reconstruction cannot be scored: {each.name}: {why}"
                    break
                broken = broken or f"the metric {each.name} has no value: {why}"
        caution = attack.caution
        if status == "ok":
            error = broken or metrics.misshapen(claimed, self.task.spec, truth)
            error = error or contradiction(claimed, values, measured, checked)
            caution = caution or (f"{interception.victim} {label}: {error}" if error else "")
        if status == "ok" and checked.startswith("misfit"):
            status = "unverified"
            error = error or f"its examples do not explain its update: {checked}"
        folder = f"{artifacts_place(self.point)}/{interception.victim}/{label}"
        if status in ("ok", "unverified"):
            try:
                rendered = self.task.render(claimed, truth)
                files = {f"{folder}/{name}": content for name, content in rendered.items()}
            except (Exception, SystemExit) as reason:
                error = error or f"it cannot be shown: {type(reason).__name__}: {reason}"
        shown = [path for path in files if path.startswith(f"{folder}/reconstruction")] or [*files]
        artifact = folder if len(shown) > 1 else "".join(shown)
        if status in ("ok", "unverified"):
            try:
                tensors = to_bytes(claimed)
                files = {f"{folder}/{TENSORS}": tensors} | files if tensors else files
            except (Exception, SystemExit) as reason:
                why = f"{type(reason).__name__}: {reason}"
                error = error or f"its tensors cannot be kept: {why}"
        rows = []
        guess = metrics.remembering(self._guess(interception))
        # A reconstruction that no metric scores has a row, too.
        scored: Sequence[metrics.Metric | None] = measured or [None]
        for metric in scored:
            chance: float | None = None
            informed: float | None = None
            try:
                if known and metric is not None and not self._is_hidden(metric, truth):
                    chance, informed = self._baselines(metric, truth, attack, guess)
            except (Exception, SystemExit) as reason:
                error = error or f"no baseline: {type(reason).__name__}: {reason}"
            rows.append(
                Finding(
                    scenario=scenario.name,
                    point=self.point,
                    seed=scenario.seed,
                    round=interception.round,
                    client="+".join(map(str, interception.clients)),
                    victim=interception.victim,
                    adversary=plan.declared,
                    metric=metric.name if metric else "",
                    value=values.get(metric.name) if metric else None,
                    baseline=chance,
                    baseline_prior=informed,
                    status=status,
                    error=visible(error[:2000]),
                    attempt=attack.attempt,
                    seconds=round(seconds, 4),
                    iterations=iterations,
                    granted="|".join(self.built.threat.granted.names()),
                    label=label,
                    batch_size=held if stepped else None,
                    local_steps=max(steps) if stepped else None,
                    inclusion=attack.inclusion,
                    artifact=artifact,
                    truth=origin,
                    checked=visible(checked[:2000]),
                )
            )
        diagnostics = {}
        if status == "ok":
            with suppress(Exception):  # broken diagnostics do not cost the row
                diagnostics = as_json(claimed.diagnostics)
        return Outcome(interception.round, tuple(rows), files, visible(caution), diagnostics)
