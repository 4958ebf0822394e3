"""`quaver bench serve`: loads any OpenAI-compatible server and prints what `vllm bench serve` would."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h11

from quaver.bench import report
from quaver.bench.http_stream import EventStream, StreamClient
from quaver.bench.load import arrival_times, run_load
from quaver.bench.metrics import RequestRecord, summarise
from quaver.bench.options import num_prompts, settings
from quaver.bench.prompts import Codec, LocalCodec, Prompt, ServerCodec, random_prompts
from quaver.bench.server_api import ServerApi, error_message
from quaver.progress import SlowTask

ENDPOINTS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}


def run(options: Namespace) -> int:
    """Returns 1 if any request failed."""
    api = ServerApi(options.base_url, os.environ.get("OPENAI_API_KEY", ""))
    api.wait_until_ready(options.ready_check_timeout_sec)
    model = options.model or api.first_model()
    codec = _codec(options, api, model)
    runs = [_run_once(options, api, model, codec, concurrency) for concurrency in options.max_concurrency]
    title = f"{model} at {api.base_url}, {options.random_input_len} in, {options.random_output_len} out"
    report.print_table(title, runs, options.percentile_metrics, options.metric_percentiles)
    if options.save_result:
        report.save(options.save_result, settings(options) | {"model": model}, runs)
    if options.plot:
        report.draw(options.plot, title, runs)
    return 1 if any(result["failed"] for result in runs) else 0


def _codec(options: Namespace, api: ServerApi, model: str) -> Codec:
    folder = options.tokenizer or (Path(model) if Path(model).is_dir() else None)
    return LocalCodec(folder) if folder else ServerCodec(api, model)


def _run_once(options: Namespace, api: ServerApi, model: str, codec: Codec, concurrency: int | None) -> dict[str, Any]:
    count = num_prompts(options, concurrency)
    prompts = random_prompts(codec, count, options.random_input_len, options.random_output_len,
                             options.random_range_ratio, options.seed)  # fmt: skip
    with SlowTask(f"concurrency {concurrency or 'without limit'}") as task:
        records, duration = asyncio.run(_measure(options, api, model, prompts, concurrency, task.update))
    for record in records:
        if record.output_len is None and not record.error:  # the server sends no usage
            record.output_len = len(codec.encode(record.text))
    result = summarise(records, duration, options.metric_percentiles)
    return (
        {"max_concurrency": concurrency, "num_prompts": count} | result | {"notes": _notes(options, prompts, records)}
    )


async def _measure(
    options: Namespace,
    api: ServerApi,
    model: str,
    prompts: Sequence[Prompt],
    concurrency: int | None,
    progress: Callable[[int, int], None],
) -> tuple[list[RequestRecord], float]:
    client = StreamClient(api.base_url, api.headers)
    done = 0

    async def send(prompt: Prompt) -> RequestRecord:
        return await _send(client, options, model, prompt)

    def count() -> None:
        nonlocal done
        done += 1
        progress(done, len(prompts))

    try:
        warmups = [prompts[0]] * options.num_warmups
        await run_load(warmups, send, arrivals=[0.0] * len(warmups), max_concurrency=concurrency)
        arrivals = arrival_times(len(prompts), options.request_rate, options.seed)
        return await run_load(prompts, send, arrivals=arrivals, max_concurrency=concurrency, on_done=count)
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


def _notes(options: Namespace, prompts: Sequence[Prompt], records: Sequence[RequestRecord]) -> list[str]:
    completed = [(p, r) for p, r in zip(prompts, records, strict=True) if not r.error]
    short = sum(r.output_len != p.output_len for p, r in completed)
    if options.ignore_eos and short:
        return [f"{short} answers did not have the length that was asked for, although --ignore-eos was set"]
    return []
