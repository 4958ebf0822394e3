"""`quaver bench attention`: runs the C++ benchmark of the GPU attention kernels, prints a table, plots the result.

All timing happens in the program `bench_attention` (bench/attention/, built with the preset `cuda`); this module finds
it, keeps its JSON report and draws it.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

from quaver.errors import BadInputError

SUITES = ("decode", "prefill")
PROGRAM = "bench_attention"
BUILD_TREE = Path(__file__).resolve().parents[3] / "build" / "cuda" / "bench" / "attention" / PROGRAM


def find_program() -> Path:
    """The benchmark: from PATH, else from the build tree. Raises BadInputError when neither has it."""
    on_path = shutil.which(PROGRAM)
    if on_path:
        return Path(on_path)
    if BUILD_TREE.is_file():
        return BUILD_TREE
    raise BadInputError(f"{PROGRAM}: expected on PATH or at {BUILD_TREE} (scripts/build_cuda.sh builds it)")


def version_control_commit() -> str:
    """QUAVER_COMMIT where a copy of the tree is measured, else the tree's short hash, "unknown" outside one."""
    if told := os.environ.get("QUAVER_COMMIT"):
        return told
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def driver_version() -> str:
    """NVIDIA driver version, "unknown" where nvidia-smi does not say."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def run(suite: str, out: Path, only: str = "", plot: Path | None = None) -> None:
    """Times `suite` and writes the report to `out` (and its picture to `plot`). Raises BadInputError when it fails."""
    if suite not in SUITES:
        raise BadInputError(f"suite {suite}: expected {' or '.join(SUITES)}")
    command = [find_program(), "--out", out, "--commit", version_control_commit(), "--driver", driver_version()]
    command += ["--suite", suite]
    if only:
        command += ["--only", only]
    out.parent.mkdir(parents=True, exist_ok=True)
    status = subprocess.run([str(part) for part in command], check=False).returncode
    if status != 0:
        raise BadInputError(f"{PROGRAM} ended with status {status}; expected 0 (see its message above)")
    if plot is not None:
        draw(read_report(out), plot)


def speed(case: dict) -> float:
    """TFLOP/s of a prefill case, KV terabytes a second of every other one."""
    return float(case["tflops"]) if "tflops" in case else float(case["kv_gbps"]) / 1000


def read_report(path: Path) -> dict:
    """A report of bench_attention, checked for the fields that people rely on."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        for field in ("commit", "gpu", "driver", "sm_clock_mhz"):
            report[field]
        float(report["ceilings"]["read_gbps"])
        for case in report["cases"]:
            float(case["us"]), str(case["name"]), speed(case)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInputError(f"{path}: expected a report of {PROGRAM} ({type(error).__name__}: {error})") from error
    return report


def draw(report: dict, path: Path) -> None:
    """Speed of every case as bars, decode with the read ceiling of its run; SVG or PNG by the ending of `path`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BadInputError("plot: expected matplotlib to be installed (pip install 'quaver[plot]')") from error
    other_work = ("graph_", "general_", "append_")
    cases = [case for case in report["cases"] if not case["name"].startswith(other_work)]
    figure = Figure(figsize=(8, 0.36 * len(cases) + 1.4), layout="constrained")
    axes = figure.subplots()
    speeds = [speed(case) for case in cases]
    prefill = any("tflops" in case for case in cases)
    bars = axes.barh([case["name"] for case in cases], speeds, color="#2b6cb0")
    axes.bar_label(bars, fmt="%.0f" if prefill else "%.2f", padding=3)
    axes.invert_yaxis()
    axes.set_xlabel("TFLOP/s over visible pairs" if prefill else "KV bytes read, TB/s")
    axes.set_title(f"FP8 {'prefill' if prefill else 'decode'} attention on {report['gpu']}, commit {report['commit']}")
    if not prefill:
        ceiling = report["ceilings"]["read_gbps"] / 1000
        axes.axvline(ceiling, color="#c05621", linestyle="--", label=f"read ceiling {ceiling:.2f} TB/s")
        axes.set_xlim(0, ceiling * 1.15)
        axes.legend(loc="lower right")
    figure.savefig(path)
