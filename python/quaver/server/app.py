"""The routes, and how errors become answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from quaver.server import information
from quaver.server.chat_completions import create_chat_completion
from quaver.server.completions import create_completion
from quaver.server.errors import RequestError
from quaver.server.service import Service
from quaver.server.web import Edge, error_response

Handler = Callable[[Service, Request], Awaitable[Response]]

_ROUTES: list[tuple[str, str, Handler]] = [
    ("POST", "/v1/completions", create_completion),
    ("POST", "/v1/chat/completions", create_chat_completion),
    ("GET", "/v1/models", information.list_models),
    ("GET", "/v1/models/{name:path}", information.show_model),
    ("GET", "/health", information.show_health),
    ("GET", "/metrics", information.show_metrics),
    ("POST", "/tokenize", information.tokenize),
    ("POST", "/detokenize", information.detokenize),
    ("GET", "/tokenizer_info", information.show_tokenizer_info),
    ("GET", "/version", information.show_version),
    ("GET", "/", information.show_page),
]


def create_app(service: Service, *, api_keys: Sequence[str] = (), allowed_origins: Sequence[str] = ()) -> ASGIApp:
    """The ASGI application. `service.pool` must be started on the same event loop."""
    app: ASGIApp = Starlette(
        routes=[Route(path, partial(handler, service), methods=[method]) for method, path, handler in _ROUTES],
        exception_handlers={
            RequestError: _refused,
            HTTPException: _no_route,
            ClientDisconnect: _gone,
            Exception: _unexpected,
        },
    )
    app = Edge(app, api_keys)
    if allowed_origins:
        app = CORSMiddleware(app, allow_origins=allowed_origins, allow_methods=["*"], allow_headers=["*"])
    return app


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: expected a path and method that this server has"
    answer = error_response(RequestError(message, status=error.status_code))
    answer.headers.update(error.headers or {})
    return answer


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _unexpected(_: Request, error: Exception) -> Response:
    return error_response(RequestError(f"internal error: {type(error).__name__}", status=500))
