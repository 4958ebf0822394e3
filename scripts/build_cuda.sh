#!/usr/bin/env bash
# Compiles all CUDA for sm_90a (no GPU needed) and judges the result: scripts/check_cuda.py.
# Usage: scripts/build_cuda.sh   (after scripts/setup.sh)
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${QUAVER_TOOLS:-.venv/bin}
nvcc=$(scripts/cuda_compiler.sh)
log=build/cuda/build.log

launcher=$(command -v ccache || true)  # host code is the CPU build's
cmake --preset cuda -DCMAKE_CUDA_COMPILER="$nvcc" ${launcher:+-DCMAKE_CXX_COMPILER_LAUNCHER="$launcher"} \
  -DQUAVER_PYTHON=ON -DPython_EXECUTABLE="$(cd "$bin" && pwd)/python" -DQUAVER_PYTHON_OUTPUT="$PWD/build/cuda/python" > /dev/null
cmake --build --preset cuda --clean-first --target quaver quaver_python gpu_tests bench_attention bench_gemm bench_ops bench_layers bench_sampling > "$log" 2>&1 || { grep -E 'error|warning' "$log" >&2 || tail -n 40 "$log" >&2; exit 1; }
mapfile -t objects < <(find build/cuda/src -name '*.cu.o')
"$bin/python" scripts/check_cuda.py "$log" "${objects[@]}" --cuobjdump "$(echo "$PWD/$bin"/../lib/python3*/site-packages/nvidia/cu13/bin/cuobjdump)"
