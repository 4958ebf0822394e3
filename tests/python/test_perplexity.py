"""Perplexity of Gemma 3 270M on tests/data/opticks.txt: 5,788 tokens, eleven windows of 512."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from golden import DATA, GOLDEN, check_error, open_model
from quaver.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "opticks_logprobs.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def logprobs(model_dir: Path, golden: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    ids = golden["ids"].tolist()
    return {
        cache: np.array(open_model(model_dir, cache, max_model_len=len(ids)).token_logprobs(ids))
        for cache in ("bf16", "fp8")
    }


def perplexity(logprobs: np.ndarray) -> float:
    return float(np.exp(-logprobs.mean(dtype=np.float64)))


def test_text_has_the_golden_tokens(golden: dict[str, np.ndarray], tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_prompt((DATA / "opticks.txt").read_text()) == golden["ids"].tolist()
    assert len(golden["ids"]) >= 4000


def test_fp8_cache_is_within_one_percent_of_bf16(logprobs: dict[str, np.ndarray]) -> None:
    ratio = perplexity(logprobs["fp8"]) / perplexity(logprobs["bf16"])
    print(f"perplexity {perplexity(logprobs['bf16']):.4f} (BF16 cache), {perplexity(logprobs['fp8']):.4f} (FP8 cache)")
    check_error("FP8 cache / BF16 cache - 1", abs(ratio - 1), 1e-2)


@pytest.mark.parametrize("reference", ["kv_bf16", "f32"])
def test_bf16_cache_equals_transformers(
    reference: str, logprobs: dict[str, np.ndarray], golden: dict[str, np.ndarray]
) -> None:
    ours, theirs = perplexity(logprobs["bf16"]), perplexity(golden[reference])
    check_error(f"perplexity / {reference} - 1", abs(ours / theirs - 1), 1e-3)
    deviation = float(np.sqrt(np.mean((logprobs["bf16"] - golden[reference]) ** 2)))
    check_error(f"log probabilities - {reference}, root mean square", deviation, 5e-2)
