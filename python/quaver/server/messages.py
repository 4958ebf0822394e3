"""Messages and tools of a chat request → what the chat template takes."""

from __future__ import annotations

import json
from typing import Any

from quaver.server.errors import RequestError
from quaver.server.fields import fail, json_object, list_of, one_of, text

Json = dict[str, Any]

_ROLES = ("system", "developer", "user", "assistant", "tool")
_RESERVED = frozenset({"add_generation_prompt", "bos_token", "messages", "template", "tokenizer", "tools"})


def template_messages(messages: list[Json]) -> list[Json]:
    """Contents become strings, tool-call arguments objects; `developer` is today's name for `system`."""
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def template_variables(kwargs: Json, tools: list[Json], *, add_generation_prompt: bool) -> Json:
    for name in kwargs.keys() & _RESERVED:
        fail(f"chat_template_kwargs.{name}", kwargs[name], "no variable that the server sets itself")
    for index, tool in enumerate(tools):
        function = json_object(f"tools[{index}].function", tool.get("function"))
        text(f"tools[{index}].function.name", function.get("name"))
    return {**kwargs, "add_generation_prompt": add_generation_prompt, **({"tools": tools} if tools else {})}


def _message(name: str, message: Json) -> Json:
    role = one_of(*_ROLES)(f"{name}.role", message.get("role"))
    calls = message.get("tool_calls") or []
    result = {**message, "role": "system" if role == "developer" else role}
    result["content"] = _content(
        f"{name}.content", message.get("content"), optional=role == "assistant" and bool(calls)
    )
    if calls:
        result["tool_calls"] = [
            _tool_call(f"{name}.tool_calls[{index}]", call)
            for index, call in enumerate(list_of(json_object)(f"{name}.tool_calls", calls))
        ]
    return result


def _content(name: str, value: Any, *, optional: bool) -> str:
    if value is None and optional:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        fail(name, value, "a string or an array of text parts")
    return "\n".join(_part(f"{name}[{index}]", part) for index, part in enumerate(value))


def _part(name: str, part: Any) -> str:
    json_object(name, part)
    if part.get("type") != "text":
        fail(f"{name}.type", part.get("type"), '"text", this server reads no images or audio')
    return text(f"{name}.text", part.get("text"))


def _tool_call(name: str, call: Json) -> Json:
    function = json_object(f"{name}.function", call.get("function"))
    text(f"{name}.function.name", function.get("name"))
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise RequestError(f"{name}.function.arguments: expected the JSON text of an object", "messages") from None
    return {**call, "function": {**function, "arguments": json_object(f"{name}.function.arguments", arguments)}}
