"""A stand-in of the shape of quaver._quaver.Engine whose tokens a script decides, so that tests of the HTTP side are
exact and take milliseconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

EOS = 1

Script = Callable[[list[int], dict[str, Any]], Sequence[int]]  # (prompt, params) → the tokens, an end if they run out


@dataclass
class TokenLogprobs:
    token: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


@dataclass
class Output:
    request_id: int
    token: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    cached_tokens: int = 0
    error: str = ""


@dataclass
class _Live:
    prompt: list[int]
    params: dict[str, Any]
    tokens: list[int]
    done: int = 0


class FakeEngine:
    """One token a step for each of the first `max_num_seqs` live requests; each holds one page while it runs."""

    def __init__(
        self,
        script: Script,
        *,
        max_model_len: int = 256,
        vocab_size: int = 300,
        step_s: float = 0.0,
        num_pages: int = 8,
    ) -> None:
        self.max_model_len, self.max_request_tokens = max_model_len, max_model_len
        self.requests: list[tuple[list[int], dict[str, Any]]] = []  # everything that add() accepted
        self.aborted: list[int] = []
        self.script = script
        self._vocab_size, self._step_s, self._num_pages = vocab_size, step_s, num_pages
        self._live: dict[int, _Live] = {}
        self._ready: list[Output] = []
        self._failure = ""
        self._news = threading.Condition()
        self._generated = 0

    def add(self, request_id: int, prompt: list[int], **params: Any) -> None:
        with self._news:
            if self._failure:
                raise RuntimeError(f"engine failed: {self._failure}")
            bad = next((token for token in prompt if token >= self._vocab_size), None)
            if bad is not None:
                raise ValueError(f"prompt {bad}: expected token ids below {self._vocab_size}")
            assert request_id not in self._live
            self.requests.append((prompt, params))
            self._live[request_id] = _Live(prompt, params, list(self.script(prompt, params)))
            self._news.notify()

    def abort(self, request_id: int) -> None:
        with self._news:
            self.aborted.append(request_id)
            if self._live.pop(request_id, None):
                self._ready.append(Output(request_id, finish_reason="abort"))
                self._news.notify()

    def break_down(self, reason: str) -> None:
        """As after an error of which the engine cannot recover."""
        with self._news:
            self._failure = reason
            self._ready += [Output(request_id, finish_reason="error", error=reason) for request_id in self._live]
            self._live.clear()
            self._news.notify()

    def wait(self, timeout_s: float) -> list[Output]:
        with self._news:
            if not self._live and not self._ready:
                self._news.wait(timeout_s)
        time.sleep(self._step_s)
        with self._news:
            outputs, self._ready = self._ready, []
            for request_id, live in list(self._live.items())[: self._num_pages]:
                outputs.append(self._step(request_id, live))
            return outputs

    def stats(self) -> SimpleNamespace:
        with self._news:
            running = min(len(self._live), self._num_pages)
            return SimpleNamespace(
                num_running=running, num_waiting=len(self._live) - running, num_pages=self._num_pages,
                num_free_pages=self._num_pages - running, steps_total=0, prompt_tokens_total=0, cached_tokens_total=0,
                generated_tokens_total=self._generated, preemptions_total=0, failed_steps_total=0,
            )  # fmt: skip

    def failure(self) -> str:
        return self._failure

    def close(self) -> None:
        self._live.clear()

    def _step(self, request_id: int, live: _Live) -> Output:
        output = Output(request_id, cached_tokens=len(live.prompt) // 2)
        if live.done == 0 and live.params["prompt_logprobs"] >= 0:
            output.prompt_logprobs = [logprobs(token, live.params["prompt_logprobs"]) for token in live.prompt[1:]]
        if live.params["max_tokens"] > 0:
            output.token = live.tokens[live.done] if live.done < len(live.tokens) else EOS
            live.done += 1
            self._generated += 1
            if live.params["logprobs"] >= 0:
                output.logprobs = logprobs(output.token, live.params["logprobs"])
        ends = live.params["stop_token_ids"] + ([] if live.params["ignore_eos"] else [EOS])
        if output.token in ends:
            output.finish_reason = "stop"
        elif live.done == live.params["max_tokens"]:
            output.finish_reason = "length"
        if output.finish_reason:
            del self._live[request_id]
        return output


def logprobs(token: int, num_top: int) -> TokenLogprobs:
    """Id 0 is the most probable token, then 1, 2, …; a token's logprob depends on its id alone."""
    top = [(other, _logprob(other)) for other in range(num_top)]
    return TokenLogprobs(token, _logprob(token), token + 1, top)


def _logprob(token: int) -> float:
    return -(token + 1) / 7
