"""One prompt at a time on an Engine: the shape of quaver._quaver.Generator, on any device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

_WAIT_S = 0.1  # how soon Ctrl-C and a failed engine are noticed


@dataclass
class GenerationResult:
    """The fields of quaver._quaver.GenerationResult."""

    prompt_tokens: int
    tokens: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    ttft_s: float = 0.0
    decode_s: float = 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        return (len(self.tokens) - 1) / self.decode_s if len(self.tokens) > 1 else 0.0


class EngineGenerator:
    """Owns the engine. generate() is for one caller at a time."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._last_id = 0

    @property
    def notes(self) -> list[str]:
        return self._engine.notes

    @property
    def kv_bytes_per_token(self) -> int:
        return self._engine.kv_bytes_per_token

    def close(self) -> None:
        self._engine.close()

    def generate(self, prompt: Sequence[int], on_token: Callable[[int], bool], **params: Any) -> GenerationResult:
        """Continues `prompt`; `params` are those of Engine.add. on_token(id) is called with each new token, without the
        id that ended the text. Raises ValueError for what can never run, RuntimeError when the engine fails."""
        result = GenerationResult(prompt_tokens=len(prompt))
        start = last = time.monotonic()
        self._last_id += 1
        self._engine.add(self._last_id, list(prompt), **params)
        finished = False
        while not finished:
            outputs = self._engine.wait(_WAIT_S)
            if not outputs and (failure := self._engine.failure()):
                raise RuntimeError(failure)
            for output in outputs:
                finished = output.finish_reason is not None
                if output.finish_reason == "error":
                    raise RuntimeError(output.error)
                if finished:
                    result.finish_reason = output.finish_reason
                if output.token is None or output.finish_reason == "stop":
                    continue
                last = time.monotonic()
                if not result.tokens:
                    result.ttft_s = last - start
                result.tokens.append(output.token)
                on_token(output.token)
        result.decode_s = last - start - result.ttft_s
        return result
