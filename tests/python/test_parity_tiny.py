"""Random models that use every feature of Gemma 3 and 4, against transformers (tests/golden/make_tiny.py; B27-B30).

The golden scripts show that misreading any one feature moves these logits by 1e-3 to 1. With an FP8 cache nothing but
FP32 rounding differs. A BF16 cache turns a few values of each prompt to the other BF16 neighbour: up to 3e-4 measured.
"""

from __future__ import annotations

import numpy as np
import pytest

from golden import GOLDEN, check_error, logits, open_model, relative

TINY = ["gemma3_tiny", "gemma4_tiny"]
FP8 = ["fp8_channel", "fp8_tensor", "fp8_block"]
PROMPTS = [0, 1]


def expected(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / name / "expected.npz") as file:
        return dict(file)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(
    ("cache", "reference", "bound"), [("fp8", "kv_fp8", 1e-4), ("bf16", "kv_bf16", 1e-3), ("bf16", "f32", 5e-3)]
)
@pytest.mark.parametrize("name", TINY)
def test_logits_of_every_position(name: str, cache: str, reference: str, bound: float, prompt: int) -> None:
    golden = expected(name)
    ours = logits(open_model(GOLDEN / name, cache), golden[f"ids_{prompt}"])
    check_error(f"{name} {prompt}, {reference}", relative(ours, golden[f"{reference}_{prompt}"]), bound)


@pytest.mark.parametrize("chunk", [1, 7, 16, 1000])
@pytest.mark.parametrize("name", TINY)
def test_prompt_in_chunks(name: str, chunk: int) -> None:
    """Chunks of one are decode steps; 7 and 16 end inside pages and windows of 24."""
    golden = expected(name)
    ours = logits(open_model(GOLDEN / name, "fp8", prefill_chunk=chunk), golden["ids_0"])
    check_error(f"{name}, chunks of {chunk}", relative(ours, golden["kv_fp8_0"]), 1e-4)


@pytest.mark.parametrize("chunk", [1000, 47, 33])
@pytest.mark.parametrize("name", TINY)
def test_image_spans(name: str, chunk: int) -> None:
    """tests/golden/make_spans.py; the longest image has 33 tokens, more than the window of 24. Read as text they move
    the logits by 0.3, with the mask of the other family on the full layers by 0.1."""
    with np.load(GOLDEN / name / "spans.npz") as golden:
        model = open_model(GOLDEN / name, "fp8", prefill_chunk=chunk)
        ids = golden["ids"].tolist()
        ours = model.logits(ids, list(range(len(ids))), [tuple(span) for span in golden["spans"].tolist()])
        check_error(f"{name} with images, chunks of {chunk}", relative(ours, golden["kv_fp8"]), 1e-4)


def test_image_spans_that_cannot_be() -> None:
    model = open_model(GOLDEN / "gemma3_tiny", "fp8", prefill_chunk=16)
    ids = list(range(40))
    for spans, message in (
        ([(3, 20)], r"span at token 3: expected at most prefill_chunk 16"),
        ([(30, 41)], r"span \[30, 41\): expected at least one token of the 40"),
        ([(5, 5)], r"span \[5, 5\)"),
        ([(5, 9), (8, 10)], r"span \[8, 10\): .* from 9 on"),
    ):
        with pytest.raises(ValueError, match=message):
            model.logits(ids, [39], spans)


@pytest.mark.parametrize("cache", ["bf16", "fp8"])
@pytest.mark.parametrize("name", TINY)
def test_decode_equals_prefill(name: str, cache: str) -> None:
    """B26: bitwise in batch-invariant mode, at every length up to 260."""
    ids = np.random.default_rng(26).integers(3, 320, 260)
    whole = logits(open_model(GOLDEN / name, cache, batch_invariant=True), ids)
    decoded = logits(open_model(GOLDEN / name, cache, batch_invariant=True, prefill_chunk=1), ids)
    np.testing.assert_array_equal(decoded, whole)


@pytest.mark.parametrize("name", TINY)
def test_runs_are_bitwise_equal(name: str) -> None:
    ids = expected(name)["ids_0"]
    first, second = (logits(open_model(GOLDEN / name, "fp8"), ids) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", FP8)
def test_fp8_checkpoints(name: str, prompt: int) -> None:
    """Three recipes in three spellings. One input at a tie between two E4M3 codes moves one row by 7e-3, all by 1e-3;
    the smallest misreading, inputs that are not quantised, moves all by 4e-2."""
    golden = expected(name)
    ours = logits(open_model(GOLDEN / name, "bf16"), golden[f"ids_{prompt}"])
    check_error(f"{name} {prompt}", relative(ours, golden[f"kv_bf16_{prompt}"]), 4e-3)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_fp8_checkpoint_with_fp8_cache(prompt: int) -> None:
    """k_scale and v_scale in modelopt's spelling."""
    golden = expected("fp8_tensor")
    ours = logits(open_model(GOLDEN / "fp8_tensor", "fp8"), golden[f"ids_{prompt}"])
    check_error(f"fp8_tensor {prompt}, FP8 cache", relative(ours, golden[f"kv_fp8_{prompt}"]), 4e-3)
