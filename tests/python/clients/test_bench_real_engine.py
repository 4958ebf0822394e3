"""`quaver bench offline`, and the same load on a real server: figures that agree with what was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quaver.bench.local_server import LocalServer
from quaver.cli import main


def bench(model: Path, out: Path, *arguments: object, status: int = 0) -> list[dict[str, Any]]:
    common = ["--model", model, "--max-model-len", 128, "--kv-cache-memory-bytes", 1 << 20, "--save-result", out]
    assert main([str(part) for part in ("bench", "offline", *common, *arguments)]) == status
    return json.loads(out.read_text())["runs"]


def test_offline(tiny_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load = "--random-input-len 32 --random-output-len 8 --random-range-ratio 0.5 --num-prompts 6x --max-concurrency 1,4"
    runs = bench(tiny_dir, tmp_path / "out.json", *load.split(), "--num-warmups", 1)
    assert [(run["completed"], run["failed"]) for run in runs] == [(6, 0), (24, 0)]
    for run in runs:
        assert run["notes"] == [] and 0 < run["mean_itl_ms"] <= run["mean_e2el_ms"]
        assert run["output_throughput"] == pytest.approx(run["total_output_tokens"] / run["duration"])
        assert 16 <= run["total_input_tokens"] / run["completed"] <= 48
    assert "E2EL p99, ms" in capsys.readouterr().out


def test_requests_that_do_not_fit_are_failures(tiny_dir: Path, tmp_path: Path) -> None:
    (run,) = bench(
        tiny_dir,
        tmp_path / "out.json",
        "--random-input-len",
        120,
        "--random-output-len",
        20,
        "--num-prompts",
        2,
        status=1,
    )
    assert run["completed"] == 0 and run["failed"] == 2 and "128" in run["errors"][0]


def test_the_same_load_over_http(tiny_dir: Path, tmp_path: Path) -> None:
    """Prompts from the server's own tokenizer; completions and chats."""
    out = tmp_path / "out.json"
    load = "--random-input-len 24 --random-output-len 6 --num-prompts 6 --max-concurrency 3"
    with LocalServer(tiny_dir, "--max-model-len", 128, "--kv-cache-memory-bytes", 1 << 20) as server:
        for backend in ("openai", "openai-chat"):
            command = ["bench", "serve", "--base-url", server.url, "--backend", backend, "--save-result", str(out)]
            assert main([*command, *load.split()]) == 0
            (run,) = json.loads(out.read_text())["runs"]
            assert run["completed"] == 6 and run["notes"] == []
            assert (run["total_input_tokens"], run["total_output_tokens"]) == (6 * 24, 6 * 6)
    assert server.stop() == 0
