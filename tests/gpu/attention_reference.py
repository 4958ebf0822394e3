"""What the GPU tests of quaver.attention share: calls, and their answers in float64 on the host.

cmake --preset cuda -DQUAVER_MODEL=ON -DQUAVER_PYTHON=ON && cmake --build --preset cuda --target quaver_python
PYTHONPATH=python:tests/gpu python -m pytest tests/gpu/test_attention_torch.py tests/gpu/test_attention_cupy.py
"""

from __future__ import annotations

import numpy as np

# Relative L2 of the output against float64 on the values as they are stored, by what runs; BF16 output included.
BOUNDS = {"bf16": 3e-3, "fp8 split": 3.5e-3, "fp8 single": 6e-2}


def normal(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = True) -> np.ndarray:
    """[S, H, D] in, [Sq, H, D] out."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x.astype(np.float64), group, 1) for x in (k, v))
    logits = np.einsum("qhd,khd->hqk", q.astype(np.float64), k) * q.shape[2] ** -0.5
    if causal:
        position = np.arange(len(q))[:, None] + len(k) - len(q)
        logits = np.where(np.arange(len(k)) <= position, logits, -np.inf)
    weights = np.exp(logits - logits.max(2, keepdims=True))
    return np.einsum("hqk,khd->qhd", weights / weights.sum(2, keepdims=True), v)


def relative(ours: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(ours.astype(np.float64) - wanted) / np.linalg.norm(wanted))
