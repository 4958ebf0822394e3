#!/usr/bin/env bash
# Builds build/cpu (library, tests, Python module) after setting up. Usage: scripts/build.sh [target …]   (all if none)
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh

if [[ ! -f build/cpu/build.ninja ]] || ! grep -q '^QUAVER_PYTHON:BOOL=ON' build/cpu/CMakeCache.txt; then
  launcher=$(command -v ccache || true)
  cmake --preset cpu -DQUAVER_PYTHON=ON -DPython_EXECUTABLE="$PWD/.venv/bin/python" \
    ${launcher:+-DCMAKE_CXX_COMPILER_LAUNCHER="$launcher"} > /dev/null
fi
log=build/cpu/build.log
if ! cmake --build --preset cpu ${1:+--target "$@"} > "$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
