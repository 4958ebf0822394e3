"""An OpenAI-compatible server that does what a script says: which bytes to write, and how long to wait between them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Step = float | bytes  # seconds to wait, or what to write
Script = Callable[[dict[str, Any]], list[Step]]

DONE = b"data: [DONE]\n\n"


def text_chunk(text: str) -> bytes:
    return b"data: %s\n\n" % json.dumps({"choices": [{"index": 0, "text": text}]}).encode()


def usage_chunk(completion_tokens: int) -> bytes:
    usage = {"prompt_tokens": 1, "completion_tokens": completion_tokens}
    return b"data: %s\n\n" % json.dumps({"choices": [], "usage": usage}).encode()


def one_token_each(gap: float, first: float) -> Script:
    """A server that takes `first` seconds for the first token and `gap` for each further one."""

    def script(body: dict[str, Any]) -> list[Step]:
        count = body["max_tokens"]
        steps: list[Step] = [first, text_chunk("a")]
        for _ in range(count - 1):
            steps += [gap, text_chunk("a")]
        return [*steps, usage_chunk(count), DONE]

    return script


def at_once(body: dict[str, Any]) -> list[Step]:
    return one_token_each(gap=0.0, first=0.0)(body)


@dataclass
class FakeServer:
    """`script` answers a completion; `status` other than 200 answers everything with an error."""

    script: Script = at_once
    status: int = 200
    closes: bool = False  # the connection after each answer, without a word in its head
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    peers: set[tuple[str, int]] = field(default_factory=set)
    running: int = 0
    most_running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def serving(fake: FakeServer) -> Iterator[FakeServer]:
    class Handler(_Handler):
        state = fake

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: FakeServer

    def do_GET(self) -> None:
        self._json(200, {"object": "list", "data": [{"id": "fake"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":  # a token is a character, and <bos> is 0
            ids = [ord(character) for character in body["prompt"]]
            return self._json(200, {"tokens": [0, *ids] if body["add_special_tokens"] else ids})
        if self.path == "/detokenize":
            return self._json(200, {"prompt": "".join(map(chr, body["tokens"]))})
        if self.state.status != 200:
            return self._json(self.state.status, {"error": {"message": "no room", "type": "server_error"}})
        with self.state.lock:
            self.state.bodies.append(body)
            self.state.starts.append(time.perf_counter())
            self.state.peers.add(self.client_address)
            self.state.running += 1
            self.state.most_running = max(self.state.most_running, self.state.running)
        try:
            return self._stream(self.state.script(body))
        finally:
            with self.state.lock:
                self.state.running -= 1

    def _stream(self, steps: list[Step]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for step in steps:
            if isinstance(step, float):
                time.sleep(step)
            elif step == b"":  # the server dies
                self.close_connection = True
                return
            else:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(step), step))
        self.wfile.write(b"0\r\n\r\n")
        self.close_connection = self.state.closes

    def _json(self, status: int, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass
