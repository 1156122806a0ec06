"""dlg-text: DLG for text, by gradient matching of dummy embeddings."""

from collections.abc import Sequence
from typing import Literal

from pydantic import model_validator
from torch import Tensor

from adversaries.text.dummy_texts import DummyTexts
from adversaries.text.text_matching import TextMatching
from fedsim import Job, Observation
from fedsim.gradients import LBFGS, Optimizer, TextMetric


class DLGText(TextMatching):
    """Recovers texts by matching gradients in ||g' - g||^2; the baseline of TAG and LAMP.

    One start at N(0, I) is optimised, as for `tag`. Unlike in DLG, the labels are known.
    """

    name = "dlg-text"
    keywords = (*TextMatching.keywords, "deep leakage from gradients")
    cites = (
        "Zhu et al., Deep Leakage from Gradients, NeurIPS 2019, section 4.2; Balunovic et al., "
        "NeurIPS 2022, for the settings"
    )

    search: Literal["adam", "lbfgs"] = "adam"
    """The optimizer: Adam, as LAMP's authors run DLG, or L-BFGS with a line search and without a
    learning rate. A step is then one evaluation of the distance; DLG's authors run L-BFGS without a
    line search, and call up to 20 evaluations an iteration."""

    @model_validator(mode="after")
    def _searches_lines(self) -> "DLGText":
        if self.search == "lbfgs" and "lr" in self.model_fields_set:
            raise ValueError(
                'lr is the learning rate of Adam, and search = "lbfgs" has none. Leave one of the '
                "two out"
            )
        return self

    def metric(self) -> tuple[TextMetric, float, float]:
        """Distance between gradients, weight of its L1 norm, weight of the length penalty."""
        return "l2", 0.0, 0.0

    def optimizer(
        self, starts: Tensor, texts: DummyTexts, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> Optimizer:
        """The optimizer of all starts (R, n)."""
        if self.search == "lbfgs":
            return LBFGS(starts)
        return super().optimizer(starts, texts, seen, jobs)
