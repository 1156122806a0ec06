"""TAG: texts by matching gradients, in their L2 and L1 norms."""

from typing import ClassVar

from pydantic import Field

from adversaries.text.text_matching import TextMatching
from fedsim.gradients import TextMetric

__all__ = ["TAG"]


class TAG(TextMatching):
    """Gradient matching of texts with ||g' - g||^2 + `l1` ||g' - g||_1.

    The second norm keeps small differences, of which a transformer's gradient has most, from
    counting nothing. Settings are those with which LAMP's authors run it: Adam at 0.1, from one
    start at N(0, I), which their code scales, and their paper chooses among many, for LAMP alone.
    """

    name: ClassVar[str] = "tag"
    keywords = (*TextMatching.keywords, "transformer")
    cites: ClassVar[str] = (
        "Deng et al., TAG: Gradient Attack on Transformer-based Language Models, Findings of EMNLP "
        "2021"
    )

    l1: float = Field(default=0.01, ge=0)
    """Weight of the L1 norm (alpha)."""

    def metric(self) -> tuple[TextMetric, float, float]:
        """Distance between gradients, weight of its L1 norm, weight of the length penalty."""
        return "l1+l2", self.l1, 0.0
