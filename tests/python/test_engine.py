"""The serving engine through its Python binding, on models of tests/golden and Gemma 3 270M."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quaver._quaver import Engine, Generator, Output

from golden import GOLDEN

TINY = ["gemma3_tiny", "gemma4_tiny"]


@contextmanager
def engine_of(folder: Path, **options: Any) -> Iterator[Engine]:
    engine = Engine.load(
        folder, **({"block_size": 16, "max_model_len": 512, "kv_cache_memory_bytes": 8 << 20} | options)
    )
    try:
        yield engine
    finally:
        engine.close()


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, 320, count).tolist()


class Text:
    """What came for one request."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[Any] = []
        self.prompt_logprobs: list[Any] = []
        self.finish_reason: str | None = None
        self.cached_tokens = 0
        self.error = ""

    def add(self, output: Output) -> None:
        assert self.finish_reason is None, "an output after the last one"
        if output.token is not None:
            self.tokens.append(output.token)
        if output.logprobs is not None:
            self.logprobs.append(output.logprobs)
        self.prompt_logprobs.extend(output.prompt_logprobs)
        self.finish_reason = output.finish_reason
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        self.error = output.error


def collect(engine: Engine, ids: list[int], timeout_s: float = 120) -> dict[int, Text]:
    """Waits until every request has ended."""
    texts = {request_id: Text() for request_id in ids}
    deadline = time.monotonic() + timeout_s
    while any(text.finish_reason is None for text in texts.values()):
        assert time.monotonic() < deadline, f"unfinished after {timeout_s} s"
        for output in engine.wait(1.0):
            texts[output.request_id].add(output)
    return texts


def run(engine: Engine, prompt: list[int], **params: Any) -> Text:
    engine.add(1, prompt, **params)
    return collect(engine, [1])[1]


@pytest.mark.parametrize("cache", ["fp8", "bf16"])
@pytest.mark.parametrize("name", TINY)
def test_text_equals_the_generators_alone_and_in_a_batch(name: str, cache: str) -> None:
    """Four greedy and four sampled requests; these models need a high temperature to say different things."""
    prompts = [tokens(3 + 17 * i, i) for i in range(8)]
    options: dict[str, Any] = {"kv_cache_dtype": cache, "batch_invariant": True, "block_size": 16}
    generator = Generator.load(GOLDEN / name, **options)
    params = [
        {"temperature": 8.0 * (i % 2), "top_p": 0.95, "seed": i, "max_tokens": 24, "ignore_eos": True} for i in range(8)
    ]
    expected = [generator.generate(p, **each).tokens for p, each in zip(prompts, params, strict=True)]
    assert len(set(expected[7])) > 8
    with engine_of(GOLDEN / name, **options, max_num_batched_tokens=40) as engine:
        assert run(engine, prompts[7], **params[7]).tokens == expected[7]
        for i, prompt in enumerate(prompts):
            engine.add(i, prompt, **params[i])
        texts = collect(engine, list(range(8)))
        assert [texts[i].tokens for i in range(8)] == expected
        assert all(text.finish_reason == "length" for text in texts.values())
        assert texts[7].cached_tokens == 112  # the first run left 122 tokens: 7 pages of 16 are whole
        stats = engine.stats()
        assert stats.num_free_pages == stats.num_pages and stats.num_running == stats.num_waiting == 0
        assert stats.generated_tokens_total == 9 * 24


@pytest.mark.parametrize("chunk", [1, 3, 7, 1000])
@pytest.mark.parametrize("name", TINY)
def test_prompt_logprobs_in_chunks(name: str, chunk: int) -> None:
    """B43: the same arrays for each chunk size; the prompt's first token has none."""
    prompt = tokens(75, 3)
    expected = Generator.load(GOLDEN / name, batch_invariant=True).token_logprobs(prompt)
    with engine_of(GOLDEN / name, batch_invariant=True, prefill_chunk_tokens=chunk) as engine:
        text = run(engine, prompt, max_tokens=0, prompt_logprobs=3)
        again = run(engine, prompt, max_tokens=1, prompt_logprobs=0)  # complete although the prefix is cached
    assert text.tokens == [] and text.finish_reason == "length"
    assert [entry.token for entry in text.prompt_logprobs] == prompt[1:]
    values = [entry.logprob for entry in text.prompt_logprobs]
    assert values == np.float32(expected).tolist()
    assert [entry.logprob for entry in again.prompt_logprobs] == values and len(again.tokens) == 1
    for entry in text.prompt_logprobs:
        top = [logprob for _, logprob in entry.top]
        assert top == sorted(top, reverse=True) and len(top) == 3
        if entry.rank <= 3:
            assert dict(entry.top)[entry.token] == entry.logprob
        assert (entry.rank == 1) == (entry.logprob == top[0])


