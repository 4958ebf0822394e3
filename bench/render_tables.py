"""Writes tables into README.md and other documents, between their markers, from the files in bench/results.

`--check` changes nothing and fails when a document does not show what the result files say.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results"

CASES = {
    "d256_b128_kv8704_w1024": "256, batch 128, window 1024",
    "d256_b64_kv8192": "256, batch 64, 8192 keys",
    "d256_b64_kvmix64-16384": "256, batch 64, 64–16384 keys",
    "d256_b1_kv131072": "256, batch 1, 131072 keys",
    "d128_b64_kv8192": "128, batch 64, 8192 keys",
    "d64_b128_kv16384": "64, batch 128, 16384 keys",
    "d512_b128_kv8704": "512, batch 128, 8704 keys",
    "d256_b64_kv8192_rows32": "256, batch 64, 8192 keys, 32 rows a kv head",
}
PREFILL_CASES = {
    "d256_b1_q8192_kv8192_causal_single": "256, causal 8192",
    "d256_b1_q16384_kv16384_causal_single": "256, causal 16384",
    "d256_b1_q8192_kv8192_w1024_single": "256, causal 8192, window 1024",
    "d256_b4_q4096_kv4096_causal_single": "256, 4 x 4096",
    "d256_b1_q2048_kv32768_causal_single": "256, chunk of 2048 at 32768",
    "d192_b1_q8192_kv8192_causal_single": "192, causal 8192",
    "d128_b1_q8192_kv8192_causal_single": "128, causal 8192",
    "d128_b1_q16384_kv16384_causal_single": "128, causal 16384",
    "d64_b1_q8192_kv8192_causal_single": "64, causal 8192",
}
PEERS = ("FA3 FP8 two-level", "FA3 FP8 one-level", "cuDNN FP8")

COLUMNS = {
    "two-level": ("hardware13", 2, False),
    "two-level, QK promoted": ("hardware13", 2, True),
    "one-level": ("hardware13", 1, False),
    "FP32 accumulator": ("fp32", 2, False),
}
TITLES = {
    "normal": "N(0,1) data",
    "peaked": "Peaked data: a planted key 10 above the rest in logits",
}


def decode_table() -> str:
    report = json.loads((RESULTS / "h200/decode.json").read_text(encoding="utf-8"))
    peers = json.loads((RESULTS / "h200/peers.json").read_text(encoding="utf-8"))["decode_kv_tbps"]
    cases = {case["name"]: case for case in report["cases"]}
    lines = [
        f"| head dim, case | Quaver, TB/s | of the read ceiling | error | {' | '.join(PEERS)} |",
        "|---|---|---|---|" + "---|" * len(PEERS),
    ]
    for name, title in CASES.items():
        case = cases[name]
        shown = [str(peers.get(name, {}).get(peer, "–")) for peer in PEERS]
        lines.append(
            f"| {title} | **{case['kv_gbps'] / 1000:.2f}** | {case['pct_ceiling']:.0f} % "
            f"| {case['rel_l2']:.1e} | {' | '.join(shown)} |"
        )
    lines += [
        "",
        f"{report['gpu']}, driver {report['driver']}, commit {report['commit']}; read ceiling of the same run "
        f"{report['ceilings']['read_gbps'] / 1000:.2f} TB/s.",
    ]
    return "\n".join(lines)


def prefill_table() -> str:
    report = json.loads((RESULTS / "h200/prefill.json").read_text(encoding="utf-8"))
    peers = json.loads((RESULTS / "h200/peers.json").read_text(encoding="utf-8"))["prefill_tflops"]
    cases = {case["name"]: case for case in report["cases"]}
    names = (*PEERS, "BF16, best")
    lines = [
        f"| head dim, case | Quaver, TFLOP/s | error | {' | '.join(names)} |",
        "|---|---|---|" + "---|" * len(names),
    ]
    for name, title in PREFILL_CASES.items():
        shown = [str(peers.get(name, {}).get(peer, "–")) for peer in names]
        case = cases[name]
        lines.append(f"| {title} | **{case['tflops']:.0f}** | {case['rel_l2']:.1e} | {' | '.join(shown)} |")
    lines += ["", f"{report['gpu']}, driver {report['driver']}, commit {report['commit']}."]
    return "\n".join(lines)


def numerics_tables() -> str:
    results = json.loads((RESULTS / "cpu/numerics.json").read_text(encoding="utf-8"))["results"]
    cells = {
        (
            r["data"],
            r["precision"],
            r["head_dim"],
            r["context"],
            (r["accumulator"], r["levels"], r["promote_qk"]),
        ): r
        for r in results
    }
    lines = []
    for data, title in TITLES.items():
        for precision in ("split", "single"):
            lines += ["", f"**{title}, `{precision}`**: relative L2 of O (largest error of the LSE)", ""]
            lines += [f"| d | context | {' | '.join(COLUMNS)} |", "|---" * (2 + len(COLUMNS)) + "|"]
            for dim, context in sorted({(r["head_dim"], r["context"]) for r in results}):
                row = [cells.get((data, precision, dim, context, key)) for key in COLUMNS.values()]
                shown = [f"{r['relative_l2']:.1e} ({r['lse_max_error']:.0e})" if r else "–" for r in row]
                lines.append(f"| {dim} | {context} | {' | '.join(shown)} |")
    return "\n".join(lines).strip()


LOCAL_LAYER = ("gate_up", "down", "qkv_local", "o_local")
YARDSTICKS = ("row_wise", "row_wise_fast", "per_tensor_fast")


def gemm_table() -> str:
    report = json.loads((RESULTS / "h200/gemm.json").read_text(encoding="utf-8"))
    cases = {(case["m"], case["name"]): case for case in report["cases"]}
    tokens = sorted({m for m, _ in cases})
    lines = [
        "Microseconds of a local layer (of the read ceiling), of its four products, and of the layer with cuBLASLt:",
        "",
        f"| M | layer | {' | '.join(LOCAL_LAYER)} | row-wise | row-wise, fast accumulation | per-tensor, fast |",
        "|---|---|" + "---|" * (len(LOCAL_LAYER) + len(YARDSTICKS)),
    ]
    for m in (m for m in tokens if m <= 256):
        row = [cases[m, name] for name in LOCAL_LAYER]
        total = sum(case["us"] for case in row)
        floor = sum(case["n"] * case["k"] for case in row) / report["ceilings"]["read_gbps"] / 1e3
        peers = [f"{sum(case['cublaslt_us'][peer] for case in row):.1f}" for peer in YARDSTICKS]
        shown = [f"{case['us']:.1f}" for case in row]
        lines.append(f"| {m} | **{total:.1f}** ({100 * floor / total:.0f} %) | {' | '.join(shown + peers)} |")
    lines += [
        "",
        "TFLOP/s (of cuBLASLt row-wise):",
        "",
        f"| M | {' | '.join(LOCAL_LAYER)} |",
        "|---|" + "---|" * len(LOCAL_LAYER),
    ]
    for m in (m for m in tokens if m > 256):
        row = [cases[m, name] for name in LOCAL_LAYER]
        shown = [f"{case['tflops']:.0f} ({100 * case['cublaslt_us']['row_wise'] / case['us']:.0f} %)" for case in row]
        lines.append(f"| {m} | {' | '.join(shown)} |")
    fronts = [(m, cases[m, "gate_up_geglu"]) for m in tokens if (m, "gate_up_geglu") in cases]
    if fronts:
        lines += [
            "",
            "Microseconds from the MLP's input to that of down: gate in the product (the product alone) and its "
            "quantisation; product and `geglu_quantize`; cuBLASLt row-wise and `geglu_quantize`:",
            "",
            "| M | gate in the product | apart | cuBLASLt |",
            "|---|---|---|---|",
        ]
    for m, case in fronts:
        front = case["mlp_front_us"]
        lines.append(
            f"| {m} | {front['gate_in_product']:.1f} ({case['us']:.1f}) | {front['apart']:.1f} | "
            f"{front['cublaslt_row_wise']:.1f} |"
        )
    lines += [
        "",
        f"{report['gpu']}, driver {report['driver']}, commit {report['commit']}, cuBLASLt {report['cublaslt']}; read "
        f"ceiling of the same run {report['ceilings']['read_gbps'] / 1000:.2f} TB/s; in CUDA graphs with rotated "
        f"weights, {report['idle_ms']} ms idle before each.",
    ]
    return "\n".join(lines)


OPS = (
    "embed",
    "norm_quantize",
    "qkv_append_sliding",
    "qkv_append_full",
    "quantize_sliding",
    "quantize_full",
    "add_norm_quantize",
    "quantize_mlp",
    "geglu_quantize",
    "final_norm",
    "rope_table_sliding",
    "rope_table_full",
)


def ops_table() -> str:
    report = json.loads((RESULTS / "h200/ops.json").read_text(encoding="utf-8"))
    cases = {(case["name"], case["tokens"]): case for case in report["cases"]}
    steps = {step["tokens"]: step["ops_ms_a_step"] for step in report["steps"]}
    lines = [
        "Microseconds (of a device copy's bytes a second, read and written), and milliseconds of all ops of a step:",
        "",
        f"| op | {' | '.join(f'T = {tokens:,}' for tokens in steps)} |",
        "|---|" + "---|" * len(steps),
    ]
    for name in (name for name in OPS if (name, next(iter(steps))) in cases):
        row = [cases[name, tokens] for tokens in steps]
        shown = [f"{case['us']:.1f} ({case['pct_copy']:.0f} %)" for case in row]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    lines += [
        f"| **a step** | {' | '.join(f'**{ms:.2f} ms**' for ms in steps.values())} |",
        "",
        f"{report['gpu']}, driver {report['driver']}, commit {report['commit']}; copy ceiling of the same run "
        f"{report['ceilings']['copy_gbps'] / 1000:.2f} TB/s; in CUDA graphs, {report['idle_ms']} ms idle before each. "
        "Up to 1,024 tokens the operands lie in L2.",
    ]
    return "\n".join(lines)


def serve_31b_table() -> str:
    report = json.loads((RESULTS / "h200/serve_gemma4_31b.json").read_text(encoding="utf-8"))
    lines = [
        "| requests | at once | failed | output tokens/s | ITL median | TPOT mean | TTFT median | duration | GHz, W |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {run['num_prompts']} | {run['max_concurrency']} | {run['failed']} | **{run['output_throughput']:,.0f}** | "
        f"{run['median_itl_ms']:.1f} ms | {run['mean_tpot_ms']:.1f} ms | {run['median_ttft_ms'] / 1000:.1f} s | "
        f"{run['duration']:.0f} s | {run['sm_clock_mhz']['median'] / 1000:.2f}, {run['power_w']['median']:.0f} |"
        for run in report["runs"]
    ]
    lines += [
        "",
        f"{report['server']['gpu']}, driver {report['server']['driver']}, commit {report['commit']}; first answer "
        f"{report['server']['first_answer_s']:.1f} s after the server's start; median clock and power.",
    ]
    return "\n".join(lines)


def profile_31b_table() -> str:
    report = json.loads((RESULTS / "h200/profile_gemma4_31b.json").read_text(encoding="utf-8"))
    steps = {step["step"]: step for step in report["runs"]}
    prefill, decode = steps["prefill"], steps["decode"]
    title = {
        "prefill": f"a prompt of {prefill['tokens']:,} tokens",
        "decode": f"{decode['sequences']} sequences at {decode['context']:,} tokens",
    }
    lines = [
        f"| part | prefill, {title['prefill']}: ms | of the ceiling | decode, {title['decode']}: ms | of the ceiling |",
        "|---|---|---|---|---|",
    ]
    for part in prefill["parts"]:
        cells = [
            f"{step['parts'][part]['ms']:.2f} | {step['parts'][part]['percent_of_ceiling']:.0f} %"
            for step in (prefill, decode)
        ]
        lines.append(f"| {part} | {' | '.join(cells)} |")
    lines += [
        f"| gaps | {prefill['gaps_ms']:.2f} | | {decode['gaps_ms']:.2f} | |",
        f"| **step** | **{prefill['step_ms']:.1f}** | {prefill['percent_of_ceiling']:.0f} % "
        f"| **{decode['step_ms']:.1f}** | {decode['percent_of_ceiling']:.0f} % |",
        f"| first step after a second's pause | {prefill['after_idle_ms']:.1f} | | {decode['after_idle_ms']:.1f} | |",
        "",
        f"NVIDIA H200, driver {report['settings']['driver']}, commit {report['commit']}.",
    ]
    return "\n".join(lines)


DOCUMENTS = {
    ("README.md", "decode table"): decode_table,
    ("README.md", "prefill table"): prefill_table,
    ("README.md", "31B serving table"): serve_31b_table,
    ("docs/numerics.md", "numerics tables"): numerics_tables,
    ("docs/serving.md", "31B serving table"): serve_31b_table,
    ("docs/serving.md", "31B profile table"): profile_31b_table,
    ("src/gemm/packed_fp8/README.md", "GEMM table"): gemm_table,
    ("src/ops/cuda/README.md", "ops table"): ops_table,
}


def main() -> int:
    stale = 0
    for (name, title), render in DOCUMENTS.items():
        document = ROOT / name
        begin = f"<!-- begin: {title}, written by bench/render_tables.py -->"
        end = f"<!-- end: {title} -->"
        text = document.read_text(encoding="utf-8")
        before, rest = text.split(begin)
        rendered = f"{before}{begin}\n\n{render()}\n\n{end}{rest.split(end)[1]}"
        if "--check" not in sys.argv[1:]:
            document.write_text(rendered, encoding="utf-8")
        elif rendered != text:
            print(f"{document}: {title}: expected what {RESULTS} holds; run {Path(__file__).name}", file=sys.stderr)
            stale += 1
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
