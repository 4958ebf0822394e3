#!/usr/bin/env python3
"""Checks the house rules that no compiler knows. Prints one line a finding; exits 1 if there is any.

* layers: a folder of src/ includes only itself and folders above it in LAYERS
* size: source files stay below 400 lines
* asm only in src/ptx/; no exit(), abort() or assert() in src/
* no unfinished marks, no commented-out code
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["core", "ptx", "kv_cache", "attention", "gemm", "ops", "model", "engine", "bindings"]
SOURCE_SUFFIXES = {".h", ".cuh", ".cpp", ".cu", ".py"}
MAX_LINES = 400

INCLUDE = re.compile(r'^\s*#include\s+"(\w+)/')
ASM = re.compile(r"\basm\s*(volatile)?\s*\(")
ENDS_PROCESS = re.compile(r"\b((exit|assert|_Exit|terminate)\s*\(|abort\s*\(\s*\))")  # abort(id) is the engine's
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
COMMENTED_CODE = re.compile(r"^\s*//(?!/)\s.*[=(].*;\s*$")


def tracked_files() -> list[Path]:
    output = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    )
    names = output.stdout.decode().splitlines()
    return [ROOT / name for name in names if Path(name).suffix in SOURCE_SUFFIXES and (ROOT / name).is_file()]


def check_file(path: Path) -> list[str]:
    relative = path.relative_to(ROOT)
    parts = relative.parts
    lines = path.read_text().splitlines()
    findings = []
    in_src = parts[0] == "src" and len(parts) > 2
    layer = parts[1] if in_src else None
    if in_src and layer not in LAYERS:
        findings.append(f"{relative}: folder src/{layer} is in no layer; expected one of {', '.join(LAYERS)}")
        return findings
    if len(lines) > MAX_LINES:
        findings.append(f"{relative}: {len(lines)} lines; expected at most {MAX_LINES} (split by meaning)")
    for number, line in enumerate(lines, start=1):
        where = f"{relative}:{number}"
        if UNFINISHED.search(line) and relative.name != "check_tree.py":
            findings.append(f"{where}: unfinished mark")
        if path.suffix == ".py":
            continue
        if COMMENTED_CODE.match(line) and "://" not in line:
            findings.append(f"{where}: looks like commented-out code (or end the comment without a semicolon)")
        if not in_src:
            continue
        code = line.split("//")[0]
        include = INCLUDE.match(line)
        if include and include[1] in LAYERS and LAYERS.index(include[1]) > LAYERS.index(layer):
            findings.append(f"{where}: {layer} includes {include[1]}, which is below it")
        if ASM.search(code) and layer != "ptx":
            findings.append(f"{where}: asm outside src/ptx")
        if ENDS_PROCESS.search(code) and "static_assert" not in code:
            findings.append(f"{where}: ends the process; throw quaver::Error instead")
    return findings


def main() -> int:
    files = tracked_files()
    findings = [finding for path in files for finding in check_file(path)]
    for finding in findings:
        print(finding)
    print(f"check_tree: {len(files)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
