"""The whole server on a tiny random Gemma 3, whose texts are bytes in disorder (B35, B37, B39, B42, B43)."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from quaver._quaver import Generator
from serving import real_client
from sse import events, joined_text, stream

from quaver.server.protocol import MAX_LOGPROBS
from quaver.tokenizer import Tokenizer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LIMIT, PAGE, VOCABULARY = 256, 16, 300
FLAGS = ("--max-model-len", LIMIT, "--block-size", PAGE, "--batch-invariant")


@pytest.fixture(scope="module")
def client(tiny_dir: Path) -> Iterator[httpx2.Client]:
    with real_client(tiny_dir, *FLAGS) as client:
        yield client


def post(client: httpx2.Client, prompt: Any, **fields: Any) -> Any:
    body = {"prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}
    answer = client.post(COMPLETIONS, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def text(client: httpx2.Client, prompt: Any, **fields: Any) -> str:
    return post(client, prompt, **fields)["choices"][0]["text"]


def gauge(client: httpx2.Client, name: str, engine: int = 0) -> float:
    found = re.search(rf'^quaver:{name}{{engine="{engine}"}} (\S+)$', client.get("/metrics").text, re.MULTILINE)
    assert found, name
    return float(found[1])


def wait_until_idle(client: httpx2.Client) -> None:
    end = time.monotonic() + 5
    while gauge(client, "num_requests_running") + gauge(client, "num_requests_waiting"):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_greedy_text_is_the_generators(client: httpx2.Client, tiny_dir: Path, tiny_tokenizer: Tokenizer) -> None:
    generator = Generator.load(tiny_dir, block_size=PAGE, batch_invariant=True)
    for prompt in ("hello", "hello world user"):
        ids = tiny_tokenizer.encode_prompt(prompt)
        expected = generator.generate(ids, None, max_tokens=40, ignore_eos=True).tokens
        assert text(client, prompt, max_tokens=40) == tiny_tokenizer.decode(expected)


@pytest.mark.parametrize("fields", [
    {}, {"n": 3, "temperature": 1.0, "seed": 5}, {"prompt": ["hello", "world"], "logprobs": 3},
    {"echo": True, "logprobs": 0}, {"temperature": 2.0, "seed": 3, "stop": ["h", "\ufffd\ufffd\ufffd"]},
    {"temperature": 1.5, "seed": 9, "ignore_eos": False},
])  # fmt: skip
def test_streaming_equals_not_streaming(client: httpx2.Client, fields: dict[str, Any]) -> None:
    body = {"prompt": "hello", "temperature": 0, "max_tokens": 60, "ignore_eos": True, **fields}
    whole = client.post(COMPLETIONS, json=body).json()
    chunks = stream(client, COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
    for choice in whole["choices"]:
        assert joined_text(chunks, choice["index"]) == choice["text"]
    assert (
        chunks[-1]["usage"]["completion_tokens"]
        == whole["usage"]["completion_tokens"]
        == len(chunks) - 1 - (len(whole["choices"]) if fields.get("echo") else 0)
    )


def test_chat(client: httpx2.Client) -> None:
    """Without max_tokens an answer may fill the context."""
    body = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "ignore_eos": True}
    whole = client.post(CHAT, json=body).json()
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["total_tokens"] == LIMIT
    assert joined_text(stream(client, CHAT, body)) == whole["choices"][0]["message"]["content"]


def test_pages_come_back(client: httpx2.Client) -> None:
    """B35: clients that go after 0, 1 and 5 chunks, amid a prompt, and while they wait in the queue."""
    expected = text(client, "hello")
    free = gauge(client, "kv_free_pages")
    for _ in range(3):
        with ExitStack() as open_streams:
            for number in range(12):
                body = {"prompt": [5 + number] * 100, "max_tokens": 150, "ignore_eos": True, "stream": True}
                chunks = (0, 1, 5)[number % 3]
                if chunks == 0:
                    with pytest.raises(httpx2.ReadTimeout):
                        client.post(COMPLETIONS, json={**body, "stream": False, "n": 64}, timeout=0.02)
                    continue
                received = events(open_streams.enter_context(client.stream("POST", COMPLETIONS, json=body)))
                for _ in range(chunks):
                    next(received)
        wait_until_idle(client)
        assert gauge(client, "kv_free_pages") == free
        assert text(client, "hello") == expected


@pytest.mark.parametrize("temperature", [1e-4, 1e-8, 1e-12, 0])
def test_tiny_temperatures_are_greedy(client: httpx2.Client, temperature: float) -> None:
    """B37."""
    assert text(client, "hello", temperature=temperature, seed=1) == text(client, "hello")


def test_extreme_but_valid_settings(client: httpx2.Client) -> None:
    """B37."""
    for fields in ({"temperature": 1e6}, {"temperature": 1e299}, {"top_p": 1e-9}, {"min_p": 1}, {"top_k": 1 << 30},
                   {"repetition_penalty": 1e-6}, {"repetition_penalty": 1e6}, {"logprobs": MAX_LOGPROBS}):  # fmt: skip
        assert post(client, "hello", **{"temperature": 1.0, **fields})["usage"]["completion_tokens"] == 16
    assert text(client, "hello", temperature=1.0, top_p=1e-9) == text(client, "hello", temperature=1.0, top_k=1)


@pytest.mark.parametrize(("fields", "name"), [
    ({"prompt": [VOCABULARY]}, "prompt"), ({"stop_token_ids": [VOCABULARY]}, "stop_token_ids"),
    ({"logit_bias": {str(VOCABULARY): 1}}, "logit_bias"), ({"min_tokens": 17, "max_tokens": 16}, "min_tokens"),

])  # fmt: skip
def test_what_the_engine_refuses(client: httpx2.Client, fields: dict[str, Any], name: str) -> None:
    answer = client.post(COMPLETIONS, json={"prompt": "hello", **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["message"].startswith(name) and "expected" in error["message"] and error["param"] == name


def test_lengths(client: httpx2.Client) -> None:
    """B39: 255 tokens run, 256 do not, with both numbers in the message."""
    for prompt in (254, 255):
        assert post(client, [5] * prompt, max_tokens=1)["usage"]["completion_tokens"] == 1
    for prompt, max_tokens in ((256, 1), (257, 1), (100, 200)):
        answer = client.post(COMPLETIONS, json={"prompt": [5] * prompt, "max_tokens": max_tokens})
        assert answer.status_code == 400
        assert all(number in answer.json()["error"]["message"] for number in (str(prompt), str(max_tokens), "256"))


def test_a_pool_smaller_than_the_context(tiny_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """B39: what can never fit is refused at once; two that fit only one after the other both finish."""
    with real_client(tiny_dir, *FLAGS, "--kv-cache-memory-bytes", 1 << 18) as probe:
        bytes_per_page = (1 << 18) / gauge(probe, "kv_pages")
    with real_client(tiny_dir, *FLAGS, "--kv-cache-memory-bytes", int(14 * bytes_per_page) + 1) as small:
        most = int(re.search(r"requests of at most (\d+) tokens, not of max_model_len 256", capsys.readouterr().err)[1])
        assert 120 <= most < 240
        start = time.monotonic()
        refused = small.post(COMPLETIONS, json={"prompt": [5] * 250, "max_tokens": 6})
        assert refused.status_code == 400 and time.monotonic() - start < 1
        assert "cache pages" in refused.json()["error"]["message"]
        pages = int(gauge(small, "kv_pages"))
        results: list[Any] = []
        threads = [threading.Thread(target=lambda: results.append(post(small, [5] * 100, max_tokens=20))) for _ in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [result["usage"]["completion_tokens"] for result in results] == [20, 20]
        assert gauge(small, "kv_free_pages") == pages
        chat = small.post(CHAT, json={"messages": [{"role": "user", "content": "hello"}], "ignore_eos": True})
        assert chat.status_code == 200 and chat.json()["usage"]["total_tokens"] == most


def test_seeds(client: httpx2.Client) -> None:
    """B42: alone, beside seeded and unseeded neighbours, at any place of a batch."""
    draw = {"temperature": 0.8, "seed": 42, "max_tokens": 16}
    alone = text(client, "hello", **draw)
    unseeded = {"temperature": 0.8, "max_tokens": 16, "n": 4}
    for place in (1, 3, 8):
        threads = [threading.Thread(target=post, args=(client, "world"), kwargs=unseeded) for _ in range(place)]
        for thread in threads:
            thread.start()
        assert text(client, "hello", **draw) == alone
        for thread in threads:
            thread.join()
    four = [choice["text"] for choice in post(client, "hello", **draw, n=4)["choices"]]
    assert four[0] == alone and len(set(four)) == 4
    assert four == [choice["text"] for choice in post(client, "hello", **draw, n=4)["choices"]]
    assert text(client, "hello", **{**draw, "seed": None}) != text(client, "hello", **{**draw, "seed": None})


def test_echo_does_not_depend_on_the_chunks(tiny_dir: Path, client: httpx2.Client) -> None:
    """B43: equal arrays for each chunk size, whole prompts, the first value null, sampling changes nothing."""
    body = {"echo": True, "logprobs": 1, "max_tokens": 5}
    expected = post(client, "\n1. Carol has 20", **body)["choices"][0]
    for chunk in (1, 3, 7):
        with real_client(tiny_dir, *FLAGS, "--prefill-chunk-tokens", chunk) as chunked:
            assert post(chunked, "\n1. Carol has 20", **body)["choices"][0] == expected
    arrays = expected["logprobs"]
    assert "".join(arrays["tokens"]) == expected["text"] and expected["text"].startswith("\n1. Carol has 20")
    assert arrays["token_logprobs"][0] is None and None not in arrays["token_logprobs"][1:]
    for logprob, top in zip(arrays["token_logprobs"][1:], arrays["top_logprobs"][1:], strict=True):
        assert logprob in top.values() and logprob <= max(top.values())
    assert all(arrays["token_logprobs"][-n] == max(arrays["top_logprobs"][-n].values()) for n in range(1, 6))  # greedy
    scored = post(client, "\n1. Carol has 20", **{**body, "max_tokens": 0}, temperature=2.0)["choices"][0]
    count = len(scored["logprobs"]["token_logprobs"])
    assert (
        scored["logprobs"]["token_logprobs"] == arrays["token_logprobs"][:count] and count == len(arrays["tokens"]) - 5
    )


def test_prefix_cache(tiny_dir: Path) -> None:
    """Cached tokens are in the usage; salts keep prefixes apart."""
    prompt = [5, 6, 7, 8] * 20
    with real_client(tiny_dir, "--block-size", 16, "--max-model-len", LIMIT) as client:

        def cached(**fields: Any) -> int:
            return post(client, prompt, **fields)["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert cached() == 0
        assert cached() >= 16
        assert cached(cache_salt="a") == 0
        assert gauge(client, "prefix_cache_hits_total") >= 16
    with real_client(tiny_dir, "--max-model-len", LIMIT, "--no-enable-prefix-caching") as client:
        assert [post(client, prompt)["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in "ab"] == [0, 0]


def test_two_engines(tiny_dir: Path) -> None:
    with real_client(tiny_dir, *FLAGS, "--data-parallel-size", 2) as client:
        texts = [choice["text"] for choice in post(client, "hello", n=6, max_tokens=20)["choices"]]
        assert len(set(texts)) == 1  # greedy: both engines say the same
        assert [gauge(client, "generation_tokens_total", engine) for engine in (0, 1)] == [60, 60]
        assert len(client.get("/health").json()["engines"]) == 2


def test_quaver_serve(tiny_dir: Path) -> None:
    """The command itself: it says where it listens, answers, and ends with 0 after SIGTERM."""
    flags = ["--model", str(tiny_dir), "--port", "0", "--load-format", "dummy", "--seed", "3", "--max-model-len", "512"]
    command = [sys.executable, "-m", "quaver", "serve", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = [process.stderr.readline()]
            while "serving" not in lines[-1]:
                assert lines[-1], lines
                lines.append(process.stderr.readline())
            url = re.search(r"serving model at (http://\S+)$", lines[-1])[1]
            with httpx2.Client(base_url=url, timeout=30) as client:
                body = {"prompt": "hello", "max_tokens": 400, "ignore_eos": True, "stream": True}
                with client.stream("POST", COMPLETIONS, json=body) as response:
                    received = events(response)
                    next(received)
                    process.send_signal(signal.SIGTERM)
                    assert len(list(received)) == 399
            assert process.wait(10) == 0
        finally:
            process.kill()
