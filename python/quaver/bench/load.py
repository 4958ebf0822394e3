"""Runs a load: requests start at their times, at most `max_concurrency` at once, and each leaves a record."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from quaver.bench.metrics import RequestRecord
from quaver.bench.prompts import Prompt

Send = Callable[[Prompt], Awaitable[RequestRecord]]


def arrival_times(count: int, request_rate: float, seed: int) -> list[float]:
    """Seconds from the start: a Poisson process, stretched to end at count / request_rate; all zero for infinity."""
    if math.isinf(request_rate):
        return [0.0] * count
    times = np.random.default_rng(seed).exponential(1 / request_rate, count).cumsum()
    return list(times * (count / request_rate / times[-1]))


async def run_load(
    prompts: Sequence[Prompt],
    send: Send,
    *,
    arrivals: Sequence[float],
    max_concurrency: int | None,
    on_done: Callable[[], None] = lambda: None,
) -> tuple[list[RequestRecord], float]:
    """(Records in the order of `prompts`, seconds from the first start to the last end). A request's clock starts in
    `send`, so waiting for one of the `max_concurrency` places is not in its times."""
    gate: Any = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()

    async def one(prompt: Prompt) -> RequestRecord:
        async with gate:
            record = await send(prompt)
        on_done()
        return record

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for prompt, due in zip(prompts, arrivals, strict=True):
            delay = start + due - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            tasks.append(group.create_task(one(prompt)))
    return [task.result() for task in tasks], time.perf_counter() - start
