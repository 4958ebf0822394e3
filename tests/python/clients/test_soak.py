"""The soak of `make soak`, on the tiny model: 40 requests, a quarter of which hang up, and pages for a few at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).resolve().parents[3] / "scripts" / "soak.py"


def test_soak(tiny_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    settings = ("--requests", 40, "--concurrency", 16, "--max-model-len", 128, "--longest-prompt", 48,
                "--longest-answer", 64, "--kv-cache-memory-bytes", 22_000)  # fmt: skip
    command = [sys.executable, SOAK, "--model", tiny_dir, "--out", out, *settings]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (figures,) = json.loads(out.read_text())["runs"]
    assert figures["passed"] and figures["preemptions"] > 0 and figures["hung_up"] > 0
    assert figures["output_tokens_compared"] > 500
