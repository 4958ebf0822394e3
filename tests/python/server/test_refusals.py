"""What is refused, with which status, and that the message names the field (B36, B37, B39)."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fake_engine import FakeEngine
from serving import Serve, client_of

from quaver.server import web

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = {"role": "user", "content": "hello"}


@pytest.fixture(scope="module")
def client(tiny_dir: Path) -> Iterator[httpx2.Client]:
    with client_of(FakeEngine(lambda *_: [5] * 1000), model_dir=tiny_dir) as client:
        yield client


def check_refusal(response: httpx2.Response, status: int, *words: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = json.loads(response.content.decode("utf-8"))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    for word in words:
        assert word in error["message"], error["message"]
    return error


def check_alive(client: httpx2.Client) -> None:
    assert client.post(COMPLETIONS, json={"prompt": "hello", "max_tokens": 1}).status_code == 200
    assert client.get("/health").json()["status"] == "ok"


@pytest.mark.parametrize("body", [
    b"", b"{:", b"null", b"[]", b'"text"', b'{"prompt":"\xff\xfe"}', b"\xef\xbb\xbf{}",
    '{"prompt":"h"}'.encode("utf-16"), b'{"prompt":"\\ud800"}', b'{"prompt":"a","x":{"\\udfff":1}}',
    b'{"prompt":"a","x":[["\\uDC00"]]}',
    b"[" * 100_000, b'{"prompt":' * 100_000, b'{"prompt":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"prompt":"a","x":' + b"[" * 80 + b"]" * 80 + b"}", b'{"prompt":{}}', b'{"prompt":"a","max_tokens":"ten"}',
    b'{"prompt":"a","max_tokens":1e400}', b'{"prompt":"a","temperature":1e400}', b'{"prompt":"a","temperature":NaN}',
    b'{"prompt":"a","temperature":-Infinity}', b'{"prompt":"a","seed":' + b"9" * 400 + b"}",
    b'{"prompt":"a","seed":' + b"9" * 5000 + b"}", b'{"prompt":"a","prompt":7}',
])  # fmt: skip
def test_malformed_bodies(client: httpx2.Client, body: bytes) -> None:
    """B36."""
    check_refusal(client.post(COMPLETIONS, content=body), 400)
    check_refusal(client.post(CHAT, content=body), 400)
    check_alive(client)


def test_duplicate_keys_are_fine(client: httpx2.Client) -> None:
    """B36: the last one counts, as everywhere."""
    answer = client.post(COMPLETIONS, content=b'{"prompt":7,"prompt":"hello","max_tokens":9,"max_tokens":2}')
    assert answer.json()["usage"]["completion_tokens"] == 2


def test_body_above_the_limit(client: httpx2.Client) -> None:
    """B36: with and without Content-Length."""
    large = b'{"prompt":"' + b"a" * (17 << 20) + b'"}'
    check_refusal(client.post(COMPLETIONS, content=large), 413, "body of")
    check_refusal(client.post(COMPLETIONS, content=iter([large[:1000], large[1000:]])), 413, "body of")
    check_alive(client)


def test_body_shorter_than_it_says(client: httpx2.Client) -> None:
    """B36: nobody is left to answer; the server goes on."""
    for path in (COMPLETIONS, CHAT, "/tokenize"):
        with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
            connection.sendall(f'POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{{"prompt":'.encode())
    check_alive(client)


def test_body_that_does_not_come(client: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of it is not waited for for ever."""
    monkeypatch.setattr(web, "_BODY_S", 0.1)
    with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
        connection.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"prompt":')
        answer = HTTPResponse(connection)
        answer.begin()
        assert answer.status == 408 and b"within 0.1 s" in answer.read()


