"""DLG's sigmoid LeNet (Zhu et al., "Deep Leakage from Gradients", section 4.1).

The layers are those of LLG's network; only the initial biases differ.
"""

from torch import nn

from fedsim.tasks.models.architecture import Architecture
from fedsim.tasks.models.cnn import SigmoidConvolutions


class LeNetSigmoid(Architecture):
    """DLG's twice differentiable network, with weights and biases from U(-0.5, 0.5)."""

    name: str = "lenet-sigmoid"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the network for images of any height and width."""
        return SigmoidConvolutions(shape, classes, uniform_biases=True)
