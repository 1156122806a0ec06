"""torchaudio and transformers import beside any torch."""

import importlib.util
import subprocess
import sys

import pytest

needs_torchaudio = pytest.mark.skipif(
    importlib.util.find_spec("torchaudio") is None, reason="torchaudio is not installed"
)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_torchaudio
@pytest.mark.parametrize("error", ["", "OSError", "RuntimeError"])
def test_transforms_work_whether_or_not_the_extension_loads(error):
    """error: what loading the extension raises: nothing of ours, another CUDA, no CUDA."""
    broken = f"""
import torch
def load_library(path):
    raise {error}("no such extension")
torch.ops.load_library = load_library
"""
    out = python(
        f"""{broken if error else ""}
import torch
from fedsim import libraries
audio = libraries.torchaudio()
import torchaudio
features = torchaudio.transforms.MFCC(16000, 26, melkwargs={{"n_fft": 512, "n_mels": 40}})
print(audio is torchaudio, tuple(features(torch.randn(1, 16000)).shape)[:2])
"""
    )
    assert out.split("\n")[0] == "True (1, 26)"


@needs_torchaudio
def test_transformers_imports_beside_torchaudio():
    out = python(
        """
from fedsim import libraries
transformers = libraries.transformers()
config = transformers.CONFIG_MAPPING["vit"](hidden_size=16, num_hidden_layers=1,
    num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4, num_labels=3)
print(type(transformers.AutoModelForImageClassification.from_config(config)).__name__)
"""
    )
    assert out.strip() == "ViTForImageClassification"


@needs_torchaudio
def test_models_of_isolated_adversaries_import_whichever_torchaudio_is_installed():
    out = python(
        """
import sys
import torch
def load_library(path):
    raise OSError("no such extension")
torch.ops.load_library = load_library
from fedsim.isolation.server import _preload
_preload(["transformers.models.bert.modeling_bert"])
print("transformers.models.bert.modeling_bert" in sys.modules)
"""
    )
    assert out.strip() == "True"


def test_a_missing_torchaudio_is_none():
    code = """
import sys
sys.modules["torchaudio"] = None
from fedsim import libraries
print(libraries.torchaudio())
"""
    assert python(code).strip() == "None"
