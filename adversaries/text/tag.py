"""TAG: text by gradient matching in the L2 and L1 norms."""

from pydantic import Field

from adversaries.text.text_matching import TextMatching
from fedsim.gradients import TextMetric


class TAG(TextMatching):
    """Recovers texts by matching gradients in ||g' - g||^2 + `l1` ||g' - g||_1.

    The L1 norm gives weight to small differences, which most entries of a transformer's gradient
    have. The settings are those with which LAMP's authors run TAG: Adam with a learning rate of 0.1
    from one start at N(0, I). Only for LAMP does their code scale the start, and does their paper
    choose it among many.
    """

    name = "tag"
    keywords = (*TextMatching.keywords, "transformer")
    cites = (
        "Deng et al., TAG: Gradient Attack on Transformer-based Language Models, Findings of EMNLP "
        "2021"
    )

    l1: float = Field(default=0.01, ge=0)
    """Weight of the L1 norm (alpha in the paper)."""

    def metric(self) -> tuple[TextMetric, float, float]:
        """Distance between gradients, weight of its L1 norm, weight of the length penalty."""
        return "l1+l2", self.l1, 0.0
