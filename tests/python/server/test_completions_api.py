"""/v1/completions over a scripted engine: shapes, streaming, echo, logprobs, stop, usage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fake_engine import EOS, FakeEngine
from serving import Serve, client_of
from sse import joined_text, stream

from quaver.tokenizer import Tokenizer

PATH = "/v1/completions"
TEXT = "héllo 😀 world"


@pytest.fixture(scope="module")
def say(tiny_tokenizer: Tokenizer) -> Any:
    """A script that says TEXT and ends."""
    return lambda *_: [*tiny_tokenizer.encode_prompt(TEXT, add_bos=False), EOS]


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine(lambda *_: [])


@pytest.fixture(scope="module")
def server(engine: FakeEngine, tiny_dir: Path) -> Iterator[httpx2.Client]:
    with client_of(engine, model_dir=tiny_dir) as client:
        yield client


@pytest.fixture
def client(server: httpx2.Client, engine: FakeEngine, say: Any) -> httpx2.Client:
    """A server that says TEXT unless the test sets another script."""
    engine.script = say
    engine.requests.clear()
    engine.aborted.clear()
    return server


def test_answer(client: httpx2.Client, engine: FakeEngine, say: Any, tiny_tokenizer: Tokenizer) -> None:
    answer = client.post(PATH, json={"model": "tiny", "prompt": "hello", "max_tokens": 100}).json()
    count = len(say())
    prompt = tiny_tokenizer.encode_prompt("hello")
    assert answer.pop("id").startswith("cmpl-") and isinstance(answer.pop("created"), int)
    assert answer == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
        "usage": {"prompt_tokens": 2, "completion_tokens": count, "total_tokens": 2 + count,
                  "prompt_tokens_details": {"cached_tokens": 1}},
    }  # fmt: skip
    assert engine.requests[0][0] == prompt == [2, *prompt[1:]]


def test_one_chunk_a_token(client: httpx2.Client, say: Any) -> None:
    """Also for tokens that end amid a character or show no text."""
    chunks = stream(client, PATH, {"prompt": "hello", "max_tokens": 100, "stream_options": {"include_usage": True}})
    assert len(chunks) == len(say()) + 1
    assert joined_text(chunks) == TEXT
    assert "" in [chunk["choices"][0]["text"] for chunk in chunks[:-1]]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(say()) - 1) + ["stop"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == len(say())
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert "usage" not in stream(client, PATH, {"prompt": "hello"})[-1]


@pytest.mark.parametrize("options", [
    {}, {"stop": "wor"}, {"stop": ["lo 😀", "x"]}, {"stop": "wor", "include_stop_str_in_output": True},
    {"max_tokens": 3}, {"logprobs": 2}, {"logprobs": 2, "echo": True}, {"echo": True, "n": 2}, {"max_tokens": 0},
    {"max_tokens": 0, "echo": True, "logprobs": 1}, {"prompt": ["hello", "world", "us"], "n": 2},
    {"skip_special_tokens": False, "ignore_eos": True, "max_tokens": 20},
])  # fmt: skip
def test_streaming_equals_not_streaming(client: httpx2.Client, options: dict[str, Any]) -> None:
    body = {"prompt": "hello", "max_tokens": 100, "seed": 1, **options}
    whole = client.post(PATH, json=body).json()
    chunks = stream(client, PATH, {**body, "stream_options": {"include_usage": True}})
    assert chunks[-1]["usage"] == whole["usage"]
    for choice in whole["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert joined_text(chunks, choice["index"]) == choice["text"]
        assert [parts[-1][name] for name in ("finish_reason", "stop_reason")] == [
            choice[name] for name in ("finish_reason", "stop_reason")
        ]
        assert all(part["finish_reason"] is None for part in parts[:-1])
        if choice["logprobs"]:
            for name, values in choice["logprobs"].items():
                assert values == [value for part in parts if part["logprobs"] for value in part["logprobs"][name]]


@pytest.mark.parametrize(("stop", "include", "text", "reason"), [
    ("wor", False, "héllo 😀 ", "wor"),
    ("wor", True, "héllo 😀 wor", "wor"),
    (["never", "o 😀"], False, "héll", "o 😀"),
    ("never", False, TEXT, None),
    ([], False, TEXT, None),
])  # fmt: skip
def test_stop_strings(client: httpx2.Client, stop: Any, include: bool, text: str, reason: str | None) -> None:
    body = {"prompt": "hello", "max_tokens": 100, "stop": stop, "include_stop_str_in_output": include}
    choice = client.post(PATH, json=body).json()["choices"][0]
    assert (choice["text"], choice["stop_reason"], choice["finish_reason"]) == (text, reason, "stop")


def test_stop_token_ids(client: httpx2.Client, say: Any, tiny_tokenizer: Tokenizer) -> None:
    tokens = say()
    body = {"prompt": "hello", "max_tokens": 100, "stop_token_ids": [tokens[3]]}
    shown = tiny_tokenizer.decode(tokens[:3])
    choice = client.post(PATH, json=body).json()["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == (shown, tokens[3])
    choice = client.post(PATH, json={**body, "include_stop_str_in_output": True}).json()["choices"][0]
    assert choice["text"] == tiny_tokenizer.decode(tokens[:4])


def test_kinds_of_prompts(client: httpx2.Client, engine: FakeEngine, tiny_tokenizer: Tokenizer) -> None:
    hello, world = (tiny_tokenizer.encode_prompt(text) for text in ("hello", "world"))
    both = [hello, world]
    for prompt, expected in (("hello", [hello]), (["hello"], [hello]), (hello, [hello]), (both, both),
                             (["hello", world], both), ([[5]], [[5]])):  # fmt: skip
        engine.requests.clear()
        answer = client.post(PATH, json={"prompt": prompt, "max_tokens": 2}).json()
        assert [request[0] for request in engine.requests] == expected
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))
        assert answer["usage"]["prompt_tokens"] == sum(map(len, expected))
    client.post(PATH, json={"prompt": "hello", "add_special_tokens": False})
    assert engine.requests[-1][0] == hello[1:]


def test_defaults_and_what_the_engine_gets(serve: Serve, say: Any) -> None:
    engine = FakeEngine(say)
    client = serve(engine, defaults={"temperature": 0.5, "top_k": 64})
    assert client.post(PATH, json={"prompt": "hello"}).status_code == 200
    params = engine.requests[-1][1]
    seed = params.pop("seed")
    assert 0 <= seed < 1 << 64 and params == {
        "temperature": 0.5, "top_k": 64, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "min_tokens": 0, "ignore_eos": False, "stop_token_ids": [], "logit_bias": {},
        "cache_salt": "", "max_tokens": 16, "logprobs": -1, "prompt_logprobs": -1,
    }  # fmt: skip
    body = {"prompt": "hello", "temperature": None, "top_k": -1, "logit_bias": {"7": -100, "8": 2.5}, "min_tokens": 1,
            "cache_salt": "s", "seed": -1, "unknown_field": {"x": []}, "max_tokens": None, "n": None}  # fmt: skip
    assert client.post(PATH, json=body).status_code == 200
    params = engine.requests[-1][1]
    assert (params["temperature"], params["top_k"], params["seed"]) == (0.5, 0, (1 << 64) - 1)
    assert params["logit_bias"] == {7: -100.0, 8: 2.5} and params["min_tokens"] == 1 and params["cache_salt"] == "s"


def test_seeds(client: httpx2.Client, engine: FakeEngine) -> None:
    """B42: n choices draw differently and reproducibly; requests without a seed differ."""

    def seeds(**options: Any) -> list[int]:
        engine.requests.clear()
        answer = client.post(PATH, json={"prompt": "hello", **options}).json()
        assert [choice["index"] for choice in answer["choices"]] == list(range(options.get("n", 1)))
        return [params["seed"] for _, params in engine.requests]

    assert seeds(n=4, seed=42) == seeds(n=4, seed=42) == [42, 43, 44, 45]
    assert seeds(n=2, seed=(1 << 64) - 1) == [(1 << 64) - 1, 0]
    assert seeds() != seeds()
    assert len(set(seeds(n=4))) == 4


def test_echo_and_logprobs(client: httpx2.Client, engine: FakeEngine, tiny_tokenizer: Tokenizer) -> None:
    """B43, and what lm-eval does with the arrays."""
    prompt = "\n1. Carol has é20"
    ids = tiny_tokenizer.encode_prompt(prompt)
    engine.script = lambda *_: [0, 9, *tiny_tokenizer.encode_prompt("é", add_bos=False), EOS]
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 5, "temperature": 0}
    choice = client.post(PATH, json=body).json()["choices"][0]
    arrays = choice["logprobs"]
    assert {name: len(values) for name, values in arrays.items()} == dict.fromkeys(arrays, len(ids) + 5)
    assert "".join(arrays["tokens"]) == choice["text"]
    assert choice["text"].startswith(prompt) and choice["text"].endswith("é")
    assert arrays["token_logprobs"][0] is None and arrays["top_logprobs"][0] is None
    assert arrays["text_offset"] == sorted(arrays["text_offset"])
    for token, offset in zip(arrays["tokens"], arrays["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)
    for token_id, logprob, top in zip(ids[1:], arrays["token_logprobs"][1:], arrays["top_logprobs"][1:], strict=False):
        assert logprob == -(token_id + 1) / 7 in top.values()
        assert (logprob == max(top.values())) == (token_id == 0)  # exact equality tells the greedy token
    same_by_ids = client.post(PATH, json={**body, "prompt": ids}).json()["choices"][0]
    assert (same_by_ids["text"], same_by_ids["logprobs"]) == (choice["text"], arrays)


def test_echo_without_generation(client: httpx2.Client, tiny_tokenizer: Tokenizer) -> None:
    """B37: max_tokens 0 scores the prompt."""
    body = {"prompt": "hello world", "max_tokens": 0}
    answer = client.post(PATH, json={**body, "echo": True, "logprobs": 1}).json()
    choice = answer["choices"][0]
    count = len(tiny_tokenizer.encode_prompt("hello world"))
    assert (choice["text"], choice["finish_reason"]) == ("hello world", "length")
    assert answer["usage"]["completion_tokens"] == 0 and len(choice["logprobs"]["token_logprobs"]) == count
    choice = client.post(PATH, json=body).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]) == ("", "length", None)


def test_logprobs_of_a_text_that_ends_amid_a_character(
    client: httpx2.Client, engine: FakeEngine, tiny_tokenizer: Tokenizer
) -> None:
    tokens = tiny_tokenizer.encode_prompt("h😀", add_bos=False)[:-1]
    body = {"prompt": "hello", "max_tokens": len(tokens), "logprobs": 0}
    engine.script = lambda *_: tokens
    choice = client.post(PATH, json=body).json()["choices"][0]
    assert choice["text"] == "h\ufffd" == "".join(choice["logprobs"]["tokens"])
    assert [len(top) for top in choice["logprobs"]["top_logprobs"]] == [1] * len(tokens)
