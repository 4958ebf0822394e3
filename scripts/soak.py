#!/usr/bin/env python3
"""Loads a server until it must preempt, cuts off clients at random, and checks that nobody else notices.

First every request runs alone, on a server with a large pool and no prefix cache: its solo answer. Then all run
together on a small pool, and some clients hang up after a few tokens. Every answer that completes must be the solo
answer; in the end all pages are free, and the process is no larger than it was before.

Usage: scripts/soak.py --model DIR [--requests 300] [--concurrency 32] [--kv-cache-memory-bytes N] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h11

from quaver.bench.http_stream import EventStream, StreamClient
from quaver.bench.load import run_load
from quaver.bench.local_server import LocalServer
from quaver.bench.metrics import RequestRecord
from quaver.bench.report import save
from quaver.progress import SlowTask
from quaver.tokenizer import read_json

ALLOWED_GROWTH = 1.05  # of the resident memory, from the second third of the run (all is warm by then) to the last
_SOON_S = 0.02


@dataclass(frozen=True)
class Case:
    prompt: list[int]
    max_tokens: int
    temperature: float  # 0: greedy; otherwise seeded, and as reproducible
    hangs_up_after: int | None  # chunks; None: it waits for the whole answer


class _HangUpError(OSError):
    """Raised in the middle of a stream, so that the connection closes."""


def main() -> int:
    options = parse_arguments()
    cases = make_cases(options)
    common = ["--batch-invariant", "--max-model-len", options.max_model_len, "--block-size", options.block_size]
    with SlowTask("alone") as task, LocalServer(options.model, *common, "--no-enable-prefix-caching") as server:
        alone, _ = asyncio.run(run(server, [c for c in cases if c.hangs_up_after is None], 1, task))
    small = ["--kv-cache-memory-bytes", options.kv_cache_memory_bytes, "--max-num-seqs", options.concurrency]
    with SlowTask("together") as task, LocalServer(options.model, *common, *small) as server:
        together, memory = asyncio.run(run(server, cases, options.concurrency, task))
        figures = read_metrics(server.url)
    result = judge(cases, alone, together, memory, figures)
    print(json.dumps(result, indent=1))
    if options.out:
        settings = {name: value for name, value in vars(options).items() if name != "out"}
        save(options.out, settings | {"model": options.model.resolve().name}, [result])
    return 0 if result["passed"] else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", type=Path, required=True)
    add("--requests", type=int, default=300)
    add("--concurrency", type=int, default=32)
    add("--max-model-len", type=int, default=512)
    add("--longest-prompt", type=int, default=64)
    add("--longest-answer", type=int, default=48)
    add("--block-size", type=int, default=16)
    add("--kv-cache-memory-bytes", type=int, default=7 << 20)
    add("--seed", type=int, default=0)
    add("--out", type=Path)
    return parser.parse_args()


def make_cases(options: argparse.Namespace) -> list[Case]:
    """Lengths from 1 on, most of them short; a third shares its beginning with others; a quarter hangs up."""
    rng = random.Random(options.seed)
    vocabulary = read_json(options.model / "config.json")["vocab_size"]
    shared = [rng.randrange(3, vocabulary) for _ in range(options.longest_prompt)]
    cases = []
    for _ in range(options.requests):
        length = 1 + int(rng.random() ** 2 * (options.longest_prompt - 1))
        prompt = [rng.randrange(3, vocabulary) for _ in range(length)]
        if rng.random() < 1 / 3:
            prompt[: length * 3 // 4] = shared[: length * 3 // 4]
        max_tokens = rng.randint(1, options.longest_answer)
        hangs_up_after = rng.randint(0, max_tokens) if rng.random() < 1 / 4 else None
        cases.append(Case(prompt, max_tokens, rng.choice((0.0, 0.0, 0.8)), hangs_up_after))
    return cases


async def run(
    server: LocalServer, cases: list[Case], concurrency: int, task: SlowTask
) -> tuple[list[RequestRecord], list[float]]:
    """(Records, resident MiB at the end of each request)."""
    client = StreamClient(server.url, {})
    memory: list[float] = []

    def count(done: int, total: int) -> None:
        memory.append(server.resident_mib())
        task.update(done, total)

    try:
        records, _ = await run_load(
            cases,
            lambda case: ask(client, case),
            arrivals=[0.0] * len(cases),
            max_concurrency=concurrency,
            progress=count,
        )
    finally:
        client.close()
    return records, memory


async def ask(client: StreamClient, case: Case) -> RequestRecord:
    record = RequestRecord(prompt_len=len(case.prompt), start=time.perf_counter())
    stream = EventStream(record)
    body = {
        "prompt": case.prompt,
        "max_tokens": case.max_tokens,
        "temperature": case.temperature,
        "seed": 1,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }

    def receive(data: bytes, now: float) -> None:
        stream.feed(data, now)
        if case.hangs_up_after is not None and record.num_chunks >= case.hangs_up_after:
            raise _HangUpError("hung up")

    # Those that hang up before the first chunk do so while they wait or their prompt is being read.
    timeout = _SOON_S if case.hangs_up_after == 0 else None
    try:
        async with asyncio.timeout(timeout):
            status, answer = await client.post("/v1/completions", body, receive)
        if status == 200:
            stream.finish()
        else:
            record.error = f"HTTP {status}: {answer.decode()}"
    except (OSError, h11.ProtocolError, ValueError) as error:  # OSError: hung up, timed out, or the server did
        record.error = f"{type(error).__name__}: {error}"
    return record


def read_metrics(url: str) -> dict[str, float]:
    """The engine's figures once nothing runs any more; an abort takes effect within a step."""
    for _ in range(100):
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
            text = response.read().decode()
        found = re.findall(r'^quaver:(\w+)\{engine="0"\} (\S+)$', text, re.MULTILINE)
        figures = {name: float(value) for name, value in found}
        if figures["num_requests_running"] == figures["num_requests_waiting"] == 0:
            break
        time.sleep(0.1)
    return figures


def judge(
    cases: list[Case],
    alone: list[RequestRecord],
    together: list[RequestRecord],
    memory: list[float],
    figures: dict[str, float],
) -> dict[str, Any]:
    solo = iter(alone)
    pairs = [(next(solo), r) for c, r in zip(cases, together, strict=True) if c.hangs_up_after is None]
    third = len(memory) // 3
    first, last = statistics.median(memory[third : 2 * third]), statistics.median(memory[-third:])
    failures = {
        "errors": sorted({r.error for pair in pairs for r in pair if r.error}),
        "answers_that_differ": sum((a.text, a.output_len) != (b.text, b.output_len) for a, b in pairs),
        "pages_not_free": figures["kv_pages"] - figures["kv_free_pages"],
        "requests_left": figures["num_requests_running"] + figures["num_requests_waiting"],
        "engine_failed_steps": figures["engine_failed_steps_total"],
        "without_preemption": figures["preemptions_total"] == 0,
        "memory_grew": last > ALLOWED_GROWTH * first,
    }
    return {
        "passed": not any(failures.values()),
        "requests": len(cases),
        "completed": len(pairs),
        "hung_up": len(cases) - len(pairs),
        "output_tokens_compared": sum(r.output_len or 0 for _, r in pairs),
        "preemptions": figures["preemptions_total"],
        "kv_pages": figures["kv_pages"],
        "cached_prompt_tokens": figures["prefix_cache_hits_total"],
        "resident_mib_second_third": round(first, 1),
        "resident_mib_last_third": round(last, 1),
        "failures": failures,
    }


if __name__ == "__main__":
    sys.exit(main())
