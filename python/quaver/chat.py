"""Chat messages → the text that the model was trained on, through the checkpoint's Jinja template in a sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from jinja2 import TemplateError
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

Message = dict[str, str]  # role, content


def encode_chat(tokenizer: Tokenizer, messages: list[Message], **variables: Any) -> list[int]:
    """Ids of the whole conversation with the prompt for the model's next turn. Raises BadInputError when the template
    refuses the messages or the checkpoint has none. Literal turn markers in user or system content stay text."""
    template = tokenizer.config.get("chat_template")
    if not isinstance(template, str):
        raise BadInputError("chat_template: expected one in tokenizer_config.json; use a raw prompt (no --chat)")
    guard = _unused_character(messages)
    guarded = [_guard(tokenizer, message, guard) for message in messages]
    bos = token_text(tokenizer.config.get("bos_token", "<bos>"))
    return tokenizer.encode_chat(render(template, guarded, bos_token=bos, **variables), guard)


def render(template: str, messages: list[Message], **variables: Any) -> str:
    """The template's text for `messages`, with the prompt for the model's next turn."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(template).render(messages=messages, add_generation_prompt=True, **variables)
    except (TemplateError, TypeError, ValueError, KeyError, RecursionError) as error:
        raise BadInputError(f"chat template: {error}") from None


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _guard(tokenizer: Tokenizer, message: Message, guard: str) -> Message:
    """Puts `guard` inside each special token of a user's text, so that only the template's own ones still match."""
    if message["role"] in ("assistant", "model"):
        return message  # templates look for the model's own markers there (Gemma 4 strips earlier thoughts)
    parts = tokenizer.split_special(message["content"])
    content = "".join(text[0] + guard + text[1:] if is_special else text for text, is_special in parts)
    return message | {"content": content}


def _unused_character(messages: list[Message]) -> str:
    """A private-use character that no message contains."""

    def candidates() -> Iterator[str]:
        yield from map(chr, range(0xE000, 0xF900))

    used = {character for message in messages for character in message["content"]}
    guard = next((character for character in candidates() if character not in used), None)
    if guard is None:
        raise BadInputError("messages: expected at least one private-use character that they do not contain")
    return guard
