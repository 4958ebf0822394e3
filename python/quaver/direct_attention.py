"""Attention as a function of tensors of NumPy, CuPy or PyTorch: no cache, no pages. docs/attention.md has examples."""

from __future__ import annotations

import sys
from functools import lru_cache
from threading import Lock
from types import ModuleType
from typing import Any

from quaver._quaver import DirectAttention

CPU = 1  # DLPack's number


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    query_start: Any | None = None,
    key_start: Any | None = None,
    max_query_len: int | None = None,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    softmax_scale: float | None = None,
    sinks: Any | None = None,
    span_ids: Any | None = None,
    k_scale: Any | None = None,
    v_scale: Any | None = None,
    q_descale: Any | None = None,
    k_descale: Any | None = None,
    v_descale: Any | None = None,
    kv_dtype: str | None = None,
    precision: str = "auto",
    kernel: str | None = None,
    batch_invariant: bool = False,
    out: Any | None = None,
    return_lse: bool = False,
    stream: int | None = None,
) -> Any:
    """softmax(q k^T) v of one batch; all tensors on one device, handed over as DLPack, never copied to another.

    Batched: q [B, Sq, Hq, Dk], k [B, Sk, Hkv, Dk], v [B, Sk, Hkv, Dv]. Varlen: q [Tq, Hq, Dk], k [Tk, Hkv, Dk],
    v [Tk, Hkv, Dv] with query_start and key_start, int32 [B + 1]: sequence b owns the rows start[b] to start[b+1]-1.
    Hq is a multiple of Hkv. Any strides; dtypes bfloat16, float32, float8_e4m3fn, or uint8 for the codes of the latter.

    Args:
        max_query_len: most query tokens of a sequence, varlen only; lets few rows have the decode kernel.
        causal: row i of Sq sees the keys up to Sk - Sq + i (bottom-right aligned), else all.
        window: sliding window in keys, the row's own included; 0: none.
        softcap: logits become softcap * tanh(logit / softcap); 0: none.
        softmax_scale: default 1 / sqrt(Dk).
        sinks: float32 [Hq], one more logit in every row's normaliser.
        span_ids: int32 [B, Sq] or [Tq]: neighbouring tokens with the same id >= 0 see each other; -1: text.
        k_scale, v_scale: float32 [Hkv]: real K = stored K * k_scale. Codes are stored as they are, values divided.
        q_descale, k_descale, v_descale: float32 [B, Hkv]: the first two multiply the logits, the last the output.
        kv_dtype: what K and V are computed with: "fp8" (default where both are E4M3) or "bf16" (default otherwise).
            "fp8" quantises other values to E4M3: the FP8 kernels at 2.4e-2 relative error an element.
        precision: "single", "split", "full" or "auto", as docs/numerics.md has them.
        kernel: its name (docs/dispatch.md), or None for the policy's choice.
        batch_invariant: results do not depend on batch-mates.
        out: where the result goes, bfloat16 or float32 [..., Hq, Dv]. Default: a new tensor, bfloat16 from PyTorch,
            float32 from NumPy and CuPy, which have no bfloat16.
        return_lse: also return the natural logarithm of the normaliser, float32 [..., Hq]; -inf where no key is seen.
        stream: handle of the CUDA stream to run on; default: the framework's current one.

    Returns:
        out, or (out, lse). On a GPU the work is queued, as with any operation of the framework.

    Raises:
        ValueError: names the tensor or option, its value and what was expected, or says why no kernel takes it.
        TypeError: for a framework other than the three without `out`, or for an argument that is no tensor.
    """
    device = dlpack_device(q)
    shape = tuple(q.shape)
    if out is None:
        out = new_tensor(q, (*shape[:-1], tuple(v.shape)[-1]), low_precision=True)
    lse = new_tensor(q, shape[:-1], low_precision=False) if return_lse else None
    on_stream = 0 if device[0] == CPU else current_stream(q) if stream is None else stream
    runner, lock = runner_of(device, on_stream)
    with lock:
        runner.run(
            q,
            k,
            v,
            out=out,
            lse=lse,
            query_start=query_start,
            key_start=key_start,
            k_scale=k_scale,
            v_scale=v_scale,
            q_descale=q_descale,
            k_descale=k_descale,
            v_descale=v_descale,
            sinks=sinks,
            span_ids=span_ids,
            max_query_len=max_query_len,
            causal=causal,
            window=window,
            softcap=softcap,
            softmax_scale=shape[-1] ** -0.5 if softmax_scale is None else softmax_scale,
            kv_dtype=kv_dtype,
            batch_invariant=batch_invariant,
            precision=precision,
            kernel=kernel,
            stream=on_stream,
        )
    return (out, lse) if return_lse else out


def dlpack_device(tensor: Any) -> tuple[int, int]:
    try:
        kind, index = tensor.__dlpack_device__()
    except AttributeError:
        raise TypeError(f"q of type {type(tensor).__name__}: expected a tensor that speaks DLPack") from None
    return int(kind), int(index)


@lru_cache(maxsize=8)
def runner_of(device: tuple[int, int], stream: int) -> tuple[DirectAttention, Lock]:  # noqa: ARG001
    """One workspace a device and stream: calls on one stream follow each other, so they may share it."""
    return DirectAttention(*device), Lock()


def framework_of(tensor: Any) -> ModuleType | None:
    """The module numpy, cupy or torch."""
    name = type(tensor).__module__.partition(".")[0]
    return sys.modules.get(name) if name in ("cupy", "numpy", "torch") else None


def new_tensor(like: Any, shape: tuple[int, ...], *, low_precision: bool) -> Any:
    framework = framework_of(like)
    if framework is None:
        raise TypeError(f"q of type {type(like).__name__}: expected one of numpy, cupy or torch, or `out`")
    if framework.__name__ == "torch":
        dtype = framework.bfloat16 if low_precision else framework.float32
        return framework.empty(shape, dtype=dtype, device=like.device)
    if framework.__name__ == "cupy":
        with like.device:
            return framework.empty(shape, dtype=framework.float32)
    return framework.empty(shape, dtype=framework.float32)


def current_stream(tensor: Any) -> int:
    framework = framework_of(tensor)
    if framework is not None and framework.__name__ == "torch":
        return framework.cuda.current_stream(tensor.device).cuda_stream
    if framework is not None and framework.__name__ == "cupy":
        with tensor.device:
            return framework.cuda.get_current_stream().ptr
    return 0
