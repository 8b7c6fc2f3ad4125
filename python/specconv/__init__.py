"""Prepare GGUF models for speculative decoding, and prove that they work.

Every function runs a command of ``specconv`` or ``specrun`` in this process and returns its report. Notes and
warnings go to the logger ``specconv``. docs/python.md of the project has examples.
"""

from . import reports
from ._commands import convert, graft_mtp, inspect, quantize, split_mtp, verify
from ._errors import CheckFailed, Error
from ._gguf import GGUFFile, Tensor, dequantize_array, open, quantize_array
from ._model import Model, TextStream
from ._native import __version__
from ._progress import Progress

__all__ = [
    "CheckFailed",
    "Error",
    "GGUFFile",
    "Model",
    "Progress",
    "Tensor",
    "TextStream",
    "__version__",
    "convert",
    "dequantize_array",
    "graft_mtp",
    "inspect",
    "open",
    "quantize",
    "quantize_array",
    "reports",
    "split_mtp",
    "verify",
]
