"""dlg-text: DLG for text, by gradient matching of dummy embeddings."""

from adversaries.text.text_matching import TextMatching
from fedsim.gradients import TextMetric


class DLGText(TextMatching):
    """Recovers texts by matching gradients in ||g' - g||^2; the baseline of TAG and LAMP.

    Adam optimises one start at N(0, I), as for `tag`. Unlike in DLG, the labels are known.
    """

    name = "dlg-text"
    keywords = (*TextMatching.keywords, "deep leakage from gradients")
    cites = (
        "Zhu et al., Deep Leakage from Gradients, NeurIPS 2019, section 4.2; Balunovic et al., "
        "NeurIPS 2022, for the settings"
    )

    def metric(self) -> tuple[TextMetric, float, float]:
        """Distance between gradients, weight of its L1 norm, weight of the length penalty."""
        return "l2", 0.0, 0.0
