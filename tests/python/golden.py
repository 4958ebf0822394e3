"""What the parity tests share: golden files, models by name, and errors against a stated bound."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from quaver._quaver import Generator

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
DATA = GOLDEN.parent / "data"
sys.path.append(str(GOLDEN))  # fingerprint.py, which the golden scripts use too


def open_model(folder: Path, cache: str, **options: Any) -> Generator:
    return Generator.load(str(folder), kv_cache_dtype=cache, **options)


def logits(model: Generator, ids: np.ndarray, rows: list[int] | None = None) -> np.ndarray:
    """[rows, vocab]; every position where `rows` is not given."""
    return model.logits(ids.tolist(), list(range(len(ids))) if rows is None else rows)


def relative(ours: np.ndarray, reference: np.ndarray) -> float:
    """Relative L2 error."""
    return float(np.linalg.norm(ours.astype(np.float64) - reference) / np.linalg.norm(reference.astype(np.float64)))


def check_error(what: str, error: float, bound: float) -> None:
    """Prints the error for docs/accuracy.md (pytest -rP shows it) and holds it against the bound."""
    print(f"{what}: {error:.2e} (allowed {bound:.1e})")
    assert error <= bound, f"{what}: error {error:.3e}, expected at most {bound:.1e}"
