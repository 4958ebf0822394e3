#!/usr/bin/env python3
"""Row S6 on a GPU: serves Gemma 4 31B with dummy weights, runs `quaver bench serve` against it, and writes one file.

Usage: serve_31b.py OUT.json [--prompts 512] [--warmups 1] [--runs 3]. Runs are added to those of the same commit that
OUT.json has. Beside the client's report the file says the server's command, GPU, driver, the seconds from its start to
its first answer, and for every run the SM clock and power that nvidia-smi saw, twice a second.
"""

import argparse
import csv
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

URL = "http://127.0.0.1:8000"
SERVER = (
    "serve --model gemma-4-31b --load-format dummy --max-model-len 9216 --max-num-seqs 128 "
    "--max-num-batched-tokens 8128 --gpu-memory-utilization 0.97 --no-enable-prefix-caching"
)
CLIENT = f"bench serve --base-url {URL} --random-input-len 8192 --random-output-len 1024 --max-concurrency 128"
QUAVER = [sys.executable, "-m", "quaver"]


def smi(query: str, *more: str) -> list[str]:
    return ["nvidia-smi", "--id=0", f"--query-gpu={query}", "--format=csv,noheader,nounits", *more]


def first_answer(server: subprocess.Popen, seconds: float = 120.0) -> float:
    """Seconds until the server has answered a completion."""
    body = json.dumps({"model": "gemma-4-31b", "prompt": [2, 100], "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{URL}/v1/completions", body, {"Content-Type": "application/json"})
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        if server.poll() is not None:
            sys.exit(f"the server ended with status {server.returncode}")
        try:
            with urllib.request.urlopen(request, timeout=seconds):
                return time.monotonic() - begin
        except urllib.error.URLError:
            time.sleep(0.05)
    sys.exit(f"no answer of the server within {seconds} s")


def spread(values: list[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def measured_run(prompts: int, warmups: int) -> dict:
    """The client's report of one run, the run itself with clocks and power."""
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder, "run.json")
        log = pathlib.Path(folder, "clocks.csv")
        command = f"{CLIENT} --num-prompts {prompts} --num-warmups {warmups} --save-result {result}"
        with log.open("w") as file:
            watch = subprocess.Popen(smi("clocks.sm,power.draw", "-lms", "500"), stdout=file)
            try:
                subprocess.run([*QUAVER, *command.split()], check=True)
            finally:
                watch.terminate()
                watch.wait()
        report = json.loads(result.read_text())
        samples = [tuple(map(float, row)) for row in csv.reader(log.open())]
    seen = [sample for sample in samples if sample[1] > 200.0]  # W: an idle GPU is not a part of the load
    [run] = report["runs"]
    run["sm_clock_mhz"] = spread([clock for clock, _ in seen])
    run["power_w"] = spread([power for _, power in seen])
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--warmups", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    gpu, driver = (part.strip() for part in subprocess.check_output(smi("name,driver_version"), text=True).split(","))
    server = subprocess.Popen([*QUAVER, *SERVER.split()])
    try:
        seconds = first_answer(server)
        for _ in range(options.runs):
            report = measured_run(options.prompts, options.warmups)
            if options.out.exists():
                before = json.loads(options.out.read_text())
                if before["commit"] == report["commit"]:
                    report["runs"] = before["runs"] + report["runs"]
            report["server"] = {
                "command": f"quaver {SERVER}",
                "gpu": gpu,
                "driver": driver,
                "first_answer_s": round(seconds, 2),
            }
            partial = options.out.with_suffix(".partial")
            partial.write_text(json.dumps(report, indent=1) + "\n")
            os.replace(partial, options.out)
    finally:
        server.terminate()
        server.wait(timeout=60)


if __name__ == "__main__":
    main()
