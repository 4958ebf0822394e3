"""`quaver bench offline --profile`: where a prefill step and a decode step spend their time on a GPU.

The parts are measured between CUDA events in a step launched kernel by kernel; the step itself as it is served, decode
as a graph. So `gaps` = step - sum of the parts is negative where overlapping launches hide more than gaps cost. The
least time of a part is the slower of its bytes at 4.54 TB/s and its FLOPs at 1,680 (FP8) and 850 (BF16) TFLOP/s: what
an H200 was measured to sustain (src/model/step_cost.h).
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from quaver.bench import report
from quaver.bench.attention import driver_version
from quaver.bench.options import settings
from quaver.progress import SlowTask
from quaver.server.options import engine_arguments

Step = dict[str, Any]

_ARGUMENTS = (
    "kv_cache_dtype", "block_size", "kv_cache_memory_bytes", "gpu_memory_utilization", "kv_scales",
    "attention_precision", "hf_overrides", "dummy_seed", "batch_invariant",
)  # fmt: skip


def run(options: Namespace) -> int:
    """Profiles at the load of the benchmark, prints a table for each step and writes them to options.profile."""
    from quaver import _quaver

    arguments = engine_arguments(options, on_gpus=True)
    with SlowTask("profiling"):
        steps = _quaver.profile_steps(
            options.model, device=options.device, **load_of(options), **{name: arguments[name] for name in _ARGUMENTS}
        )
    for step in steps:
        print_table(step)
    report.save(
        options.profile, settings(options) | {"driver": driver_version()}, [with_shares(step) for step in steps]
    )
    return 0


def load_of(options: Namespace) -> dict[str, int]:
    """A decode step in the middle of the answers of the largest concurrency, and a prompt in one chunk."""
    concurrency = max((count or options.max_num_seqs) for count in options.max_concurrency)
    return {
        "decode_sequences": min(concurrency, options.max_num_seqs),
        "context": options.random_input_len + max(1, options.random_output_len // 2),
        "prefill_tokens": min(options.random_input_len, options.max_num_batched_tokens),
    }


def with_shares(step: Step) -> Step:
    """Adds to each part its share of the step and how much of the ceiling it reaches, in percent."""
    parts = {
        name: part
        | {
            "percent_of_step": _percent(part["ms"], step["step_ms"]),
            "percent_of_ceiling": _percent(part["least_ms"], part["ms"]),
        }
        for name, part in step["parts"].items()
    }
    least = sum(part["least_ms"] for part in parts.values())
    return step | {"parts": parts, "least_ms": least, "percent_of_ceiling": _percent(least, step["step_ms"])}


def rows(step: Step) -> list[tuple[str, ...]]:
    """Part, ms, % of the step, GB, TFLOP, least ms, % of the ceiling."""
    shared = with_shares(step)
    table = [
        (
            name,
            f"{part['ms']:.3f}",
            f"{part['percent_of_step']:.1f}",
            f"{part['bytes'] / 1e9:.2f}",
            f"{(part['fp8_flops'] + part['bf16_flops']) / 1e12:.2f}",
            f"{part['least_ms']:.3f}",
            f"{part['percent_of_ceiling']:.0f}",
        )
        for name, part in shared["parts"].items()
    ]
    table.append(
        ("gaps", f"{step['gaps_ms']:.3f}", f"{_percent(step['gaps_ms'], step['step_ms']):.1f}", "", "", "", "")
    )
    total = (
        f"{step['step_ms']:.3f}",
        "100.0",
        "",
        "",
        f"{shared['least_ms']:.3f}",
        f"{shared['percent_of_ceiling']:.0f}",
    )
    first = ("first step after the pause", f"{step['after_idle_ms']:.3f}", "", "", "", "", "")
    return [*table, ("step", *total), first]


def print_table(step: Step) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("part", *(_right(name) for name in ("ms", "% of step", "GB", "TFLOP", "least ms", "% of ceiling")))
    for row in rows(step):
        table.add_row(*row)
    console = Console()
    title = f"{step['step']}: {step['sequences']} sequences, {step['tokens']} tokens, context {step['context']}"
    console.print(title, style="bold", markup=False, highlight=False)
    console.print(table)


def _right(name: str) -> Any:
    from rich.table import Column

    return Column(name, justify="right")


def _percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole > 0 else 0.0