def test_many_large_bodies_at_once(client: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they take in memory has a limit; it is given back when they are gone, whatever became of them."""
    monkeypatch.setattr(web, "MAX_BODIES_BYTES", 100_000)
    address = (client.base_url.host, client.base_url.port)
    large = {"prompt": "hello", "max_tokens": 1, "user": "x" * 60_000}
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n"
    for _ in range(3):
        with ExitStack() as connections:
            end = time.monotonic() + 60
            while (answer := client.post(COMPLETIONS, json=large)).status_code == 200:
                assert time.monotonic() < end  # of two at a time either may be the one too many: until one is held
                connection = connections.enter_context(socket.create_connection(address))
                connection.sendall(head + b" " * 60_000)
            check_refusal(answer, 503, "too many large requests")
        end = time.monotonic() + 60
        while client.post(COMPLETIONS, json=large).status_code != 200:
            assert time.monotonic() < end


def test_endless_head(client: httpx2.Client) -> None:
    """The connection ends, with a 400 or a reset, before it takes much memory."""
    address = (client.base_url.host, client.base_url.port)
    with socket.create_connection(address, timeout=30) as connection, suppress(ConnectionError):
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * (1 << 18))
        while connection.recv(65536):
            pass
    assert client.get("/health").status_code == 200


def test_content_type(client: httpx2.Client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        check_refusal(client.post(COMPLETIONS, content=b"{}", headers={"Content-Type": kind}), 415, kind)
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert client.post(COMPLETIONS, content=b'{"prompt":"a"}', headers=headers).status_code == 200


LONG = "x" * 2000

BOTH = [  # (fields, the field that the message begins with)
    ({"temperature": -1}, "temperature"), ({"temperature": "1"}, "temperature"), ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"), ({"top_p": -1}, "top_p"), ({"top_p": 1.5}, "top_p"), ({"top_k": -5}, "top_k"),
    ({"top_k": 1.5}, "top_k"), ({"min_p": 2}, "min_p"), ({"n": 0}, "n"), ({"n": 1e9}, "n"), ({"n": [1]}, "n"),
    ({"repetition_penalty": 0}, "repetition_penalty"), ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"), ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 2.5}, "max_tokens"), ({"max_tokens": 1 << 40}, "max_tokens"), ({"min_tokens": -1}, "min_tokens"),
    ({"seed": 1 << 64}, "seed"), ({"seed": "a"}, "seed"), ({"stop": ""}, "stop"), ({"stop": [""]}, "stop"),
    ({"stop": ["a"] * 17}, "stop"), ({"stop": 5}, "stop"), ({"stop": LONG}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": "a"}, "stop_token_ids"), ({"ignore_eos": 1}, "ignore_eos"), ({"stream": "yes"}, "stream"),
    ({"stream_options": []}, "stream_options"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
    ({"logit_bias": {"a": 1}}, "logit_bias"), ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"best_of": 2}, "best_of"), ({"use_beam_search": True}, "use_beam_search"), ({"guided_json": {}}, "guided_json"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ({"model": 5}, "model"), ({"cache_salt": 5}, "cache_salt"), ({"prompt_logprobs": 1}, "prompt_logprobs"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "name"), BOTH, ids=str)
def test_fields_of_both(client: httpx2.Client, fields: dict[str, Any], name: str) -> None:
    """B37: 400 with the field, its value and what was expected."""
    for path, body in ((COMPLETIONS, {"prompt": "hello"}), (CHAT, {"messages": [USER]})):
        error = check_refusal(client.post(path, json={**body, **fields}), 400, f"{name} ", ": expected ")
        assert error["message"].startswith(name) and error["param"] == name


@pytest.mark.parametrize(("fields", "name"), [
    ({}, "prompt"), ({"prompt": None}, "prompt"), ({"prompt": ""}, "prompt"), ({"prompt": []}, "prompt"),
    ({"prompt": [""]}, "prompt"), ({"prompt": [[]]}, "prompt"), ({"prompt": ["a", 5]}, "prompt[1]"),
    ({"prompt": [1, "a"]}, "prompt[0]"), ({"prompt": [True]}, "prompt[0]"), ({"prompt": [[1, -1]]}, "prompt[0]"),
    ({"prompt": [1.5]}, "prompt[0]"), ({"prompt": [1 << 40]}, "prompt[0]"), ({"prompt": ["a"] * 1025}, "prompt"),
    ({"prompt": ["a"] * 9, "n": 120}, "n"),
    ({"prompt": [5, 300]}, "prompt"), ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "logprobs": 1e6}, "logprobs"), ({"prompt": "a", "logprobs": True}, "logprobs"),
    ({"prompt": "a", "echo": "yes"}, "echo"),
], ids=str)  # fmt: skip
def test_fields_of_completions(client: httpx2.Client, fields: dict[str, Any], name: str) -> None:
    error = check_refusal(client.post(COMPLETIONS, json=fields), 400, ": expected ")
    assert error["message"].startswith(f"{name} ") and error["param"] == name


@pytest.mark.parametrize(("fields", "name"), [
    ({}, "messages"), ({"messages": []}, "messages"), ({"messages": "a"}, "messages"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [{}]}, "messages[0].role"), ({"messages": [{"role": []}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}]},
     "messages[0].tool_calls[0].function.arguments"),
    ({"messages": [{"role": "assistant", "content": "I begin"}]}, "messages"),
    ({"messages": [USER, USER]}, "messages"),
    ({"messages": [USER], "top_logprobs": 2}, "top_logprobs"), ({"messages": [USER], "logprobs": 2}, "logprobs"),
    ({"messages": [USER], "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"messages": [USER], "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"messages": [USER], "tool_choice": "required"}, "tool_choice"),
    ({"messages": [USER], "tool_choice": {"type": "function"}}, "tool_choice"),
    ({"messages": [USER], "parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"messages": [USER], "max_completion_tokens": -2}, "max_completion_tokens"),
], ids=str)  # fmt: skip
def test_fields_of_chat(client: httpx2.Client, fields: dict[str, Any], name: str) -> None:
    error = check_refusal(client.post(CHAT, json=fields), 400, "expected")
    assert error["message"].startswith(name)


def test_harmless_values_of_unsupported_fields(client: httpx2.Client) -> None:
    body = {"suffix": "", "best_of": 1, "use_beam_search": False, "response_format": {"type": "text"},
            "length_penalty": 1.0, "guided_json": None, "user": "me", "metadata": {"a": 1}, "store": True}  # fmt: skip
    assert client.post(COMPLETIONS, json={"prompt": "a", **body}).status_code == 200
    assert client.post(CHAT, json={"messages": [USER], **body}).status_code == 200


def test_context_length(client: httpx2.Client) -> None:
    """B39 with a limit of 256: both numbers are in the message."""

    def post(prompt: int, max_tokens: int | None) -> httpx2.Response:
        return client.post(COMPLETIONS, json={"prompt": [5] * prompt, "max_tokens": max_tokens})

    assert post(255, 1).status_code == post(256, 0).status_code == post(156, 100).status_code == 200
    assert post(250, None).json()["usage"]["completion_tokens"] == 6  # the default of 16 does not fit
    for prompt, max_tokens in ((256, 1), (257, 0), (100, 200), (300, None), (256, None)):
        error = check_refusal(post(prompt, max_tokens), 400, f"prompt of {prompt} tokens", "256")
        assert error["code"] == "context_length_exceeded"


def test_texts_that_no_tokenizer_can_make_fit(client: httpx2.Client) -> None:
    """A quick answer: tokenizing megabytes takes seconds."""
    text = "hello " * 1_000_000
    bodies = {
        COMPLETIONS: {"prompt": text},
        "/tokenize": {"prompt": text},
        CHAT: {"messages": [{**USER, "content": text}]},
    }
    for path, body in bodies.items():
        start = time.process_time()
        check_refusal(client.post(path, json=body), 400, "of 6000000 characters", "256")
        assert time.process_time() - start < 1.5
    check_alive(client)


def test_model_names(serve: Serve) -> None:
    client = serve(FakeEngine(lambda *_: []), model_names=["a", "b/c"])
    for name in ("a", "b/c"):
        assert client.post(COMPLETIONS, json={"prompt": "a", "model": name}).json()["model"] == name
        assert client.get(f"/v1/models/{name}").json()["id"] == name
    assert client.post(COMPLETIONS, json={"prompt": "a"}).json()["model"] == "a"
    for path in (COMPLETIONS, "/tokenize"):
        error = check_refusal(client.post(path, json={"prompt": "a", "model": "x"}), 404, "expected a or b/c")
        assert (error["param"], error["code"]) == ("model", "model_not_found")
    check_refusal(client.get("/v1/models/x"), 404)


def test_paths_and_methods(client: httpx2.Client) -> None:
    check_refusal(client.get("/nowhere"), 404, "/nowhere")
    check_refusal(client.get(COMPLETIONS), 405, "GET")
    check_refusal(client.post("/health"), 405)


def test_api_key(serve: Serve) -> None:
    client = serve(FakeEngine(lambda *_: [5]), api_keys=["one", "zwei"])
    for path in ("/health", "/version", "/metrics"):
        assert client.get(path).status_code == 200
    for headers in ({}, {"Authorization": "Bearer on"}, {"Authorization": "one"}, {"Authorization": "Bearer ünö"}):
        encoded = {name: value.encode("latin-1") for name, value in headers.items()}
        assert check_refusal(client.get("/v1/models", headers=encoded), 401)["code"] == "invalid_api_key"
        check_refusal(client.post(COMPLETIONS, content=b"{:", headers=encoded), 401)
    for key in ("one", "zwei"):
        assert client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200


def test_cors(serve: Serve) -> None:
    origin = {"Origin": "http://page.example"}
    preflight = {**origin, "Access-Control-Request-Method": "POST"}
    closed = serve(FakeEngine(lambda *_: []))
    assert "access-control-allow-origin" not in closed.get("/health", headers=origin).headers
    assert closed.options(COMPLETIONS, headers=preflight).status_code == 405
    opened = serve(FakeEngine(lambda *_: []), allowed_origins=[origin["Origin"]], api_keys=["key"])
    assert opened.get("/health", headers=origin).headers["access-control-allow-origin"] == origin["Origin"]
    assert opened.options(COMPLETIONS, headers=preflight).status_code == 200
