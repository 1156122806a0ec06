"""The built-in adversaries by what they recover; an attack is a file, or a folder of its name.

Ordinary plugins, found through entry points.

`from adversaries import LLG` works too: a class loads when it is first asked for.
"""

import importlib
from typing import Any

from fedsim.moved import redirect

_HOMES = {
    "BiasSigns": "labels.bias_signs",
    "CTCMatching": "speech.ctc_matching",
    "DAGER": "text.dager",
    "DLG": "inputs.dlg",
    "DLGText": "text.dlg_text",
    "FirstFrames": "speech.first_frames",
    "FirstLinear": "inputs.first_linear",
    "GMBoW": "speech.gm_bow",
    "HFGM": "speech.hfgm",
    "IDLG": "labels.idlg",
    "InvertingGradients": "inputs.inverting_gradients",
    "LAMP": "text.lamp",
    "LLG": "labels.llg",
    "MinColumn": "labels.min_column",
    "RLG": "labels.rlg",
    "RandomGuess": "labels.random_guess",
    "SpanDecoding": "speech.span_decoding",
    "SpeakerInference": "speech.speaker_inference",
    "TAG": "text.tag",
    "TokenLeak": "text.token_leak",
}

redirect(
    {f"adversaries.{home.rpartition('.')[2]}": f"adversaries.{home}" for home in _HOMES.values()}
)

__all__ = [
    "DAGER",
    "DLG",
    "HFGM",
    "IDLG",
    "LAMP",
    "LLG",
    "RLG",
    "TAG",
    "BiasSigns",
    "CTCMatching",
    "DLGText",
    "FirstFrames",
    "FirstLinear",
    "GMBoW",
    "InvertingGradients",
    "MinColumn",
    "RandomGuess",
    "SpanDecoding",
    "SpeakerInference",
    "TokenLeak",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"adversaries.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'adversaries' has no attribute '{name}'")
