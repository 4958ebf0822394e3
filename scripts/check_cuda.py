#!/usr/bin/env python3
"""Judges a CUDA build: no serialised WGMMA, no register spills except those listed with a reason.

Usage: check_cuda.py BUILD_LOG OBJECT... [--spills cmake/spills.txt]

BUILD_LOG is the output of a build with -Xptxas -v. Fails on
  * ptxas warnings C75xx (wgmma.mma_async serialised, setmaxnreg ignored)
  * spill stores or loads of a kernel that cmake/spills.txt does not list, or above the listed bytes, or above 32 bytes
  * local-memory accesses (STL, LDL) inside the innermost loops that contain a WGMMA, in the objects' machine code
A line of spills.txt: <part of the kernel's mangled name> <bytes> <reason>. A line that no kernel needs is an error too.
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import networkx as nx

MAX_SPILL_BYTES = 32
SERIALISED = re.compile(r"\bC75\d\d\b")
ENTRY = re.compile(r"Compiling entry function '(\S+)'")
SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
FUNCTION = re.compile(r"^\s*Function : (\S+)")
ADDRESS = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")
BRANCH = re.compile(r"\bBRA(?:\.\w+)*\s+(?:\S+,\s*)*(0x[0-9a-f]+)")
CONDITIONAL_BRANCH = re.compile(r"^BRA(?:\.\w+)*\s+!?U?P\d")
ENDS = re.compile(r"^(EXIT|RET|BRX|JMX)\b")
WGMMA = re.compile(r"\b[QHI]GMMA\b")
LOCAL = re.compile(r"\b(STL|LDL)\b")

Instruction = tuple[int, str]  # address, text


@dataclass
class Allowance:
    name: str
    max_bytes: int
    reason: str
    used: bool = False


@dataclass
class Report:
    findings: list[str] = field(default_factory=list)
    kernels: int = 0
    tile_loops: int = 0


def read_allowances(path: Path) -> list[Allowance]:
    allowances = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.split(maxsplit=2)
        if len(parts) < 3 or not parts[1].isdigit() or int(parts[1]) > MAX_SPILL_BYTES:
            raise SystemExit(f"{path}:{number}: expected '<kernel> <bytes, at most {MAX_SPILL_BYTES}> <reason>'")
        allowances.append(Allowance(parts[0], int(parts[1]), parts[2]))
    return allowances


def check_log(log: str, allowances: list[Allowance], report: Report) -> None:
    kernel = "?"
    for line in log.splitlines():
        if SERIALISED.search(line):
            report.findings.append(f"serialised WGMMA or ignored setmaxnreg: {line.strip()}")
        if entry := ENTRY.search(line):
            kernel = entry[1]
            report.kernels += 1
        if spill := SPILL.search(line):
            spilled = max(int(spill[2]), int(spill[3]))
            if spilled == 0:
                continue
            allowance = next((a for a in allowances if a.name in kernel), None)
            if allowance is None:
                report.findings.append(f"{kernel}: {spilled} bytes spilled, and not listed in spills.txt")
            elif spilled > allowance.max_bytes:
                report.findings.append(f"{kernel}: {spilled} bytes spilled; listed are {allowance.max_bytes}")
            if allowance is not None:
                allowance.used = True
    report.findings += [f"spills.txt: no kernel needs '{a.name}' any more" for a in allowances if not a.used]


def control_flow(code: list[Instruction]) -> nx.DiGraph:
    """Instructions as nodes; an edge for falling through and for every branch."""
    position = {address: index for index, (address, _) in enumerate(code)}
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(code)))
    for index, (_, text) in enumerate(code):
        branch = BRANCH.search(text)
        if branch and int(branch[1], 16) in position:
            graph.add_edge(index, position[int(branch[1], 16)])
        always = not text.startswith("@") and not CONDITIONAL_BRANCH.search(text)
        ends = always and (branch or ENDS.match(text))
        if not ends and index + 1 < len(code):
            graph.add_edge(index, index + 1)
    return graph


def natural_loops(graph: nx.DiGraph) -> list[set[int]]:
    """Bodies of the loops: for every header, the nodes that reach one of its back edges without passing the header."""
    dominators = nx.immediate_dominators(graph, 0)

    def dominates(header: int, node: int) -> bool:
        while node != header and dominators.get(node, node) != node:
            node = dominators[node]
        return node == header

    bodies: dict[int, set[int]] = {}
    for tail, header in graph.edges:
        if dominates(header, tail):
            body = bodies.setdefault(header, {header})
            stack = [tail]
            while stack:
                node = stack.pop()
                if node not in body:
                    body.add(node)
                    stack.extend(graph.predecessors(node))
    return list(bodies.values())


def tile_loops(code: list[Instruction]) -> list[set[int]]:
    """The innermost loops that contain a WGMMA (the loop over work items around them may spill)."""
    if not any(WGMMA.search(text) for _, text in code):
        return []
    with_mma = [body for body in natural_loops(control_flow(code)) if any(WGMMA.search(code[i][1]) for i in body)]
    return [body for body in with_mma if not any(other < body for other in with_mma)]


def check_function(name: str, code: list[Instruction], report: Report) -> None:
    for body in tile_loops(code):
        report.tile_loops += 1
        local = [code[index][1] for index in sorted(body) if LOCAL.search(code[index][1])]
        if local:
            report.findings.append(f"{name}: {len(local)} local-memory accesses inside a tile loop, e.g. {local[0]}")


def check_machine_code(obj: Path, cuobjdump: str, report: Report) -> None:
    sass = subprocess.run([cuobjdump, "-sass", str(obj)], check=True, capture_output=True, text=True).stdout
    name, code = "?", []
    for line in sass.splitlines():
        if function := FUNCTION.match(line):
            check_function(name, code, report)
            name, code = function[1], []
        elif instruction := ADDRESS.search(line):
            code.append((int(instruction[1], 16), instruction[2]))
    check_function(name, code, report)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("objects", nargs="*", type=Path)
    parser.add_argument("--spills", type=Path, default=Path(__file__).parent.parent / "cmake" / "spills.txt")
    parser.add_argument("--cuobjdump", default="cuobjdump")
    arguments = parser.parse_args()
    report = Report()
    check_log(arguments.log.read_text(), read_allowances(arguments.spills), report)
    for obj in arguments.objects:
        check_machine_code(obj, arguments.cuobjdump, report)
    for finding in report.findings:
        print(finding)
    print(f"check_cuda: {report.kernels} kernels, {report.tile_loops} tile loops, {len(report.findings)} findings")
    if report.kernels == 0:
        print("check_cuda: the log holds no kernel: was it a full build with -Xptxas -v?")
    return 1 if report.findings or report.kernels == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
