"""quaver.attention on CuPy arrays, which have no BF16: float32 and codes in, float32 out."""

from __future__ import annotations

import cupy as cp
import numpy as np
import pytest
from attention_reference import BOUNDS, normal, reference, relative

import quaver


def bf16(x: np.ndarray) -> np.ndarray:
    """Rounded half up, which differs from nearest even in ties only: none here."""
    return ((x.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize(("kv_dtype", "what"), [("bf16", "bf16"), ("fp8", "fp8 single")])
def test_float32(kv_dtype: str, what: str) -> None:
    values = [bf16(normal(1, s, h, 128, seed=i)) for i, (s, h) in enumerate([(65, 4), (200, 2), (200, 2)])]
    out, lse = quaver.attention(*(cp.asarray(x) for x in values), kv_dtype=kv_dtype, return_lse=True)
    assert isinstance(out, cp.ndarray) and out.dtype == cp.float32 and lse.shape == (1, 65, 4)
    wanted = reference(*(x[0] for x in values))
    bound = BOUNDS[what] + (0.05 if kv_dtype == "fp8" else 0)  # K and V are quantised here
    assert relative(cp.asnumpy(out)[0], wanted) < bound


def test_codes_in_a_stream_of_their_own() -> None:
    codes = [cp.asarray(np.random.default_rng(i).integers(0x20, 0x40, (1, s, 2, 64), dtype=np.uint8))
             for i, s in enumerate((20, 90, 90))]  # fmt: skip
    wanted = quaver.attention(*codes)
    cp.cuda.Device().synchronize()
    with cp.cuda.Stream(non_blocking=True) as stream:
        ours = quaver.attention(*codes)
        stream.synchronize()
    assert bool((ours == wanted).all())
