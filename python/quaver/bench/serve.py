"""`quaver bench serve`: loads any OpenAI-compatible server and prints what `vllm bench serve` would."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from argparse import Namespace
from pathlib import Path
from typing import Any

import h11

from quaver.bench import report
from quaver.bench.http_stream import EventStream, StreamClient
from quaver.bench.load import run_benchmark
from quaver.bench.metrics import RequestRecord
from quaver.bench.prompts import Codec, LocalCodec, Prompt, ServerCodec
from quaver.bench.server_api import ServerApi, error_message

ENDPOINTS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}


def run(options: Namespace) -> int:
    """Returns 1 if any request failed."""
    api = ServerApi(options.base_url, os.environ.get("OPENAI_API_KEY", ""))
    api.wait_until_ready(options.ready_check_timeout_sec)
    model = options.model or api.first_model()
    runs = asyncio.run(_measure(options, api, model, _codec(options, api, model)))
    title = f"{model} at {api.base_url}, {options.random_input_len} in, {options.random_output_len} out"
    return report.show(options, title, model, runs)


def _codec(options: Namespace, api: ServerApi, model: str) -> Codec:
    folder = options.tokenizer or (Path(model) if Path(model).is_dir() else None)
    return LocalCodec(folder) if folder else ServerCodec(api, model)


async def _measure(options: Namespace, api: ServerApi, model: str, codec: Codec) -> list[report.Run]:
    client = StreamClient(api.base_url, api.headers)

    async def send(prompt: Prompt) -> RequestRecord:
        return await _send(client, options, model, prompt)

    try:
        return [await run_benchmark(options, codec, send, concurrency) for concurrency in options.max_concurrency]
    finally:
        client.close()


async def _send(client: StreamClient, options: Namespace, model: str, prompt: Prompt) -> RequestRecord:
    body = request_body(options, model, prompt)
    path = options.endpoint or ENDPOINTS[options.backend]
    record = RequestRecord(prompt_len=prompt.input_len, start=time.perf_counter())
    stream = EventStream(record)
    request_id = f"bench-{uuid.uuid4().hex}"
    try:
        status, answer = await client.post(path, body, stream.feed, **{"X-Request-Id": request_id})
        if status == 200:
            stream.finish()
        else:
            record.error = f"HTTP {status}: {error_message(answer)}"
    except (OSError, h11.ProtocolError, ValueError, KeyError, TypeError, AttributeError) as error:
        record.error = f"{type(error).__name__}: {error}"  # the connection broke, or its JSON is not of the API's form
    return record


def request_body(options: Namespace, model: str, prompt: Prompt) -> dict[str, Any]:
    common = {
        "model": model,
        "temperature": options.temperature,
        "repetition_penalty": 1.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": options.ignore_eos,
    }
    if options.backend == "openai":
        return common | {"prompt": prompt.text, "max_tokens": prompt.output_len, "logprobs": None}
    content = [{"type": "text", "text": prompt.text}]
    return common | {"messages": [{"role": "user", "content": content}], "max_completion_tokens": prompt.output_len}
