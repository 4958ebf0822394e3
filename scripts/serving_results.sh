#!/usr/bin/env bash
# What a quiet machine without a GPU makes of serving: `quaver bench serve` against Gemma 3 270M (serve.json, serve.svg)
# and the host time of scheduling (scheduling.json). Usage: scripts/serving_results.sh [folder]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-bench/results/cpu}
scripts/build.sh quaver_python bench_scheduling
scripts/model.sh
build/cpu/bench/scheduling/bench_scheduling 5 "$(git rev-parse --short HEAD)" > "$out/scheduling.json"

log=$(mktemp)
.venv/bin/quaver serve --model models/gemma-3-270m --port 0 --max-model-len 1024 --kv-cache-memory-bytes 268435456 2> "$log" &
server=$!
trap 'kill $server; rm "$log"' EXIT
until url=$(grep -o 'http://[^ ]*$' "$log"); do
  kill -0 $server 2> /dev/null || { cat "$log" >&2; exit 1; }
  sleep 0.2
done
.venv/bin/quaver bench serve --base-url "$url" --tokenizer models/gemma-3-270m --random-input-len 128 \
  --random-output-len 32 --num-prompts 4x --max-concurrency 1,4,16 --num-warmups 4 \
  --save-result "$out/serve.json" --plot "$out/serve.svg"
