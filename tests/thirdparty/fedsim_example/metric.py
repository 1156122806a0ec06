"""A metric of somebody else's: lower is better."""

from fedsim.metric import Measure, Metric
from fedsim.records import Reconstruction, Spec, Truth


class LabelsMissed(Metric):
    """Labels of an update that were not named, repetitions aside."""

    name = "labels-missed"
    fields = ("label_set", "label_counts")
    shown = Measure(
        "Labels missed",
        "Labels that were not named; 0 names them all.",
        "{value} labels of {n} updates missed",
        lower=True,
        rank=5,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """The number of labels that occur and are not claimed."""
        named = claimed.label_set or frozenset(claimed.label_counts or ())
        return float(len(set(truth.labels.tolist()) - named))


METRICS = (LabelsMissed,)
