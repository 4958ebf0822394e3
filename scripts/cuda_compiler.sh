#!/usr/bin/env bash
# Prints the path of an nvcc 13.x: the one on PATH, else the pinned wheels', installed into .venv-cuda first.
set -euo pipefail
cd "$(dirname "$0")/.."

if nvcc=$(command -v nvcc) && "$nvcc" --version | grep -q 'release 13\.' && [[ ${QUAVER_CUDA_WHEELS:-0} != 1 ]]; then
  echo "$nvcc"
  exit
fi
venv=.venv-cuda
stamp=$venv/requirements.stamp
if ! cmp -s scripts/requirements-cuda.txt "$stamp"; then
  echo "installing the CUDA 13.0 compiler from wheels into $venv" >&2
  python3 -m venv --clear "$venv" >&2
  "$venv/bin/pip" install --quiet -r scripts/requirements-cuda.txt >&2
  for root in "$venv"/lib/python3*/site-packages/nvidia/cu13; do
    ln -sfn lib "$root/lib64"  # where nvcc links from
    ln -sfn libcudart.so.13 "$root/lib/libcudart.so"  # what CMake looks for
  done
  cp scripts/requirements-cuda.txt "$stamp"
fi
nvcc=$(echo "$PWD/$venv"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
[[ -x $nvcc ]] || { echo "no nvcc in $venv: expected $nvcc" >&2; exit 1; }
echo "$nvcc"
