"""quaver.attention on NumPy arrays, against a plain float64 softmax; docs/attention.md's example; what it refuses."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quaver

ROOT = Path(__file__).resolve().parents[2]


def reference(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    sinks: np.ndarray | None = None,
    spans: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """One sequence [S, H, D] in float64: (out, lse)."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x.astype(np.float64), group, 1) for x in (k, v))
    logits = np.einsum("qhd,khd->hqk", q.astype(np.float64), k) * q.shape[2] ** -0.5
    if softcap:
        logits = softcap * np.tanh(logits / softcap)
    position = np.arange(len(q))[:, None] + len(k) - len(q)
    key = np.arange(len(k))[None]
    seen = key <= position if causal else np.ones((len(q), len(k)), bool)
    if window:
        seen &= key > position - window
        if not causal:
            seen &= key < position + window
    if spans is not None:
        ids = np.full(len(k), -1)
        ids[len(k) - len(q) :] = spans
        seen |= (spans[:, None] == ids[None]) & (spans[:, None] >= 0) & (key > position)
    logits = np.where(seen[None], logits, -np.inf)
    columns = (
        logits
        if sinks is None
        else np.concatenate([logits, np.broadcast_to(sinks[:, None, None], logits[:, :, :1].shape)], 2)
    )
    with np.errstate(divide="ignore"):
        top = np.maximum(columns.max(2, keepdims=True), -1e30)
        lse = np.log(np.exp(columns - top).sum(2)) + top[..., 0]
    weights = np.where(seen[None], np.exp(logits - np.where(np.isfinite(lse), lse, 0)[..., None]), 0)
    return np.einsum("hqk,khd->qhd", weights, v), lse.T


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def bf16(x: np.ndarray) -> np.ndarray:
    """Rounded to nearest even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def value_of(code: int) -> float:
    """Of an E4M3 code."""
    exponent, mantissa = code >> 3 & 15, (code & 7) / 8
    return (-1) ** (code >> 7) * (2.0 ** (exponent - 7) * (1 + mantissa) if exponent else mantissa / 64)


E4M3 = np.array([value_of(code) for code in range(256)])


def nearest_e4m3(x: np.ndarray) -> np.ndarray:
    """Ties to even codes. 0x7F and 0xFF, which are NaN, are no neighbours of values below 448."""
    distance = np.abs(E4M3[:, None] - x.ravel()) + 1e-9 * (np.arange(256) % 2)[:, None]
    return E4M3[distance.argmin(0)].reshape(x.shape)


def check(out: np.ndarray, lse: np.ndarray, expected: tuple[np.ndarray, np.ndarray]) -> None:
    np.testing.assert_allclose(out, expected[0], atol=2e-5, rtol=1e-5)
    np.testing.assert_allclose(lse, expected[1], atol=2e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": False},
        {"window": 7},
        {"causal": False, "window": 7},
        {"softcap": 3.0},
        {"sinks": normal(6, seed=9)},
    ],
)
@pytest.mark.parametrize("heads_first", [False, True])
def test_batches(options: dict[str, Any], heads_first: bool) -> None:
    q, k, v = normal(2, 21, 6, 40, seed=1), bf16(normal(2, 50, 3, 40, seed=2)), bf16(normal(2, 50, 3, 24, seed=3))
    given = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) if heads_first else x for x in (q, k, v)]
    out, lse = quaver.attention(*given, return_lse=True, **options)
    assert out.dtype == np.float32 and out.shape == (2, 21, 6, 24) and lse.shape == (2, 21, 6)
    for b in range(2):
        check(out[b], lse[b], reference(q[b], k[b], v[b], **options))


def test_sequences_of_different_lengths_with_codes_and_descales() -> None:
    lengths = [(1, 30), (0, 5), (17, 17), (4, 2)]  # the last: more queries than keys, rows that see none
    query_start, key_start = (np.cumsum([0, *x], dtype=np.int32) for x in zip(*lengths, strict=True))
    rng = np.random.default_rng(4)
    codes = [rng.integers(0, 0x7E, (n, h, 32), dtype=np.uint8) | rng.integers(0, 2, (n, h, 32), dtype=np.uint8) << 7
             for n, h in ((22, 4), (54, 2), (54, 2))]  # fmt: skip
    codes = [np.minimum(x & 0x7F, 0x47) | (x & 0x80) for x in codes]  # up to 3.75
    q, k, v = (E4M3[x] for x in codes)
    descales = {f"{name}_descale": (0.5 + rng.random((4, 2))).astype(np.float32) for name in "qkv"}
    out, lse = quaver.attention(
        *codes, query_start=query_start, key_start=key_start, max_query_len=17, return_lse=True, **descales
    )
    for b, (q_len, _) in enumerate(lengths):
        rows, keys = slice(*query_start[b : b + 2]), slice(*key_start[b : b + 2])
        logit = np.repeat((descales["q_descale"] * descales["k_descale"])[b], 2)[:, None]
        expected = reference(q[rows] * logit, k[keys], v[keys] * descales["v_descale"][b][:, None])
        check(out[rows], lse[rows], expected)
        if q_len == 4:
            assert np.all(out[rows][:2] == 0) and np.all(np.isneginf(lse[rows][:2]))


def test_image_spans() -> None:
    spans = np.array([[-1, 0, 0, 0, -1, 1, 1, 2, -1]], np.int32)
    q, k, v = normal(1, 9, 2, 64, seed=1), bf16(normal(1, 12, 1, 64, seed=2)), bf16(normal(1, 12, 1, 64, seed=3))
    out, lse = quaver.attention(q, k, v, span_ids=spans, window=4, return_lse=True)
    check(out[0], lse[0], reference(q[0], k[0], v[0], window=4, spans=spans[0]))


def test_what_is_stored() -> None:
    """Values become BF16 or, on request, E4M3 of value / scale; the arithmetic of the FP8 kernels is a word away."""
    q, k, v = (normal(1, 40, 1, 64, seed=s) for s in (1, 2, 3))
    plain = quaver.attention(q, k, v)
    np.testing.assert_array_equal(plain, quaver.attention(q, bf16(k), bf16(v)))
    scale = np.array([0.25], np.float32)
    stored = quaver.attention(q, k, v, kv_dtype="fp8", k_scale=scale, v_scale=scale)
    nearest = [nearest_e4m3(x / 0.25) * 0.25 for x in (k, v)]
    np.testing.assert_allclose(stored[0], reference(q[0], nearest[0][0], nearest[1][0])[0], atol=2e-5)
    error = np.linalg.norm(quaver.attention(q, k, v, kv_dtype="fp8", precision="single") - plain) / np.linalg.norm(
        plain
    )
    assert 0.01 < error < 0.1


def test_out_is_where_the_caller_wants_it() -> None:
    q, k, v = (normal(2, 5, 1, 16, seed=s) for s in (1, 2, 3))
    whole = np.full((2, 5, 3, 16), np.nan, np.float32)
    result = quaver.attention(q, k, v, out=whole[:, :, 1:2])
    np.testing.assert_array_equal(result, quaver.attention(q, k, v))
    assert np.isnan(whole[:, :, ::2]).all() and not np.isnan(whole[:, :, 1]).any()
    q.setflags(write=False)  # inputs may be read-only, outputs may not
    np.testing.assert_array_equal(quaver.attention(q, k, v), result)


def test_nothing_in_nothing_out() -> None:
    empty = np.empty((0, 4, 2, 16), np.float32)
    assert quaver.attention(empty, empty, empty).shape == (0, 4, 2, 16)
    assert np.all(quaver.attention(normal(1, 3, 2, 16), *(np.empty((1, 0, 2, 16), np.float32),) * 2) == 0)


def test_threads_get_their_own_answers() -> None:
    inputs = [[normal(1, 30 + i, 2, 32, seed=10 * i + s) for s in range(3)] for i in range(6)]
    expected = [quaver.attention(*x) for x in inputs]
    results: list[Any] = [None] * 6

    def work(i: int) -> None:
        for _ in range(10):
            results[i] = quaver.attention(*inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


Q, KV = normal(1, 4, 2, 32), normal(1, 6, 1, 32)
START = np.array([0, 4], np.int32)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((Q[0, 0], KV, KV), {}, r"q f32\[2, 32\] on cpu: expected \[tokens, heads, dim\]"),
        ((Q, KV[0], KV), {}, r"k f32\[6, 1, 32\] on cpu: expected \[batch, tokens, heads, dim\] as q"),
        ((Q, KV, KV[:, :5]), {}, r"v f32\[1, 5, 1, 32\] on cpu: expected the 6 tokens of k"),
        ((Q, KV[..., :16], KV), {}, r"q .*: expected 2 heads of dim 16"),
        ((Q, np.repeat(KV, 3, 2), np.repeat(KV, 3, 2)), {}, r"num_q_heads 2: expected a multiple of num_kv_heads 3"),
        ((Q.astype(np.float64), KV, KV), {}, r"q f64\[1, 4, 2, 32\] on cpu: expected dtype bf16, f32, e4m3 or u8"),
        ((Q.astype(np.int8), KV, KV), {}, r"q of DLPack dtype 0 with 8 bits: expected float32"),
        ((Q, KV, KV), {"query_start": START}, r"query_start i32\[2\] on cpu: expected none beside q of rank 4"),
        ((Q[0], KV[0], KV[0]), {"query_start": START}, r"key_start .*: expected i32 \[sequences \+ 1\]"),
        ((Q[0], KV[0], KV[0]), {"query_start": START, "key_start": START * 2}, r"key_start\[1\] 8: expected 0 to 6"),
        ((Q, KV, KV), {"window": -1}, r"window -1: expected 0 \(none\) or more"),
        ((Q, KV, KV), {"precision": "half"}, r"precision half: expected one of auto, single, split, full"),
        ((Q, KV, KV), {"kv_dtype": "int8"}, r"kv dtype int8: expected one of fp8, bf16"),
        ((Q, KV, KV), {"kernel": "general"}, r"kernel general was asked for; architecture"),
        ((Q, KV, KV), {"precision": "single"}, r"kv dtype bf16: expected fp8"),
        ((Q, KV, KV), {"out": np.empty((1, 4, 2, 16), np.float32)}, r"out f32\[4, 2, 16\] on cpu: expected shape"),
        ((Q, KV, KV), {"k_scale": np.zeros(1, np.float32)}, r"k_scale\[0\]"),
        ((Q, KV, KV), {"q_descale": np.ones(1, np.float32)}, r"q_descale f32\[1\] on cpu: expected shape \[1, 1\]"),
        ((Q, KV, KV), {"sinks": np.ones(3, np.float32)}, r"sinks f32\[3\] on cpu: expected shape \[2\]"),
        ((Q, KV, KV), {"span_ids": np.zeros((1, 4), np.int32), "causal": False}, r"bidirectional_spans without causal"),
        ((Q, KV, KV), {"max_query_len": 3}, r"q tokens of a sequence 4: expected at most 3"),
    ],
)
def test_refusals_name_tensor_and_value(arguments: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quaver.attention(*arguments, **options)


def test_what_is_no_tensor() -> None:
    with pytest.raises(TypeError, match="q of type list: expected a tensor"):
        quaver.attention([1.0], KV, KV)
    with pytest.raises(TypeError):
        quaver.attention(Q, [1.0], KV)

    class Other:
        """A tensor of an unknown framework: fine, but where should the result go?"""

        def __init__(self, array: np.ndarray) -> None:
            self.array, self.shape = array, array.shape

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    with pytest.raises(TypeError, match="q of type Other: expected one of numpy, cupy or torch, or `out`"):
        quaver.attention(Other(Q), KV, KV)
    out = np.empty_like(Q)
    quaver.attention(Other(Q), KV, KV, out=out)
    np.testing.assert_array_equal(out, quaver.attention(Q, KV, KV))


def test_the_example_of_the_docs() -> None:
    text = (ROOT / "docs" / "attention.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(example.strip().splitlines()) <= 10
    run = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True)
    shapes, error = run.stdout.strip().rsplit(" ", 1)
    assert shapes == "(2, 100, 8, 64) (2, 100, 8)" and 0.005 < float(error) < 0.1
