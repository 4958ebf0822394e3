"""Shows the runs of a load: a table (one column a concurrency), a JSON file, and a picture."""

from __future__ import annotations

import json
import os
import platform
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quaver import __version__
from quaver.bench.attention import version_control_commit
from quaver.bench.metrics import percentile_key
from quaver.bench.options import METRICS, settings
from quaver.errors import BadInputError

Run = dict[str, Any]  # metrics.summarise and what was asked for

_COUNTS = {
    "completed requests": "completed",
    "failed requests": "failed",
    "duration, s": "duration",
    "input tokens": "total_input_tokens",
    "output tokens": "total_output_tokens",
    "requests/s": "request_throughput",
    "output tokens/s": "output_throughput",
    "total tokens/s": "total_token_throughput",
}


def show(options: Namespace, title: str, model: str, runs: Sequence[Run]) -> int:
    """Prints, saves and draws what the options ask for; returns 1 if any request failed."""
    print_table(title, runs, options.percentile_metrics, options.metric_percentiles)
    if options.save_result:
        save(options.save_result, settings(options) | {"model": model}, runs)
    if options.plot:
        draw(options.plot, title, runs)
    return 1 if any(run["failed"] for run in runs) else 0


def print_table(title: str, runs: Sequence[Run], metrics: Sequence[str], percentiles: Sequence[float]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("concurrency")
    for run in runs:
        table.add_column(str(run["max_concurrency"] or "no limit"), justify="right")
    for label, key in _COUNTS.items():
        table.add_row(label, *(_number(run.get(key)) for run in runs))
    for metric in metrics:
        table.add_section()
        keys = {"mean": f"mean_{metric}_ms", "median": f"median_{metric}_ms"}
        keys |= {f"p{p:g}": percentile_key(p, metric) for p in percentiles}
        for label, key in keys.items():
            table.add_row(f"{METRICS[metric]} {label}, ms", *(_number(run.get(key)) for run in runs))
    console = Console()
    console.print(title, style="bold", markup=False, highlight=False)
    console.print(table)
    for run in runs:
        for error in run["errors"]:
            console.print(f"failed: {error}", style="red", markup=False, highlight=False)
        for note in run["notes"]:
            console.print(f"note: {note}", markup=False, highlight=False)


def save(path: Path, settings: dict[str, Any], runs: Sequence[Run]) -> None:
    """`settings` are the options of the command; the file also says when and where it ran."""
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quaver": __version__,
        "commit": version_control_commit(),
        "machine": {"cpu": _cpu_name(), "cores": os.cpu_count()},
        "settings": settings,
        "runs": list(runs),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def draw(path: Path, title: str, runs: Sequence[Run]) -> None:
    """Output tokens/s against time per token and against time to first token; SVG or PNG by the ending of `path`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise BadInputError("--plot: expected matplotlib to be installed (pip install 'quaver[plot]')") from None
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    figure.suptitle(f"{title} (numbers: concurrency)")
    panels = {"mean_tpot_ms": "mean time per output token, ms", "mean_ttft_ms": "mean time to first token, ms"}
    for axes, (key, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        points = [(run[key], run["output_throughput"], run["max_concurrency"]) for run in runs if key in run]
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], "o-", color="#2b6cb0")
        for x, y, concurrency in points:
            axes.annotate(str(concurrency or "∞"), (x, y), textcoords="offset points", xytext=(6, -12))
        axes.margins(0.1)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(label)
        axes.set_ylabel("output tokens/s")
        axes.grid(alpha=0.3)
    figure.savefig(path)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
