"""The flags of `quaver serve`: what reaches the engine, and one clear line for each that cannot be honoured."""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from quaver.errors import BadInputError
from quaver.server.devices import engine_devices
from quaver.server.options import add_arguments, check, engine_arguments
from quaver.server.serve import load_service
from quaver.server.service import sampling_defaults


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    options = parser.parse_args(["--model", "dir", *arguments])
    check(options)
    return options


def test_defaults() -> None:
    options = parse()
    assert (options.host, options.port, options.model) == ("127.0.0.1", 8000, Path("dir"))
    assert engine_arguments(options, num_cores=8) == {
        "kv_cache_dtype": "fp8", "kv_cache_dtype_skip_layers": [], "block_size": 64, "max_model_len": 0,
        "kv_cache_memory_bytes": 0, "gpu_memory_utilization": 0.9, "max_num_seqs": 256, "max_num_batched_tokens": 2048,
        "prefill_chunk_tokens": 0, "prefix_caching": True, "batch_invariant": False, "kv_scales": "auto",
        "attention_precision": "auto", "hf_overrides": "{}", "dummy_seed": None,
        "num_threads": 8, "cuda_graphs": True,
    }  # fmt: skip


@pytest.mark.parametrize(("arguments", "name", "value"), [
    ("--kv-cache-dtype fp8_e4m3", "kv_cache_dtype", "fp8"), ("--kv-cache-dtype bfloat16", "kv_cache_dtype", "bf16"),
    ("--kv-cache-dtype-skip-layers 0 5", "kv_cache_dtype_skip_layers", [0, 5]), ("--block-size 16", "block_size", 16),
    ("--no-enable-prefix-caching", "prefix_caching", False), ("--enable-chunked-prefill", "prefix_caching", True),
    ("--load-format dummy", "dummy_seed", 0), ("--load-format dummy --seed 7", "dummy_seed", 7),
    ("--batch-invariant", "batch_invariant", True), ("--max-num-seqs 3", "max_num_seqs", 3),
    ("--attention-precision split", "attention_precision", "split"), ("--max-model-len 99", "max_model_len", 99),
    ('--hf-overrides {"a":1}', "hf_overrides", '{"a":1}'), ("--prefill-chunk-tokens 8", "prefill_chunk_tokens", 8),
    ("--kv-cache-memory-bytes 1000", "kv_cache_memory_bytes", 1000), ("--kv-scales one", "kv_scales", "one"),
    ("--tensor-parallel-size 1", "block_size", 64), ("--max-num-batched-tokens 5", "max_num_batched_tokens", 5),
    ("--gpu-memory-utilization 0.5", "gpu_memory_utilization", 0.5), ("--data-parallel-size 3", "num_threads", 2),
    ("--enforce-eager", "cuda_graphs", False),
    ("--data-parallel-size 9", "num_threads", 1), ("--data-parallel-size 2", "gpu_memory_utilization", 0.45),
])  # fmt: skip
def test_flags_reach_the_engine(arguments: str, name: str, value: object) -> None:
    assert engine_arguments(parse(*arguments.split()), num_cores=8)[name] == value


@pytest.mark.parametrize(("arguments", "num_gpus", "devices"), [
    ("", 0, ["cpu"]), ("", 1, ["cuda:0"]), ("--device cpu", 4, ["cpu"]), ("--device cuda", 4, ["cuda:0"]),
    ("--data-parallel-size 2", 0, ["cpu", "cpu"]), ("--data-parallel-size 2", 3, ["cuda:0", "cuda:1"]),
    ("--device cuda:2", 4, ["cuda:2"]), ("--device cuda:7", 4, ["cuda:7"]), ("--device cuda", 0, ["cuda:0"]),
    ("--data-parallel-size 3 --kv-cache-memory-bytes 9", 2, ["cuda:0", "cuda:1", "cuda:0"]),
    ("--data-parallel-size 2 --device cuda:1 --kv-cache-memory-bytes 9", 2, ["cuda:1", "cuda:1"]),
])  # fmt: skip
def test_a_device_for_each_engine(arguments: str, num_gpus: int, devices: list[str]) -> None:
    assert engine_devices(parse(*arguments.split()), num_gpus) == devices


def test_engines_share_a_gpu_only_by_bytes() -> None:
    with pytest.raises(
        BadInputError, match="--data-parallel-size 3 on 2 GPUs: expected a GPU for each engine, or --kv"
    ):
        engine_devices(parse("--data-parallel-size", "3"), 2)
    with pytest.raises(BadInputError, match="--data-parallel-size 2 on 1 GPU: "):
        engine_devices(parse("--data-parallel-size", "2", "--device", "cuda"), 1)
    with pytest.raises(BadInputError, match="--data-parallel-size 2 on --device cuda:0: "):
        engine_devices(parse("--data-parallel-size", "2", "--device", "cuda:0"), 8)


def test_gpus_are_not_shared_by_utilization() -> None:
    options = parse("--data-parallel-size", "2")
    assert engine_arguments(options, on_gpus=True)["gpu_memory_utilization"] == 0.9


@pytest.mark.parametrize("arguments", [
    "--tensor-parallel-size 2", "--no-enable-chunked-prefill", "--kv-cache-dtype fp8_e5m2", "--kv-cache-dtype int8",
    "--gpu-memory-utilization 0", "--gpu-memory-utilization 1.5", "--port 70000", "--seed -1", "--data-parallel-size 0",
    "--max-num-seqs 0", "--max-num-batched-tokens 0", "--max-model-len -1", "--kv-cache-memory-bytes -1",
    "--shutdown-timeout -1", "--shutdown-timeout nan",
])  # fmt: skip
def test_flags_that_cannot_be_honoured(arguments: str) -> None:
    flag = arguments.split()[0]
    with pytest.raises(BadInputError, match=f"^{flag}.*: expected "):
        parse(*arguments.split())


@pytest.mark.parametrize("arguments", [
    "--block-size 48", "--hf-overrides [1]", "--hf-overrides {", "--load-format gguf", "--reasoning-parser other",
    "--attention-precision double", "--kv-cache-dtype-skip-layers sliding",
])  # fmt: skip
def test_values_that_do_not_exist(arguments: str) -> None:
    with pytest.raises(argparse.ArgumentError):
        parse(*arguments.split())


def serve(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quaver", "serve", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_one_line_for_what_is_wrong(tiny_dir: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, message in (
            (["--model", tiny_dir, "--port", port], f"--port {port}: expected a free address"),
            (["--model", tmp_path / "none", "--port", 0], str(tmp_path / "none")),
            (["--model", tiny_dir, "--pipeline-parallel-size", 2], "--pipeline-parallel-size"),
        ):
            result = serve(*arguments)
            assert result.returncode == 2, result.stderr
            assert result.stderr.count("\n") == 1 and message in result.stderr, result.stderr


def test_sampling_defaults(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path) == {}
    config = {"temperature": 1.0, "top_k": 64, "top_p": 0.95, "min_p": None, "max_new_tokens": 5, "do_sample": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert sampling_defaults(tmp_path) == {"temperature": 1.0, "top_k": 64, "top_p": 0.95}
    (tmp_path / "generation_config.json").write_text('{"top_p": "much"}')
    with pytest.raises(BadInputError, match=r'generation_config.json: top_p "much": expected a number'):
        sampling_defaults(tmp_path)


def test_a_chat_template_that_is_missing(tiny_dir: Path, tmp_path: Path) -> None:
    options = parse("--model", str(tiny_dir), "--chat-template", str(tmp_path / "none"))
    with pytest.raises(BadInputError, match="none: expected a text file"):
        load_service(options)