@pytest.mark.parametrize("chunk", [33, 40, 1000])
@pytest.mark.parametrize("name", TINY)
def test_image_spans(name: str, chunk: int) -> None:
    """A prompt with images (tests/golden/make_spans.py), computed in chunks and on a cached prefix."""
    with np.load(GOLDEN / name / "spans.npz") as golden:
        prompt = golden["ids"].tolist()
        spans = [tuple(span) for span in golden["spans"].tolist()]
    params = {"max_tokens": 8, "ignore_eos": True, "logprobs": 0}
    with engine_of(GOLDEN / name, batch_invariant=True) as engine:
        expected = run(engine, prompt, prompt_logprobs=0, spans=spans, **params)
        as_text = run(engine, prompt, prompt_logprobs=0, **params)
    generator = Generator.load(GOLDEN / name, batch_invariant=True)
    logits = generator.logits(prompt, list(range(len(prompt) - 1)), spans).astype(np.float64)
    logits -= np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True)) + logits.max(1, keepdims=True)
    values = [entry.logprob for entry in expected.prompt_logprobs]
    np.testing.assert_allclose(values, logits[np.arange(len(prompt) - 1), prompt[1:]], atol=1e-5)
    assert values != [entry.logprob for entry in as_text.prompt_logprobs]
    with engine_of(GOLDEN / name, batch_invariant=True, prefill_chunk_tokens=chunk) as engine:
        for cached in (0, 80):  # the whole pages of 16, of which the last two end outside images
            text = run(engine, prompt, spans=spans, **params)
            assert text.tokens == expected.tokens and text.cached_tokens == cached
            assert [entry.logprob for entry in text.logprobs] == [entry.logprob for entry in expected.logprobs]
        assert run(engine, prompt, **params).cached_tokens == 0


def test_image_spans_that_cannot_be() -> None:
    with engine_of(GOLDEN / "gemma3_tiny", prefill_chunk_tokens=33) as engine:
        for spans, message in (
            ([(80, 91)], r"span \[80, 91\)"),
            ([(4, 4)], r"span \[4, 4\)"),
            ([(5, 39)], "at most 33"),
        ):
            with pytest.raises(ValueError, match=message):
                engine.add(1, tokens(90), spans=spans)


def test_sampling_parameters_reach_the_sampler() -> None:
    """Seeds reproduce and differ; logprobs, bias, stop ids, min_tokens and penalties do what they say."""
    prompt = tokens(9, 4)
    with engine_of(GOLDEN / "gemma3_tiny", batch_invariant=True) as engine:
        for i in range(4):
            engine.add(i, prompt, temperature=8.0, seed=7 + i, max_tokens=12, ignore_eos=True)
        texts = collect(engine, [0, 1, 2, 3])
        assert len({tuple(text.tokens) for text in texts.values()}) == 4
        again = run(engine, prompt, temperature=8.0, seed=9, max_tokens=12, ignore_eos=True, logprobs=2)
        assert again.tokens == texts[2].tokens
        assert [entry.token for entry in again.logprobs] == again.tokens and len(again.logprobs[0].top) == 2

        greedy = run(engine, prompt, max_tokens=12, ignore_eos=True).tokens
        for temperature in (1e-4, 1e-8, 1e-12):  # B37
            assert run(engine, prompt, temperature=temperature, max_tokens=12, ignore_eos=True).tokens == greedy
        stopped = run(engine, prompt, max_tokens=12, ignore_eos=True, stop_token_ids=[greedy[0]])
        assert stopped.tokens == greedy[:1] and stopped.finish_reason == "stop"
        later = run(engine, prompt, max_tokens=12, min_tokens=3, ignore_eos=True, stop_token_ids=[greedy[0]])
        assert greedy[0] not in later.tokens[:3] and len(later.tokens) >= 3
        assert run(engine, prompt, max_tokens=3, logit_bias={17: 100.0}, ignore_eos=True).tokens == [17, 17, 17]
        ended = run(engine, prompt, max_tokens=3, logit_bias={1: 100.0})  # the model's end-of-sequence id
        assert ended.tokens == [1] and ended.finish_reason == "stop"
        fresh = run(engine, prompt, max_tokens=12, ignore_eos=True, frequency_penalty=2.0, presence_penalty=2.0).tokens
        assert len(set(fresh)) > len(set(greedy)) or len(set(greedy)) == 12
        assert len(set(run(engine, prompt, max_tokens=12, ignore_eos=True, repetition_penalty=100.0).tokens)) == 12


