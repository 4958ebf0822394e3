"""Quaver: FP8 attention and LLM serving for NVIDIA Hopper GPUs."""

import os

# Read when the OpenMP runtime loads. Waiting threads that spin starve the working ones on a busy machine: first token
# of the 270M after 1.9-2.3 s, against 0.25 s when they sleep (2 cores, load 6).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from quaver._quaver import __version__
from quaver.direct_attention import attention

__all__ = ["__version__", "attention"]
