"""--device: what its words mean, and generation through an Engine, which is how a GPU generates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from golden import GOLDEN
from quaver import _quaver
from quaver.engine_generator import EngineGenerator

GEMMA4 = GOLDEN / "gemma4_tiny"
NO_GPU = _quaver.num_gpus() == 0


@pytest.fixture
def generator() -> Iterator[EngineGenerator]:
    engine = _quaver.Engine.load(GEMMA4, device="cpu", block_size=16, max_model_len=128, max_num_seqs=1)
    assert engine.device == "cpu"
    made = EngineGenerator(engine)
    yield made
    made.close()


SAMPLING = {"temperature": 8.0, "seed": 5, "ignore_eos": True}


def generators_text(prompt: list[int], count: int) -> list[int]:
    reference = _quaver.Generator.load(GEMMA4, block_size=16, max_model_len=128)
    return reference.generate(prompt, max_tokens=count, **SAMPLING).tokens


def test_an_engine_generates_what_the_generator_does(generator: EngineGenerator) -> None:
    prompt = [2, 9, 40, 7]
    shown: list[int] = []
    result = generator.generate(prompt, lambda token: not shown.append(token), max_tokens=12, **SAMPLING)
    assert result.tokens == shown == generators_text(prompt, 12)
    assert (result.finish_reason, result.prompt_tokens) == ("length", 4)
    assert result.ttft_s > 0 and result.decode_s > 0 and result.decode_tokens_per_s > 0
    assert generator.kv_bytes_per_token == _quaver.Generator.load(GEMMA4, block_size=16).kv_bytes_per_token


def test_a_stop_id_ends_the_text_and_is_not_part_of_it(generator: EngineGenerator) -> None:
    prompt = [2, 9, 40, 7]
    text = generators_text(prompt, 12)
    stop = next(token for token in text if text.index(token) > 0)
    end = text.index(stop)
    result = generator.generate(prompt, lambda _: True, max_tokens=12, **SAMPLING, stop_token_ids=[stop])
    assert (result.tokens, result.finish_reason) == (text[:end], "stop")
    assert generator.generate(prompt, lambda _: True, max_tokens=0).tokens == []


def test_what_can_never_run(generator: EngineGenerator) -> None:
    with pytest.raises(ValueError, match="max_tokens 200: expected at most max_model_len 128"):
        generator.generate([2, 3], lambda _: True, max_tokens=200)


@pytest.mark.parametrize("name", ["gpu", "", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "CPU", "cpu:0"])
def test_words_that_are_no_device(name: str) -> None:
    with pytest.raises(ValueError, match=f"device {name}: expected auto, cpu, cuda or cuda:N"):
        _quaver.resolve_device(name)


@pytest.mark.skipif(not NO_GPU, reason="this process sees a GPU")
def test_without_a_gpu() -> None:
    assert (_quaver.resolve_device("auto"), _quaver.resolve_device("cpu")) == ("cpu", "cpu")
    for name in ("cuda", "cuda:0", "cuda:3"):
        with pytest.raises(ValueError, match=f"device {name}: expected "):
            _quaver.resolve_device(name)
        with pytest.raises(ValueError, match=f"device {name}: expected "):
            _quaver.Engine.load(GEMMA4, device=name)
