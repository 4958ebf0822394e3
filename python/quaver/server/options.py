"""The flags of `quaver serve`, by vLLM's names. A flag that cannot be honoured is an error that says so."""

from __future__ import annotations

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any

from quaver.errors import BadInputError
from quaver.model_folder import model_folder
from quaver.server import parsers

_NUM_CORES = len(os.sched_getaffinity(0))
_CACHE_TYPES = {"auto": "fp8", "fp8": "fp8", "fp8_e4m3": "fp8", "bf16": "bf16", "bfloat16": "bf16"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser)
    _add_server(parser.add_argument_group("server"))
    _add_text(parser.add_argument_group("text"))


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `quaver bench offline` too."""
    _add_model(parser.add_argument_group("model"))
    _add_cache(parser.add_argument_group("KV cache"))
    _add_scheduling(parser.add_argument_group("scheduling and numerics"))


def _add_server(group: Any) -> None:
    add = group.add_argument
    add("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0: all (default %(default)s)")
    add("--port", type=int, default=8000, help="0: any free one (default %(default)s)")
    add("--api-key", action="append", default=[], metavar="KEY", help="ask clients for this key; may be repeated")
    add(
        "--shutdown-timeout",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="after SIGTERM, the longest wait for running requests (default: until they are done)",
    )
    add("--allowed-origins", nargs="+", default=[], metavar="URL", help="origins that browsers may call from (CORS)")


def _add_text(group: Any) -> None:
    add = group.add_argument
    add("--served-model-name", nargs="+", metavar="NAME", help="names in the API (default: the folder's name)")
    add("--chat-template", type=Path, metavar="FILE", help="Jinja template in place of the checkpoint's")
    add("--reasoning-parser", choices=parsers.NAMES, help="split thoughts off into reasoning_content")
    add("--tool-call-parser", choices=parsers.NAMES, help="accept tools and answer with tool_calls")


def _add_model(group: Any) -> None:
    add = group.add_argument
    add("--model", type=model_folder, required=True, metavar="DIR", help="Hugging Face folder of a Gemma 3 or 4 model")
    add("--tokenizer", type=Path, metavar="DIR", help="folder of the tokenizer (default: the model's)")
    add("--load-format", choices=("auto", "dummy"), default="auto", help="dummy: random weights of the true shapes")
    add("--hf-overrides", type=_json_object, default="{}", metavar="JSON", help="merged over config.json")
    add_device_argument(add)
    add("--enforce-eager", action="store_true", help="GPU: decode steps without CUDA graphs")
    add("--max-model-len", type=int, default=0, metavar="N", help="prompt and output; 0: as the model says (default)")
    add("--tensor-parallel-size", type=int, default=1, metavar="N", help="only 1: a model runs on one device")
    add("--data-parallel-size", type=int, default=1, metavar="N", help="engines in this process (default %(default)s)")
    add("--seed", type=int, help="of dummy weights (default 0) and of requests without a seed (default: random)")


def add_device_argument(add: Any) -> None:
    add("--device", default="auto", help="cpu, cuda, cuda:N, or auto: a GPU where there is one (default)")


def _add_cache(group: Any) -> None:
    add = group.add_argument
    add("--kv-cache-dtype", default="auto", metavar="TYPE", help="auto (FP8), fp8, fp8_e4m3 or bf16 (default auto)")
    add("--kv-cache-dtype-skip-layers", nargs="+", type=int, default=[], metavar="LAYER", help="layers kept in BF16")
    add("--kv-scales", choices=("auto", "one"), default="auto", help="FP8 scales the checkpoint lacks: derived, or 1.0")
    add("--block-size", type=int, default=64, choices=(16, 32, 64, 128), help="tokens of a page (default %(default)s)")
    add("--gpu-memory-utilization", type=float, default=0.9, metavar="SHARE", help="of memory (default %(default)s)")
    add(
        "--kv-cache-memory-bytes",
        type=int,
        default=0,
        metavar="BYTES",
        help="of each cache; 0: by utilization (default)",
    )
    add("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True, help="reuse equal prefixes")


def _add_scheduling(group: Any) -> None:
    add = group.add_argument
    add("--max-num-seqs", type=int, default=256, metavar="N", help="requests that run at once (default %(default)s)")
    add("--max-num-batched-tokens", type=int, default=2048, metavar="N", help="prompt tokens a step (%(default)s)")
    add("--enable-chunked-prefill", action=argparse.BooleanOptionalAction, default=True, help="cannot be turned off")
    add("--prefill-chunk-tokens", type=int, default=0, metavar="N", help="of one prompt a step; 0: no limit (default)")
    add("--attention-precision", choices=("auto", "single", "split", "full"), default="auto")
    add("--batch-invariant", action="store_true", help="a request's tokens do not depend on its batch-mates")


def check(options: argparse.Namespace) -> None:
    """Raises BadInputError for values that argparse cannot judge."""
    check_engine(options)
    if not 0 <= options.port < 1 << 16:
        _refuse("--port", options.port, "0 to 65535")
    if not options.shutdown_timeout >= 0:
        _refuse("--shutdown-timeout", options.shutdown_timeout, "0 or more seconds")
    if "" in options.api_key:
        _refuse("--api-key", "", "at least one character")


def check_engine(options: argparse.Namespace) -> None:
    """The same for what add_engine_arguments() has."""
    if options.tensor_parallel_size != 1:
        _refuse("--tensor-parallel-size", options.tensor_parallel_size, "1, a model runs on one device")
    if not options.enable_chunked_prefill:
        _refuse("--no-enable-chunked-prefill", "", "chunked prefill; --max-num-batched-tokens sets the chunk")
    if options.kv_cache_dtype not in _CACHE_TYPES:
        _refuse("--kv-cache-dtype", options.kv_cache_dtype, f"one of {', '.join(_CACHE_TYPES)}")
    if not 0.0 < options.gpu_memory_utilization <= 1.0:
        _refuse("--gpu-memory-utilization", options.gpu_memory_utilization, "a share above 0, at most 1")
    if options.seed is not None and not 0 <= options.seed < 1 << 63:
        _refuse("--seed", options.seed, "0 to 2^63 - 1")
    for name, low in (("data_parallel_size", 1), ("max_num_seqs", 1), ("max_num_batched_tokens", 1),
                      ("max_model_len", 0), ("prefill_chunk_tokens", 0), ("kv_cache_memory_bytes", 0)):  # fmt: skip
        if (value := getattr(options, name)) < low:
            _refuse(f"--{name.replace('_', '-')}", value, f"{low} or more")


def engine_arguments(
    options: argparse.Namespace, num_cores: int = _NUM_CORES, *, on_gpus: bool = False
) -> dict[str, Any]:
    """Of each Engine.load, except folder and device. Engines on the CPU share its cores and the machine's memory."""
    num_engines = options.data_parallel_size
    return {
        "kv_cache_dtype": _CACHE_TYPES[options.kv_cache_dtype],
        "kv_cache_dtype_skip_layers": options.kv_cache_dtype_skip_layers,
        "block_size": options.block_size,
        "max_model_len": options.max_model_len,
        "kv_cache_memory_bytes": options.kv_cache_memory_bytes,
        "gpu_memory_utilization": options.gpu_memory_utilization / (1 if on_gpus else num_engines),
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "prefill_chunk_tokens": options.prefill_chunk_tokens,
        "prefix_caching": options.enable_prefix_caching,
        "batch_invariant": options.batch_invariant,
        "kv_scales": options.kv_scales,
        "attention_precision": options.attention_precision,
        "hf_overrides": options.hf_overrides,
        "num_threads": max(1, num_cores // num_engines),
        "cuda_graphs": not options.enforce_eager,
        "dummy_seed": (options.seed or 0) if options.load_format == "dummy" else None,
    }


def _json_object(text: str) -> str:
    try:
        is_object = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise argparse.ArgumentTypeError(f"{text}: expected a JSON object")
    return text


def _refuse(flag: str, value: Any, expected: str) -> None:
    raise BadInputError(" ".join(f"{flag} {value}".split()) + f": expected {expected}")
