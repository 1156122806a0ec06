"""Conformance check of metrics."""

import dataclasses
import functools
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from pydantic import ValidationError

from fedsim.errors import FedsimError
from fedsim.gradients.true_features import candidates, true_features
from fedsim.libraries import brief
from fedsim.metric import FORMAT, Measure, Metric
from fedsim.metrics.registry import random_guess
from fedsim.plugin import make, names
from fedsim.records import UNKNOWN, Reconstruction, Spec, Truth
from fedsim.task import Task
from fedsim.testing.watching import frozen, same, watched


def metric_declarations(cls: type[Metric]) -> list[str]:
    """List what is wrong with the declarations of a metric: `fields` and `shown`.

    Args:
        cls: The metric's class.
    """
    found = [wrong] if (wrong := cls.mistake()) else []
    shown = getattr(cls, "shown", None)
    if not isinstance(shown, Measure):
        return found
    if unknown := sorted(set(re.findall(r"{(.*?)}", f"{shown.phrase}{shown.partly}")) - _FILLED):
        found.append(f"the phrase of shown has {unknown}: only {sorted(_FILLED)} are filled in")
    if not shown.title or not shown.words:
        found.append("shown has no title or no words: tables and readers need both")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            written = FORMAT.dump_json({cls.name: shown}, exclude_defaults=True)
        if FORMAT.validate_json(written, strict=True) != {cls.name: shown}:
            found.append("shown is read from metrics.json as something else: leave NaN and inf out")
    except (ValidationError, ValueError, UserWarning) as error:
        place = f" of {error.errors()[0]['loc'][-1]}" if isinstance(error, ValidationError) else ""
        found.append(f"shown cannot be kept in metrics.json: mend the type{place} ({_line(error)})")
    return found


_FILLED = {"share", "value", "hits", "n"}


def metric_complaints(metric: Metric, sample: Task | None) -> list[str]:
    """List what is wrong with the values of a metric.

    The truth itself, in another order, in part, twice, empty and with numbers that are not finite,
    is scored as if an adversary had claimed it, and the scores must be ordered as `shown` declares.

    Args:
        metric: The metric.
        sample: A task that it suits; by default the first installed task that it suits, with its
            default settings. There are no complaints if it suits none.
    """
    for one in (sample,) if sample is not None else names("tasks"):
        try:
            task = cast(Task, make("tasks", one, {"clients": 2})) if isinstance(one, str) else one
            spec = task.spec
            fits = metric.suits(spec)
        except FedsimError:
            if sample is not None:
                raise
            continue  # a package that it needs is not there, or it has no default settings
        except Exception as error:
            return [f"suits() raises {brief(error)}: answer for every spec"]
        if fits:
            found = _scores(metric, task, spec)
            return list(dict.fromkeys(found))
    return [] if sample is None else ["it does not suit the sample: pass a task that it suits"]


def _scores(metric: Metric, task: Task, spec: Spec) -> list[str]:
    """Complaints about the scores of a victim with four examples and of a victim with one."""
    found = []
    for size in (4, 1):
        truth = task.truth([0], 1, batch_size=size, steps=1)
        if "features" in metric.fields:
            model = task.victim(task.arrays(task.build()))
            pool = candidates(model, truth, task.auxiliary())
            features = true_features(model, truth)
            truth = dataclasses.replace(truth, features=features, candidates=pool)
        victim = f"on a victim with {size} example{'s' if size > 1 else ''} of '{task.name}' "
        found += [victim + one for one in _of_victim(metric, truth, spec, task, single=size == 1)]
    return found


def _of_victim(
    metric: Metric, truth: Truth, spec: Spec, task: Task, *, single: bool
) -> Iterator[str]:
    exact = true_claim(truth, spec)
    before = frozen(exact), frozen(truth)
    lacking = [field for field in metric.fields if getattr(exact, field) in (None, {})]
    if len(lacking) == len(metric.fields):
        yield f"the truth has none of {lacking}: say in suits() which tasks have it"
        return
    scores: dict[str, float] = {}
    claims = {
        "the truth": exact,
        "the truth in another order": _each(exact, lambda values: values[::-1]),
        "nothing": _each(exact, lambda values: values[:0], empty=True),
        "one example": _each(exact, lambda values: values[:1]),
        "everything twice": _each(exact, lambda values: [*values, *values]),
        "numbers that are not finite": _each(exact, _spoilt),
        **{
            f"{field} alone": Reconstruction(**{field: getattr(exact, field)})
            for field in metric.fields
            if field not in lacking
        },
    }
    for claimed, claim in claims.items():
        if not metric.reads(claim):
            continue
        score = functools.partial(metric.score, claim, truth, spec)
        try:
            metric.compute(claim, truth, spec)  # libraries that it imports first may draw
            value, touched = watched(score, 0)
            again, _ = watched(score, 1)
        except Exception as error:
            yield f"it raises {brief(error)} for a claim of {claimed}: answer with a value or NaN"
            continue
        if touched or not same(value, again):
            yield f"it draws from a global generator or scores {claimed} differently again"
        scores[claimed] = value
    if not same(before, (frozen(exact), frozen(truth))):
        yield "it changes the claim or the truth: work on copies (tensor.clone())"
    if not metric.shown.leaks or "the truth" not in scores:
        return
    top = scores["the truth"]
    if math.isnan(top):
        if not single:
            yield "it is not defined (NaN) for a claim of the truth"
        return
    try:
        if (chance := random_guess(metric, truth, spec, task.guess, 0)) is not None:
            scores["a random guess"] = chance
    except Exception as error:
        yield f"chance() raises {brief(error)}: return a value, NaN, or None for draws"
    yield from _order(metric, scores, single=single)


