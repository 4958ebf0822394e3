"""All choices of one HTTP request while they run: engine outputs in, events with visible text out."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from quaver.server.engines import Arrival, EnginePool, EngineRequest
from quaver.server.errors import RequestError
from quaver.server.metrics import Metrics
from quaver.server.parsers import Piece
from quaver.server.text import OutputText


@dataclass
class Choice:
    """One text that is generated: a prompt, its settings, and what came so far."""

    request: EngineRequest
    text: OutputText
    include_stop: bool = False
    num_tokens: int = 0
    cached_tokens: int = 0
    prompt_logprobs: list[Any] = field(default_factory=list)  # TokenLogprobs of prompt tokens 1, 2, …
    last_token_time: float = 0.0
    is_done: bool = False


@dataclass
class Event:
    """What one token, or the end, did to a choice."""

    index: int
    pieces: list[Piece]
    token: int | None = None
    logprobs: Any = None  # TokenLogprobs
    finish_reason: str | None = None
    stop_reason: str | int | None = None  # the stop string, or the stop id that the request named

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


class Generation:
    """Runs choices on the engines. close() must be called: it ends what still runs, whatever happened."""

    def __init__(self, pool: EnginePool, metrics: Metrics, choices: list[Choice]) -> None:
        self.choices = choices
        self._metrics = metrics
        self._start = time.monotonic()
        self._running = len(choices)
        self._subscription = pool.submit([choice.request for choice in choices])

    async def events(self) -> AsyncIterator[Event]:
        """One event a token, and one for an end without a token, until all choices have ended."""
        while self._running:
            for arrival in await self._next_arrivals():
                event = self._event(arrival)
                if event is not None:
                    yield event

    def close(self) -> None:
        self._subscription.close()
        self._metrics.finished("abort", self._running)
        self._running = 0

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object; a prompt counts once, however many choices it has."""
        prompts = {id(choice.request.prompt): choice for choice in reversed(self.choices)}.values()
        prompt_tokens = sum(len(choice.request.prompt) for choice in prompts)
        completion_tokens = sum(choice.num_tokens for choice in self.choices)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in prompts)},
        }

    async def _next_arrivals(self) -> list[Arrival]:
        try:
            return await self._subscription.next()
        except RequestError:
            self._metrics.finished("error", self._running)
            self._running = 0
            raise

    def _event(self, arrival: Arrival) -> Event | None:
        choice, output = self.choices[arrival.index], arrival.output
        if choice.is_done:
            return None  # what the engine did before it noticed the abort
        choice.cached_tokens = max(choice.cached_tokens, output.cached_tokens)
        choice.prompt_logprobs += output.prompt_logprobs
        if output.token is None and output.finish_reason is None:
            return None  # a chunk of the prompt
        event = Event(arrival.index, [], output.token, output.logprobs, output.finish_reason)
        if output.token is not None:
            self._count_token(choice, arrival.time)
            if output.finish_reason != "stop" or choice.include_stop:
                event.pieces += choice.text.push(output.token)
        if output.finish_reason == "stop" and output.token in choice.request.params["stop_token_ids"]:
            event.stop_reason = output.token
        if choice.text.stopped_at is not None:
            event.finish_reason, event.stop_reason = "stop", choice.text.stopped_at
            self._subscription.abort(arrival.index)
        elif event.finish_reason is not None:
            event.pieces += choice.text.finish()
        if event.finish_reason is not None:
            choice.is_done = True
            self._running -= 1
            self._metrics.finished(event.finish_reason)
            self._metrics.e2e.observe(arrival.time - self._start)
        return event

    def _count_token(self, choice: Choice, now: float) -> None:
        if choice.num_tokens == 0:
            self._metrics.ttft.observe(now - self._start)
        else:
            self._metrics.itl.observe(now - choice.last_token_time)
        choice.num_tokens += 1
        choice.last_token_time = now
