"""Arguments of `quaver bench serve` and `quaver bench offline`; names and defaults follow `vllm bench serve`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from quaver.server.options import add_engine_arguments

METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}


def add_load_arguments(parser: Any) -> None:
    """What both have: the load, and what to do with its figures."""
    add = parser.add_argument
    add("--dataset-name", choices=("random",), default="random", help="default %(default)s")
    add("--random-input-len", type=_positive, default=1024, help="prompt tokens (default %(default)s)")
    add("--random-output-len", type=_positive, default=128, help="tokens to generate (default %(default)s)")
    add("--random-range-ratio", type=float, default=0.0, help="lengths vary by this share, uniformly (default 0)")
    add("--num-prompts", type=_prompt_count, default="1000", metavar="N|Nx",
        help="requests, or N for each concurrent one (default %(default)s)")  # fmt: skip
    add("--max-concurrency", type=_concurrencies, default=[None], metavar="N[,N…]",
        help="most requests at once; several: one run each (default: no limit)")  # fmt: skip
    add("--request-rate", type=_rate, default=float("inf"), help="requests/s, Poisson; inf: all at once (default)")
    add("--num-warmups", type=_count, default=0, help="requests before the clock starts (default 0)")
    add(
        "--ignore-eos", action=argparse.BooleanOptionalAction, default=True, help="answers never end early (default on)"
    )
    add("--temperature", type=float, default=0.0, help="default 0: greedy")
    everything = ",".join(METRICS)
    add("--percentile-metrics", type=_metrics, default=everything, metavar="LIST", help="default %(default)s")
    add("--metric-percentiles", type=_percentiles, default="99", metavar="LIST", help="default %(default)s")
    add("--save-result", type=Path, metavar="FILE", help="write the figures as JSON")
    add("--plot", type=Path, metavar="FILE", help="draw throughput against latency as .svg or .png")


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--backend", choices=("openai", "openai-chat"), default="openai", help="default %(default)s")
    add("--base-url", default="http://127.0.0.1:8000", help="default %(default)s")
    add("--endpoint", help="default /v1/completions, or /v1/chat/completions with openai-chat")
    add("--model", help="name in the requests; a local folder is also the tokenizer (default: ask the server)")
    add("--tokenizer", type=Path, metavar="DIR", help="model folder on this machine (default: the server's /tokenize)")
    add("--ready-check-timeout-sec", type=float, default=0.0, help="wait so long for the server (default 0: ask once)")
    add("--seed", type=_count, default=0, help="of prompts, lengths and arrivals (default 0)")
    add_load_arguments(parser)


def add_offline_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser)
    load = parser.add_argument_group("load")
    add_load_arguments(load)
    load.add_argument(
        "--profile", type=Path, metavar="FILE", help="instead: parts of its prefill and decode steps on a GPU, as JSON"
    )


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """The options as they go into the result file: folders by their names, infinity as text."""
    skipped = {"run", "command", "what", "save_result", "plot", "profile"}
    return {name: _as_json(value) for name, value in vars(options).items() if name not in skipped}


def _as_json(value: Any) -> Any:
    if isinstance(value, Path):
        return value.resolve().name
    return str(value) if value == float("inf") else value


def num_prompts(options: argparse.Namespace, concurrency: int | None) -> int:
    """`--num-prompts 4x` is four requests for each concurrent one."""
    text = options.num_prompts
    if not text.endswith("x"):
        return int(text)
    if concurrency is None:
        raise ValueError(f"--num-prompts {text}: expected --max-concurrency with it")
    return int(text[:-1]) * concurrency


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text}: expected 0 or more")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 or more")
    return value


def _prompt_count(text: str) -> str:
    _positive(text.removesuffix("x"))
    return text


def _rate(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text}: expected requests/s above 0")
    return value


def _concurrencies(text: str) -> list[int | None]:
    return [_positive(part) for part in text.split(",")]


def _percentiles(text: str) -> list[float]:
    values = [float(part) for part in text.split(",")]
    if not all(0 <= value <= 100 for value in values):
        raise argparse.ArgumentTypeError(f"{text}: expected percentiles from 0 to 100")
    return values


def _metrics(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]}: expected {', '.join(METRICS)}")
    return names
