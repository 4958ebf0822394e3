"""HTTP below the API: bodies with a limit, answers that end when the client goes, request ids, API keys."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quaver.server.errors import RequestError, unavailable

Result = TypeVar("Result")

MAX_BODY_BYTES = 16 << 20
MAX_BODIES_BYTES = 1 << 30
_BODY_S = 60  # for a whole body to come
_MAX_DROPPED_BYTES = 1 << 30
_log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(r"[!-~]{1,256}")
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_OPEN_PATHS = frozenset({"/", "/health", "/metrics", "/version"})


class Bodies:
    """Reads bodies of requests. Those that are not yet dealt with take at most MAX_BODIES_BYTES, however many come."""

    def __init__(self) -> None:
        self._bytes = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """The body. One above the limit is read to its end and dropped, so that the client gets to read the refusal."""
        kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError(f"Content-Type {kind}: expected application/json", status=415)
        chunks: list[bytes] = []
        size = held = 0
        try:
            try:
                async with asyncio.timeout(_BODY_S):
                    async for chunk in request.stream():
                        size += len(chunk)
                        if size > _MAX_DROPPED_BYTES:
                            break
                        if size > MAX_BODY_BYTES:
                            chunks.clear()
                            held, self._bytes = 0, self._bytes - held
                            continue
                        chunks.append(chunk)
                        held, self._bytes = held + len(chunk), self._bytes + len(chunk)
                        if self._bytes > MAX_BODIES_BYTES:
                            raise unavailable("server: too many large requests at once")
            except TimeoutError:
                raise RequestError(f"body: expected all of it within {_BODY_S:g} s", status=408) from None
            if size > MAX_BODY_BYTES:
                raise RequestError(f"body of {size} bytes: expected at most {MAX_BODY_BYTES}", status=413)
            yield b"".join(chunks)
        finally:
            self._bytes -= held


class JsonAnswer(Response):
    """The JSON that `work` makes; `close` runs at the end, early if the client goes."""

    def __init__(self, work: Coroutine[Any, Any, dict[str, Any]], close: Callable[[], None]) -> None:
        self._work, self._close = work, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            content = await unless_disconnected(receive, self._work)
            await JSONResponse(content)(scope, receive, send)
        except ClientDisconnect:
            pass
        finally:
            self._close()


class EventStream(Response):
    """Server-sent events, one `data:` for each JSON object, then [DONE]. The status is sent with the first event, so a
    request that fails before it gets a proper error; a later error is an event."""

    def __init__(self, objects: AsyncIterator[dict[str, Any]], close: Callable[[], None]) -> None:
        self._objects, self._close = objects, close

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._send_all(send))
        except ClientDisconnect:
            pass
        finally:
            self._close()

    async def _send_all(self, send: Send) -> None:
        first = await anext(self._objects)
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send(_event(first))
        try:
            async for item in self._objects:
                await send(_event(item))
        except RequestError as error:
            await send(_event(error.body()))
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def _event(content: dict[str, Any]) -> Message:
    return {"type": "http.response.body", "body": f"data: {_to_json(content)}\n\n".encode(), "more_body": True}


async def unless_disconnected(receive: Receive, work: Awaitable[Result]) -> Result:
    """The result of `work`; raises ClientDisconnect, and cancels it, as soon as the client has gone."""

    async def disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(disconnect())
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


class Edge:
    """The outermost layer: gives each answer its X-Request-Id and asks for the API key, if there is one. An error that
    has been answered in full ends here, in the log: above it, Uvicorn would close the connection under the next
    request."""

    def __init__(self, app: ASGIApp, api_keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [f"Bearer {key}".encode() for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex

        answered = False

        async def send_with_id(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)
            answered = message["type"] == "http.response.body" and not message.get("more_body", False)

        if self._keys and scope["path"] not in _OPEN_PATHS and not self._authorised(headers):
            error = RequestError("Authorization: expected Bearer and the API key", status=401, code="invalid_api_key")
            return await error_response(error)(scope, receive, send_with_id)
        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            if not answered:
                raise
            _log.exception("request %s: %s %s failed", request_id, scope["method"], scope["path"])

    def _authorised(self, headers: Headers) -> bool:
        given = headers.get("authorization", "").encode()
        return any(hmac.compare_digest(given, key) for key in self._keys)


def error_response(error: RequestError) -> Response:
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers())
