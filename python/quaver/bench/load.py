"""Runs a load: requests start at their times, at most `max_concurrency` at once, and each leaves a record."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from quaver.bench.metrics import RequestRecord, summarise
from quaver.bench.options import num_prompts
from quaver.bench.prompts import Codec, Prompt, random_prompts
from quaver.progress import SlowTask

Work = TypeVar("Work")  # what a request is made of
Send = Callable[[Prompt], Awaitable[RequestRecord]]


async def run_benchmark(options: Namespace, codec: Codec, send: Send, max_concurrency: int | None) -> dict[str, Any]:
    """The figures of one concurrency, warm-ups not counted."""
    count = num_prompts(options, max_concurrency)
    prompts = random_prompts(codec, count, options.random_input_len, options.random_output_len,
                             options.random_range_ratio, options.seed or 0)  # fmt: skip
    warmups = [prompts[0]] * options.num_warmups
    with SlowTask(f"concurrency {max_concurrency or 'without limit'}") as task:
        await run_load(warmups, send, arrivals=[0.0] * len(warmups), max_concurrency=max_concurrency)
        arrivals = arrival_times(count, options.request_rate, options.seed or 0)
        records, duration = await run_load(
            prompts, send, arrivals=arrivals, max_concurrency=max_concurrency, progress=task.update
        )
    for record in records:
        if record.output_len is None and not record.error:  # a server that sends no usage
            record.output_len = len(codec.encode(record.text))
    result = summarise(records, duration, options.metric_percentiles)
    notes = _notes(options, prompts, records)
    return {"max_concurrency": max_concurrency, "num_prompts": count, **result, "notes": notes}


def arrival_times(count: int, request_rate: float, seed: int) -> list[float]:
    """Seconds from the start: a Poisson process, stretched to end at count / request_rate; all zero for infinity."""
    if math.isinf(request_rate):
        return [0.0] * count
    times = np.random.default_rng(seed).exponential(1 / request_rate, count).cumsum()
    return list(times * (count / request_rate / times[-1]))


async def run_load(
    work: Sequence[Work],
    send: Callable[[Work], Awaitable[RequestRecord]],
    *,
    arrivals: Sequence[float],
    max_concurrency: int | None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[RequestRecord], float]:
    """(Records in the order of `work`, seconds from the first start to the last end). A request's clock starts in
    `send`, so waiting for one of the `max_concurrency` places is not in its times."""
    gate: Any = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()
    done = 0

    async def one(item: Work) -> RequestRecord:
        nonlocal done
        async with gate:
            record = await send(item)
        done += 1
        if progress is not None:
            progress(done, len(work))
        return record

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for item, due in zip(work, arrivals, strict=True):
            delay = start + due - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            tasks.append(group.create_task(one(item)))
    return [task.result() for task in tasks], time.perf_counter() - start


def _notes(options: Namespace, prompts: Sequence[Prompt], records: Sequence[RequestRecord]) -> list[str]:
    short = sum(not r.error and r.output_len != p.output_len for p, r in zip(prompts, records, strict=True))
    if options.ignore_eos and short:
        return [f"{short} answers did not have the length that was asked for, although --ignore-eos was set"]
    return []