def _order(metric: Metric, scores: dict[str, float], *, single: bool) -> Iterator[str]:
    """Complaints about the order of scores, and about scores outside the declared range."""
    shown, top = metric.shown, scores["the truth"]
    low, high = shown.range
    best, way = (low, "lower") if shown.lower else (high, "higher")
    if math.isfinite(best) and not math.isclose(top, best, abs_tol=1e-6):
        yield (
            f"a claim of the truth scores {top:g}, and by `shown` the best value is {best:g}: mend "
            "compute, or the kind, `lower` or `most` of `shown`"
        )
    for claimed, value in scores.items():
        slack = 1e-6 * max(1.0, abs(top))
        ahead = top - value if shown.lower else value - top
        if not low - slack <= value <= high + slack and not math.isnan(value):
            yield f"{claimed} scores {value:g}, outside the range of `shown`, {low:g} to {high:g}"
        if ahead > slack:
            yield (
                f"{claimed} scores {value:g}, better than the truth itself ({top:g}), as `shown` "
                f"says that {way} is better: set `lower` of `shown` the other way, or mend compute"
            )
        elif claimed in ("a random guess", "nothing") and not single and ahead >= -slack:
            yield f"{claimed} scores {value:g}, no worse than the truth: nothing is measured"
        elif claimed.endswith(" alone") and ahead < -slack:
            yield f"{claimed} scores {value:g}, not {top:g}: read it, or take it out of `fields`"
        elif claimed == "the truth in another order" and ahead < -slack:
            yield (
                f"the truth in another order scores {value:g}, not {top:g}: examples come in no "
                "order, so match claims to originals first"
            )


def true_claim(truth: Truth, spec: Spec) -> Reconstruction:
    """The claim of somebody who knows the truth, in every field that the truth has.

    Args:
        truth: The victim's examples.
        spec: What examples of the task look like.
    """
    known: dict[str, Any] = {"objective": 0.0, "outcomes": ("matched",)}
    if truth.labels is not None:
        labels = truth.labels[truth.labels >= 0]
        counts = dict(Counter(labels.tolist()))
        known |= {"labels": labels, "label_counts": counts, "label_set": frozenset(counts)}
        known["num_labels"] = len(labels)
        known["label_scores"] = torch.bincount(labels, minlength=spec.classes).float()
    for field in ("inputs", "sequences", "tokens", "text", "features"):
        known[field] = getattr(truth, field)
    if truth.tokens is not None:
        known["token_counts"] = dict(Counter(i for one in truth.tokens for i in one.tolist()))
    known["attributes"] = {
        name: [
            {each: float(each == (str(v) if str(v) in values else UNKNOWN)) for each in values}
            for v in truth.attributes[name]
        ]
        for name, values in spec.attributes.items()
        if name in truth.attributes
    }
    return Reconstruction(**known)


def _each(claim: Reconstruction, change: Any, *, empty: bool = False) -> Reconstruction:
    """A claim with its lists of examples changed; fields about all examples are left out.

    Args:
        claim: The claim.
        change: Called with the list of each field that has an entry for each example.
        empty: Whether to keep fields about all examples together, with nothing in them.
    """
    changed: dict[str, Any] = {"objective": claim.objective, "outcomes": claim.outcomes}
    for field in ("inputs", "sequences", "tokens", "text"):
        if getattr(claim, field) is not None:
            changed[field] = list(change(list(getattr(claim, field))))
    if (features := claim.features) is not None:
        rows = change(list(features))
        changed["features"] = torch.stack(list(rows)) if len(rows) else features[:0]
    changed["attributes"] = {k: list(change(list(v))) for k, v in claim.attributes.items()}
    if claim.labels is not None:
        labels = change(claim.labels.tolist())
        changed["labels"] = torch.tensor([x for x in labels if x == x], dtype=torch.int64)
        changed["num_labels"] = len(changed["labels"])
    if empty:
        changed |= {"label_set": frozenset(), "label_counts": {}, "token_counts": {}}
        if claim.label_scores is not None:
            changed["label_scores"] = torch.zeros_like(claim.label_scores)
    return Reconstruction(**changed)


def _spoilt(values: Sequence[Any]) -> list[Any]:
    """The same values with NaN in place of every floating-point number."""
    return [
        torch.full_like(value, math.nan)
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else dict.fromkeys(value, math.nan)
        if isinstance(value, dict)
        else value
        for value in values
    ]


def _line(error: Exception) -> str:
    return str(error).replace("\n", " ")[:120]
