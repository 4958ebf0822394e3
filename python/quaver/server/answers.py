"""What both APIs share in answering: a stream of chunks, or the same chunks folded into one answer."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any, Protocol

from starlette.responses import Response

from quaver.server.generation import Event, Generation
from quaver.server.protocol import GenerationRequest
from quaver.server.service import Service
from quaver.server.web import EventStream, JsonAnswer

Json = dict[str, Any]


class Writer(Protocol):
    """One API's shape of choices."""

    id_prefix: str
    chunk_object: str
    answer_object: str

    def chunks(self, event: Event) -> list[Json]:
        """What an event adds, as elements of `choices` of a stream; all choices' events come through one writer."""
        ...

    def fold(self, chunks: list[Json]) -> Json:
        """The element of `choices` of a whole answer, from all chunks of one choice."""
        ...


def respond(service: Service, request: GenerationRequest, generation: Generation, writer: Writer) -> Response:
    """Ends `generation` when the answer is complete or nobody waits for it any more."""
    answer = _Answer(request, generation, writer, service.check_model(request.model))

    def close() -> None:
        service.end(generation)

    return EventStream(answer.stream(), close) if request.stream else JsonAnswer(answer.whole(), close)


class _Answer:
    def __init__(self, request: GenerationRequest, generation: Generation, writer: Writer, model: str) -> None:
        self._generation, self._writer = generation, writer
        self._with_usage = request.stream_options
        self._head = {"id": f"{writer.id_prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    async def stream(self) -> AsyncIterator[Json]:
        head = {**self._head, "object": self._writer.chunk_object}
        no_usage = {"usage": None} if self._with_usage else {}
        async for event in self._generation.events():
            for chunk in self._writer.chunks(event):
                yield {**head, "choices": [chunk], **no_usage}
        if self._with_usage:
            yield {**head, "choices": [], "usage": self._generation.usage()}

    async def whole(self) -> Json:
        chunks: list[list[Json]] = [[] for _ in self._generation.choices]
        async for event in self._generation.events():
            chunks[event.index] += self._writer.chunks(event)
        choices = [self._writer.fold(parts) for parts in chunks]
        head = {**self._head, "object": self._writer.answer_object}
        return {**head, "choices": choices, "usage": self._generation.usage()}
