"""Servers for the tests: over fake engines, or all of what `quaver serve` serves, in a thread of this process."""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from fake_engine import FakeEngine

from quaver.chat import GEMMA3_TEMPLATE
from quaver.server.app import create_app
from quaver.server.engines import EnginePool
from quaver.server.options import add_arguments
from quaver.server.serve import bound_socket, load_service
from quaver.server.service import Service
from quaver.tokenizer import Tokenizer

Serve = Callable[..., httpx2.Client]


@contextmanager
def running(service: Service, **app_options: Any) -> Iterator[str]:
    """The URL of a server that runs in a thread."""
    listener = bound_socket("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(create_app(service, **app_options), lifespan="off", log_level="critical"))

    async def main() -> None:
        service.pool.start()
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.001)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
        service.close()


@contextmanager
def client_of(
    *engines: FakeEngine,
    model_dir: Path,
    api_keys: Sequence[str] = (),
    allowed_origins: Sequence[str] = (),
    **options: Any,
) -> Iterator[httpx2.Client]:
    """A client of a server over these engines; `options` go to Service."""
    tokenizer = Tokenizer(model_dir)
    tokenizer.load_whole()
    service = Service(
        pool=EnginePool(engines),
        tokenizer=tokenizer,
        model_dir=model_dir,
        max_model_len=engines[0].max_model_len,
        max_request_tokens=engines[0].max_request_tokens,
        **{"model_names": ["tiny"], "template": GEMMA3_TEMPLATE, **options},
    )
    with (
        running(service, api_keys=api_keys, allowed_origins=allowed_origins) as url,
        httpx2.Client(base_url=url, timeout=30) as client,
    ):
        yield client


@contextmanager
def real_client(model_dir: Path, *flags: object) -> Iterator[httpx2.Client]:
    """A client of what `quaver serve --model MODEL_DIR FLAGS…` serves, in this process."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    options = parser.parse_args(["--model", str(model_dir), "--served-model-name", "tiny", *map(str, flags)])
    with running(load_service(options)) as url, httpx2.Client(base_url=url, timeout=60) as client:
        yield client
