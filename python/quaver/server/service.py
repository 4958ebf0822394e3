"""What all handlers share: the engines, the model's text side, and the limits and defaults of this server."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request

from quaver.chat import chat_template, encode_chat
from quaver.errors import BadInputError
from quaver.server.engines import EnginePool, EngineRequest
from quaver.server.errors import RequestError, unavailable
from quaver.server.fields import fail, parse
from quaver.server.generation import Choice, Generation
from quaver.server.metrics import Metrics
from quaver.server.parsers import ReasoningParser, ToolParser
from quaver.server.protocol import GenerationRequest, Parsed, parse_request
from quaver.server.text import OutputText, Special
from quaver.server.web import Bodies
from quaver.tokenizer import Tokenizer, read_json

Result = TypeVar("Result")

_SAMPLING_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_PASSED_ON = (*_SAMPLING_DEFAULTS, "presence_penalty", "frequency_penalty", "min_tokens", "ignore_eos",
              "stop_token_ids", "logit_bias", "cache_salt")  # fmt: skip


@dataclass(kw_only=True)
class Service:
    """One served model. `defaults` are sampling settings for fields that a request leaves out."""

    pool: EnginePool
    tokenizer: Tokenizer
    model_dir: Path
    model_names: list[str]
    max_model_len: int
    max_request_tokens: int  # less than max_model_len if the KV cache is small
    template: str | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    reasoning_parser: type[ReasoningParser] | None = None
    tool_parser: type[ToolParser] | None = None
    seed: int | None = None  # of the seeds of requests that bring none
    draining: bool = False
    active: int = 0  # generations whose answers are not complete

    def __post_init__(self) -> None:
        self.template = self.template or chat_template(self.tokenizer)
        self.metrics = Metrics(self.pool.stats)
        # One thread: a Tokenizer is not for several, and long bodies and prompts must not stop the event loop.
        self._text_thread = ThreadPoolExecutor(1, thread_name_prefix="text")
        self._bodies = Bodies()
        self._longest_piece = self.tokenizer.longest_piece()
        self._random = random.Random(secrets.randbits(64) if self.seed is None else self.seed)

    def close(self) -> None:
        self.pool.close()
        self._text_thread.shutdown()

    async def parse(self, kind: type[Parsed], http_request: Request) -> Parsed:
        """The checked request, one of protocol.py."""
        async with self._bodies.read(http_request) as body:
            return await self._off_loop(partial(parse_request, kind, body, self.defaults))

    def check_model(self, name: str | None) -> str:
        """The name that an answer carries."""
        if name is not None and name not in self.model_names:
            names = " or ".join(self.model_names)
            raise RequestError(f"model {name!r}: expected {names}", "model", status=404, code="model_not_found")
        return name or self.model_names[0]

    async def encode_prompt(self, text: str, *, add_bos: bool) -> list[int]:
        self._check_characters("prompt", len(text))
        return await self._off_loop(partial(self.tokenizer.encode_prompt, text, add_bos=add_bos))

    async def encode_chat(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> list[int]:
        """Raises RequestError for what the template refuses."""
        if self.template is None:
            fail("messages", messages, "a model with a chat template; use /v1/completions or --chat-template")
        self._check_characters("messages", sum(len(message["content"]) for message in messages))
        try:
            return await self._off_loop(
                partial(encode_chat, self.tokenizer, messages, template=self.template, **variables)
            )
        except BadInputError as error:
            raise RequestError(f"messages: {error}", "messages") from None

    def start(
        self,
        request: GenerationRequest,
        prompts: list[list[int]],
        max_tokens: int | None,
        *,
        prompt_logprobs: int = -1,
        logprobs: int = -1,
        special: Special,
    ) -> Generation:
        """Queues n choices of each prompt. end() must follow. `max_tokens` None: as many as the context allows."""
        if self.draining:
            raise unavailable("server: it is shutting down")
        choices = []
        for prompt in prompts:
            seed = self._random.getrandbits(64) if request.seed is None else request.seed
            common = {name: getattr(request, name) for name in _PASSED_ON} | {
                "max_tokens": self._max_tokens(len(prompt), max_tokens),
                "logprobs": logprobs,
                "prompt_logprobs": prompt_logprobs,
            }
            for number in range(request.n):
                params = {**common, "seed": (seed + number) % (1 << 64)}
                text = OutputText(
                    self.tokenizer,
                    stop=request.stop,
                    include_stop=request.include_stop_str_in_output,
                    min_tokens=request.min_tokens,
                    special=special,
                )
                choices.append(Choice(EngineRequest(prompt, params), text, request.include_stop_str_in_output))
        generation = Generation(self.pool, self.metrics, choices)
        self.active += 1
        return generation

    def end(self, generation: Generation) -> None:
        generation.close()
        self.active -= 1

    def _check_characters(self, name: str, count: int) -> None:
        """Refuses what cannot fit without spending seconds on tokenizing it."""
        if count > self.max_model_len * self._longest_piece:
            message = f"{name} of {count} characters: expected what fits in max_model_len {self.max_model_len}"
            raise RequestError(message, name, code="context_length_exceeded")

    def _max_tokens(self, prompt_tokens: int, wanted: int | None) -> int:
        limit = self.max_model_len if wanted is not None else self.max_request_tokens
        least = 1 if wanted is None else wanted
        if prompt_tokens + least > limit:
            message = f"prompt of {prompt_tokens} tokens + max_tokens {least}: expected at most {limit}"
            raise RequestError(message, "max_tokens", code="context_length_exceeded")
        return limit - prompt_tokens if wanted is None else wanted

    async def _off_loop(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._text_thread, work)


def sampling_defaults(model_dir: Path) -> dict[str, Any]:
    """The model's own sampling settings, from generation_config.json."""
    path = model_dir / "generation_config.json"
    config = read_json(path, default={})
    settings = {name: config[name] for name in _SAMPLING_DEFAULTS if config.get(name) is not None}
    try:
        checked = parse(GenerationRequest, settings, {})
    except RequestError as error:
        raise BadInputError(f"{path}: {error.message}") from None
    return {name: getattr(checked, name) for name in settings}
