"""Quaver: FP8 attention and LLM serving for NVIDIA Hopper GPUs."""

from quaver._quaver import __version__

__all__ = ["__version__"]
