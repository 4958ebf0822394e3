"""`quaver bench offline`: the load of `quaver bench serve` on an engine in this process, without HTTP and text."""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from typing import Any

from quaver.bench import report
from quaver.bench.load import run_benchmark
from quaver.bench.metrics import RequestRecord
from quaver.bench.prompts import Codec, LocalCodec, Prompt
from quaver.model_folder import tokenizer_folder
from quaver.progress import SlowTask
from quaver.server import options as flags
from quaver.server.devices import load_engines
from quaver.server.engines import EnginePool, EngineRequest
from quaver.server.errors import RequestError


def run(options: Namespace) -> int:
    """Returns 1 if any request failed."""
    flags.check_engine(options)
    if options.profile:
        from quaver.bench import profile

        return profile.run(options)
    with SlowTask("loading the model"):
        codec = LocalCodec(tokenizer_folder(options.model, options.tokenizer))
        engines = load_engines(options)
    runs = asyncio.run(_measure(options, codec, engines))
    model = options.model.resolve().name
    title = f"{model} in this process, {options.random_input_len} in, {options.random_output_len} out"
    return report.show(options, title, model, runs)


async def _measure(options: Namespace, codec: Codec, engines: list[Any]) -> list[report.Run]:
    pool = EnginePool(engines)

    async def send(prompt: Prompt) -> RequestRecord:
        return await _send(pool, options, prompt)

    pool.start()
    try:
        return [await run_benchmark(options, codec, send, concurrency) for concurrency in options.max_concurrency]
    finally:
        pool.close()


async def _send(pool: EnginePool, options: Namespace, prompt: Prompt) -> RequestRecord:
    params = {"max_tokens": prompt.output_len, "temperature": options.temperature, "ignore_eos": options.ignore_eos}
    record = RequestRecord(prompt_len=prompt.input_len, start=time.monotonic(), output_len=0)
    try:
        subscription = pool.submit([EngineRequest(prompt.ids, params)])
        finished = False
        while not finished:
            for arrival in await subscription.next():
                if arrival.output.token is not None:
                    record.chunk(arrival.time)
                finished = arrival.output.finish_reason is not None
        record.output_len = record.num_chunks
    except RequestError as error:
        record.error = str(error)
    return record
