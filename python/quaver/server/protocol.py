"""The requests of the OpenAI API, with vLLM's extensions: one line a field. null is the default everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from quaver.server.fields import (
    boolean,
    fail,
    integer,
    json_object,
    list_of,
    number,
    parse,
    parse_json,
    refuse_unsupported,
    text,
    token_ids,
)

Parsed = TypeVar("Parsed")

MAX_CHOICES = 128  # of one prompt
MAX_CHOICES_IN_ALL = 1024
MAX_PROMPTS = 1024
MAX_LOGPROBS = 20
MAX_STOP_STRINGS, MAX_STOP_LENGTH = 16, 1024
_MAX_TOKENS = (1 << 31) - 1

# Fields that other servers honour and this one does not, with the values that change nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "function_call": ("none",),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "kv_transfer_params": (),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "modalities": (["text"],),
    "mm_processor_kwargs": ({},),
    "prediction": (),
    "priority": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "structured_outputs": (),
    "suffix": ("",),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "web_search_options": (),
}


def _stop(name: str, value: Any) -> list[str]:
    strings = [value] if isinstance(value, str) else list_of(text, at_most=MAX_STOP_STRINGS)(name, value)
    for string in strings:
        if not 1 <= len(string) <= MAX_STOP_LENGTH:
            fail(name, string, f"strings of 1 to {MAX_STOP_LENGTH} characters")
    return strings


def _stream_options(name: str, value: Any) -> bool:
    """Whether a last chunk shall carry the usage."""
    options = json_object(name, value)
    refuse_unsupported({f"{name}.{key}": item for key, item in options.items()}, _UNSUPPORTED_STREAM_OPTIONS)
    include = options.get("include_usage")
    return False if include is None else boolean(f"{name}.include_usage", include)


_UNSUPPORTED_STREAM_OPTIONS = {"stream_options.continuous_usage_stats": (False,)}


def _logit_bias(name: str, value: Any) -> dict[int, float]:
    in_range = number(-100.0, 100.0)
    biases = {}
    for key, bias in json_object(name, value).items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            fail(name, key, "token ids as keys")
        biases[int(key)] = in_range(f"{name}.{key}", bias)
    return biases


def _prompts(name: str, value: Any) -> list[str | list[int]]:
    """A string, strings, ids, or lists of ids, as a list of prompts."""
    if isinstance(value, str) or (isinstance(value, list) and value and type(value[0]) is int):
        value = [value]
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_PROMPTS:
        fail(name, value, f"a string, token ids, or an array of 1 to {MAX_PROMPTS} of one of them")
    for index, prompt in enumerate(value):
        if not isinstance(prompt, str):
            token_ids(f"{name}[{index}]", prompt)
        if not prompt:
            fail(name, prompt, "at least one token in each prompt")
    return value


def _tool_choice(name: str, value: Any) -> str:
    if value not in ("auto", "none"):
        fail(name, value, '"auto" or "none", this server cannot make a model call a tool')
    return value


def _top_k(name: str, value: Any) -> int:
    return max(0, integer(-1, _MAX_TOKENS)(name, value))  # vLLM writes "all" as -1 or 0


def _seed(name: str, value: Any) -> int:
    return integer(-(1 << 63), (1 << 64) - 1)(name, value) % (1 << 64)


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """What completions and chat have in common."""

    model: Annotated[str | None, text] = None
    max_tokens: Annotated[int | None, integer(0, _MAX_TOKENS)] = None
    temperature: Annotated[float, number(0.0)] = 1.0
    top_p: Annotated[float, number(0.0, 1.0, above_low=True)] = 1.0
    top_k: Annotated[int, _top_k] = 0
    min_p: Annotated[float, number(0.0, 1.0)] = 0.0
    repetition_penalty: Annotated[float, number(0.0, above_low=True)] = 1.0
    presence_penalty: Annotated[float, number(-2.0, 2.0)] = 0.0
    frequency_penalty: Annotated[float, number(-2.0, 2.0)] = 0.0
    seed: Annotated[int | None, _seed] = None
    n: Annotated[int, integer(1, MAX_CHOICES)] = 1
    best_of: Annotated[int | None, integer(1, MAX_CHOICES)] = None
    stop: Annotated[list[str], _stop] = field(default_factory=list)
    stop_token_ids: Annotated[list[int], token_ids] = field(default_factory=list)
    include_stop_str_in_output: Annotated[bool, boolean] = False
    skip_special_tokens: Annotated[bool, boolean] = True
    ignore_eos: Annotated[bool, boolean] = False
    min_tokens: Annotated[int, integer(0, _MAX_TOKENS)] = 0
    logit_bias: Annotated[dict[int, float], _logit_bias] = field(default_factory=dict)
    cache_salt: Annotated[str, text] = ""
    stream: Annotated[bool, boolean] = False
    stream_options: Annotated[bool, _stream_options] = False  # becomes: include_usage

    def __post_init__(self) -> None:
        if self.best_of is not None and self.best_of != self.n:
            fail("best_of", self.best_of, f"n, which is {self.n}: this server returns every text that it generates")


@dataclass(frozen=True, kw_only=True)
class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Annotated[list[str | list[int]], _prompts]
    echo: Annotated[bool, boolean] = False
    logprobs: Annotated[int | None, integer(0, MAX_LOGPROBS)] = None
    add_special_tokens: Annotated[bool, boolean] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.prompt) * self.n > MAX_CHOICES_IN_ALL:
            fail("n", self.n, f"at most {MAX_CHOICES_IN_ALL} choices of all {len(self.prompt)} prompts together")

    @property
    def num_logprobs(self) -> int:
        return -1 if self.logprobs is None else self.logprobs


@dataclass(frozen=True, kw_only=True)
class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions. Messages and tools are checked by messages.py."""

    messages: Annotated[list[Any], list_of(json_object, at_least=1)]
    max_completion_tokens: Annotated[int | None, integer(0, _MAX_TOKENS)] = None
    logprobs: Annotated[bool, boolean] = False
    top_logprobs: Annotated[int, integer(0, MAX_LOGPROBS)] = 0
    tools: Annotated[list[Any], list_of(json_object)] = field(default_factory=list)
    tool_choice: Annotated[str, _tool_choice] = "auto"
    parallel_tool_calls: Annotated[bool, boolean] = True
    add_generation_prompt: Annotated[bool, boolean] = True
    chat_template_kwargs: Annotated[dict[str, Any], json_object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_logprobs and not self.logprobs:
            fail("top_logprobs", self.top_logprobs, "logprobs to be true with it")
        if not self.parallel_tool_calls:
            fail("parallel_tool_calls", False, "true, this server does not limit the number of calls")

    @property
    def num_logprobs(self) -> int:
        return self.top_logprobs if self.logprobs else -1


@dataclass(frozen=True, kw_only=True)
class TokenizeRequest:
    """POST /tokenize: a prompt, or messages as in a chat."""

    model: Annotated[str | None, text] = None
    prompt: Annotated[str | None, text] = None
    add_special_tokens: Annotated[bool, boolean] = True
    messages: Annotated[list[Any], list_of(json_object, at_least=1)] = field(default_factory=list)
    tools: Annotated[list[Any], list_of(json_object)] = field(default_factory=list)
    add_generation_prompt: Annotated[bool, boolean] = True
    chat_template_kwargs: Annotated[dict[str, Any], json_object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DetokenizeRequest:
    """POST /detokenize."""

    tokens: Annotated[list[int], token_ids]
    model: Annotated[str | None, text] = None


def parse_request(kind: type[Parsed], body: bytes, defaults: Mapping[str, Any]) -> Parsed:
    """The request in a body; fields that it leaves out are as in `defaults`, else as declared."""
    fields = parse_json(body)
    refuse_unsupported(fields, _UNSUPPORTED)
    return parse(kind, fields, defaults)
