"""Writes the tables of docs/numerics.md, between its markers, from bench/results/cpu/numerics.json.

`--check` changes nothing and fails when the document does not show what the JSON file says.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results/cpu/numerics.json"
DOCUMENT = ROOT / "docs/numerics.md"
BEGIN = "<!-- begin: numerics tables, written by bench/numerics/render_table.py -->"
END = "<!-- end: numerics tables -->"

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


def tables(results: list[dict]) -> str:
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


def main() -> int:
    text = DOCUMENT.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    results = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
    rendered = f"{before}{BEGIN}\n\n{tables(results)}\n\n{END}{after}"
    if "--check" in sys.argv[1:]:
        if rendered != text:
            print(f"{DOCUMENT}: tables differ from {RESULTS}; run {Path(__file__).name}", file=sys.stderr)
        return int(rendered != text)
    DOCUMENT.write_text(rendered, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
