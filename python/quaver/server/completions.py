"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from quaver.server.answers import Json, respond
from quaver.server.generation import Choice, Event
from quaver.server.logprobs import CompletionLogprobs
from quaver.server.protocol import CompletionRequest
from quaver.server.service import Service
from quaver.server.text import OutputText, Special

Logprobs = dict[str, list[Any]]

_DEFAULT_MAX_TOKENS = 16  # OpenAI's


async def create_completion(service: Service, http_request: Request) -> Response:
    request = await service.parse(CompletionRequest, http_request)
    service.check_model(request.model)
    prompts = [
        await service.encode_prompt(prompt, add_bos=request.add_special_tokens) if isinstance(prompt, str) else prompt
        for prompt in request.prompt
    ]
    max_tokens = request.max_tokens
    if max_tokens is None:
        max_tokens = max(1, min(_DEFAULT_MAX_TOKENS, service.max_request_tokens - max(map(len, prompts))))
    generation = service.start(
        request,
        prompts,
        max_tokens,
        logprobs=request.num_logprobs,
        prompt_logprobs=request.num_logprobs if request.echo else -1,
        special=Special.SKIP if request.skip_special_tokens else Special.TEXT,
    )
    texts = [prompt if isinstance(prompt, str) else None for prompt in request.prompt for _ in range(request.n)]
    writer = CompletionWriter(service, request, generation.choices, texts)
    return respond(service, request, generation, writer)


class CompletionWriter:
    """Choices with `text` and, on demand, `logprobs`; with echo, the first chunk of a choice is its prompt."""

    id_prefix = "cmpl"
    chunk_object = answer_object = "text_completion"

    def __init__(
        self, service: Service, request: CompletionRequest, choices: list[Choice], prompt_texts: list[str | None]
    ) -> None:
        self._service, self._request, self._choices = service, request, choices
        self._prompt_texts = prompt_texts  # None: the prompt came as ids
        self._logprobs: dict[int, CompletionLogprobs] = {}  # of the choices that have begun

    def chunks(self, event: Event) -> list[Json]:
        chunks = []
        if event.index not in self._logprobs:
            text = self._begin(event.index)
            if self._request.echo:
                chunks.append(_choice(event.index, text, self._prompt_logprobs(event.index)))
        logprobs = None
        if self._request.logprobs is not None and event.token is not None:
            logprobs = self._logprobs[event.index].entry(
                event.token, event.logprobs, last=event.finish_reason is not None
            )
        if event.token is not None or event.text or not chunks:
            chunks.append(_choice(event.index, event.text, logprobs))
        chunks[-1] |= {"finish_reason": event.finish_reason, "stop_reason": event.stop_reason}
        return chunks

    def fold(self, chunks: list[Json]) -> Json:
        logprobs = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"] is not None]
        for more in logprobs[1:]:
            _extend(logprobs[0], more)
        text = "".join(chunk["text"] for chunk in chunks)
        return {**chunks[-1], "text": text, "logprobs": logprobs[0] if logprobs else None}

    def _begin(self, index: int) -> str:
        """Prepares the logprobs of a choice; returns its prompt's text where that is echoed."""
        text = ""
        if self._request.echo:
            given = self._prompt_texts[index]
            text = given if given is not None else self._prompt_text(self._choices[index].request.prompt)
        self._logprobs[index] = CompletionLogprobs(
            self._service.tokenizer, show_special=not self._request.skip_special_tokens, offset=len(text)
        )
        return text

    def _prompt_text(self, prompt: list[int]) -> str:
        text = OutputText(self._service.tokenizer, special=Special.TEXT)
        pieces = [piece for token_id in prompt[self._hidden(prompt) :] for piece in text.push(token_id)]
        return "".join(piece.text for piece in pieces + text.finish())

    def _hidden(self, prompt: list[int]) -> int:
        """How many tokens at the start are not part of the text: <bos>."""
        return int(prompt[0] == self._service.tokenizer.bos_id)

    def _prompt_logprobs(self, index: int) -> Logprobs | None:
        if self._request.logprobs is None:
            return None
        choice = self._choices[index]
        prompt = choice.request.prompt
        hidden = self._hidden(prompt)
        arrays: Logprobs = {
            "tokens": [""] * hidden,
            "token_logprobs": [None] * hidden,
            "top_logprobs": [None] * hidden,
            "text_offset": [0] * hidden,
        }
        writer = CompletionLogprobs(self._service.tokenizer, show_special=True, offset=0)
        for position in range(hidden, len(prompt)):
            value = choice.prompt_logprobs[position - 1] if position else None
            _extend(arrays, writer.entry(prompt[position], value, last=position == len(prompt) - 1))
        return arrays


def _choice(index: int, text: str, logprobs: Logprobs | None) -> Json:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None, "stop_reason": None}


def _extend(arrays: Logprobs, more: Logprobs) -> None:
    for name, values in more.items():
        arrays[name] += values
