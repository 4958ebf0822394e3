"""POST /v1/chat/completions."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from quaver.server.answers import Json, respond
from quaver.server.fields import fail
from quaver.server.generation import Event
from quaver.server.logprobs import chat_entry
from quaver.server.messages import template_messages, template_variables
from quaver.server.parsers import Piece, ReasoningParser, ToolCallDelta, ToolParser
from quaver.server.protocol import ChatRequest
from quaver.server.service import Service
from quaver.server.text import Special


async def create_chat_completion(service: Service, http_request: Request) -> Response:
    request = await service.parse(ChatRequest, http_request)
    service.check_model(request.model)
    if request.tools and request.tool_choice != "none" and service.tool_parser is None:
        fail("tools", request.tools, "none, or a server with --tool-call-parser")
    tools = request.tools if request.tool_choice != "none" else []
    variables = template_variables(
        request.chat_template_kwargs, tools, add_generation_prompt=request.add_generation_prompt
    )
    prompt = await service.encode_chat(template_messages(request.messages), variables)
    max_tokens = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    writer = ChatWriter(service, request, with_tools=bool(tools))
    generation = service.start(request, [prompt], max_tokens, logprobs=request.num_logprobs, special=writer.special)
    return respond(service, request, generation, writer)


@dataclass
class _Message:
    """One choice so far: its parsers and the ids of its tool calls."""

    reasoning_parser: ReasoningParser | None
    tool_parser: ToolParser | None
    call_ids: list[str] = field(default_factory=list)
    has_begun: bool = False


class ChatWriter:
    """Choices with a `delta` in a stream and a `message` otherwise."""

    id_prefix = "chatcmpl"
    chunk_object, answer_object = "chat.completion.chunk", "chat.completion"

    def __init__(self, service: Service, request: ChatRequest, *, with_tools: bool) -> None:
        self._tokenizer = service.tokenizer
        self._with_logprobs = request.logprobs
        self._show_special = not request.skip_special_tokens
        self._reasoning_parser = service.reasoning_parser
        self._tool_parser = service.tool_parser if with_tools else None
        self._messages = [self._new_message() for _ in range(request.n)]

    @property
    def special(self) -> Special:
        if self._reasoning_parser or self._tool_parser:
            return Special.MARK
        return Special.TEXT if self._show_special else Special.SKIP

    def chunks(self, event: Event) -> list[Json]:
        message = self._messages[event.index]
        delta = self._delta(message, event.pieces, last=event.finish_reason is not None)
        if not message.has_begun:  # no chunk of its own: clients take the first chunk for the first token
            message.has_begun = True
            delta = {"role": "assistant", "content": "", **delta}
        logprobs = None
        if self._with_logprobs and event.logprobs is not None:
            logprobs = {"content": [chat_entry(self._tokenizer, event.logprobs)]}
        reason = "tool_calls" if event.finish_reason == "stop" and message.call_ids else event.finish_reason
        return [
            {
                "index": event.index,
                "delta": delta,
                "logprobs": logprobs,
                "finish_reason": reason,
                "stop_reason": event.stop_reason,
            }
        ]

    def fold(self, chunks: list[Json]) -> Json:
        content, reasoning = "", ""
        calls: list[Json] = []
        entries: list[Json] = []
        for chunk in chunks:
            delta = chunk["delta"]
            content += delta.get("content", "")
            reasoning += delta.get("reasoning_content", "")
            _merge_calls(calls, delta.get("tool_calls", []))
            entries += chunk["logprobs"]["content"] if chunk["logprobs"] else []
        message: Json = {"role": "assistant", "content": None if calls and not content else content}
        if self._reasoning_parser:
            message["reasoning_content"] = reasoning or None
        if calls:
            message["tool_calls"] = calls
        last = {name: value for name, value in chunks[-1].items() if name != "delta"}
        return {**last, "message": message, "logprobs": {"content": entries} if self._with_logprobs else None}

    def _new_message(self) -> _Message:
        return _Message(
            self._reasoning_parser() if self._reasoning_parser else None,
            self._tool_parser() if self._tool_parser else None,
        )

    def _delta(self, message: _Message, pieces: list[Piece], *, last: bool) -> Json:
        content, reasoning = "", ""
        deltas: list[ToolCallDelta] = []
        for piece in pieces:
            rest: Piece | None = piece
            if message.reasoning_parser:
                thought, rest = message.reasoning_parser.push(piece)
                reasoning += thought
            if rest is None:
                continue
            if message.tool_parser:
                answer, more = message.tool_parser.push(rest)
                content += answer
                deltas += more
            elif self._show_special or not rest.is_special:
                content += rest.text
        if last and message.tool_parser:
            answer, more = message.tool_parser.finish()
            content += answer
            deltas += more
        delta: Json = {"content": content} if content or not (reasoning or deltas) else {}
        if reasoning:
            delta["reasoning_content"] = reasoning
        if deltas:
            delta["tool_calls"] = [_call_delta(message, part) for part in deltas]
        return delta


def _call_delta(message: _Message, part: ToolCallDelta) -> Json:
    function: dict[str, Any] = {"arguments": part.arguments}
    if not part.name:
        return {"index": part.index, "function": function}
    message.call_ids.append(f"call_{uuid.uuid4().hex}")
    return {
        "index": part.index,
        "id": message.call_ids[-1],
        "type": "function",
        "function": {"name": part.name, **function},
    }


def _merge_calls(calls: list[Json], deltas: list[Json]) -> None:
    for delta in deltas:
        if "id" in delta:
            calls.append({name: value for name, value in delta.items() if name != "index"})
        else:
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
