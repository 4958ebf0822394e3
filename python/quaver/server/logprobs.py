"""Log-probabilities in the shapes of the two APIs. Values are printed as the engine gave them, so that a client may
compare them for equality (lm-eval tells a greedy token by `logprob == max(top)`)."""

from __future__ import annotations

import math
from typing import Any

from quaver.server.text import OutputText, Special
from quaver.tokenizer import Tokenizer

_LOWEST = -9999.0  # JSON has no -Infinity


class CompletionLogprobs:
    """The `logprobs` object of /v1/completions, token by token. The token strings put together are the text, so a
    token that ends amid a character has an empty string and the one that completes it has the character."""

    def __init__(self, tokenizer: Tokenizer, *, show_special: bool, offset: int) -> None:
        self._tokenizer = tokenizer
        self._text = OutputText(tokenizer, special=Special.TEXT if show_special else Special.SKIP)
        self._offset = offset

    def entry(self, token_id: int, value: Any, *, last: bool) -> dict[str, list[Any]]:
        """Arrays of one element; `value` is its TokenLogprobs, None for the first token of a prompt."""
        pieces = self._text.push(token_id) + (self._text.finish() if last else [])
        text = "".join(piece.text for piece in pieces)
        offset, self._offset = self._offset, self._offset + len(text)
        return {
            "tokens": [text],
            "token_logprobs": [None if value is None else finite(value.logprob)],
            "top_logprobs": [None if value is None else self._top(value)],
            "text_offset": [offset],
        }

    def _top(self, value: Any) -> dict[str, float]:
        top: dict[str, float] = {}
        for token_id, logprob in [*value.top, (value.token, value.logprob)]:
            name = token_name(self._tokenizer, token_id)
            top[name] = max(finite(logprob), top.get(name, _LOWEST))
        return top


def chat_entry(tokenizer: Tokenizer, value: Any) -> dict[str, Any]:
    """An element of choices[].logprobs.content of /v1/chat/completions."""
    top = [_chat_token(tokenizer, token_id, logprob) for token_id, logprob in value.top]
    return {**_chat_token(tokenizer, value.token, value.logprob), "top_logprobs": top}


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """A token on its own: its text, <0xE2> for a byte, the name of a special token."""
    return tokenizer.piece(token_id).replace("▁", " ")


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LOWEST


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id)
    return {
        "token": token_name(tokenizer, token_id),
        "logprob": finite(logprob),
        "bytes": list(data) if data else None,
    }
