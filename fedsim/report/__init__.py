"""The report of a run folder: one page with who was attacked and what leaked, beside chance.

It is made from the run folder alone. All text in the folder is treated as hostile, since it may
come from another machine. The page contains its pictures and its library, and loads nothing else.

folder         a run folder as a report reads it
content        what the page of a run shows
comparison     what the page of several runs shows
pages          pages from templates, with every value escaped
attacks        all attacks, for the table of the page
leakage        averages of findings, beside chance, and as sentences
intervals      95 % intervals of a mean
significance   whether scores beat a guess on the same victims
evidence       one metric of an adversary against its guesses
verdict        the verdict on an adversary, from all its metrics
wording        what a verdict says of the attacks behind it
diagnosis      why each adversary leaks or not, in sentences
replication    settings repeated over seeds, and their paired differences
charts         plots of utility and leakage against rounds
frontier       utility against leakage for each setting
traces         curves, bands and chance lines, shared with `fedsim.reproduce`
tables         tables of the page
exhibits       originals beside reconstructions
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedsim.errors import RunFolderError
from fedsim.report import comparison
from fedsim.report.content import content
from fedsim.report.folder import RunFolder, open_folder
from fedsim.report.leakage import summarise
from fedsim.report.pages import COMPARISON, render, write_page
from fedsim.report.replication import (
    against,
    change_of,
    last_utility,
    paired_utility,
    utility_measure,
)
from fedsim.report.verdict import Verdict, verdicts_of
from fedsim.runs.reading import Measures


def write_report(run_dir: Path, format: Literal["html", "markdown"] = "html") -> Path:
    """Write `report.html` or `report.md` into a run folder, in place of an earlier one.

    Args:
        run_dir: The run folder.
        format: "html" or "markdown".

    Returns:
        The path of the report.

    Raises:
        RunFolderError: The format is unknown, the folder cannot be read or holds no results, or the
            file cannot be written.
    """
    if format not in ("html", "markdown"):
        raise RunFolderError(f"no report format '{format}'; there are html and markdown")
    page = render(content(open_folder(Path(run_dir))), format)
    return write_page(Path(run_dir) / f"report.{'html' if format == 'html' else 'md'}", page)


def compare(
    run_dirs: Sequence[Path],
    out: Path | None = None,
    format: Literal["html", "markdown"] = "html",
) -> Path:
    """Write one page that compares several runs: settings that differ, results, differences.

    Args:
        run_dirs: Two run folders or more; the others are compared with the first one.
        out: The path of the page; `comparison.html` or `comparison.md` in the current folder by
            default. An existing file is replaced.
        format: "html" or "markdown".

    Returns:
        The path of the page.

    Raises:
        RunFolderError: There are fewer than two folders, one is given twice or cannot be read, or
            the file cannot be written.
    """
    if len(run_dirs) < 2:
        raise RunFolderError("a comparison takes two run folders or more")
    page = render(comparison.content([Path(one) for one in run_dirs]), format, COMPARISON)
    return write_page(out or Path(f"comparison.{'html' if format == 'html' else 'md'}"), page)


def summary(run_dir: Path) -> list[dict[str, Any]]:
    """Summarise what leaked: a row for each sweep point, adversary label and metric.

    The seeds of a point are its repetitions: `point` is its name without `seed=...`. Failed and
    timed-out attacks count as the baseline; denied attacks do not count.

    Returns:
        Rows with the keys point, label, adversary, metric; attacks and how they ended (ok, failed,
        timeout, denied); n, seeds, mean (of the seeds' means), low, high (95 % interval, None with
        fewer than three values; over seeds from three seeds on, else over clients or probes that
        were attacked several times, else over attacks), baseline (a
        random guess), baseline_prior, best, worst, lower_is_better, verdict and sentence. For the
        metric `recovered`, successes is the number of attacks that recovered every example;
        iterations_median and iterations_mean are the iterations that those took, failed starts
        included. If the sweep has a point without a defense, against is its name; difference,
        difference_low and difference_high are the mean difference from it on the same seeds and
        victims, with its interval over seeds; difference_shown is the same as text, and pairs the
        number of attacks compared. A value is None if there is no number.
    """
    return summaries(run_dir).leakage


def verdicts(run_dir: Path) -> list[dict[str, Any]]:
    """Judge each adversary by all its leakage metrics: a row for each sweep point and label.

    Returns:
        Rows with the keys point, label and those of `fedsim.report.verdict.Verdict`; mean, low and
        high (95 % interval) stand for its level, and rounds maps the number of a round to its mean.
    """
    folder = open_folder(Path(run_dir))
    return _verdict_rows(verdicts_of(folder.rows, folder.measures))


@dataclass(frozen=True, slots=True)
class Summaries:
    """The rows of `summary`, `verdicts` and `utility_summary` of one run, read once.

    Attributes:
        leakage: The rows of `summary`.
        verdicts: The rows of `verdicts`.
        utility: The rows of `utility_summary`.
        measures: How metrics are read.
    """

    leakage: list[dict[str, Any]]
    verdicts: list[dict[str, Any]]
    utility: list[dict[str, Any]]
    measures: Measures


def summaries(run_dir: Path) -> Summaries:
    """Summarise a run in all ways at once.

    Raises:
        RunFolderError: The folder cannot be read or holds no results.
    """
    folder = open_folder(Path(run_dir))
    found = verdicts_of(folder.rows, folder.measures)
    return Summaries(
        summarise(folder.rows, folder.measures, found),
        _verdict_rows(found),
        _utility_rows(folder),
        folder.measures,
    )


def _verdict_rows(found: Mapping[tuple[str, str], Verdict]) -> list[dict[str, Any]]:
    return [
        {
            "point": point, "label": label, "kind": one.kind, "badge": one.badge,
            "metric": one.metric, "figure": one.figure, "sentence": one.sentence,
            "mean": one.level.mean if one.level else None,
            "low": one.level.low if one.level else None,
            "high": one.level.high if one.level else None,
            "rounds": {f"{at:g}": mean.mean for at, mean in one.rounds.items()},
            "victims": one.victims, "failed": one.failed, "readings": dict(one.readings),
        }
        for (point, label), one in found.items()
    ]  # fmt: skip


def final_utility(run_dir: Path) -> dict[str, dict[str, float]]:
    """The utility after the last round (accuracy, epsilon, ...), by sweep point and metric.

    It is a mean over the seeds of a point, if there are several.
    """
    found: dict[str, dict[str, float]] = {}
    for row in utility_summary(run_dir):
        found.setdefault(row["point"], {})[row["metric"]] = row["mean"]
    return found


def utility_summary(run_dir: Path) -> list[dict[str, Any]]:
    """Summarise the utility after the last round: a row for each sweep point and metric.

    Returns:
        Rows with the keys point, metric, seeds, mean, low and high (95 % interval over seeds; None
        with fewer than three), shown (the same as text); against, difference, difference_low and
        difference_high as in `summary`, and difference_shown as text.
    """
    return _utility_rows(open_folder(Path(run_dir)))


def _utility_rows(folder: RunFolder) -> list[dict[str, Any]]:
    every = folder.series()
    bases = {one.name: base for one, base in against(every)}
    found = []
    for series in every:
        for metric, mean in last_utility(series.utility).items():
            how, base = utility_measure(metric), bases.get(series.name)
            less = paired_utility(series.utility, base.utility, metric) if base else None
            found.append(
                {
                    "point": series.name,
                    "metric": metric,
                    "seeds": mean.seeds,
                    "mean": mean.mean,
                    "low": mean.low if mean.over_seeds else None,
                    "high": mean.high if mean.over_seeds else None,
                    "shown": mean.show(how),
                    "against": base.name if base and less else None,
                    "difference": less.mean if less else None,
                    "difference_low": less.low if less else None,
                    "difference_high": less.high if less else None,
                    "difference_shown": change_of(less, how) if less else "",
                }
            )
    return found
