"""The measuring programs of bench/, as far as they run without a GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "cpu" / "bench" / "numerics" / "numerics_table"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("absent/table.json", "expected a folder"), (".", "expected a file that can be written")],
)
def test_output_that_cannot_be_written(tmp_path: Path, name: str, expected: str) -> None:
    out = tmp_path / name
    done = subprocess.run([PROGRAM, out, "1"], capture_output=True, text=True)  # no context is that short: quick
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"numerics_table: output {out}: {expected}")
    assert not list(tmp_path.iterdir())


def test_output_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "table.json"
    subprocess.run([PROGRAM, out, "1"], check=True)
    assert out.read_text().endswith("}\n")
