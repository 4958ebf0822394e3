"""Anything that a client may send to any endpoint: no 5xx, an answer in JSON, and in the end an engine that has all its
pages and answers as before (known faults B36, B37).

100 requests of each kind here, always the same ones; QUAVER_FUZZ=2000 in the environment tries that many new ones
(docs/serving.md has the figures).
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quaver.server import options as flags
from quaver.server.app import create_app
from quaver.server.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from quaver.server.serve import load_service
from quaver.server.service import Service

CASES = int(os.environ.get("QUAVER_FUZZ", "0"))
fuzz = settings(
    max_examples=CASES or 100,
    derandomize=not CASES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

PATHS = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}


class Server:
    """The whole application over a real engine with the tiny model, called without sockets."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start())
        self.first = self.complete()

    async def _start(self) -> None:
        self._service.pool.start()
        transport = httpx2.ASGITransport(app=create_app(self._service))  # an exception of the application is raised
        self._client = httpx2.AsyncClient(transport=transport, base_url="http://fuzz", timeout=60)

    def request(self, method: str, path: str, content: bytes = b"") -> httpx2.Response:
        headers = {"Content-Type": "application/json"}
        return self._loop.run_until_complete(self._client.request(method, path, content=content, headers=headers))

    def complete(self) -> Any:
        body = {"prompt": "hello", "max_tokens": 8, "temperature": 0, "logprobs": 2}
        answer = self.request("POST", "/v1/completions", json.dumps(body).encode())
        assert answer.status_code == 200
        return answer.json()["choices"]

    def check_unharmed(self) -> None:
        assert self.complete() == self.first
        assert self.request("GET", "/health").status_code == 200
        figures = dict(re.findall(r'^quaver:(\w+)\{engine="0"\} (\S+)$', self.request("GET", "/metrics").text, re.M))
        assert figures["num_requests_running"] == figures["num_requests_waiting"] == "0.0"
        assert figures["kv_free_pages"] == figures["kv_pages"] and figures["engine_failed_steps_total"] == "0.0"

    def close(self) -> None:
        self._loop.run_until_complete(self._client.aclose())
        self._service.close()
        self._loop.close()


@pytest.fixture(scope="module")
def server(tiny_dir: Path) -> Iterator[Server]:
    parser = argparse.ArgumentParser()
    flags.add_arguments(parser)
    text = f"--max-model-len 64 --block-size 16 --kv-cache-memory-bytes {1 << 20} --seed 0 --served-model-name model"
    text += " --reasoning-parser gemma4 --tool-call-parser gemma4"
    server = Server(load_service(parser.parse_args(["--model", str(tiny_dir), *text.split()])))
    yield server
    server.check_unharmed()
    server.close()


# Any JSON, with what parsers stumble over: NaN, 1e400, huge integers, lone surrogates, deep nesting.
_TEXT = st.text(max_size=20) | st.sampled_from(["", "\ud800", "\x00", "<bos>", "<end_of_turn>", "\U0001f600" * 5])
_NUMBER = st.integers() | st.floats() | st.sampled_from([0, -1, 1, 1 << 31, 1 << 63, 1 << 64, -(1 << 70), 1e-12, 1e308])
_ANY = st.recursive(
    st.none() | st.booleans() | _NUMBER | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=8,
)

