#!/usr/bin/env bash
# Everything that needs a GPU: builds, runs the GPU tests, compute-sanitizer on small shapes, then the benchmarks.
# Usage: scripts/gpu_check.sh [OUT_DIR] [STEP...]   steps: build test sanitize bench (default: all)
# Exit status: that of the first step that failed; the others still run. Results: OUT_DIR/*.json, OUT_DIR/*.log
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/gpu-check}
shift || true
steps=${*:-build test sanitize bench}
jobs=$(nproc)
mkdir -p "$out"
status=0

run() {  # run NAME COMMAND...: output to NAME.log, its end to the terminal when it fails
  local name=$1 start=$SECONDS
  shift
  if "$@" > "$out/$name.log" 2>&1; then
    echo "ok    $name ($((SECONDS - start)) s)"
  else
    local code=$?
    echo "FAIL  $name ($((SECONDS - start)) s), end of $out/$name.log:"
    tail -n 60 "$out/$name.log"
    [[ $status -ne 0 ]] || status=$code
    return "$code"
  fi
}

build() {
  cmake --preset cuda -DCMAKE_CUDA_COMPILER="$(scripts/cuda_compiler.sh)" && cmake --build --preset cuda -j "$jobs" --target gpu_tests bench_attention bench_gemm bench_ops bench_layers bench_sampling
}

commit=${QUAVER_COMMIT:-$(git rev-parse --short HEAD 2> /dev/null || echo unknown)}
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
tests=build/cuda/tests/gpu_tests
for step in $steps; do
  case $step in
    build) run build build || exit "$status" ;;
    test)  # several at once, each with a few threads for the CPU's side: with all cores each, they wait for one another
      run test env OMP_NUM_THREADS=2 ctest --test-dir build/cuda -L gpu -j 8 --output-on-failure ;;
    sanitize)  # memcheck over every kind of launch; synccheck does not know setmaxnreg and racecheck not mbarriers, so
               # racecheck has the kernels without them: append, page copies, read-back, general, fused ops, sampling
      run memcheck compute-sanitizer --tool memcheck --error-exitcode 9 "$tests" \
        --gtest_filter='DeviceSampling.Every*:DeviceSampling.Cuts*:DeviceSampling.Random*:DeviceWeights.EveryByte*:DeviceLinearBf16.Exact*:OpsGraph.*:OpsQkv.Slots:SpanEnds.*:MixedSpans.*:PackedGemm.Every*:PackedGemm.Rows*:DecodeProbes.*:PrefillProbes.*:Append.*:CopyPages.*:ReadBack.*:GeneralProbes.*-*WindowEdge*:*EveryMaskEdge*:*RoutingAndColumns*:DecodeProbes.SmallWeights*'
      run racecheck compute-sanitizer --tool racecheck --error-exitcode 9 "$tests" \
        --gtest_filter='DeviceSampling.Every*:DeviceSampling.Cuts*:DeviceSampling.Random*:OpsGraph.*:OpsQkv.Slots:SpanEnds.*:Append*:CopyPages.*:ReadBack.*:GeneralProbes.*-*EveryBf16Value*:AppendLimits.*'
      ;;
    bench)
      run bench build/cuda/bench/attention/bench_attention --out "$out/decode.json" --commit "$commit" --driver "$driver"
      cat "$out/bench.log"
      run bench_prefill build/cuda/bench/attention/bench_attention --suite prefill --out "$out/prefill.json" --commit "$commit" --driver "$driver"
      cat "$out/bench_prefill.log"
      run bench_gemm build/cuda/bench/gemm/bench_gemm --out "$out/gemm.json" --commit "$commit" --driver "$driver"
      run bench_sampling build/cuda/bench/sampling/bench_sampling --out "$out/sampling.json" --commit "$commit" --driver "$driver"
      run bench_ops build/cuda/bench/ops/bench_ops --out "$out/ops.json" --commit "$commit" --driver "$driver"
      ;;
    *) echo "unknown step $step: expected build, test, sanitize or bench" >&2; exit 2 ;;
  esac
done
exit "$status"
