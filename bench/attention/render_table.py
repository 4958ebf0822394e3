"""Writes the decode table of README.md, between its markers, from bench/results/h200/{decode,peers}.json.

`--check` changes nothing and fails when the document does not show what the JSON files say.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results/h200"
DOCUMENT = ROOT / "README.md"
BEGIN = "<!-- begin: decode table, written by bench/attention/render_table.py -->"
END = "<!-- end: decode table -->"

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
PEERS = ("FA3 FP8 two-level", "FA3 FP8 one-level", "cuDNN FP8")


def table() -> str:
    report = json.loads((RESULTS / "decode.json").read_text(encoding="utf-8"))
    peers = json.loads((RESULTS / "peers.json").read_text(encoding="utf-8"))["decode_kv_tbps"]
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


def main() -> int:
    text = DOCUMENT.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    rendered = f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"
    if "--check" in sys.argv[1:]:
        if rendered != text:
            print(f"{DOCUMENT}: the table differs from {RESULTS}; run {Path(__file__).name}", file=sys.stderr)
        return int(rendered != text)
    DOCUMENT.write_text(rendered, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