# Values that fields accept, most of the time.
_ID = st.integers(0, 299)
_PROMPT = st.text("helo wrd", min_size=1, max_size=24) | st.lists(_ID, min_size=1, max_size=24)
_PART = st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=8)})
_CONTENT = st.text(max_size=8) | st.lists(_PART, min_size=1, max_size=2)
_USER = st.fixed_dictionaries({"role": st.just("user"), "content": _CONTENT})
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "developer"])},
    optional={"content": _CONTENT | st.none(), "name": _TEXT, "tool_calls": st.just([_CALL]) | _ANY,
              "tool_call_id": _TEXT, "reasoning_content": _TEXT},
)  # fmt: skip
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_USUAL: dict[str, st.SearchStrategy[Any]] = {
    "prompt": _PROMPT | st.lists(_PROMPT, min_size=1, max_size=3),
    "messages": _USER.map(lambda message: [message]) | st.lists(_MESSAGE, min_size=1, max_size=4),
    "tokens": st.lists(_ID, max_size=20),
    "max_tokens": st.integers(0, 12),
    "max_completion_tokens": st.integers(0, 12),
    "min_tokens": st.integers(0, 6),
    "temperature": st.floats(0, 3) | st.sampled_from([0, 1e-12, 1e-4, 999999]),
    "top_p": st.floats(0.01, 1),
    "top_k": st.integers(-1, 400),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0.1, 3),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "seed": st.integers(0, (1 << 64) - 1),
    "n": st.integers(1, 3),
    "best_of": st.just(1),
    "stop": st.text(min_size=1, max_size=4) | st.lists(st.text("helo", min_size=1), max_size=4),
    "stop_token_ids": st.lists(_ID, max_size=4),
    "logit_bias": st.dictionaries(_ID.map(str), st.floats(-100, 100), max_size=4),
    "logprobs": st.integers(0, 20),
    "top_logprobs": st.integers(0, 20),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "tools": st.lists(st.just(_TOOL), max_size=2),
    "tool_choice": st.sampled_from(["auto", "none"]),
    "parallel_tool_calls": st.just(True),
    "cache_salt": st.text(max_size=3),
    "chat_template_kwargs": st.dictionaries(st.text(max_size=8), _ANY, max_size=2),
    "model": st.just("model"),
}
_CHAT = {"logprobs": st.just(True)}
_OTHER = ["user", "response_format", "guided_json", "suffix", "truncate_prompt_tokens", "add_bos", "\ud800"]


@st.composite
def bodies(draw: st.DrawFn, path: str) -> dict[str, Any]:
    """Some of the fields, with values of the right kind; in every other body one field has any JSON."""
    fields = [field.name for field in dataclasses.fields(PATHS[path])]
    usual = _USUAL | (_CHAT if path == "/v1/chat/completions" else {})
    required = [name for name in ("prompt", "messages", "tokens", "max_tokens", "logprobs", "stream") if name in fields]
    if path == "/tokenize":
        required = [draw(st.sampled_from(required))]
    names = required + draw(st.lists(st.sampled_from(fields), max_size=6))
    body = {name: draw(usual.get(name, st.booleans())) for name in names}
    if draw(st.booleans()):
        body[draw(st.sampled_from(names + _OTHER))] = draw(_ANY)
    return body


def check(answer: httpx2.Response) -> None:
    assert answer.status_code < 500, (answer.status_code, answer.text)
    assert answer.headers["x-request-id"]
    if answer.headers["content-type"].startswith("text/event-stream"):
        lines = [line for line in answer.text.split("\n") if line]
        assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)
        chunks = [json.loads(line[6:]) for line in lines[:-1]]
        assert not any("error" in chunk for chunk in chunks), chunks[-1]
    elif answer.status_code != 200:
        assert answer.json()["error"]["message"]
    elif "json" in answer.headers["content-type"]:
        answer.json()


@pytest.mark.parametrize("path", PATHS)
@fuzz
@given(data=st.data())
def test_bodies(server: Server, path: str, data: st.DataObject) -> None:
    check(server.request("POST", path, json.dumps(data.draw(bodies(path))).encode()))


@pytest.mark.parametrize("path", PATHS)
@fuzz
@given(data=st.data())
def test_damaged_bodies(server: Server, path: str, data: st.DataObject) -> None:
    """JSON with bytes cut out or put in, and any JSON or bytes at all."""
    whole = json.dumps(data.draw(bodies(path) | _ANY)).encode()
    begin = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(begin, min(len(whole), begin + 8)))
    inserted = data.draw(st.binary(max_size=6) | st.sampled_from([b"[" * 5000, b'"', b"{:", b"\xff\xfe", b"1e400"]))
    check(server.request("POST", path, whole[:begin] + inserted + whole[end:]))


@fuzz
@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"]), st.text("/v1modelshatcpn%.0 é", max_size=24)
)
def test_paths(server: Server, method: str, path: str) -> None:
    answer = server.request(method, "/" + path.lstrip("/"))
    assert answer.status_code < 500
