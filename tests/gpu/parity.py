"""The GPU runner against transformers, on a machine with a GPU and a CUDA build of the Python module.

    PYTHONPATH=python:tests/python python tests/gpu/parity.py [--model models/gemma-3-270m] [--device cuda:0]

What transformers computed is in tests/golden: logits of every position of the tiny models, greedy texts of Gemma 3
270M. Each model runs with a BF16 and an FP8 cache, prompts whole and in chunks, with graphs and without.
Log-probabilities may differ by the noise of BF16 activations: transformers itself, in BF16 against FP32, moves those of
the tiny models by 0.08 in the mean. Exit status 1 if anything is further off.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from golden import GOLDEN
from quaver import _quaver
from quaver.engine_generator import EngineGenerator

TINY = ("gemma3_tiny", "gemma4_tiny")
MEAN_BOUND = {"bf16": 0.1, "fp8": 0.35}  # of |difference| of log-probabilities; the tiny models' logits deviate by 6.7
REFERENCE = {"bf16": "f32", "fp8": "kv_fp8"}
SURE = 0.2  # a greedy choice whose logit leads by less may fall the other way


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="Gemma 3 270M as a Hugging Face folder (make demo converts it)")
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    failures = [line for name in TINY for line in check_tiny(name, options.device)]
    if options.model:
        failures += check_270m(options.model, options.device)
    for line in failures:
        print(f"FAIL  {line}")
    return 1 if failures else 0


def engines(folder: Path, device: str, **options: Any) -> Iterator[tuple[str, str, Any]]:
    """(what, cache, engine) for every combination; each engine is closed before the next one."""
    for cache, chunk, graphs in itertools.product(("bf16", "fp8"), (0, 16), (True, False)):
        engine = _quaver.Engine.load(
            folder,
            device=device,
            kv_cache_dtype=cache,
            prefill_chunk_tokens=chunk,
            cuda_graphs=graphs,
            max_num_seqs=4,
            **options,
        )
        try:
            yield f"{folder.name}, {cache}, chunk {chunk or 'whole'}, graphs {graphs}", cache, engine
        finally:
            engine.close()


def check_tiny(name: str, device: str) -> Iterator[str]:
    with np.load(GOLDEN / name / "expected.npz") as file:
        golden = dict(file)
    for what, cache, engine in engines(GOLDEN / name, device, block_size=16, kv_cache_memory_bytes=8 << 20):
        for prompt in (0, 1):
            ids = golden[f"ids_{prompt}"]
            ours = prompt_logprobs(engine, prompt + 1, ids.tolist())
            theirs = log_softmax(golden[f"{REFERENCE[cache]}_{prompt}"].astype(np.float64))
            expected = theirs[np.arange(len(ids) - 1), ids[1:]]
            mean = float(np.abs(ours - expected).mean())
            print(f"{what}, prompt {prompt}: mean {mean:.4f}, most {np.abs(ours - expected).max():.4f}")
            if not mean <= MEAN_BOUND[cache]:
                yield f"{what}, prompt {prompt}: mean {mean:.4f}, expected at most {MEAN_BOUND[cache]}"


def prompt_logprobs(engine: Any, request_id: int, ids: list[int]) -> np.ndarray:
    engine.add(request_id, ids, max_tokens=0, prompt_logprobs=0)
    found: list[float] = []
    finished = False
    while not finished:
        for output in engine.wait(10):
            if output.error:
                raise RuntimeError(output.error)
            found += [entry.logprob for entry in output.prompt_logprobs]
            finished = output.finish_reason is not None
    return np.array(found)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def check_270m(folder: Path, device: str) -> Iterator[str]:
    """Greedy texts: with a BF16 cache those of transformers, as far as its choices are sure; an FP8 cache is told."""
    with np.load(GOLDEN / "gemma3_270m.npz") as file:
        golden = dict(file)
    for what, cache, engine in engines(folder, device, max_model_len=2048):
        generator = EngineGenerator(engine)
        for prompt, name in enumerate(golden["names"]):
            expected = golden[f"greedy_{prompt}"].tolist()
            top = golden[f"kv_bf16_top_{prompt}"]
            sure = (top[:, 0] - top[:, 1] > SURE).tolist()
            text = generator.generate(
                golden[f"ids_{prompt}"].tolist(), lambda _: True, max_tokens=len(expected), ignore_eos=True
            ).tokens
            equal = next(
                (i for i, pair in enumerate(zip(text, expected, strict=True)) if pair[0] != pair[1]), len(text)
            )
            print(f"{what}, {name}: {equal} of {len(expected)} tokens equal")
            if cache == "bf16" and equal < len(expected) and sure[equal]:
                yield f"{what}, {name}: token {equal} is {text[equal]}, expected {expected[equal]}"


if __name__ == "__main__":
    sys.exit(main())
