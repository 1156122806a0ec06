"""Recognisers that a function of the user's own makes: `task.model = "module:function"`."""

import torch
from torch import Tensor, nn

from fedsim.errors import DataError
from fedsim.gradients import BLANK
from fedsim.tasks.models.factory import Factory
from fedsim.tasks.speech.recognisers.decoding import best_path
from fedsim.tasks.speech.recognisers.deepspeech import frame_scores, mean_ctc_loss
from fedsim.tasks.speech.recognisers.recogniser import Recogniser

FRAMES = 8
"""The number of frames of the example that the head is found with."""


class OwnRecogniser(Factory, Recogniser):
    """A recogniser that your own function makes, as `make(features=26, classes=29)`.

    It takes frames (B, T, features) float32, padded with 0, and the number of frames of each
    utterance, (B,) int64 or None if all are full. It returns logits (B, T, classes), as many as
    there are frames. It is trained with CTC on characters; class 0 is the blank.
    """

    model_config = Factory.model_config
    units = "characters"
    loss = staticmethod(mean_ctc_loss)
    reduction = "example"

    def build(self, features: int, vocabulary: int) -> nn.Module:
        """Call the function with the size of a frame and the number of characters."""
        module = self.make(features=features, classes=vocabulary)
        # Attacks read here that it uses CTC.
        if hasattr(module, "blank"):
            raise DataError(
                f"task.model: {self.name} has an attribute 'blank' of its own, under which fedsim "
                "keeps the class of the blank. Rename it"
            )
        module.blank = BLANK  # type: ignore[assignment]
        return module

    def find_head(self, module: nn.Module, features: int, vocabulary: int) -> str:
        """Find the head; it must have a weight of its own."""
        frames, lengths = torch.zeros(1, FRAMES, features), torch.tensor([FRAMES])
        takes = f"frames of shape {tuple(frames.shape)} and their number, {tuple(lengths.shape)}"
        return self.head_behind(
            module, lambda: module(frames, lengths), (1, FRAMES, vocabulary), takes
        )

    @torch.no_grad()
    def transcribe(
        self, module: nn.Module, inputs: Tensor, lengths: Tensor | None, longest: int
    ) -> list[Tensor]:
        """Transcribe by the most probable character of every frame."""
        return [best_path(one)[:longest] for one in frame_scores(module, inputs, lengths)]
