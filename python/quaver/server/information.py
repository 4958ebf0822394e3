"""Everything but generation: models, health, metrics, the tokenizer, the page."""

from __future__ import annotations

import time
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from quaver import __version__
from quaver.server.fields import fail
from quaver.server.messages import template_messages, template_variables
from quaver.server.protocol import DetokenizeRequest, TokenizeRequest
from quaver.server.service import Service
from quaver.server.text import OutputText, Special
from quaver.tokenizer import token_text

_PAGE = Path(__file__).parent / "page" / "index.html"
_STARTED = int(time.time())


async def show_page(_: Service, __: Request) -> Response:
    return FileResponse(_PAGE)


async def show_version(_: Service, __: Request) -> Response:
    return JSONResponse({"version": __version__})


async def show_health(service: Service, _: Request) -> Response:
    """200 while requests can be served, 503 otherwise."""
    engines = service.pool.statuses()
    alive = sum(engine["status"] == "ok" for engine in engines)
    status = "ok" if alive == len(engines) else "degraded" if alive else "failed"
    if service.draining:
        status = "draining"
    code = 200 if status in ("ok", "degraded") else 503
    return JSONResponse({"status": status, "engines": engines}, status_code=code)


async def show_metrics(service: Service, _: Request) -> Response:
    return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def list_models(service: Service, _: Request) -> Response:
    return JSONResponse({"object": "list", "data": [_model(service, name) for name in service.model_names]})


async def show_model(service: Service, request: Request) -> Response:
    return JSONResponse(_model(service, service.check_model(request.path_params["name"])))


async def tokenize(service: Service, http_request: Request) -> Response:
    request = await service.parse(TokenizeRequest, http_request)
    service.check_model(request.model)
    if (request.prompt is None) == (not request.messages):
        fail("prompt", request.prompt, "either prompt or messages")
    if request.prompt is not None:
        tokens = await service.encode_prompt(request.prompt, add_bos=request.add_special_tokens)
    else:
        variables = template_variables(
            request.chat_template_kwargs, request.tools, add_generation_prompt=request.add_generation_prompt
        )
        tokens = await service.encode_chat(template_messages(request.messages), variables)
    return JSONResponse({"count": len(tokens), "max_model_len": service.max_model_len, "tokens": tokens})


async def detokenize(service: Service, http_request: Request) -> Response:
    """Special tokens come out as their names, so that /tokenize gives the same ids again."""
    request = await service.parse(DetokenizeRequest, http_request)
    service.check_model(request.model)
    text = OutputText(service.tokenizer, special=Special.TEXT)
    pieces = [piece for token_id in request.tokens for piece in text.push(token_id)] + text.finish()
    return JSONResponse({"prompt": "".join(piece.text for piece in pieces)})


async def show_tokenizer_info(service: Service, _: Request) -> Response:
    """What lm-eval asks for before it uses /tokenize instead of a tokenizer of its own."""
    config = service.tokenizer.config
    tokens = {name: token_text(config[name]) for name in ("bos_token", "eos_token", "pad_token") if config.get(name)}
    return JSONResponse({"tokenizer_class": config.get("tokenizer_class"), **tokens, "chat_template": service.template})


def _model(service: Service, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "quaver",
        "root": str(service.model_dir),
        "max_model_len": service.max_model_len,
    }
