"""The `openai` package against Gemma 3 270M: what its users do, and what they see when they do it wrong."""

from __future__ import annotations

import json
import re
import socket
import struct
import time
import urllib.request
from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from quaver.bench.local_server import LocalServer

PROMPT = "The Eiffel Tower is in the city of"


@pytest.fixture(scope="module")
def client(gemma_server: LocalServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gemma_server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def complete(client: OpenAI, **fields: object) -> openai.types.Completion:
    return client.completions.create(**{"model": "gemma", "prompt": PROMPT, "max_tokens": 8, "temperature": 0} | fields)


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["gemma"]
    assert client.models.retrieve("gemma").id == "gemma"


def test_completion(client: OpenAI) -> None:
    answer = complete(client)
    (choice,) = answer.choices
    assert "Paris" in choice.text and choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8


def test_streaming_gives_the_same_text(client: OpenAI) -> None:
    whole = complete(client, max_tokens=20)
    chunks = list(complete(client, max_tokens=20, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert len(chunks) == 20 + 1 and chunks[-1].usage == whole.usage


def test_several_prompts_and_choices(client: OpenAI) -> None:
    answer = complete(client, prompt=[PROMPT, "Two plus two is"], n=2, temperature=1, seed=7, max_tokens=6)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in answer.choices]
    assert texts[0] != texts[1]
    again = complete(client, prompt=[PROMPT, "Two plus two is"], n=2, temperature=1, seed=7, max_tokens=6)
    assert [choice.text for choice in again.choices] == texts


def test_stop_strings(client: OpenAI) -> None:
    whole = complete(client, max_tokens=16).choices[0].text
    stop = whole[10:14]
    answer = complete(client, max_tokens=16, stop=[stop, "never to be seen"]).choices[0]
    assert answer.finish_reason == "stop" and answer.text == whole[: whole.index(stop)]


def test_logprobs_and_echo(client: OpenAI) -> None:
    answer = complete(client, logprobs=3, echo=True, max_tokens=4).choices[0]
    logprobs = answer.logprobs
    assert "".join(logprobs.tokens).removeprefix("<bos>") == answer.text
    assert logprobs.token_logprobs[0] is None and all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert [len(top) >= 3 for top in logprobs.top_logprobs[1:]] == [True] * (len(logprobs.tokens) - 1)
    generated = logprobs.token_logprobs[-4:]
    assert generated == [max(top.values()) for top in logprobs.top_logprobs[-4:]]  # greedy


def test_chat(client: OpenAI) -> None:
    """The model is no assistant; it answers like this after two examples."""
    messages = [
        {"role": "system", "content": "Answer with one word."},
        {"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]},
        {"role": "assistant", "content": "Paris"},
        {"role": "user", "content": "What is the capital of Japan?"},
        {"role": "assistant", "content": "Tokyo"},
        {"role": "user", "content": "What is the capital of Germany?"},
    ]
    common = {"model": "gemma", "messages": messages, "temperature": 0, "max_tokens": 6}
    answer = client.chat.completions.create(**common, logprobs=True, top_logprobs=2)
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and "Berlin" in choice.message.content
    assert len(choice.logprobs.content) == answer.usage.completion_tokens
    assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    chunks = list(client.chat.completions.create(**common, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == choice.message.content
    assert chunks[-1].choices[0].finish_reason == choice.finish_reason


@pytest.mark.parametrize(("fields", "error", "param"), [
    ({"prompt": ""}, openai.BadRequestError, "prompt"),
    ({"prompt": [262144 + 1000]}, openai.BadRequestError, "prompt"),
    ({"temperature": -1}, openai.BadRequestError, "temperature"),
    ({"max_tokens": 1024}, openai.BadRequestError, "max_tokens"),
    ({"n": 0}, openai.BadRequestError, "n"),
    ({"logit_bias": {"300000": 1}}, openai.BadRequestError, "logit_bias"),
    ({"suffix": "and so on"}, openai.BadRequestError, "suffix"),
    ({"model": "gpt-4"}, openai.NotFoundError, "model"),
])  # fmt: skip
def test_errors(client: OpenAI, fields: dict[str, object], error: type[openai.APIStatusError], param: str) -> None:
    with pytest.raises(error, match=param) as caught:
        complete(client, **fields)
    assert caught.value.param == param
    assert "Paris" in complete(client).choices[0].text


def test_hanging_up_ends_the_request(client: OpenAI, gemma_server: LocalServer) -> None:
    stream = complete(client, max_tokens=900, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    wait_until_idle(gemma_server)


def test_connections_that_break_in_a_stream(client: OpenAI, gemma_server: LocalServer) -> None:
    """Each is reset while the server writes to it (known fault B35); a server that dies of SIGPIPE would show here."""
    host, port = gemma_server.url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": PROMPT, "max_tokens": 900, "ignore_eos": True, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for delay in (0.0, 0.01, 0.05, 0.1, 0.2) * 4:
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head + body)
            time.sleep(delay)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, no goodbye
    wait_until_idle(gemma_server)
    assert gemma_server.is_running() and "Paris" in complete(client).choices[0].text


def wait_until_idle(server: LocalServer) -> None:
    """Nothing runs or waits, and all pages are free."""
    deadline = time.monotonic() + 30
    while True:
        with urllib.request.urlopen(f"{server.url}/metrics") as response:
            text = response.read().decode()
        figures = dict(re.findall(r'^quaver:(\w+)\{engine="0"\} (\S+)$', text, re.MULTILINE))
        busy = float(figures["num_requests_running"]) + float(figures["num_requests_waiting"])
        if busy == 0 and figures["kv_free_pages"] == figures["kv_pages"]:
            return
        assert time.monotonic() < deadline, figures
        time.sleep(0.05)
