"""The tables and files of `quaver bench offline --profile`, from measurements as the binding hands them over."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from quaver import _quaver
from quaver.bench import profile
from quaver.bench.options import add_offline_arguments
from quaver.cli import main

STEP: dict[str, Any] = {
    "step": "decode", "sequences": 2, "tokens": 2, "context": 40, "step_ms": 8.0, "after_idle_ms": 7.5, "gaps_ms": -1.0,
    "parts": {
        "qkv_gemm": {"ms": 6.0, "begins": 3, "bytes": 2e9, "fp8_flops": 1e12, "bf16_flops": 0.0, "least_ms": 3.0},
        "sampling": {"ms": 3.0, "begins": 1, "bytes": 1e9, "fp8_flops": 0.0, "bf16_flops": 0.0, "least_ms": 1.5},
    },
}  # fmt: skip


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_offline_arguments(parser)
    return parser.parse_args(["--model", "dir", *arguments])


def test_shares_of_the_step_and_of_the_ceiling() -> None:
    shared = profile.with_shares(STEP)
    assert shared["parts"]["qkv_gemm"]["percent_of_step"] == 75.0
    assert shared["parts"]["qkv_gemm"]["percent_of_ceiling"] == 50.0
    assert (shared["least_ms"], shared["percent_of_ceiling"]) == (4.5, 56.25)
    assert "percent_of_step" not in STEP["parts"]["qkv_gemm"]
    assert profile.rows(STEP) == [
        ("qkv_gemm", "6.000", "75.0", "2.00", "1.00", "3.000", "50"),
        ("sampling", "3.000", "37.5", "1.00", "0.00", "1.500", "50"),
        ("gaps", "-1.000", "-12.5", "", "", "", ""),
        ("step", "8.000", "100.0", "", "", "4.500", "56"),
        ("first step after the pause", "7.500", "", "", "", "", ""),
    ]


def test_the_load_is_the_benchmarks() -> None:
    row_s6 = "--random-input-len 8192 --random-output-len 1024 --max-concurrency 128 --max-num-batched-tokens 8192"
    expected = {"decode_sequences": 128, "context": 8704, "prefill_tokens": 8192}
    assert profile.load_of(parse(*row_s6.split())) == expected
    small = parse("--random-input-len", "100", "--max-num-seqs", "8")
    assert profile.load_of(small) == {"decode_sequences": 8, "context": 164, "prefill_tokens": 100}


def test_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: dict[str, Any] = {}

    def measured(directory: Path, **arguments: Any) -> list[dict[str, Any]]:
        asked.update(arguments, directory=directory)
        return [STEP]

    monkeypatch.setattr(_quaver, "profile_steps", measured)
    out = tmp_path / "profile.json"
    arguments = ["--model", "dir", "--load-format", "dummy", "--device", "cuda:1", "--profile", str(out)]
    assert main(["bench", "offline", *arguments]) == 0
    assert (asked["device"], asked["dummy_seed"], asked["directory"]) == ("cuda:1", 0, Path("dir"))
    written = json.loads(out.read_text())
    assert written["runs"] == [profile.with_shares(STEP)]
    assert {"date", "commit", "settings"} <= set(written)
    assert "profile" not in written["settings"]
    assert "qkv_gemm" in capsys.readouterr().out


@pytest.mark.skipif(_quaver.num_gpus() > 0, reason="this process sees a GPU")
def test_a_profile_needs_a_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["--model", str(tmp_path), "--profile", str(tmp_path / "p.json")]
    assert main(["bench", "offline", *arguments]) == 2
    assert "profile on cpu: expected a GPU" in capsys.readouterr().err
