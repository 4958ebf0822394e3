"""HTTP/1.1 for measuring: keep-alive connections, and the time at which each piece of a streamed answer was read.

h11 over asyncio costs 69 µs of CPU a chunk here, aiohttp (which `vllm bench serve` uses) 71, httpx2 190; at 128 streams
of 30 tokens/s the last would keep a core busy and show up in the latencies.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, urlsplit

import h11

from quaver.bench.metrics import RequestRecord

Receive = Callable[[bytes, float], None]  # data, time.perf_counter() when it was read


class StreamClient:
    """POSTs JSON. As many connections as requests at once; each serves one request after the other."""

    def __init__(self, base_url: str, headers: dict[str, str]) -> None:
        self._url = urlsplit(base_url)
        self._headers = headers
        self._idle: list[_Connection] = []

    async def post(self, path: str, body: dict[str, Any], receive: Receive, **headers: str) -> tuple[int, bytes]:
        """(Status, body unless it went to `receive`, which gets that of a 200). Raises OSError or h11.ProtocolError
        when the connection breaks."""
        payload = json.dumps(body).encode()
        head = {"Host": self._url.netloc, "Content-Type": "application/json", "Content-Length": str(len(payload))}
        request = h11.Request(
            method="POST", target=self._url.path + path, headers=list((head | self._headers | headers).items())
        )
        while self._idle:
            connection = self._idle.pop()
            try:
                return await self._exchange(connection, request, payload, receive)
            except (OSError, h11.ProtocolError):
                if connection.answered:
                    raise  # otherwise the server had closed it while it was idle
        return await self._exchange(await _Connection.open(self._url), request, payload, receive)

    async def _exchange(
        self, connection: _Connection, request: h11.Request, payload: bytes, receive: Receive
    ) -> tuple[int, bytes]:
        try:
            answer = await connection.exchange(request, payload, receive)
        except BaseException:
            connection.close()
            raise
        if connection.start_next():
            self._idle.append(connection)
        return answer

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)
        self.answered = False  # whether anything has come for the request under way

    @classmethod
    async def open(cls, url: SplitResult) -> _Connection:
        secure = url.scheme == "https"
        port = url.port or (443 if secure else 80)
        return cls(*await asyncio.open_connection(url.hostname, port, ssl=secure or None))

    async def exchange(self, request: h11.Request, payload: bytes, receive: Receive) -> tuple[int, bytes]:
        self.answered = False
        events = (request, h11.Data(data=payload), h11.EndOfMessage())
        self._writer.write(b"".join(self._http.send(event) or b"" for event in events))
        status, unread, now = 0, bytearray(), 0.0
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = await self._reader.read(1 << 16)
                now = time.perf_counter()
                self.answered = self.answered or bool(data)
                self._http.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data) and status == 200:
                receive(bytes(event.data), now)
            elif isinstance(event, h11.Data):
                unread += event.data
            elif isinstance(event, h11.EndOfMessage):
                return status, bytes(unread)
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionError("the server closed the connection without an answer")

    def start_next(self) -> bool:
        """Whether the connection can serve another request; closes it if not."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE and not self._reader.at_eof():
            self._http.start_next_cycle()
            return True
        self.close()
        return False

    def close(self) -> None:
        self._writer.close()


class EventStream:
    """Server-sent events of a completion → chunks of a record. Comments and blank lines are skipped; chunks without
    choices are none (they carry the usage)."""

    def __init__(self, record: RequestRecord) -> None:
        self._record = record
        self._buffer = b""
        self._done = False

    def feed(self, data: bytes, now: float) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def finish(self) -> None:
        """At the end of the body: raises ValueError for an answer that is not whole."""
        if not self._done:
            raise ValueError("the stream ended without [DONE]")
        if self._record.num_chunks == 0:
            raise ValueError("the stream had no chunk with choices")

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise ValueError(f"error in the stream: {chunk['error']}")
        if choices := chunk.get("choices"):
            choice = choices[0]
            self._record.chunk(now, choice.get("text") or choice.get("delta", {}).get("content") or "")
        elif usage := chunk.get("usage"):
            self._record.output_len = usage["completion_tokens"]
