"""The built-in adversaries, one attack a file. Ordinary plugins, found through entry points.

`from adversaries import LLG` works too: a class loads when it is first asked for.
"""

import importlib
from typing import Any

_HOMES = {
    "BiasSigns": "bias_signs",
    "CTCMatching": "ctc_matching",
    "DAGER": "dager",
    "DLG": "dlg",
    "DLGText": "dlg_text",
    "FirstFrames": "first_frames",
    "FirstLinear": "first_linear",
    "GMBoW": "gm_bow",
    "HFGM": "hfgm",
    "IDLG": "idlg",
    "InvertingGradients": "inverting_gradients",
    "LAMP": "lamp",
    "LLG": "llg",
    "MinColumn": "min_column",
    "RLG": "rlg",
    "RandomGuess": "random_guess",
    "SpanDecoding": "span_decoding",
    "SpeakerInference": "speaker_inference",
    "TAG": "tag",
    "TokenLeak": "token_leak",
}

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
