"""Chat messages → the text that the model was trained on, through the checkpoint's Jinja template in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quaver.errors import BadInputError
from quaver.tokenizer import Tokenizer, token_text

# Gemma 3's turns (https://ai.google.dev/gemma/docs/core/prompt-structure), for checkpoints that bring no template:
# the system text opens the first user turn, roles alternate, contents are trimmed.
GEMMA3_TEMPLATE = """\
{{ bos_token }}
{%- set system = messages[0]['content'] + '\\n\\n' if messages[0]['role'] == 'system' else '' -%}
{%- for message in (messages[1:] if system else messages) -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('expected the roles user and assistant in turn') }}
    {%- endif -%}
    {{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' -}}
    {{ (system if loop.first else '') + message['content'] | trim }}<end_of_turn>
{% endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""

Message = dict[str, Any]  # role, content; with tools also tool_calls and the like


def chat_template(tokenizer: Tokenizer) -> str | None:
    """The checkpoint's own template."""
    template = tokenizer.config.get("chat_template")
    if isinstance(template, list):  # several by name
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template


def encode_chat(
    tokenizer: Tokenizer, messages: list[Message], *, template: str | None = None, **variables: Any
) -> list[int]:
    """Ids of the whole conversation with the prompt for the model's next turn. Raises BadInputError when the template
    refuses the messages or the checkpoint has none. Literal turn markers in user or system content stay text."""
    template = template or chat_template(tokenizer)
    if not isinstance(template, str):
        raise BadInputError("chat_template: expected one in tokenizer_config.json; use a raw prompt (no --chat)")
    guard = _unused_character([messages, variables])
    guarded = [_guard(tokenizer, message, guard) for message in messages]
    tools = {name: _guard(tokenizer, value, guard) for name, value in variables.items() if name == "tools"}
    bos = token_text(tokenizer.config.get("bos_token", "<bos>"))
    return tokenizer.encode_chat(render(template, guarded, bos_token=bos, **{**variables, **tools}), guard)


def render(template: str, messages: list[Message], **variables: Any) -> str:
    """The template's text for `messages`; with the prompt for the model's next turn unless add_generation_prompt is
    False."""
    try:
        return _compiled(template).render({"add_generation_prompt": True, **variables, "messages": messages})
    except (TemplateError, TypeError, ValueError, KeyError, RecursionError) as error:
        raise BadInputError(f"chat template: {error}") from None


@cache
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)  # Jinja's own escapes for HTML
    return environment.from_string(template)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _guard(tokenizer: Tokenizer, value: Any, guard: str) -> Any:
    """Puts `guard` inside each special token of the strings in `value`, so that only the template's own ones still
    match. What the model itself said stays: templates look for its markers there (Gemma 4 strips earlier thoughts)."""
    if isinstance(value, dict) and value.get("role") in ("assistant", "model"):
        return value

    def guard_text(text: str) -> str:
        parts = tokenizer.split_special(text)
        return "".join(part[0] + guard + part[1:] if is_special else part for part, is_special in parts)

    return _map_strings(value, guard_text)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _map_strings(item, change) for name, item in value.items()}
    if isinstance(value, list):
        return [_map_strings(item, change) for item in value]
    return value


def _unused_character(value: Any) -> str:
    """A private-use character that no string in `value` contains."""
    used: set[str] = set()

    def note(text: str) -> str:
        used.update(text)
        return text

    _map_strings(value, note)
    guard = next((character for character in map(chr, range(0xE000, 0xF900)) if character not in used), None)
    if guard is None:
        raise BadInputError("messages: expected at least one private-use character that they do not contain")
    return guard
