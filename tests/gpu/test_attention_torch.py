"""quaver.attention on CUDA tensors of PyTorch: dtypes, orders, streams, the caching allocator's memory."""

from __future__ import annotations

import pytest
import torch
from attention_reference import BOUNDS, normal, reference, relative

import quaver

GPU = torch.device("cuda")


def on_gpu(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.from_numpy(normal(*shape, seed=seed)).to(GPU).to(dtype)


def host(tensor: torch.Tensor):
    return tensor.float().cpu().numpy()


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("kv", "what"), [(torch.bfloat16, "bf16"), (torch.float8_e4m3fn, "fp8 single")])
def test_batches(kv: torch.dtype, what: str, causal: bool, heads_first: bool) -> None:
    q, k, v = (on_gpu(2, s, h, 128, seed=i, dtype=d)
               for i, (s, h, d) in enumerate([(70, 8, torch.bfloat16), (300, 2, kv), (300, 2, kv)]))  # fmt: skip
    values = [host(x) for x in (q, k, v)]
    if kv == torch.float8_e4m3fn:
        k, v = (x.view(torch.uint8) for x in (k, v))
    if heads_first:
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    out, lse = quaver.attention(q, k, v, causal=causal, return_lse=True)
    assert out.dtype == torch.bfloat16 and out.device.type == "cuda" and lse.dtype == torch.float32
    for b in range(2):
        wanted = reference(*(x[b] for x in values), causal=causal)
        assert relative(host(out[b]), wanted) < BOUNDS[what]


def test_decode_of_different_lengths_with_codes_of_q() -> None:
    lengths = [1, 1000, 77]
    start = torch.tensor([0, 1, 2, 3], dtype=torch.int32, device=GPU)
    key_start = torch.tensor([0, 1, 1001, 1078], dtype=torch.int32, device=GPU)
    q, k, v = (on_gpu(n, h, 256, seed=i, dtype=torch.float8_e4m3fn)
               for i, (n, h) in enumerate([(3, 4), (1078, 2), (1078, 2)]))  # fmt: skip
    descale = torch.full((3, 2), 0.5, device=GPU)
    out = quaver.attention(
        *(x.view(torch.uint8) for x in (q, k, v)),
        query_start=start,
        key_start=key_start,
        max_query_len=1,
        q_descale=descale,
        k_descale=descale,
        v_descale=descale,
    )
    first = 0
    for b, length in enumerate(lengths):
        keys = slice(first, first + length)
        wanted = reference(host(q[b : b + 1]) * 0.25, host(k[keys]), host(v[keys]) * 0.5)
        assert relative(host(out[b : b + 1]), wanted) < BOUNDS["fp8 split"]
        first += length


def test_float8_tensors_as_they_are() -> None:
    """Where this PyTorch hands float8 to DLPack; else the error must come from PyTorch and name it."""
    k = on_gpu(1, 64, 1, 64, seed=1, dtype=torch.float8_e4m3fn)
    q = on_gpu(1, 8, 1, 64, seed=2)
    wanted = quaver.attention(q, k.view(torch.uint8), k.view(torch.uint8))
    try:
        ours = quaver.attention(q, k, k)
    except (BufferError, TypeError) as error:
        assert "loat8" in str(error)
    else:
        assert torch.equal(ours, wanted)


def test_current_stream_is_used() -> None:
    """Inputs that another stream is still making are waited for, because the call runs on that stream."""
    q, k, v = (on_gpu(1, s, 2, 64, seed=i) for i, s in enumerate((16, 4096, 4096)))
    wanted = quaver.attention(q, k, v)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    for _ in range(5):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            late = [torch.zeros_like(x).copy_(x) for x in (q, k, v)]
            ours = quaver.attention(*late)
        stream.synchronize()
        assert torch.equal(ours, wanted)


def test_out_and_wrong_devices() -> None:
    q, k, v = (on_gpu(1, 8, 1, 64, seed=i) for i in range(3))
    out = torch.empty(1, 8, 1, 64, dtype=torch.float32, device=GPU)
    assert quaver.attention(q, k, v, out=out) is out
    assert relative(host(out[0]), reference(*(host(x[0]) for x in (q, k, v)))) < 1e-5
    with pytest.raises(ValueError, match=r"k bf16.* on cpu: expected a tensor on cuda:0"):
        quaver.attention(q, k.cpu(), v)


def test_on_the_cpu_as_on_the_gpu() -> None:
    q, k, v = (on_gpu(1, s, 4, 64, seed=i) for i, s in enumerate((33, 100, 100)))
    ours = quaver.attention(q.cpu(), k.cpu(), v.cpu())
    assert ours.dtype == torch.bfloat16 and ours.device.type == "cpu"
    assert relative(host(ours), host(quaver.attention(q, k, v))) < 2e-3