def test_refuses_what_can_never_run() -> None:
    with engine_of(GOLDEN / "gemma3_tiny", max_model_len=64) as engine:
        for parts, prompt, params in [
            (["prompt of 0 tokens"], [], {}),
            (["prompt token id 320", "319"], [320], {}),
            (["prompt token id -1"], [-1], {}),
            (["prompt token id 1099511627776"], [1 << 40], {}),
            (["stop_token_ids 4294967296", "319"], [5], {"stop_token_ids": [1 << 32]}),
            (["logit_bias id 320"], [5], {"logit_bias": {320: 1.0}}),
            (["logit_bias 101 of id 3", "[-100, 100]"], [5], {"logit_bias": {3: 101.0}}),
            (["logprobs 1000000", "20"], [5], {"logprobs": 1000000}),
            (["temperature nan"], [5], {"temperature": float("nan")}),
            (["top_p -1"], [5], {"top_p": -1.0}),
            (["prompt of 60 tokens", "max_tokens 5", "max_model_len 64"], tokens(60), {"max_tokens": 5}),
        ]:
            with pytest.raises(ValueError) as error:
                engine.add(1, prompt, **params)
            assert all(part in str(error.value) for part in parts), str(error.value)
        engine.add(1, tokens(5), max_tokens=50)
        with pytest.raises(ValueError, match="request id 1"):
            engine.add(1, tokens(5))
        assert len(collect(engine, [1])[1].tokens) > 0  # and the engine is alive


def test_refuses_options_by_name() -> None:
    for message, options in [
        ("max_model_len 2000: expected at most the model's max_position_embeddings 1024", {"max_model_len": 2000}),
        ("kv_cache_memory_bytes 10: expected at least", {"kv_cache_memory_bytes": 10}),
        ("gpu_memory_utilization 1.5", {"gpu_memory_utilization": 1.5, "kv_cache_memory_bytes": 0}),
        ("kv dtype int8: expected one of fp8, bf16", {"kv_cache_dtype": "int8"}),
        ("kv_cache_dtype_skip_layers 6: expected 0 to 5", {"kv_cache_dtype_skip_layers": [6]}),
        ("block_size|page size 48", {"block_size": 48}),
    ]:
        with pytest.raises(ValueError, match=message), engine_of(GOLDEN / "gemma3_tiny", **options):
            pass


def test_abort_and_close_from_another_thread() -> None:
    """wait() lets other threads work; aborted pages are free; close() ends what is left."""
    with engine_of(GOLDEN / "gemma4_tiny", max_model_len=1024) as engine:
        assert engine.max_model_len == 1024 and engine.config.vocab_size == 320 and engine.kv_bytes_per_token > 0
        texts: dict[int, Text] = {}
        thread = threading.Thread(target=lambda: texts.update(collect(engine, [1, 2])))
        thread.start()
        engine.add(1, tokens(20), max_tokens=900, ignore_eos=True)
        engine.add(2, tokens(20, 1), max_tokens=5, ignore_eos=True)
        engine.abort(1)
        engine.abort(77)
        thread.join()
        assert texts[1].finish_reason == "abort" and texts[2].finish_reason == "length"
        assert engine.stats().num_free_pages == engine.stats().num_pages
        assert engine.wait(0.0) == [] and engine.failure() == ""

        engine.add(3, tokens(20), max_tokens=900, ignore_eos=True)
        thread = threading.Thread(target=engine.close)
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError, match="closed"):
            engine.wait(0.0)


def test_two_engines_in_one_process() -> None:
    """Data parallel: each has its own threads, pool and requests."""
    with engine_of(GOLDEN / "gemma3_tiny", num_threads=1) as a, engine_of(GOLDEN / "gemma3_tiny", num_threads=1) as b:
        for i in range(4):
            for engine in (a, b):
                engine.add(i, tokens(20, i), max_tokens=20, temperature=8.0, seed=i, ignore_eos=True)
        texts_a, texts_b = collect(a, [0, 1, 2, 3]), collect(b, [0, 1, 2, 3])
        assert [texts_a[i].tokens for i in range(4)] == [texts_b[i].tokens for i in range(4)]


def test_an_idle_engine_sleeps() -> None:
    with engine_of(GOLDEN / "gemma3_tiny") as engine:
        run(engine, tokens(20), max_tokens=4)
        time.sleep(0.1)
        before = time.process_time()
        assert engine.wait(0.5) == []
        assert time.process_time() - before < 0.1  # of all threads


def test_270m_batch_equals_the_generator(model_dir: Path) -> None:
    prompts = [[2, 818, 5279, 529, 7001, 563], [2, 4521, 1902], [2, *tokens(40)]]
    options: dict[str, Any] = {"batch_invariant": True, "max_model_len": 256}
    generator = Generator.load(model_dir, **options)
    expected = [generator.generate(p, max_tokens=10, ignore_eos=True).tokens for p in prompts]
    with engine_of(model_dir, **options, block_size=64, kv_cache_memory_bytes=64 << 20) as engine:
        for i, prompt in enumerate(prompts):
            engine.add(i, prompt, max_tokens=10, ignore_eos=True)
        texts = collect(engine, [0, 1, 2])
    assert [texts[i].tokens for i in range(3)] == expected
