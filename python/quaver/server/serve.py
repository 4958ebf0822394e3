"""`quaver serve`: loads the model, listens, and ends in good order."""

from __future__ import annotations

import asyncio
import math
import os
import resource
import signal
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from quaver.errors import BadInputError
from quaver.model_folder import tokenizer_folder
from quaver.progress import SlowTask
from quaver.server import options as flags
from quaver.server.app import create_app
from quaver.server.devices import load_engines
from quaver.server.engines import EnginePool
from quaver.server.errors import unavailable
from quaver.server.parsers import reasoning_parser, tool_parser
from quaver.server.service import Service, sampling_defaults
from quaver.tokenizer import Tokenizer

_KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that they do not write into a closing one
_DRAIN_POLL_S = 0.05
_LAST_BODIES_S = 5  # after draining, for requests whose bodies are still on their way to a 503
_LAST_WORDS_S = 1  # after --shutdown-timeout, for the errors that end what still runs
_STALLED_CLIENT_S = 60  # one that has taken nothing for so long while more waits for it has gone


def run(options: Namespace) -> int:
    flags.check(options)
    _allow_many_connections()
    with bound_socket(options.host, options.port) as listener:  # before the long load
        service = load_service(options)
        try:
            app = create_app(service, api_keys=options.api_key, allowed_origins=options.allowed_origins)
            server = Server(service, app, shutdown_timeout_s=options.shutdown_timeout)
            asyncio.run(server.serve_until_drained(listener))
        finally:
            service.close()
    return 0


def load_service(options: Namespace) -> Service:
    """Everything but the network."""
    tokenizer = Tokenizer(tokenizer_folder(options.model, options.tokenizer))
    template = _read_template(options.chat_template) if options.chat_template else None
    reasoning = reasoning_parser(options.reasoning_parser) if options.reasoning_parser else None
    tools = tool_parser(options.tool_call_parser) if options.tool_call_parser else None
    with SlowTask("loading the model"):
        tokenizer.load_whole()
        engines = load_engines(options)
    limit, most = engines[0].max_model_len, engines[0].max_request_tokens
    small = (
        [f"the KV cache holds requests of at most {most} tokens, not of max_model_len {limit}"] if most < limit else []
    )
    for note in [*engines[0].notes, *small]:
        print(f"note: {note}", file=sys.stderr)
    return Service(
        pool=EnginePool(engines),
        tokenizer=tokenizer,
        model_dir=options.model,
        model_names=options.served_model_name or [options.model.resolve().name],
        max_model_len=limit,
        max_request_tokens=most,
        template=template,
        defaults=sampling_defaults(options.model),
        reasoning_parser=reasoning,
        tool_parser=tools,
        seed=options.seed,
    )


class Server(uvicorn.Server):
    """The first SIGTERM or SIGINT drains: running requests finish, or end with an error after `shutdown_timeout_s`, new
    ones get 503. The second ends at once."""

    def __init__(self, service: Service, app: Any, *, shutdown_timeout_s: float = math.inf) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",  # heads have a limit there
                ws="none",
                lifespan="off",
                log_level="warning",
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_LAST_BODIES_S,
            )
        )
        self._service = service
        self._shutdown_timeout_s = shutdown_timeout_s

    async def serve_until_drained(self, listener: socket.socket) -> None:
        self._service.pool.start()
        drain = asyncio.create_task(self._drain())
        host, port = listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        names = ", ".join(self._service.model_names)
        listener.listen(self.config.backlog)  # who reads the next line may connect at once
        print(f"serving {names} at http://{host}:{port}", file=sys.stderr, flush=True)
        await self.serve(sockets=[listener])
        drain.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        yield

    def _on_signal(self, number: int) -> None:
        if self._service.draining:
            os._exit(128 + number)
        self._service.draining = True

    async def _drain(self) -> None:
        await _until(lambda: self._service.draining)
        await _until(lambda: not self._service.active, self._shutdown_timeout_s)
        if self._service.active:
            limit = f"--shutdown-timeout {self._shutdown_timeout_s:g}"
            print(f"note: {limit} cuts off {self._service.active} requests", file=sys.stderr, flush=True)
            self._service.pool.end_all(unavailable("server: it is shutting down"))
            await _until(lambda: not self._service.active, _LAST_WORDS_S)
            for connection in list(self.server_state.connections):
                connection.transport.abort()
        self.should_exit = True


async def _until(condition: Callable[[], bool], seconds: float = math.inf) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        await asyncio.sleep(_DRAIN_POLL_S)


def _allow_many_connections() -> None:
    """Each one is a file descriptor, of which shells allow 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def bound_socket(host: str, port: int, *, stalled_client_s: float = _STALLED_CLIENT_S) -> socket.socket:
    """A socket for Server; it does not listen yet. Its connections break when the client has gone without a word, or
    has not read for `stalled_client_s`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. Without it the body of an answer waits 40 ms for the client's delayed ACK of the head.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stalled_client_s * 1000))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(stalled_client_s)))
        listener.bind(address)
    except OSError as error:
        raise BadInputError(f"--host {host} --port {port}: expected a free address ({error.strerror})") from None
    return listener


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"--chat-template {path}: expected a text file ({error})") from None
